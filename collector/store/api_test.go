package store

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"

	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

const (
	// pairStep is the time between two samples of a pair's series, pairRounds how
	// many there are: five hours, so that blocks and head both have some.
	pairStep   = 30 * time.Second
	pairRounds = 600
)

// pair is a store and a Prometheus over copies of one folder, with the same
// rules.
type pair struct {
	store        *Store
	ours, theirs string // addresses
	begin, end   time.Time
}

// pairRules have values that do not depend on when they are evaluated.
const pairRules = `groups:
- name: first
  rules:
  - {record: 'node:gpu_power_watts:sum', expr: 'sum by (node) (last_over_time(gpu_power_watts[6h]))', labels: {kind: recorded}}
  - {alert: Firing, expr: 'last_over_time(gpu_power_watts{uuid="GPU-0-1"}[6h]) > 0', labels: {severity: critical}, annotations: {summary: '{{ $labels.uuid }} draws {{ $value }} W'}}
  - {alert: Pending, expr: 'vector(2) > 1', for: 3h, keep_firing_for: 1h, labels: {severity: warning}}
  - {alert: Quiet, expr: 'vector(2) > 3'}
- name: second
  interval: 2s
  limit: 1
  labels: {team: gpu}
  rules:
  - {alert: Bad, expr: 'last_over_time(gpu_power_watts[6h]) * on(node) group_left() last_over_time(gpu_temperature_celsius[6h])'}
  - {alert: TooMany, expr: 'last_over_time(gpu_power_watts[6h]) > 0'}
`

// pairSource is what is sampled at each time: every type, a counter that begins
// anew, a series that ends, values that are no numbers, names in UTF-8.
type pairSource struct {
	*prometheus.Registry
	temperature, power *prometheus.GaugeVec
	energy             *prometheus.CounterVec
	odd                *prometheus.GaugeVec
	took               *prometheus.HistogramVec
	quantiles          prometheus.Summary
}

func newPairSource() *pairSource {
	s := &pairSource{
		Registry:    prometheus.NewRegistry(),
		temperature: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpu_temperature_celsius", Help: "Temperature of a sensor."}, []string{"node", "uuid", "sensor"}),
		power:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpu_power_watts", Help: "Power drawn."}, []string{"node", "uuid"}),
		energy:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpu_energy_joules_total", Help: "Energy used \\ since\nthe start."}, []string{"node", "uuid"}),
		odd:         prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dc.inlet.temperature", Help: "Inlet."}, []string{"row.name"}),
		took:        prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pass_seconds", Help: "A pass.", Buckets: []float64{0.1, 1, 10}}, []string{"policy"}),
		quantiles:   prometheus.NewSummary(prometheus.SummaryOpts{Name: "read_seconds", Help: "A read.", Objectives: map[float64]float64{0.5: 0.05, 0.99: 0.001}}),
	}
	s.MustRegister(s.temperature, s.power, s.energy, s.odd, s.took, s.quantiles)
	return s
}

func (s *pairSource) step(k int) {
	for node := range 4 {
		for gpu := range 8 {
			n, uuid := fmt.Sprintf("n%d", node), fmt.Sprintf("GPU-%d-%d", node, gpu)
			if node == 3 && gpu == 7 && k > pairRounds/2 {
				s.power.DeleteLabelValues(n, uuid)
				continue
			}
			s.power.WithLabelValues(n, uuid).Set(300 + 50*math.Sin(float64(k+10*gpu)/20))
			for i, sensor := range []string{"core", "memory"} {
				s.temperature.WithLabelValues(n, uuid, sensor).Set(60 + float64(5*i+node) + 10*math.Cos(float64(k+gpu)/50))
			}
			if node == 2 && gpu == 0 && k == pairRounds*2/3 {
				s.energy.DeleteLabelValues(n, uuid) // and begins at zero again
			}
			s.energy.WithLabelValues(n, uuid).Add(9000 + float64(gpu))
		}
	}
	s.odd.WithLabelValues("kühl").Set([]float64{21.5, math.NaN(), math.Inf(1), math.Inf(-1)}[k/10%4])
	s.took.WithLabelValues("thermal").Observe(float64(k%7) / 3)
	s.quantiles.Observe(float64(k%11) / 10)
}

func newPair(t *testing.T, limits QueryLimits) *pair {
	t.Helper()
	binary := storetest.FindLinked(t, "prometheus")
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	manager := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(manager.Close)
	ruleFile := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(ruleFile, []byte(pairRules), 0o600); err != nil {
		t.Fatal(err)
	}
	// JSON is YAML.
	document := fmt.Sprintf(`{"global": {"external_labels": {"cluster": "c1"}, "evaluation_interval": "1s"}, "rule_files": [%q], "alerting": {"alertmanagers": [{"static_configs": [{"targets": [%q]}]}]}}`,
		ruleFile, strings.TrimPrefix(manager.URL, "http://"))
	source := newPairSource()
	s, err := Open(Options{
		Dir: dir, Source: prometheus.ToTransactionalGatherer(source), Interval: time.Second, Prometheus: []byte(document),
		ExternalURL: "http://collector:9837", Query: limits, Log: promslog.NewNopLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{store: s, end: time.Now().Add(-pairStep).Truncate(pairStep)}
	p.begin = p.end.Add(-(pairRounds - 1) * pairStep)
	fill(t, s, func(k int) (time.Time, bool) {
		source.step(k)
		return p.begin.Add(time.Duration(k) * pairStep), k < pairRounds
	})
	s.db.close(errOpening)
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := s.db.ensure(); err != nil {
		t.Fatal(err)
	}
	evaluate(t, s)
	t.Cleanup(func() { s.db.close(errClosed) })
	conf := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(conf, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := storetest.FreeAddr(t)
	storetest.Start(t, binary, "--config.file="+conf, "--storage.tsdb.path="+copied, "--web.listen-address="+addr,
		"--query.max-samples="+strconv.Itoa(s.o.Query.MaxSamples), "--query.timeout="+s.o.Query.Timeout.String(), "--query.max-concurrency="+strconv.Itoa(s.o.Query.Concurrency)).Ready("http://" + addr + "/-/ready")
	p.ours, p.theirs = serve(t, s), "http://"+addr
	for _, base := range []string{p.ours, p.theirs} {
		storetest.Until(t, base+" has evaluated every rule", func() bool {
			body := ask(t, base, request{path: "/rules"}).text
			_, kept := decoded(t, ask(t, base, request{path: "/query", values: url.Values{"query": {"ALERTS"}}}).text)
			return kept == 2 && strings.Contains(body, `"state":"firing"`) && strings.Contains(body, `"lastError"`) && !strings.Contains(body, `"health":"unknown"`)
		})
	}
	return p
}

// fill samples at each time that next gives, and makes blocks of what is old.
func fill(t testing.TB, s *Store, next func(k int) (time.Time, bool)) {
	t.Helper()
	if err := s.db.ensure(); err != nil {
		t.Fatal(err)
	}
	for k := 0; ; k++ {
		at, more := next(k)
		if !more {
			break
		}
		if _, err := s.sampler.sample(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	db, release, err := s.db.hold()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := db.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// evaluate runs the rules of a store until the test ends.
func evaluate(t testing.TB, s *Store) {
	ctx, cancel := context.WithCancel(context.Background())
	fleet := make(chan struct{})
	close(fleet)
	var parts sync.WaitGroup
	parts.Go(func() { _ = s.ruler.run(ctx, fleet) })
	t.Cleanup(func() { cancel(); parts.Wait() })
}

// request is one as Grafana sends it.
type request struct {
	method string // empty: GET
	path   string // below /api/v1
	values url.Values
	header map[string]string
}

func (r request) String() string { return r.method + " " + r.path + "?" + r.values.Encode() }

type answer struct {
	code int
	kind string // Content-Type
	text string
}

func ask(t testing.TB, base string, r request) answer {
	t.Helper()
	to, body := base+apiRoot+r.path, io.Reader(nil)
	if r.method == "" {
		r.method = http.MethodGet
	}
	if r.method == http.MethodPost {
		body = strings.NewReader(r.values.Encode())
	} else if len(r.values) > 0 {
		to += "?" + r.values.Encode()
	}
	req, err := http.NewRequest(r.method, to, body)
	if err != nil {
		t.Fatal(err)
	}
	if r.method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for k, v := range map[string]string{
		"User-Agent": "Grafana/13.2.3", "X-Grafana-Org-Id": "1", "X-Datasource-Uid": "prometheus", "X-Panel-Id": "7",
		"X-Dashboard-Uid": "gpu", "X-Query-Group-Id": "a", "Fromalert": "false", "Accept-Encoding": "gzip",
	} {
		req.Header.Set(k, v)
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	from := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if from, err = gzip.NewReader(resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	text, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), string(text)}
}

// moments are the fields that tell when and how fast this process did something;
// two processes never agree on them. Everything else must be the same.
var moments = map[string]bool{
	"activeAt": true, "lastEvaluation": true, "evaluationTime": true, "keepFiringSince": true, "timings": true,
}

// decoded is the JSON of an answer without moments, and how many items it has.
func decoded(t *testing.T, text string) (v any, items int) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return text, 0 // the router's own words
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, in := range v {
				if moments[k] {
					v[k] = "when"
				}
				walk(in)
			}
		case []any:
			for _, in := range v {
				walk(in)
			}
		}
	}
	walk(v)
	data := v
	if m, ok := v.(map[string]any); ok {
		data = m["data"]
		if d, ok := data.(map[string]any); ok {
			for _, in := range []string{"result", "groups", "alerts", "activeAlertmanagers"} {
				if list, ok := d[in]; ok {
					data = list
				}
			}
		}
	}
	switch data := data.(type) {
	case []any:
		items = len(data)
	case map[string]any:
		items = len(data)
	case string:
		items = 1
	}
	return v, items
}

// same compares one answer, and says what ours is.
func (p *pair) same(t *testing.T, r request) (ours answer, items int) {
	t.Helper()
	ours, theirs := ask(t, p.ours, r), ask(t, p.theirs, r)
	o, items := decoded(t, ours.text)
	th, _ := decoded(t, theirs.text)
	if ours.code != theirs.code || ours.kind != theirs.kind || !reflect.DeepEqual(o, th) {
		t.Errorf("%s\nours:   %d %s %s\ntheirs: %d %s %s", r, ours.code, ours.kind, cut(ours.text), theirs.code, theirs.kind, cut(theirs.text))
	}
	return ours, items
}

func cut(s string) string { return s[:min(len(s), 1500)] }

func unix(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', -1, 64) }

// TestAnswersAsPrometheus: what Grafana's data source asks is answered word for
// word as by the Prometheus whose packages these are, over the same folder.
func TestAnswersAsPrometheus(t *testing.T) {
	p := newPair(t, QueryLimits{MaxSamples: 20_000})
	begin, end, evaluated := unix(p.begin), unix(p.end), unix(time.Now())
	over := func(v url.Values) url.Values { v.Set("start", begin); v.Set("end", end); return v }
	ranged := func(q, step string) url.Values {
		return over(url.Values{"query": {q}, "step": {step}})
	}
	instant := func(q string) url.Values { return url.Values{"query": {q}, "time": {end}} }
	gpu := `{__name__=~"gpu_.+",node="n1"}`
	everything := []struct {
		request
		items int
	}{
		// Labels, as its query builder and its variables ask for them.
		{request{path: "/labels", values: over(url.Values{"limit": {"40000"}})}, 12},
		{request{method: "POST", path: "/labels", values: over(url.Values{"match[]": {gpu}})}, 4},
		{request{method: "POST", path: "/labels", values: over(url.Values{"match[]": {"gpu_power_watts", `{"dc.inlet.temperature"}`}, "limit": {"2"}})}, 2},
		{request{path: "/label/__name__/values", values: over(url.Values{"limit": {"40000"}})}, 13},
		{request{path: "/label/__name__/values", values: over(url.Values{"match[]": {`{node="n1"}`}})}, 4},
		{request{path: "/label/node/values", values: over(url.Values{"match[]": {"gpu_power_watts", "nothing"}})}, 4},
		{request{path: "/label/uuid/values", values: url.Values{"limit": {"5"}}}, 5},
		{request{path: "/label/U__row_2e_name/values", values: over(url.Values{})}, 1},
		{request{path: "/label/row.name/values"}, 1},
		{request{path: "/label/nosuch/values", values: over(url.Values{})}, 0},
		{request{method: "POST", path: "/series", values: over(url.Values{"match[]": {gpu}, "limit": {"10"}})}, 10},
		{request{path: "/series", values: over(url.Values{"match[]": {"gpu_power_watts", "pass_seconds_bucket"}})}, 36},
		{request{path: "/series", values: url.Values{"match[]": {`gpu_power_watts{uuid="GPU-3-7"}`}, "start": {unix(p.end.Add(-time.Minute))}, "end": {end}}}, 0},

		// What it asks to see whether the data source works.
		{request{method: "POST", path: "/query", values: url.Values{"query": {"1+1"}, "time": {end}}}, 2},
		{request{path: "/query", values: instant("gpu_power_watts")}, 31},
		{request{method: "POST", path: "/query", values: instant(`gpu_power_watts offset 3h`)}, 32},
		{request{method: "POST", path: "/query", values: instant(`topk(3, gpu_temperature_celsius{sensor="core"})`)}, 3},
		{request{method: "POST", path: "/query", values: instant(`{"dc.inlet.temperature", "row.name"="kühl"}`)}, 1},
		{request{method: "POST", path: "/query", values: instant(`sort_desc(sum by (node) (rate(gpu_energy_joules_total[5m])))`)}, 4},
		{request{method: "POST", path: "/query", values: instant(`rate(gpu_power_watts[5m])`)}, 31}, // with an info: no counter by its name
		{request{method: "POST", path: "/query", values: instant(`histogram_quantile(0.9, sum by (le) (rate(pass_seconds_bucket[10m])))`)}, 1},
		{request{method: "POST", path: "/query", values: instant(`gpu_energy_joules_total{uuid="GPU-2-0"}[3m]`)}, 1},
		{request{method: "POST", path: "/query", values: instant(`"text"`)}, 2},
		{request{method: "POST", path: "/query", values: url.Values{"query": {`ALERTS`}, "time": {evaluated}}}, 2},
		{request{method: "POST", path: "/query", values: url.Values{"query": {`node:gpu_power_watts:sum`}, "time": {evaluated}, "limit": {"3"}}}, 3},
		{request{method: "POST", path: "/query", values: instant(`nosuch`)}, 0},
		{request{path: "/query", values: url.Values{"query": {"gpu_power_watts"}, "time": {end}, "stats": {"all"}, "lookback_delta": {"1m"}}}, 31},

		{request{method: "POST", path: "/query_range", values: ranged("gpu_power_watts{node=~\"n0|n3\"}", "60")}, 16},
		{request{path: "/query_range", values: ranged(`increase(gpu_energy_joules_total{node="n2"}[15m])`, "300")}, 8},
		{request{method: "POST", path: "/query_range", values: ranged(`avg by (node) (max_over_time(gpu_temperature_celsius{uuid=~".+-0"}[10m:1m]))`, "15m")}, 4},
		{request{method: "POST", path: "/query_range", values: ranged(`{"dc.inlet.temperature"}`, "30")}, 1},
		{request{method: "POST", path: "/query_range", values: ranged(`read_seconds{quantile="0.99"} or pass_seconds_count`, "120.5")}, 2},
		{request{method: "POST", path: "/query_range", values: ranged("vector(1) == 2", "60")}, 0},
		{request{method: "POST", path: "/query_exemplars", values: over(url.Values{"query": {"pass_seconds_bucket"}})}, 0},
		{request{path: "/format_query", values: url.Values{"query": {"sum(rate(gpu_energy_joules_total[5m]))by(node)"}}}, 1},
		{request{method: "POST", path: "/parse_query", values: url.Values{"query": {"sum by (node) (rate(x[5m] offset 1m))"}}}, 6},

		// Its list of alert rules.
		{request{path: "/rules"}, 2},
		{request{path: "/rules", values: url.Values{"type": {"alert"}}}, 2},
		{request{path: "/rules", values: url.Values{"type": {"record"}}}, 1},
		{request{path: "/rules", values: url.Values{"rule_group[]": {"second"}, "exclude_alerts": {"true"}}}, 1},
		{request{path: "/rules", values: url.Values{"match[]": {`{team="gpu"}`}}}, 1},
		{request{path: "/rules", values: url.Values{"rule_name[]": {"Firing", "Quiet"}}}, 1},
		{request{path: "/alerts"}, 2},
		{request{path: "/alertmanagers"}, 1},
	}
	for _, c := range everything {
		got, items := p.same(t, c.request)
		if got.code != http.StatusOK || items != c.items {
			t.Errorf("%s\n%d, %d items, want %d: %s", c.request, got.code, items, c.items, cut(got.text))
		}
	}

	// What is wrong is said in the same words.
	long := ranged("gpu_power_watts", "1")
	long.Set("start", unix(p.begin.Add(-24*time.Hour)))
	for _, c := range []struct {
		request
		code       int
		kind, says string
	}{
		{request{path: "/query"}, 400, "bad_data", "no expression found in input"},
		{request{method: "POST", path: "/query", values: instant("sum(")}, 400, "bad_data", "parse error"},
		{request{method: "POST", path: "/query", values: instant("nofunction(up)")}, 400, "bad_data", "unknown function"},
		{request{method: "POST", path: "/query", values: instant(`up{a=~"("}`)}, 400, "bad_data", "missing closing"},
		{request{method: "POST", path: "/query", values: url.Values{"query": {"up"}, "time": {"noon"}}}, 400, "bad_data", "cannot parse"},
		{request{method: "POST", path: "/query", values: url.Values{"query": {"up"}, "timeout": {"soon"}}}, 400, "bad_data", "cannot parse"},
		{request{method: "POST", path: "/query", values: url.Values{"query": {"up"}, "limit": {"-1"}}}, 400, "bad_data", "limit"},
		{request{method: "POST", path: "/query", values: instant("gpu_power_watts * on(node) gpu_temperature_celsius")}, 422, "execution", "many-to-many"},
		{request{method: "POST", path: "/query", values: instant("gpu_temperature_celsius[5h]")}, 422, "execution", "too many samples"},
		{request{method: "POST", path: "/query_range", values: ranged("gpu_temperature_celsius", "30")}, 422, "execution", "too many samples"},
		{request{method: "POST", path: "/query_range", values: long}, 400, "bad_data", "exceeded maximum resolution of 11,000 points"},
		{request{method: "POST", path: "/query_range", values: ranged("up", "0")}, 400, "bad_data", "zero or negative"},
		{request{method: "POST", path: "/query_range", values: url.Values{"query": {"up"}, "start": {end}, "end": {begin}, "step": {"15"}}}, 400, "bad_data", "end timestamp must not be before start"},
		{request{method: "POST", path: "/query_range", values: url.Values{"query": {"up"}, "end": {end}, "step": {"15"}}}, 400, "bad_data", "start"},
		{request{method: "POST", path: "/query_range", values: ranged("up[5m]", "15")}, 400, "bad_data", "range vector"},
		{request{path: "/labels", values: url.Values{"match[]": {"{}"}}}, 400, "bad_data", "at least one non-empty matcher"},
		{request{path: "/labels", values: url.Values{"match[]": {"up{"}}}, 400, "bad_data", "parse error"},
		{request{path: "/label/%FF/values"}, 400, "bad_data", "invalid label name"},
		{request{path: "/series"}, 400, "bad_data", "no match[] parameter provided"},
		{request{path: "/rules", values: url.Values{"type": {"none"}}}, 400, "bad_data", "not supported value"},
		{request{path: "/rules", values: url.Values{"group_limit": {"1"}, "group_next_token": {"nosuch"}}}, 400, "bad_data", "invalid group_next_token"},
		{request{path: "/query", values: instant("up"), header: map[string]string{"Accept": "text/html"}}, 200, "", ""},
	} {
		got, _ := p.same(t, c.request)
		var said struct{ ErrorType, Error string }
		_ = json.Unmarshal([]byte(got.text), &said)
		if got.code != c.code || said.ErrorType != c.kind || !strings.Contains(said.Error, c.says) {
			t.Errorf("%s\n%d %s", c.request, got.code, cut(got.text))
		}
	}

	// Where the time runs out is chance, and so are the words and the kind: while
	// series are read it is an error of the execution.
	slow := request{method: "POST", path: "/query_range", values: ranged(`quantile_over_time(0.5, gpu_power_watts{uuid="GPU-0-1"}[4h])`, "2")}
	slow.values.Set("timeout", "1ms")
	for _, base := range []string{p.ours, p.theirs} {
		got := ask(t, base, slow)
		late := got.code == http.StatusServiceUnavailable && strings.Contains(got.text, `"errorType":"timeout","error":"query timed out in `)
		cut := got.code == http.StatusUnprocessableEntity && strings.Contains(got.text, `"errorType":"execution","error":"expanding series: context deadline exceeded"`)
		if !late && !cut {
			t.Errorf("%s: %d %s", base, got.code, got.text)
		}
	}
	p.page(t)
	p.build(t)
}

// page asks for the rules page by page. The token is made of names alone.
func (p *pair) page(t *testing.T) {
	first, items := p.same(t, request{path: "/rules", values: url.Values{"group_limit": {"1"}}})
	var body struct {
		Data struct{ GroupNextToken string }
	}
	if err := json.Unmarshal([]byte(first.text), &body); err != nil || items != 1 || body.Data.GroupNextToken == "" {
		t.Fatalf("%v %s", err, first.text)
	}
	if _, items := p.same(t, request{path: "/rules", values: url.Values{"group_limit": {"1"}, "group_next_token": {body.Data.GroupNextToken}}}); items != 1 {
		t.Error("the second page has", items)
	}
}

// build: what a program says of its build is its own, the fields are the same.
func (p *pair) build(t *testing.T) {
	for _, path := range []string{"/status/buildinfo", "/status/runtimeinfo"} {
		var keys [2]map[string]any
		for i, base := range []string{p.ours, p.theirs} {
			got := ask(t, base, request{path: path})
			var body struct{ Data map[string]any }
			if err := json.Unmarshal([]byte(got.text), &body); err != nil || got.code != http.StatusOK {
				t.Fatalf("%s%s: %d %s", base, path, got.code, got.text)
			}
			for k := range body.Data {
				body.Data[k] = true
			}
			keys[i] = body.Data
		}
		if !reflect.DeepEqual(keys[0], keys[1]) {
			t.Errorf("%s: ours %v, theirs %v", path, keys[0], keys[1])
		}
	}
}

// TestMetadataAsPrometheus: the families are described as by a Prometheus that
// has scraped them.
func TestMetadataAsPrometheus(t *testing.T) {
	binary := storetest.FindLinked(t, "prometheus")
	c, _ := hotFleet(t)
	storetest.Until(t, "the collector knows its fleet", c.Ready)
	s, err := Open(Options{Dir: t.TempDir(), Source: c.Gatherer(), Log: promslog.NewNopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.ensure(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.close(errClosed) })
	target := httptest.NewServer(c.Handler())
	t.Cleanup(target.Close)
	conf := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "scrape_configs: [{job_name: x, scrape_interval: 1s, static_configs: [{targets: ['%s']}]}]\n", strings.TrimPrefix(target.URL, "http://")), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := storetest.FreeAddr(t)
	storetest.Start(t, binary, "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(t.TempDir(), "data"), "--web.listen-address="+addr).Ready("http://" + addr + "/-/ready")
	p := &pair{store: s, ours: serve(t, s), theirs: "http://" + addr}
	all := request{path: "/metadata", values: url.Values{"limit_per_metric": {"1"}}}
	var ours, theirs any
	items := 0
	storetest.Until(t, "both describe the same families", func() bool {
		if _, err := s.sampler.sample(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		ours, items = decoded(t, ask(t, p.ours, all).text)
		theirs, _ = decoded(t, ask(t, p.theirs, all).text)
		return items >= 40 && reflect.DeepEqual(ours, theirs)
	}, func() string { return fmt.Sprintf("%d families\nours: %v\ntheirs: %v", items, ours, theirs) })
	for _, v := range []url.Values{{"metric": {"gpu_power_watts"}}, {"metric": {"nosuch"}}} {
		p.same(t, request{path: "/metadata", values: v})
	}
	if got := ask(t, p.ours, request{path: "/metadata", values: url.Values{"limit": {"3"}}}); strings.Count(got.text, `"help"`) != 3 {
		t.Error(got.text)
	}
}

// TestVersion: clients go by the version for what may be asked.
func TestVersion(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", "github.com/prometheus/prometheus").Output()
	if err != nil {
		t.Fatal(err)
	}
	module, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	want, err := os.ReadFile(filepath.Join(dir, "VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	if got := released(module); got != strings.TrimSpace(string(want)) {
		t.Errorf("%s is said to be %s, it is %s", module, got, want)
	}
	for module, want := range map[string]string{"v0.55.1": "v0.55.1", "v0.304.0": "3.4.0", "v0.300.1": "3.0.1", "(devel)": "(devel)", "": ""} {
		if got := released(module); got != want {
			t.Errorf("%q is said to be %q", module, got)
		}
	}
}
