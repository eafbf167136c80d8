package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// prometheus is Debian's.
type prometheus struct {
	*testing.T
	addr string
}

// scrape starts a Prometheus of the machine over some targets.
func (s *stack) scrape(every time.Duration, targets ...string) *prometheus {
	s.t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		s.t.Skip("no prometheus on the PATH; scripts/install test installs Debian's")
	}
	p := &prometheus{s.t, freeAddr(s.t)}
	cfg := s.file("prometheus.yml", "global: {scrape_interval: "+every.String()+", scrape_timeout: 1s}\nscrape_configs:\n- {job_name: evenkeel, static_configs: [{targets: ['"+strings.Join(targets, "', '")+"']}]}\n")
	s.start("prometheus", path, "--config.file="+cfg, "--storage.tsdb.path="+filepath.Join(s.dir, "prometheus"), "--web.listen-address="+p.addr, "--log.level=warn")
	s.eventually(30*time.Second, "Prometheus is ready", func() error {
		resp, err := http.Get("http://" + p.addr + "/-/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
	return p
}

// promSeries is one series of an answer.
type promSeries struct {
	Metric map[string]string
	Values []promSample
}

type promSample struct {
	at time.Time
	v  float64
}

// UnmarshalJSON reads [seconds, "value"].
func (s *promSample) UnmarshalJSON(data []byte) error {
	var pair [2]any
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	at, ok := pair[0].(float64)
	text, isText := pair[1].(string)
	if !ok || !isText {
		return fmt.Errorf("sample %s", data)
	}
	var err error
	s.at = time.UnixMilli(int64(at * 1000))
	s.v, err = strconv.ParseFloat(text, 64)
	return err
}

func (p *prometheus) query(path string, q url.Values) ([]promSeries, error) {
	resp, err := http.Get("http://" + p.addr + "/api/v1/" + path + "?" + q.Encode())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var v struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  *promSample
				Values []promSample
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return nil, err
	}
	if v.Status != "success" {
		return nil, fmt.Errorf("%s: %s", q, v.Error)
	}
	var out []promSeries
	for _, r := range v.Data.Result {
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		out = append(out, promSeries{r.Metric, r.Values})
	}
	return out, nil
}

// now is an instant query; a range selector gives the samples as scraped.
func (p *prometheus) now(expr string) ([]promSeries, error) {
	return p.query("query", url.Values{"query": {expr}})
}

// over is a range query.
func (p *prometheus) over(expr string, from, to time.Time, step time.Duration) ([]promSeries, error) {
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	return p.query("query_range", url.Values{"query": {expr}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {step.String()}})
}

// is wants an instant query to give one value.
func (p *prometheus) is(expr string, want float64) error {
	got, err := p.now(expr)
	if err != nil {
		return err
	}
	if len(got) != 1 || got[0].Values[0].v != want {
		return fmt.Errorf("%s: %v, want %g", expr, got, want)
	}
	return nil
}
