package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

// maxSeries bounds what one round keeps. The judge bounds what a node may name;
// this is the bound of all together.
const maxSeries = 1_000_000

// Why samples are not kept.
const (
	refusedOrder     = "order"     // older than the series' last: the clock went back
	refusedTwice     = "twice"     // two of one series in one round
	refusedMany      = "many"      // beyond maxSeries
	refusedUnwritten = "unwritten" // the database is away, its disk is full, or the write failed
)

var refusals = []string{refusedOrder, refusedTwice, refusedMany, refusedUnwritten}

// sampler appends the families of its source, one sample a series at one time,
// and ends the series that are gone with a staleness marker, as a scrape does.
type sampler struct {
	source prometheus.TransactionalGatherer
	db     *database
	choice *choice
	most   int
	log    *slog.Logger
	count  func(why string, samples int)

	round   uint64
	opening int // of the database that the refs are of
	series  map[labels.Labels]*kept
	// by finds a series of the source that keeps its metrics between rounds, the
	// fleet's, without looking at its labels.
	by    map[*dto.Metric]*kept
	build labels.ScratchBuilder
	meta  metadata
}

// kept is one series.
type kept struct {
	ref    storage.SeriesRef
	labels labels.Labels
	metric *dto.Metric // that finds it
	round  uint64      // that it was last in
	began  bool        // has a sample
}

func newSampler(source prometheus.TransactionalGatherer, db *database, c *choice, log *slog.Logger, count func(string, int)) *sampler {
	return &sampler{source: source, db: db, choice: c, most: maxSeries, log: log, count: count,
		series: map[labels.Labels]*kept{}, by: map[*dto.Metric]*kept{}, build: labels.NewScratchBuilder(16)}
}

// sample is one round at now.
func (s *sampler) sample(ctx context.Context, now time.Time) (samples int, err error) {
	if n := s.db.openings(); n != s.opening {
		s.opening = n
		for _, k := range s.series {
			k.ref = 0 // another database's
		}
	}
	s.choice.look()
	s.round++
	families, done, err := s.source.Gather()
	if err != nil {
		// What was gathered all the same is whole; Prometheus's own handler serves it.
		s.log.Warn("some of the collector's own metrics could not be gathered", "err", err)
	}
	r := &round{sampler: s, app: s.db.AppenderV2(ctx), at: now.UnixMilli(), lost: map[string]int{}}
	for _, f := range families {
		if !s.choice.keeps(f.GetName()) {
			continue
		}
		s.meta.saw(f)
		r.family(f)
	}
	done()
	r.ended()
	err = r.commit()
	for why, n := range r.lost {
		s.count(why, n)
	}
	if err == nil {
		return r.samples, nil
	}
	s.count(refusedUnwritten, r.samples)
	return 0, err
}

// expected is how many samples the next round would have.
func (s *sampler) expected() int { return len(s.series) }

// round is one round under way.
type round struct {
	*sampler
	app     storage.AppenderV2
	at      int64
	samples int
	lost    map[string]int
	gone    []*kept
	err     error // that ends it
}

func (r *round) family(f *dto.MetricFamily) {
	name := f.GetName()
	for _, m := range f.Metric {
		switch {
		case m.Gauge != nil:
			r.plain(name, m, m.Gauge.GetValue())
		case m.Counter != nil:
			r.plain(name, m, m.Counter.GetValue())
		case m.Untyped != nil:
			r.plain(name, m, m.Untyped.GetValue())
		case m.Summary != nil:
			for _, q := range m.Summary.Quantile {
				r.part(name, m, model.QuantileLabel, number(q.GetQuantile()), q.GetValue())
			}
			r.part(name+"_sum", m, "", "", m.Summary.GetSampleSum())
			r.part(name+"_count", m, "", "", float64(m.Summary.GetSampleCount()))
		case m.Histogram != nil:
			r.histogram(name, m)
		}
	}
}

// histogram keeps the classic form, as a scrape without native ones does.
func (r *round) histogram(name string, m *dto.Metric) {
	count, infinite := float64(m.Histogram.GetSampleCount()), false
	for _, b := range m.Histogram.Bucket {
		infinite = infinite || math.IsInf(b.GetUpperBound(), 1)
		r.part(name+"_bucket", m, model.BucketLabel, number(b.GetUpperBound()), float64(b.GetCumulativeCount()))
	}
	if !infinite {
		r.part(name+"_bucket", m, model.BucketLabel, "+Inf", count)
	}
	r.part(name+"_sum", m, "", "", m.Histogram.GetSampleSum())
	r.part(name+"_count", m, "", "", count)
}

// number is a label's value as Prometheus writes it.
func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	for _, c := range s {
		if c == '.' || c == 'e' || c == 'N' || c == 'I' {
			return s
		}
	}
	return s + ".0"
}

// plain is a metric that is one sample.
func (r *round) plain(name string, m *dto.Metric, v float64) {
	k := r.by[m]
	if k == nil {
		if k = r.find(name, m, "", ""); k == nil {
			return
		}
		if k.metric != nil {
			delete(r.by, k.metric)
		}
		k.metric, r.by[m] = m, k
	}
	r.append(k, v)
}

// part is one sample of several that a metric is.
func (r *round) part(name string, m *dto.Metric, label, value string, v float64) {
	if k := r.find(name, m, label, value); k != nil {
		r.append(k, v)
	}
}

// find finds a series by its labels, or begins it; nil beyond the bound.
func (r *round) find(name string, m *dto.Metric, label, value string) *kept {
	r.build.Reset()
	r.build.Add(model.MetricNameLabel, name)
	for _, l := range m.Label {
		if l.GetValue() != "" {
			r.build.Add(l.GetName(), l.GetValue())
		}
	}
	if label != "" {
		r.build.Add(label, value)
	}
	r.build.Sort()
	l := r.build.Labels()
	if k := r.series[l]; k != nil {
		return k
	}
	if len(r.series) >= r.most {
		r.lost[refusedMany]++
		return nil
	}
	k := &kept{labels: l}
	r.series[l] = k
	return k
}

func (r *round) append(k *kept, v float64) {
	if k.round == r.round {
		r.lost[refusedTwice]++
		return
	}
	k.round = r.round
	r.add(k, v)
}

func (r *round) add(k *kept, v float64) {
	if r.err != nil {
		r.samples++ // counted as lost at the end
		return
	}
	ref, err := r.app.Append(k.ref, k.labels, 0, r.at, v, nil, nil, storage.AOptions{})
	switch {
	case err == nil:
		k.ref, k.began = ref, true
		r.samples++
	case errors.Is(err, storage.ErrOutOfOrderSample), errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, storage.ErrDuplicateSampleForTimestamp), errors.Is(err, storage.ErrTooOldSample):
		r.lost[refusedOrder]++
	default:
		r.err = err
		r.samples++
	}
}

// ended marks the series that were there and are not now.
func (r *round) ended() {
	stale := math.Float64frombits(value.StaleNaN)
	for _, k := range r.series {
		if k.round == r.round {
			continue
		}
		r.gone = append(r.gone, k)
		if k.began {
			r.add(k, stale)
		}
	}
}

func (r *round) commit() error {
	if r.err != nil {
		return errors.Join(r.err, r.app.Rollback())
	}
	if err := r.app.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	for _, k := range r.gone { // the ends of a round that is lost are told in the next
		delete(r.series, k.labels)
		if k.metric != nil {
			delete(r.by, k.metric)
		}
	}
	return nil
}

// metadata is what is known of each family, for the API.
type metadata struct {
	mu  sync.RWMutex
	all map[string]scrape.MetricMetadata
}

func (m *metadata) saw(f *dto.MetricFamily) {
	m.mu.RLock()
	_, known := m.all[f.GetName()]
	m.mu.RUnlock()
	if known {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]scrape.MetricMetadata{}
	}
	m.all[f.GetName()] = scrape.MetricMetadata{MetricFamily: f.GetName(), Type: typeOf(f), Help: f.GetHelp(), Unit: f.GetUnit()}
}

func typeOf(f *dto.MetricFamily) model.MetricType {
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		return model.MetricTypeCounter
	case dto.MetricType_GAUGE:
		return model.MetricTypeGauge
	case dto.MetricType_HISTOGRAM:
		return model.MetricTypeHistogram
	case dto.MetricType_SUMMARY:
		return model.MetricTypeSummary
	}
	return model.MetricTypeUnknown
}

// ListMetadata implements scrape.MetricMetadataStore.
func (m *metadata) ListMetadata() []scrape.MetricMetadata {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]scrape.MetricMetadata, 0, len(m.all))
	for _, one := range m.all {
		out = append(out, one)
	}
	return out
}

// GetMetadata implements scrape.MetricMetadataStore.
func (m *metadata) GetMetadata(name string) (scrape.MetricMetadata, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	one, ok := m.all[name]
	return one, ok
}

// SizeMetadata implements scrape.MetricMetadataStore.
func (m *metadata) SizeMetadata() int { return 0 }

// LengthMetadata implements scrape.MetricMetadataStore.
func (m *metadata) LengthMetadata() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.all)
}
