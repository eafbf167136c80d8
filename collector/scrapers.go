package collector

import (
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// scrapers remembers when each Prometheus last asked. The one that takes over
// is scraped at other times than the one before it, whose last samples count at
// a Prometheus until it is asked and fails, or answers without them: both
// together would count the fleet twice. So after a take-over each scraper is
// told of the fleet once it has had time for that, an interval and a timeout.
type scrapers struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	// scrapeTimeout is the header by which Prometheus and its kin say how long
	// they wait; whoever sends none keeps no series.
	scrapeTimeout = "X-Prometheus-Scrape-Timeout-Seconds"
	// patienceMost is when nobody is kept waiting any more.
	patienceMost = 5 * time.Minute
	scrapersMost = 256
)

// may says whether a request at now may be told of the fleet.
func (s *scrapers) may(r *http.Request, now time.Time, l *lead) bool {
	timeout, err := strconv.ParseFloat(r.Header.Get(scrapeTimeout), 64)
	if err != nil || timeout < 0 || timeout > patienceMost.Seconds() {
		return true
	}
	last, known := s.saw(r, now)
	since, after := l.after()
	switch {
	case !after || now.Sub(since) >= patienceMost:
		return true
	case !known:
		return false // how often it asks will be known the next time
	}
	return now.Sub(since) >= now.Sub(last)+time.Duration(timeout*float64(time.Second))
}

// saw notes a scrape and returns the one before it by the same scraper, of the
// same shard.
func (s *scrapers) saw(r *http.Request, now time.Time) (last time.Time, known bool) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	key := host + "\xff" + r.UserAgent() + "\xff" + r.URL.RawQuery
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known = s.last[key]
	if !known && len(s.last) >= scrapersMost {
		for k, at := range s.last {
			if now.Sub(at) > patienceMost {
				delete(s.last, k)
			}
		}
		if len(s.last) >= scrapersMost {
			return last, false
		}
	}
	if s.last == nil {
		s.last = map[string]time.Time{}
	}
	s.last[key] = now
	return last, known
}
