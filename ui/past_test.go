package ui

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/cluster"
)

// promPast is a real store of series with a real engine.
type promPast struct {
	db     *tsdb.DB
	engine *promql.Engine
	asked  []string
}

const sampledEvery = 15 * time.Second

func (p *promPast) Every() time.Duration { return sampledEvery }

func (p *promPast) Range(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]Series, error) {
	p.asked = append(p.asked, query)
	q, err := p.engine.NewRangeQuery(ctx, p.db, nil, query, from, to, step)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	m, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, err
	}
	var out []Series
	for _, s := range m {
		one := Series{Labels: s.Metric.Map()}
		for _, f := range s.Floats {
			one.Samples = append(one.Samples, Sample{time.UnixMilli(f.T), f.F})
		}
		out = append(out, one)
	}
	return out, nil
}

// dip is when device 0 had the least headroom for one sample.
var dip = dipBefore(testTime)

func dipBefore(end time.Time) time.Time {
	return end.Add(-3*time.Hour - 40*time.Second).Truncate(sampledEvery)
}

// newPast has a day of the first devices of a fleet until now, sampled like the
// collector's families.
func newPast(t *testing.T, fleet *sample, devices int) *promPast {
	t.Helper()
	return newPastTo(t, fleet, devices, testTime)
}

func newPastTo(t *testing.T, fleet *sample, devices int, end time.Time) *promPast {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.DisableCompactions()
	app := db.Appender(t.Context())
	add := func(at time.Time, v float64, pairs ...string) {
		if _, err := app.Append(0, labels.FromStrings(pairs...), at.UnixMilli(), v); err != nil {
			t.Fatal(err)
		}
	}
	for at := end.Add(-24 * time.Hour).Truncate(sampledEvery); !at.After(end); at = at.Add(sampledEvery) {
		expected := map[string]int{}
		for i, d := range fleet.devices[:devices] {
			of := []string{"node", d.node, "uuid", d.uuid}
			headroom := 20 + float64(i)
			if i == 0 && at.Equal(dipBefore(end)) {
				headroom = 1
			}
			add(at, headroom, append(of, "__name__", "gpu_thermal_headroom_celsius")...)
			add(at, 60+float64(i), append(of, "__name__", "gpu_temperature_celsius", "sensor", "core")...)
			add(at, 400+float64(at.Minute()%2)*100, append(of, "__name__", "gpu_power_watts")...)
			add(at, 1, append(of, "__name__", "gpu_up")...)
			expected[d.node]++
		}
		for node, n := range expected {
			add(at, float64(2*n), "__name__", "evenkeel_node_gpus_expected", "node", node)
			add(at, 5000, "__name__", "node:gpu_power_watts:sum", "node", node)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return &promPast{db: db, engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute})}
}

// pastly asks for a past and checks what is so of each.
func pastly(t *testing.T, base, path string) History {
	t.Helper()
	a := ask(t, "GET", base+Prefix+path, "")
	if a.status != 200 {
		t.Fatalf("%s: %d %s", path, a.status, a.body)
	}
	var h History
	unmarshal(t, a.body, &h)
	if len(h.Items) > mostInstants {
		t.Errorf("%s: %d items", path, len(h.Items))
	}
	for i := 1; i < len(h.Items); i++ {
		apart := h.Items[i].Time.Sub(h.Items[i-1].Time).Seconds()
		if last := i == len(h.Items)-1; apart <= 0 || h.Step > 0 && math.Mod(apart, h.Step) != 0 && (!last || !h.Items[i].Time.Equal(h.To)) {
			t.Errorf("%s: items %d and %d are %v s apart, the step is %v", path, i-1, i, apart, h.Step)
		}
		if at := h.Items[i].Time; at.Before(h.From) || at.After(h.To) {
			t.Errorf("%s: %s lies outside %s to %s", path, at, h.From, h.To)
		}
	}
	return h
}

func TestHistoryOfAGPU(t *testing.T) {
	fleet := newSample(16, testTime, recent)
	past := newPast(t, fleet, 8)
	web := serveWith(t, Options{Fleet: fleet, Decisions: fleet, Past: past})
	path := "/gpus/" + fleet.devices[0].uuid + "/history"

	if h := pastly(t, web.URL, path); h.Source != "memory" || h.Step != 0 || len(h.Items) != 600 || len(past.asked) > 0 {
		t.Errorf("without a range: %d items from %s by %v, %d questions to the store", len(h.Items), h.Source, h.Step, len(past.asked))
	}
	if h := pastly(t, web.URL, path+"?since="+url.QueryEscape(testTime.Add(-5*time.Second).Format(time.RFC3339))); len(h.Items) != 5 {
		t.Errorf("since 5 s ago: %d items, want 5", len(h.Items))
	}
	if h := pastly(t, web.URL, path+"?from=5m&step=10s"); h.Source != "memory" || len(h.Items) != 30 || h.Items[0].GPUs != nil {
		t.Errorf("5 minutes by 10 s: %d items from %s", len(h.Items), h.Source)
	}
	for _, c := range []struct {
		query  string
		step   float64
		items  int
		source string
	}{
		{"?from=1h", 15, 240, "both"},
		{"?from=6h", 60, 360, "both"},
		{"?from=24h", 300, 288, "both"},
		{"?from=1d&step=1h", 3600, 24, "store"},
		{"?from=24h&to=23h", 15, 240, "store"},
		{"?from=70m&to=1h&step=1s", 15, 40, "store"}, // no finer than the store's own
		{fmt.Sprintf("?from=%d&to=%d.5", testTime.Add(-2*time.Hour).Unix(), testTime.Add(-time.Hour).Unix()), 15, 240, "store"},
		{"?from=72h&to=48h", 300, 0, "store"},
	} {
		h := pastly(t, web.URL, path+c.query)
		if h.Step != c.step || h.Source != c.source || len(h.Items) < c.items-1 || len(h.Items) > c.items+1 {
			t.Errorf("%s: %d items from %s by %v s, want about %d from %s by %v", c.query, len(h.Items), h.Source, h.Step, c.items, c.source, c.step)
		}
	}
	// One sample out of 5760 is still seen, in the step that it lies in.
	h := pastly(t, web.URL, path+"?from=24h")
	found := 0
	for _, i := range h.Items {
		if i.Headroom != nil && *i.Headroom == 1 {
			found++
			if i.Time.Before(dip) || i.Time.Sub(dip) > 5*time.Minute {
				t.Errorf("the dip of %s is told at %s", dip, i.Time)
			}
		}
		if i.Core == nil || i.Time.Before(testTime.Add(-recent)) && (*i.Core != 60 || *i.Power < 400 || *i.Power > 500 || i.Memory != nil) {
			t.Errorf("%+v", i)
		}
	}
	if found != 1 {
		t.Errorf("the dip is told %d times", found)
	}
	// The store knows a device that the fleet has forgotten.
	fleet.devices = fleet.devices[8:]
	fleet.publish()
	if h := pastly(t, web.URL, path+"?from=1h"); h.Source != "store" || len(h.Items) < 238 {
		t.Errorf("a device that is gone: %d items from %s", len(h.Items), h.Source)
	}
	if a := ask(t, "GET", web.URL+Prefix+"/gpus/GPU-nosuch/history?from=1h", ""); a.status != 404 {
		t.Errorf("a device that never was: %d", a.status)
	}
}

func TestHistoryOfNodeAndFleet(t *testing.T) {
	fleet := newSample(16, testTime, recent)
	past := newPast(t, fleet, 8)
	web := serveWith(t, Options{Fleet: fleet, Decisions: fleet, Past: past})
	node := fleet.devices[0].node
	h := pastly(t, web.URL, "/nodes/"+node+"/history?from=6h")
	if h.Node != node || h.Source != "both" || len(h.Items) < 359 {
		t.Fatalf("%d items from %s of %s", len(h.Items), h.Source, h.Node)
	}
	if i := h.Items[0]; *i.Headroom != 20 || *i.Core != 67 || *i.Power < 3200 || *i.Power > 4000 || *i.GPUs != 8 {
		t.Errorf("from the store: %+v", i)
	}
	if i := h.Items[len(h.Items)-2]; *i.GPUs != 7 || *i.Power < 7*95 { // one of its eight is lost
		t.Errorf("from memory: %v GPUs, %v W", *i.GPUs, *i.Power)
	}
	past.asked = nil
	h = pastly(t, web.URL, "/history?from=1h")
	if len(h.Items) < 239 || h.Source != "store" {
		t.Fatalf("%d items from %s", len(h.Items), h.Source)
	}
	if i := h.Items[10]; *i.Power != 5000 || *i.Headroom != 20 || *i.Coverage != 0.5 || *i.GPUs != 8 {
		t.Errorf("the fleet: power %v, headroom %v, coverage %v of %v", *i.Power, *i.Headroom, *i.Coverage, *i.GPUs)
	}
	if asked := strings.Join(past.asked, "\n"); strings.Contains(asked, "sum(gpu_power_watts)") || !strings.Contains(asked, "min(gpu_thermal_headroom_celsius)") {
		t.Errorf("what is recorded is to be preferred, what is not to be read from the GPUs; asked were\n%s", asked)
	}
}

// fails is a store that cannot answer.
type fails struct{ err error }

func (f fails) Every() time.Duration { return sampledEvery }
func (f fails) Range(context.Context, string, time.Time, time.Time, time.Duration) ([]Series, error) {
	return nil, f.err
}

func TestHistoryErrors(t *testing.T) {
	fleet := newSample(16, testTime, recent)
	off := serveWith(t, Options{Fleet: fleet, Decisions: fleet}).URL + Prefix
	ill := serveWith(t, Options{Fleet: fleet, Decisions: fleet, Past: fails{errors.New("no space left on device")}}).URL + Prefix
	slow := serveWith(t, Options{Fleet: fleet, Decisions: fleet, Past: fails{context.DeadlineExceeded}}).URL + Prefix
	gpu := "/gpus/" + fleet.devices[0].uuid + "/history"
	for _, c := range []struct {
		url    string
		status int
		code   string
		says   string
	}{
		{off + gpu + "?from=yesterday", 400, "bad_parameter", "90m"},
		{off + gpu + "?from=-5m", 400, "bad_parameter", "90m"},
		{off + gpu + "?from=5", 400, "bad_parameter", "seconds since 1970"},
		{off + gpu + "?from=NaN", 400, "bad_parameter", "90m"},
		{off + gpu + "?from=1m&to=5m", 400, "bad_parameter", "is after to"},
		{off + gpu + "?from=2026-12-01T00:00:00Z", 400, "bad_parameter", "is in the future"},
		{off + gpu + "?from=1970-01-01T00:00:00Z", 400, "bad_parameter", "ten years"},
		{off + gpu + "?step=0", 400, "bad_parameter", "at least 1s"},
		{off + gpu + "?step=1500ms", 400, "bad_parameter", "whole seconds"},
		{off + gpu + "?from=24h&step=15s", 400, "bad_parameter", "24h by 15s are 5760 points, 1000 are the most; give a step of 2m or more"},
		{off + gpu + "?from=5m&since=5m", 400, "bad_parameter", "give from"},
		{off + gpu + "?form=5m", 400, "bad_parameter", "there are from, to, step"},
		{off + gpu + "?from=2h&to=1h", 503, "store_off", "store.enabled"},
		{off + "/history", 503, "store_off", "store.enabled"},
		{off + "/nodes/nosuch/history", 404, "not_found", "/nodes lists"},
		{off + "/gpus/nosuch/history", 404, "not_found", "/gpus lists"},
		{ill + gpu + "?from=1h", 503, "store_failed", "no space left on device"},
		{slow + "/history?from=1h", 504, "store_slow", "longer step"},
	} {
		a := ask(t, "GET", c.url, "")
		var e Error
		unmarshal(t, a.body, &e)
		if a.status != c.status || e.Error.Code != c.code || !strings.Contains(e.Error.Message, c.says) {
			t.Errorf("%s: %d %s, want %d %s with %q", c.url, a.status, a.body, c.status, c.code, c.says)
		}
	}
	h := pastly(t, strings.TrimSuffix(off, Prefix), gpu+"?from=1h")
	if len(h.Items) < 290 || !strings.Contains(h.Note, "before 2026-11-30T03:02:00Z is not kept: the embedded store is off") || !h.From.Equal(testTime.Add(-recent)) {
		t.Errorf("an hour without a store: %d items from %s, %q", len(h.Items), h.From, h.Note)
	}
	if h := pastly(t, strings.TrimSuffix(ill, Prefix), gpu+"?from=10m"); len(h.Items) != 600 {
		t.Errorf("memory beside a store that is ill: %d items", len(h.Items))
	}
}

// TestStepsGather: a step holds what the points in it hold, whoever groups them.
func TestStepsGather(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := time.Duration(rapid.IntRange(1, 90).Draw(t, "step")) * time.Second
		from := testTime.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "from")) * 100 * time.Millisecond)
		to := from.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "length")) * 100 * time.Millisecond)
		devices := make([][]Point, rapid.IntRange(1, 3).Draw(t, "devices"))
		for d := range devices {
			at := from.Add(-10 * time.Second)
			for range rapid.IntRange(0, 40).Draw(t, "points") {
				at = at.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "gap")) * 100 * time.Millisecond)
				p := Point{At: at, Headroom: cluster.Some(float64(rapid.IntRange(-5, 40).Draw(t, "v")))}
				if rapid.Bool().Draw(t, "power") {
					p.Power = cluster.Some(float64(rapid.IntRange(0, 700).Draw(t, "w")))
				}
				devices[d] = append(devices[d], p)
			}
		}
		got := map[time.Time]Instant{}
		for _, i := range gathered(devices, from, to, step) {
			got[i.Time] = i
		}
		for at := from.Truncate(step).Add(step); at.Before(to.Add(2 * step)); at = at.Add(step) {
			least, watts, heard := math.Inf(1), 0.0, 0
			for _, points := range devices {
				sum, n := 0.0, 0
				for _, p := range points {
					if !p.At.After(from) || p.At.After(to) || !p.At.After(at.Add(-step)) || p.At.After(at) {
						continue
					}
					least = math.Min(least, p.Headroom.V)
					if p.Power.OK {
						sum, n = sum+p.Power.V, n+1
					}
				}
				if n > 0 {
					watts, heard = watts+sum/float64(n), heard+1
				}
			}
			end := at
			if at.After(to) {
				end = to
			}
			i := got[end]
			if (i.Headroom == nil) != math.IsInf(least, 1) || i.Headroom != nil && *i.Headroom != least || (i.Power == nil) != (heard == 0) || i.Power != nil && math.Abs(*i.Power-watts) > 1e-6 {
				t.Fatalf("step to %s: %v, want headroom %v, power %v of %d", at, i, least, watts, heard)
			}
			if i != (Instant{}) {
				delete(got, end)
			}
		}
		if len(got) > 0 {
			t.Fatalf("steps of nothing: %v", got)
		}
	})
}
