package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

// still is a fleet of one device that is not heard any more.
type still struct{ view *cluster.View }

func (s still) View() *cluster.View                         { return s.view }
func (s still) History(string) []ui.Point                   { return nil }
func (s still) Changes(context.Context) <-chan struct{}     { return nil }
func (s still) Decisions() []*telemetry.Decision            { return nil }
func (s still) Decision(string) (*telemetry.Decision, bool) { return nil, false }
func oneDevice() still {
	g := cluster.NewGPU(cluster.GPU{UUID: "GPU-1", Node: "n1", State: cluster.GPUUnknown})
	return still{cluster.NewView(time.Now(), []*cluster.Node{{Name: "n1", State: cluster.NodeGone, GPUs: []*cluster.GPU{g}}}, nil)}
}

// TestPageReadsTheStore: history and alerts as the page gets them, from a real
// store, engine and rules.
func TestPageReadsTheStore(t *testing.T) {
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	now := time.Now().Truncate(time.Second)
	app := db.Appender(t.Context())
	for at := now.Add(-2 * time.Hour); !at.After(now); at = at.Add(15 * time.Second) {
		for name, v := range map[string]float64{"gpu_thermal_headroom_celsius": 3, "gpu_power_watts": 650} {
			if _, err := app.Append(0, labels.FromStrings("__name__", name, "node", "n1", "uuid", "GPU-1"), at.UnixMilli(), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 400, Timeout: time.Minute})
	fleet := oneDevice()
	web := httptest.NewServer(ui.Handler(ui.Options{Fleet: fleet, Decisions: fleet, Past: past{engine, db, 15 * time.Second}, Alerts: ruleAlerts{evaluate(t, db, engine)}}))
	t.Cleanup(web.Close)

	var h ui.History
	if err := askJSON(t, web.URL, "/gpus/GPU-1/history?from=1h", &h); err != nil {
		t.Fatal(err)
	}
	if h.Source != "store" || len(h.Items) < 238 || *h.Items[0].Headroom != 3 || *h.Items[100].Power != 650 || h.Items[0].Core != nil {
		t.Errorf("%d items from %s: %+v", len(h.Items), h.Source, h.Items[0])
	}
	// What the engine refuses is told in its words.
	if err := askJSON(t, web.URL, "/gpus/GPU-1/history?from=2h&step=15s", &h); err == nil || !strings.Contains(err.Error(), "too many samples") {
		t.Errorf("more samples than a query may read: %v", err)
	}
	var alerts struct{ Items []ui.Alert }
	if err := askJSON(t, web.URL, "/alerts", &alerts); err != nil {
		t.Fatal(err)
	}
	if len(alerts.Items) != 2 || alerts.Items[0].State != "firing" || alerts.Items[1].State != "pending" {
		t.Fatalf("%+v", alerts.Items)
	}
	if a := alerts.Items[0]; a.Name != "HeadroomLow" || a.Severity != "warning" || a.Summary != "n1 has 3 °C left" || a.Runbook != "docs/runbooks/HeadroomLow.md" ||
		*a.Value != 3 || a.Labels["uuid"] != "GPU-1" || a.Since.IsZero() || a.FiringSince.IsZero() {
		t.Errorf("%+v", a)
	}
	if !alerts.Items[1].FiringSince.IsZero() {
		t.Errorf("pending and said to fire since %s", alerts.Items[1].FiringSince)
	}
}

// evaluate runs two rules once: one fires at once, one waits.
func evaluate(t *testing.T, db *tsdb.DB, engine *promql.Engine) *rules.Manager {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(`groups:
  - name: test
    rules:
      - alert: HeadroomLow
        expr: gpu_thermal_headroom_celsius < 5
        labels: {severity: warning}
        annotations: {summary: '{{ $labels.node }} has {{ $value }} °C left', runbook_url: docs/runbooks/HeadroomLow.md}
      - alert: PowerHigh
        expr: gpu_power_watts > 600
        for: 1h
`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, db), NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Context: t.Context(),
		AppendableV2: db, Queryable: db, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err := m.Update(time.Minute, []string{file}, labels.EmptyLabels(), "", nil); err != nil {
		t.Fatal(err)
	}
	for _, g := range m.RuleGroups() {
		g.Eval(t.Context(), time.Now())
	}
	return m
}

// askJSON asks the API; what it refuses is an error in its words.
func askJSON(t *testing.T, base, path string, into any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+ui.Prefix+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(fmt.Sprint(resp.Status, " ", string(body)))
	}
	return json.Unmarshal(body, into)
}

// TestStreamsAreCounted: every series is there from the start.
func TestStreamsAreCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := newStreams(reg)
	if err != nil {
		t.Fatal(err)
	}
	s.Open(3)
	s.Ended(ui.StreamSlow)
	s.Ended(ui.StreamSlow)
	open, ended := telemetry.RowOf(telemetry.SelfStreams), telemetry.RowOf(telemetry.SelfStreamsEnded)
	want := fmt.Sprintf("# HELP %[1]s %[2]s\n# TYPE %[1]s gauge\n%[1]s 3\n# HELP %[3]s %[4]s\n# TYPE %[3]s counter\n%[3]s{why=\"full\"} 0\n%[3]s{why=\"hung\"} 0\n%[3]s{why=\"slow\"} 2\n", open.Name, open.Help, ended.Name, ended.Help)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if _, err := newStreams(reg); err == nil {
		t.Error("registered twice")
	}
}
