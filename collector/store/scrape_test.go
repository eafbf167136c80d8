package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/rules"

	"github.com/evenkeel-gpu/evenkeel/alerts"
	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// wire carries frames and inventory to a collector of the same process.
type wire struct {
	mu     sync.Mutex
	frames func(string, []byte)
	inv    telemetry.Inventory
}

func (w *wire) Connected() bool { return true }

func (w *wire) FramesOf(_ telemetry.PartitionSet, fn func(string, []byte)) (func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frames = fn
	return func() {}, nil
}

func (w *wire) Inventories(_ context.Context, fn func(telemetry.Inventory)) (func(), error) {
	fn(w.inv)
	return func() {}, nil
}

func (w *wire) Receipts(func(string, telemetry.Receipt)) (func(), error) { return func() {}, nil }
func (w *wire) PublishObservation(string, []byte) error                  { return nil }

func (w *wire) FollowJournal(ctx context.Context, _ func(uint64, telemetry.Record)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (w *wire) Control(context.Context, string, []byte) ([]byte, error) {
	return nil, errors.New("no leader")
}

// end is one node's end of the wire.
type end struct {
	w    *wire
	node string
}

func (e end) Frame(data []byte) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.frames != nil {
		e.w.frames(telemetry.PartitionSubject(telemetry.FamilyFrame, e.node), bytes.Clone(data))
	}
	return nil
}

// hotFleet is a collector of two nodes with exporters on a simulated world: it
// is hot, and once harm is called, a GPU of the first falls off the bus and the
// second goes silent.
func hotFleet(t *testing.T) (c *collector.Collector, harm func()) { return fleetAt(t, 90) }

// fleetAt is such a fleet with an inlet of so many degrees.
func fleetAt(t testing.TB, inlet float64) (c *collector.Collector, harm func()) {
	t.Helper()
	s, err := sim.ParseScenario([]byte("name: hot\nrows: [{name: a, inlet_celsius: 25}]\nnodes: [{name: n1, row: a, rack: r1, model: H100-SXM5-80GB, gpus: 2}, {name: n2, row: a, rack: r1, model: H100-SXM5-80GB, gpus: 2}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	world, err := sim.New(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := world.SetInlet("a", inlet); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		world.Step(time.Second)
	}
	w := &wire{inv: world.Inventory(time.Now())}
	c, err = collector.New(collector.Options{Bus: w, Registry: prometheus.NewRegistry(), Log: promslog.NewNopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	t.Cleanup(func() { cancel(); parts.Wait() })
	parts.Go(func() { _ = c.Run(ctx) })
	parts.Go(func() { world.Run(ctx, 100*time.Millisecond) })
	start := func(ctx context.Context, node string) {
		source, err := world.Source(node)
		if err != nil {
			t.Fatal(err)
		}
		e, err := exporter.New(exporter.Options{Node: node, Source: source, Sink: end{w, node}, Period: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		parts.Go(func() { _ = e.Run(ctx) })
	}
	short, stop := context.WithCancel(ctx)
	start(ctx, "n1")
	start(short, "n2")
	t.Cleanup(stop)
	return c, func() {
		stop()
		if err := world.SetFault("n1", 1, sim.FaultLost, true); err != nil {
			t.Error(err)
		}
	}
}

// atOnce are the embedded rules without what makes alerts wait.
func atOnce(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	if err := alerts.Write(&b, ""); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^ +(for|keep_firing_for): .*\n`).ReplaceAllString(b.String(), "")
}

// TestPrometheusFiresTheSame: Debian's Prometheus, which scrapes the collector
// and has our rules, fires what the embedded store does, label by label.
func TestPrometheusFiresTheSame(t *testing.T) {
	binary := storetest.Find(t, "prometheus")
	c, harm := hotFleet(t)
	web := httptest.NewServer(c.Handler())
	defer web.Close()
	dir := t.TempDir()
	text := atOnce(t)
	if n := strings.Count(text, "- alert: "); n < 30 {
		t.Fatalf("%d alerts", n)
	}
	for name, data := range map[string]string{"rules.yaml": text, "prometheus.yml": fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs: [{job_name: anything, static_configs: [{targets: ['%s'], labels: {severity: mine, team: x}}]}]
`, strings.TrimPrefix(web.URL, "http://"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := storetest.FreeAddr(t)
	storetest.Start(t, binary, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr).Ready("http://" + addr + "/-/ready")
	own := embeddedRuler(t, c, text)

	var theirs, ours []string
	storetest.Until(t, "both know the fleet as it was", func() bool {
		theirs, ours = firing(t, addr), firingOf(own)
		return slices.Equal(theirs, ours) && containsAll(ours, "GPUThermalHeadroomLow n1", "GPUThermalHeadroomLow n2") && !containsAll(ours, "GPUNodeDown")
	})
	harm()
	storetest.Until(t, "both fire the same, and what is wrong is among it", func() bool {
		theirs, ours = firing(t, addr), firingOf(own)
		return slices.Equal(theirs, ours) && containsAll(ours,
			"GPUMissing n1", "GPUCountMismatch n1", "GPUXidResetRequired n1", "GPUNodeDown n2", "GPUThermalHeadroomLow n1", "Watchdog ")
	}, func() string {
		return "theirs:\n" + strings.Join(theirs, "\n") + "\nours:\n" + strings.Join(ours, "\n")
	})
	for _, a := range ours {
		if strings.Contains(a, "team") || strings.Contains(a, "mine") {
			t.Errorf("a label of a target got into %s", a)
		}
	}
}

func containsAll(list []string, want ...string) bool {
	for _, w := range want {
		if !slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, w) }) {
			return false
		}
	}
	return true
}

// name is an alert as one line that begins with its name and node.
func name(l map[string]string) string {
	rest := maps.Clone(l)
	delete(rest, "alertname")
	delete(rest, "node")
	text := l["alertname"] + " " + l["node"]
	for _, k := range slices.Sorted(maps.Keys(rest)) {
		text += " " + k + "=" + rest[k]
	}
	return text
}

func firing(t *testing.T, addr string) []string {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/api/v1/alerts")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body struct {
		Data struct {
			Alerts []struct{ Labels map[string]string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range body.Data.Alerts {
		out = append(out, name(a.Labels))
	}
	slices.Sort(out)
	return out
}

func firingOf(r *ruler) []string {
	var out []string
	for _, rule := range r.AlertingRules() {
		for _, a := range rule.ActiveAlerts() {
			if a.State == rules.StateFiring {
				out = append(out, name(a.Labels.Map()))
			}
		}
	}
	slices.Sort(out)
	return out
}

// embeddedRuler evaluates rules over what the collector serves, in a store that
// samples every second.
func embeddedRuler(t *testing.T, c *collector.Collector, text string) *ruler {
	t.Helper()
	s, err := Open(Options{
		Dir: t.TempDir(), Source: c.Gatherer(), Ready: c.Ready, GPUs: c.GPUs, Interval: time.Second,
		Rules: fstest.MapFS{"rules.yaml": {Data: []byte(text)}}, Log: promslog.NewNopLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	return s.ruler
}
