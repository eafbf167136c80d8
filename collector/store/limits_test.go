package store

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"

	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

// filled is a store with three hours of a pair's series, served.
func filled(t *testing.T, o Options) (s *Store, base string) {
	t.Helper()
	source := newPairSource()
	o.Dir, o.Source, o.Log = t.TempDir(), prometheus.ToTransactionalGatherer(source), promslog.NewNopLogger()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-3 * time.Hour)
	fill(t, s, func(k int) (time.Time, bool) {
		source.step(k)
		return begin.Add(time.Duration(k) * pairStep), k < 360
	})
	t.Cleanup(func() { s.db.close(errClosed) })
	return s, serve(t, s)
}

// serve is where a store answers.
func serve(t *testing.T, s *Store) string {
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return web.URL
}

// heavy takes far longer than a test waits.
var heavy = request{method: "POST", path: "/query", values: url.Values{"query": {`count(max_over_time(quantile_over_time(0.5, gpu_temperature_celsius[2h])[3h:1s]))`}}}

// TestFloodOfQueries: more heavy queries than may run at once end by their
// timeout, each with an error of Prometheus's, and rules are evaluated all the
// while.
func TestFloodOfQueries(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "r.yaml")
	write(t, rules, `groups: [{name: g, rules: [{alert: Hot, expr: 'last_over_time(gpu_power_watts{uuid="GPU-0-1"}[6h]) > 0'}]}]`)
	s, base := filled(t, Options{
		Interval: time.Second, Prometheus: fmt.Appendf(nil, "rule_files: [%q]", rules), Query: QueryLimits{Timeout: time.Second, Concurrency: 2},
	})
	evaluate(t, s)
	storetest.Until(t, "the rules are evaluated", func() bool { return len(firingOf(s.ruler)) == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var mu sync.Mutex
	said := map[string]int{}
	for range 6 {
		clients.Go(func() {
			for ctx.Err() == nil {
				got := ask(t, base, heavy)
				var body struct{ ErrorType string }
				_ = json.Unmarshal([]byte(got.text), &body)
				mu.Lock()
				said[fmt.Sprint(got.code, " ", body.ErrorType)]++
				mu.Unlock()
			}
		})
	}
	count := func(key string) int {
		mu.Lock()
		defer mu.Unlock()
		return said[key]
	}
	const iterations = "prometheus_rule_group_iterations_total"
	before := metric(t, s.o.Registry, iterations)
	storetest.Until(t, "queries are given up while they run and while they wait, and rules go on", func() bool {
		return count("503 timeout") >= 2 && count("422 execution") >= 2 && metric(t, s.o.Registry, iterations) >= before+3
	}, func() string { return fmt.Sprint(said, metric(t, s.o.Registry, iterations)-before) })
	cancel()
	clients.Wait()
	if n := len(said); n != 2 {
		t.Errorf("said: %v", said)
	}
	for _, g := range s.ruler.RuleGroups() {
		for _, r := range g.Rules() {
			if r.LastError() != nil {
				t.Errorf("%s: %v", r.Name(), r.LastError())
			}
		}
	}
	if got := ask(t, base, request{path: "/query", values: url.Values{"query": {"1"}}}); got.code != http.StatusOK {
		t.Errorf("afterwards: %d %s", got.code, got.text)
	}
}

// TestQueueAsPrometheus: who waits for a slot in vain is told so in the same
// way.
func TestQueueAsPrometheus(t *testing.T) {
	p := newPair(t, QueryLimits{Timeout: 3 * time.Second, Concurrency: 1})
	for _, base := range []string{p.ours, p.theirs} {
		first := make(chan answer)
		go func() { first <- ask(t, base, heavy) }()
		storetest.Until(t, "a query waits in vain", func() bool {
			got := ask(t, base, request{path: "/query", values: url.Values{"query": {"1"}, "timeout": {"200ms"}}})
			if got.code == http.StatusOK {
				return false // the first has not begun
			}
			if got.code != http.StatusBadRequest || !strings.Contains(got.text, `"errorType":"bad_data"`) || !strings.Contains(got.text, "context deadline exceeded") {
				t.Errorf("%s: %d %s", base, got.code, got.text)
			}
			return true
		})
		if got := <-first; got.code != http.StatusServiceUnavailable || !strings.Contains(got.text, `"errorType":"timeout"`) {
			t.Errorf("%s: %d %s", base, got.code, got.text)
		}
	}
}

// TestSlowClient: whoever asks for much and does not read it keeps nobody from
// closing the database. Prometheus holds its storage for a list of series until
// that is sent.
func TestSlowClient(t *testing.T) {
	many := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "many"}, []string{"of"})
	for i := range 20_000 {
		many.WithLabelValues(fmt.Sprintf("%0100d", i)).Set(1)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(many)
	s, err := Open(Options{Dir: t.TempDir(), Source: prometheus.ToTransactionalGatherer(reg), Log: promslog.NewNopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, func(k int) (time.Time, bool) { return time.Now(), k == 0 })
	t.Cleanup(func() { s.db.close(errClosed) })
	web := httptest.NewUnstartedServer(s.Handler())
	web.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(4096); err != nil {
			t.Error(err)
		}
		return ctx
	}
	web.Start()
	t.Cleanup(web.Close)

	conn, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "GET /api/v1/series?match[]=many HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	from := bufio.NewReaderSize(conn, 16)
	if line, err := from.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q, %v", line, err)
	}
	closed := make(chan struct{})
	go func() { s.db.close(errClosed); close(closed) }()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Fatal("the database is still held")
	}
	if got := ask(t, web.URL, request{path: "/query", values: url.Values{"query": {"up"}}}); got.code != http.StatusServiceUnavailable || !strings.Contains(got.text, `"errorType":"unavailable"`) {
		t.Errorf("closed: %d %s", got.code, got.text)
	}
}

// TestLongQuery: an answer that takes longer to make than the server gives for
// reading one arrives.
func TestLongQuery(t *testing.T) {
	s, _ := filled(t, Options{Query: QueryLimits{Timeout: 2 * time.Second}})
	web := httptest.NewUnstartedServer(s.Handler())
	web.Config.WriteTimeout = 200 * time.Millisecond
	web.Start()
	t.Cleanup(web.Close)
	if got := ask(t, web.URL, heavy); got.code != http.StatusServiceUnavailable || !strings.Contains(got.text, `"errorType":"timeout"`) {
		t.Errorf("%d %s", got.code, got.text)
	}
}

// TestNotServed: what would change or show what is not there is refused in
// Prometheus's form.
func TestNotServed(t *testing.T) {
	_, base := filled(t, Options{Prometheus: []byte("alerting: {alertmanagers: [{basic_auth: {username: u, password: hush}, static_configs: [{targets: ['127.0.0.1:1']}]}]}")})
	for _, c := range []struct {
		method, path string
		code         int
		kind         string
	}{
		{"GET", "/targets", 404, "not_found"},
		{"GET", "/scrape_pools", 404, "not_found"},
		{"GET", "/targets/metadata", 404, "not_found"},
		{"GET", "/status/self_metrics", 404, "not_found"},
		{"GET", "/status/walreplay", 404, "not_found"},
		{"GET", "/notifications/live", 404, "not_found"},
		{"GET", "/search/metric_names", 404, "not_found"},
		{"GET", "/openapi.yaml", 404, "not_found"},
		{"POST", "/write", 404, "not_found"},
		{"POST", "/read", 404, "not_found"},
		{"POST", "/otlp/v1/metrics", 404, "not_found"},
		{"POST", "/admin/tsdb/delete_series", 404, "not_found"},
		{"PUT", "/admin/tsdb/snapshot", 404, "not_found"},
		{"GET", "/querying", 404, "not_found"},
		{"GET", "", 404, "not_found"},
		{"GET", "/", 404, "not_found"},
		{"DELETE", "/series", 405, "bad_data"},
		{"PUT", "/query", 405, "bad_data"},
		{"OPTIONS", "/query", 405, "bad_data"},
	} {
		got := ask(t, base, request{method: c.method, path: c.path, values: url.Values{"match[]": {"up"}}})
		var body struct{ Status, ErrorType, Error string }
		if err := json.Unmarshal([]byte(got.text), &body); err != nil || got.code != c.code || got.kind != "application/json" || body.Status != "error" || body.ErrorType != c.kind || body.Error == "" {
			t.Errorf("%s %s: %d %s %s", c.method, c.path, got.code, got.kind, got.text)
		}
	}
	if got := ask(t, base, request{method: "HEAD", path: "/status/buildinfo", header: map[string]string{"Accept-Encoding": "identity"}}); got.code != http.StatusOK || got.text != "" {
		t.Errorf("HEAD: %d %q", got.code, got.text)
	}
	for _, path := range []string{"/status/flags", "/status/config", "/status/tsdb", "/status/runtimeinfo"} {
		if got := ask(t, base, request{path: path}); got.code != http.StatusOK || !strings.Contains(got.text, `"status":"success"`) {
			t.Errorf("%s: %d %s", path, got.code, got.text)
		}
	}
	if got := ask(t, base, request{path: "/status/config"}); strings.Contains(got.text, "hush") || !strings.Contains(got.text, "password: \\u003csecret\\u003e") {
		t.Error(got.text)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
