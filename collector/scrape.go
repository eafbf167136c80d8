package collector

import (
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// maxScrapes is how many scrapes may be under way, of all shards together;
	// more are told to come back.
	maxScrapes = 8
	// manySeries is what one scrape should not exceed: vmagent takes 16 MiB, and
	// Prometheus holds the whole answer in memory.
	manySeries = 200_000
	// manyEvery is how often that is said.
	manyEvery = time.Hour
)

// scraping serves /metrics: everything, or with ?shard=0&of=4 the nodes whose
// partition leaves that remainder, so that several jobs share the fleet. The
// collector's own families come with shard 0.
type scraping struct {
	c       *Collector
	options promhttp.HandlerOpts
	slots   chan struct{}
	most    int          // series of one answer
	said    atomic.Int64 // when the last large answer was complained of
}

func newScraping(c *Collector) *scraping {
	return &scraping{
		c: c, slots: make(chan struct{}, maxScrapes), most: manySeries,
		options: promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelWarn)},
	}
}

// ServeHTTP implements http.Handler. The library's own limit counts for one
// handler, of which there is one for each part.
func (s *scraping) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, err := partOf(r)
	if err != nil {
		answer(w, http.StatusBadRequest, err.Error())
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		answer(w, http.StatusServiceUnavailable, fmt.Sprintf("%d scrapes are under way, which is the most; try again later", maxScrapes))
		return
	}
	p.fleet = s.c.scrapers.may(r, s.c.opts.Now(), s.c.lead) && s.c.Active()
	whole(promhttp.HandlerForTransactional(counted{s, s.c.families.part(p)}, s.options)).ServeHTTP(w, r)
}

// partOf reads which shard is asked for.
func partOf(r *http.Request) (part, error) {
	q := r.URL.Query()
	if !q.Has("shard") && !q.Has("of") {
		return everything, nil
	}
	shard, of := q.Get("shard"), q.Get("of")
	n, err := strconv.Atoi(of)
	if err != nil || n < 1 || n > telemetry.Partitions {
		return part{}, fmt.Errorf("of=%q: want the number of shards, 1 to %d, such as /metrics?shard=0&of=4", of, telemetry.Partitions)
	}
	i, err := strconv.Atoi(shard)
	if err != nil || i < 0 || i >= n {
		return part{}, fmt.Errorf("shard=%q: want a shard from 0 to %d with of=%d", shard, n-1, n)
	}
	return part{shard: i, of: n, own: i == 0, fleet: true}, nil
}

// counted says so when an answer is larger than scrapers take well.
type counted struct {
	s *scraping
	prometheus.TransactionalGatherer
}

// Gather implements prometheus.TransactionalGatherer.
func (g counted) Gather() ([]*dto.MetricFamily, func(), error) {
	families, done, err := g.TransactionalGatherer.Gather()
	n := 0
	for _, f := range families {
		n += len(f.Metric)
	}
	if n > g.s.most {
		g.s.complain(n)
	}
	return families, done, err
}

func (s *scraping) complain(series int) {
	now, last := s.c.opts.Now().UnixNano(), s.said.Load()
	if last != 0 && now-last < int64(manyEvery) || !s.said.CompareAndSwap(last, now) {
		return
	}
	of := min(2*series/s.most+1, telemetry.Partitions) // shards that are half full
	s.c.log.Warn("one scrape answers with more series than vmagent takes (16 MiB) and Prometheus takes well; let several jobs share the fleet",
		"series", series, "most", s.most, "shards", fmt.Sprintf("/metrics?shard=0&of=%d to shard=%d&of=%d", of, of-1, of))
}
