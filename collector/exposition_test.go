package collector

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var update = flag.Bool("update", false, "write the golden files")

// showcase is a small fleet with one of everything: a busy node, a node with a
// hung, a lost and an absent device, a silent one and one never heard.
func showcase(t testing.TB, perLink bool) *world {
	w := newWorld(t, func(o *Options) { o.PerLink = perLink })
	busy, ill, silent := newSender("busy", 2), newSender("Ill.1", 4), newSender("silent", 1)
	w.bus.inventories(telemetry.Inventory{Source: "slurm-x", Time: t0, Nodes: []telemetry.InventoryNode{
		{Name: "busy", Rack: "r1", Row: "A", Feed: "f1"}, {Name: "never", Rack: "r2", ExpectedUUIDs: []string{"GPU-never-0"}}},
		Workloads: []telemetry.InventoryWorkload{{Ref: "slurm:77", Owner: `o"wner`, Members: []telemetry.WorkloadMember{{ID: "77.0", GPUs: []string{"GPU-busy-0"}}}}}})
	busy.gpus[0].SetLinkValue(telemetry.LinkNVLinkBytesTx, 0, 1000)
	busy.gpus[0].SetLinkValue(telemetry.LinkNVLinkUp, 0, 1)
	busy.gpus[0].SetLinkValue(telemetry.LinkNVLinkUp, 1, 1)
	busy.gpus[0].SetLinkValue(telemetry.LinkNVLinkUp, 2, 0)
	busy.gpus[1].SetQuality(telemetry.GPUPowerWatts, telemetry.Quality_QUALITY_SUSPECT)
	busy.gpus[1].SetQuality(telemetry.GPUUtilizationRatio, telemetry.Quality_QUALITY_ERROR)
	w.tick(t0, busy, ill, silent)
	ill.gpus[0].SetLost(true)
	ill.gpus[1].SetHung(telemetry.HungCall_builder{Call: "nvmlDeviceGetTemperature", ForMs: 2500}.Build())
	ill.gpus = ill.gpus[:3]
	for i := 1; i <= 11; i++ {
		at := t0.Add(time.Duration(i) * time.Second)
		w.clock.set(at)
		f := busy.frame(at)
		f.SetSamples([]*telemetry.Sample{
			telemetry.Sample_builder{Id: uint32(telemetry.NodeReaderSuccess), Labels: []string{"temperature"}, Value: 1}.Build(),
			telemetry.Sample_builder{Id: uint32(telemetry.GPUXidErrors), Uuid: "GPU-busy-1", Labels: []string{"79", "reset"}, Value: 2}.Build(),
			telemetry.Sample_builder{Id: uint32(telemetry.ProcessMemoryBytes), Uuid: "GPU-busy-1", Labels: []string{"1", "python"}, Value: 2}.Build(),
		})
		w.bus.send(frameSubject("busy"), encode(t, f))
		w.tick(at, ill)
	}
	w.clock.set(t0.Add(11*time.Second + 300*time.Millisecond))
	return w
}

func TestExpositionGolden(t *testing.T) {
	for name, perLink := range map[string]bool{"metrics.prom": false, "metrics-per-link.prom": true} {
		code, got := showcase(t, perLink).get("/metrics")
		if code != 200 {
			t.Fatalf("/metrics answers %d: %s", code, got)
		}
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; see the difference with -update and git diff\n%s", file, got)
		}
	}
}

func parse(t testing.TB, body string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("exposition cannot be parsed: %v", err)
	}
	return families
}

func TestExpositionIsClean(t *testing.T) {
	_, body := showcase(t, true).get("/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	rows := map[string]*telemetry.Row{}
	for i := range telemetry.Catalog {
		rows[telemetry.Catalog[i].Name] = &telemetry.Catalog[i]
	}
	for name, f := range parse(t, body) {
		row := rows[name]
		if row == nil {
			t.Errorf("%s is not in the catalogue", name)
			continue
		}
		if f.GetHelp() != row.Help {
			t.Errorf("%s: help %q", name, f.GetHelp())
		}
		seen := map[string]bool{}
		for _, m := range f.Metric {
			var names []string
			key := ""
			for _, l := range m.Label {
				names = append(names, l.GetName())
				key += l.GetName() + "=" + l.GetValue() + ";"
			}
			if seen[key] {
				t.Errorf("%s{%s} twice", name, key)
			}
			seen[key] = true
			want := slices.Clone(row.Labels)
			if row.Per != telemetry.PerSelf {
				want = append(want, "node")
			}
			if row.Per != telemetry.PerSelf && row.Per != telemetry.PerNode {
				want = append(want, "uuid")
			}
			slices.Sort(want)
			if !slices.Equal(names, want) {
				t.Errorf("%s has labels %v, want %v", name, names, want)
			}
		}
	}
}

func value(t *testing.T, families map[string]*dto.MetricFamily, name string, labels ...string) (float64, bool) {
	t.Helper()
	f := families[name]
	if f == nil {
		return 0, false
	}
	for _, m := range f.Metric {
		match := 0
		for _, l := range m.Label {
			for i := 0; i < len(labels); i += 2 {
				if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
					match++
				}
			}
		}
		if match == len(labels)/2 {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
		}
	}
	return 0, false
}

func TestExpositionTellsWhatIsKnown(t *testing.T) {
	_, body := showcase(t, false).get("/metrics")
	families := parse(t, body)
	for _, tc := range []struct {
		name   string
		labels []string
		want   float64 // NaN: no such series
	}{
		{"gpu_temperature_celsius", []string{"uuid", "GPU-busy-0", "sensor", "core"}, 60},
		{"gpu_power_watts", []string{"uuid", "GPU-busy-1"}, 500},                    // suspect is shown
		{"gpu_utilization_ratio", []string{"uuid", "GPU-busy-1"}, math.NaN()},       // an error is not
		{"gpu_up", []string{"uuid", "GPU-Ill.1-0"}, 0},                              // lost
		{"gpu_health", []string{"uuid", "GPU-Ill.1-1", "class", "hung"}, 1},         //
		{"gpu_health", []string{"uuid", "GPU-Ill.1-3", "class", "absent"}, 1},       //
		{"gpu_power_watts", []string{"uuid", "GPU-Ill.1-3"}, math.NaN()},            // absent: no values
		{"gpu_power_watts", []string{"node", "silent"}, math.NaN()},                 // gone: its series end …
		{"evenkeel_node_up", []string{"node", "silent"}, 0},                         // … this one stays
		{"evenkeel_node_up", []string{"node", "never"}, 0},                          //
		{"gpu_up", []string{"node", "never"}, math.NaN()},                           //
		{"evenkeel_node_gpus_expected", []string{"node", "never"}, 1},               //
		{"gpu_sample_age_seconds", []string{"uuid", "GPU-busy-0"}, 0.3},             //
		{"gpu_allocated", []string{"uuid", "GPU-busy-0"}, 1},                        //
		{"gpu_allocated", []string{"uuid", "GPU-busy-1"}, 0},                        //
		{"gpu_allocated", []string{"uuid", "GPU-Ill.1-0"}, math.NaN()},              // no scheduler knows the node
		{"gpu_workload_info", []string{"workload", "slurm:77", "kind", "slurm"}, 1}, //
		{"evenkeel_node_info", []string{"node", "busy", "rack", "r1", "feed", "f1"}, 1},
		{"gpu_xid_errors_total", []string{"xid", "79"}, 2},
		{"gpu_health", []string{"uuid", "GPU-busy-1", "class", "reset_needed"}, 1},
		{"gpu_health", []string{"uuid", "GPU-busy-0", "class", "degraded"}, 1}, // a link is down
		{"gpu_health_score", []string{"uuid", "GPU-busy-0"}, 0.4},
		{"gpu_health_score", []string{"uuid", "GPU-Ill.1-2"}, 1},
		{"gpu_health_score", []string{"uuid", "GPU-Ill.1-3"}, math.NaN()},
		{"gpu_idle_seconds", nil, math.NaN()}, // whether they are used is not known
		{"gpu_nvlink_links_up", []string{"uuid", "GPU-busy-0"}, 2},
		{"evenkeel_node_doubtful", []string{"node", "busy"}, 0},
		{"evenkeel_node_doubtful", []string{"node", "silent"}, math.NaN()},
		{"gpu_process_memory_bytes", nil, math.NaN()}, // the node exporter's
		{"gpu_nvlink_bytes_total", nil, math.NaN()},   // not asked for
		{"evenkeel_frames_dropped_total", []string{"why", "forged"}, 0},
		{"evenkeel_frame_lag_seconds", nil, 0},
	} {
		got, ok := value(t, families, tc.name, tc.labels...)
		if ok == math.IsNaN(tc.want) || ok && math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s%v = %g (%v), want %g", tc.name, tc.labels, got, ok, tc.want)
		}
	}
}

// The tree gives what a plain registry gives for the same numbers.
func TestExpositionEqualsRegistry(t *testing.T) {
	w := showcase(t, true)
	families, done, err := w.families.Gather()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(replay{families})
	want, err := reg.Gather()
	if err != nil {
		t.Fatalf("a registry refuses the same series: %v", err)
	}
	if len(families) != len(want) {
		t.Fatalf("%d families, a registry has %d", len(families), len(want))
	}
	for i, f := range families {
		f = proto.Clone(f).(*dto.MetricFamily)
		for _, m := range f.Metric {
			if m.Counter != nil {
				m.Counter.CreatedTimestamp = nil // the self metrics have one
			}
		}
		slices.SortFunc(f.Metric, byLabels)
		slices.SortFunc(want[i].Metric, byLabels)
		if !proto.Equal(f, want[i]) {
			t.Errorf("family %s differs from a registry's:\n%v\n%v", f.GetName(), f, want[i])
		}
	}
}

func byLabels(a, b *dto.Metric) int {
	return cmp.Compare(fmt.Sprint(a.Label), fmt.Sprint(b.Label))
}

// replay is a collector of constant metrics with given families.
type replay struct{ families []*dto.MetricFamily }

func (r replay) Describe(ch chan<- *prometheus.Desc) {}

func (r replay) Collect(ch chan<- prometheus.Metric) {
	for _, f := range r.families {
		for _, m := range f.Metric {
			labels := prometheus.Labels{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			desc := prometheus.NewDesc(f.GetName(), f.GetHelp(), nil, labels)
			kind, v := prometheus.GaugeValue, m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				kind, v = prometheus.CounterValue, m.GetCounter().GetValue()
			}
			ch <- prometheus.MustNewConstMetric(desc, kind, v)
		}
	}
}

func TestSeriesEndWithTheirDevice(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 2)
	w.tick(t0, s)
	w.tick(t0.Add(2*time.Second), s)
	count := func() (n int) {
		_, body := w.get("/metrics")
		return strings.Count(body, `uuid="GPU-a-1"`)
	}
	full := count()
	if full < 8 {
		t.Fatalf("%d series of the device", full)
	}
	s.gpus = s.gpus[:1]
	w.tick(t0.Add(3*time.Second), s)
	if got := count(); got != 2 { // gpu_up and gpu_health
		t.Errorf("%d series of an absent device, want 2", got)
	}
	w.clock.set(t0.Add(14 * time.Second))
	if got := count(); got != 0 {
		t.Errorf("%d series of a device of a silent node", got)
	}
	s.gpus = newSender("a", 2).gpus
	w.tick(t0.Add(20*time.Second), s)
	if got := count(); got != full {
		t.Errorf("%d series after the return, want %d", got, full)
	}
	if len(w.families.nodes) != 1 || len(w.families.nodes["a"].gpus) != 2 {
		t.Errorf("blocks kept: %d nodes", len(w.families.nodes))
	}
}

func TestStaleValuesAreNotShown(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	w.tick(t0, s)
	w.clock.set(t0.Add(4 * time.Second))
	_, body := w.get("/metrics")
	families := parse(t, body)
	if _, ok := value(t, families, "gpu_power_watts"); ok {
		t.Error("a fast value is shown four ticks later")
	}
	if _, ok := value(t, families, "gpu_power_limit_watts"); !ok {
		t.Error("a slow value is not shown after four seconds")
	}
}

func TestTwoNodesClaimOneDevice(t *testing.T) {
	w, a, b := newWorld(t, nil), newSender("a", 1), newSender("b", 1)
	b.gpus[0].SetUuid("GPU-a-0")
	for i := range 3 {
		w.tick(t0.Add(time.Duration(i)*time.Second), a, b)
		w.View()
	}
	code, body := w.get("/metrics")
	if code != 200 {
		t.Fatalf("/metrics answers %d", code)
	}
	families := parse(t, body)
	for _, node := range []string{"a", "b"} {
		if v, ok := value(t, families, "gpu_health", "node", node, "class", "doubtful"); !ok || v != 1 {
			t.Errorf("device on %s is not told as doubtful", node)
		}
	}
}

func TestReadiness(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	check := func(at time.Time, want bool) {
		t.Helper()
		w.clock.set(at)
		code, _ := w.get("/-/ready")
		mcode, body := w.get("/metrics")
		if (code == 200) != want || strings.Contains(body, "gpu_up") != want || mcode != 200 {
			t.Errorf("%s after the start: ready %d, metrics %d, GPU families shown %v; want %v", at.Sub(t0), code, mcode, strings.Contains(body, "gpu_up"), want)
		}
		if !strings.Contains(body, "evenkeel_frames_dropped_total") {
			t.Error("the collector's own metrics are withheld")
		}
	}
	check(t0, false)
	w.tick(t0.Add(200*time.Millisecond), s)
	check(t0.Add(300*time.Millisecond), false)
	check(t0.Add(1400*time.Millisecond), false)
	check(t0.Add(1500*time.Millisecond), true)
	if code, _ := w.get("/-/healthy"); code != 200 {
		t.Error("not healthy")
	}

	alone := newWorld(t, nil)
	alone.clock.set(t0.Add(9 * time.Second))
	if code, _ := alone.get("/-/ready"); code != 503 {
		t.Errorf("ready %d before anybody could be heard", code)
	}
	alone.clock.set(t0.Add(10 * time.Second))
	if code, _ := alone.get("/-/ready"); code != 200 {
		t.Errorf("ready %d though there is nobody to hear", code)
	}
}

// A scrape allocates for the request, not for each series.
func TestScrapeAllocations(t *testing.T) {
	w := bigWorld(t, 50)
	gather := func() {
		_, done, err := w.families.Gather()
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
	gather()
	series := 0
	families, done, _ := w.families.Gather()
	for _, f := range families {
		series += len(f.Metric)
	}
	done()
	if got := testing.AllocsPerRun(10, gather); got > float64(series)/20 {
		t.Errorf("%g allocations per scrape of %d series; want at most one for twenty", got, series)
	}
}
