package bench

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// scrapeTimeout is for the series of a fleet that is larger than one should
// scrape at once.
const scrapeTimeout = 2 * time.Minute

// Scraped is what it costs to scrape the collector, with gzip as Prometheus asks
// for it, while nothing is sent.
type Scraped struct {
	Scrapes         int     `json:"scrapes"`
	Series          int     `json:"series"`
	CompressedBytes int64   `json:"compressed_bytes"`
	CPUSeconds      float64 `json:"cpu_seconds"` // of the collector, for one
	Seconds         float64 `json:"seconds"`     // for one
}

// scrapeAll scrapes the fleet's series some times.
func (m *meter) scrapeAll(ctx context.Context, times int) (*Scraped, error) {
	before, err := m.collectorUse(ctx)
	if err != nil {
		return nil, err
	}
	out := &Scraped{Scrapes: times}
	began := time.Now()
	var body []byte
	for range times {
		if body, err = fetchCompressed(ctx, address(m.o.Collector)+"/metrics"); err != nil {
			return nil, fmt.Errorf("scrape of the collector: %w", err)
		}
	}
	out.Seconds = time.Since(began).Seconds() / float64(times)
	after, err := m.collectorUse(ctx)
	if err != nil {
		return nil, err
	}
	out.CPUSeconds = (after.CPU - before.CPU).Seconds() / float64(times)
	out.CompressedBytes = int64(len(body))
	out.Series, err = countSeries(body)
	return out, err
}

// collectorUse is what the collector has used, by the kernel's count where it is
// a process of this machine that is watched.
func (m *meter) collectorUse(ctx context.Context) (Used, error) {
	for _, w := range m.o.Watch {
		if w.Name == collectorName {
			return usage(w.PID)
		}
	}
	f, err := scrape(ctx, m.o.Collector)
	return f.used, err
}

func fetchCompressed(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "gzip") // asked for here, it is left as it comes
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "gzip" {
		return nil, fmt.Errorf("%s answers %s, encoded as %q", url, resp.Status, resp.Header.Get("Content-Encoding"))
	}
	return io.ReadAll(resp.Body)
}

// countSeries counts the samples of a compressed exposition.
func countSeries(body []byte) (n int, err error) {
	in, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Bytes(); len(line) > 0 && line[0] != '#' {
			n++
		}
	}
	return n, lines.Err()
}

// address is where a collector's pages begin.
func address(base string) string {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	return strings.TrimRight(base, "/")
}
