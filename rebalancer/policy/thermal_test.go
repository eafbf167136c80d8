package policy_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// device is a GPU as a test describes it; NaN is a value that is not known.
type device struct {
	headroom, slope, tau, r     float64
	power, limit, min, default_ float64
	throttled                   bool
	more                        []cluster.Reading
}

func h100() device {
	return device{headroom: 3, tau: 20, r: 0.06, power: 650, limit: 700, min: 200, default_: 700}
}

var unknown = math.NaN()

func opt(v float64) cluster.Opt { return cluster.Opt{V: v, OK: !math.IsNaN(v)} }

func ok(id telemetry.ID, v float64) cluster.Reading {
	return cluster.Reading{ID: id, V: v, At: now, Quality: telemetry.Quality_QUALITY_OK}
}

func (d device) scene(t testing.TB, jobs ...*cluster.Workload) (*rebalancer.Scene, *cluster.GPU) {
	t.Helper()
	readings := append([]cluster.Reading{ok(telemetry.GPUThermalHeadroomCelsius, d.headroom), ok(telemetry.GPUTemperatureCelsiusCore, 90-d.headroom)}, d.more...)
	if !math.IsNaN(d.power) {
		readings = append(readings, ok(telemetry.GPUPowerWatts, d.power))
	}
	if d.throttled {
		readings = append(readings, ok(telemetry.GPUThrottleActiveHWThermal, 1))
	}
	g := cluster.NewGPU(cluster.GPU{UUID: "GPU-1", Node: "n1", Model: "H100", State: cluster.GPUOK, Generation: 1,
		HeadroomC: opt(d.headroom), SlopeCPerS: opt(d.slope), TauS: opt(d.tau), RCPerW: opt(d.r),
		LimitW: opt(d.limit), MinW: opt(d.min), DefaultW: opt(d.default_)}, readings...)
	for _, w := range jobs {
		w.GPUs[0] = g
	}
	n := &cluster.Node{Name: "n1", State: cluster.NodeUp, Period: time.Second, Since: now.Add(-time.Hour), Incarnation: 1, GPUs: []*cluster.GPU{g}, Expected: 1}
	return sceneOf(t, cluster.NewView(now, []*cluster.Node{n}, jobs), rebalancer.Memory{}), g
}

// sceneOf has the engine make the Scene, as it does for every policy.
func sceneOf(t testing.TB, v *cluster.View, m rebalancer.Memory) *rebalancer.Scene {
	t.Helper()
	var got *rebalancer.Scene
	pl := rebalancer.Planner{Policies: []rebalancer.Policy{catching{thermal(t), &got}}}
	pl.Step(now, v, m)
	return got
}

type catching struct {
	rebalancer.Policy
	scene **rebalancer.Scene
}

func (c catching) Detect(s *rebalancer.Scene) []rebalancer.Sighting { *c.scene = s; return nil }

func thermal(t testing.TB, change ...func(*rebalancer.PolicySpec)) *policy.Thermal {
	t.Helper()
	s := policy.Defaults()[0]
	for _, f := range change {
		f(&s)
	}
	p, err := policy.NewThermal(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func propose(t testing.TB, d device, jobs ...*cluster.Workload) (rebalancer.Proposal, []telemetry.Refusal) {
	t.Helper()
	p := thermal(t)
	s, g := d.scene(t, jobs...)
	sightings := p.Detect(s)
	if len(sightings) != 1 || sightings[0].GPU != g {
		t.Fatalf("sightings %v", sightings)
	}
	return p.Propose(s, sightings[0], telemetry.ActCap)
}

func TestCapSize(t *testing.T) {
	cases := []struct {
		name   string
		change func(*device)
		watts  float64
		after  float64
		within time.Duration
		short  bool // said that it is not enough
	}{
		// P = 650 − (8 − 3)/0.06 = 566.7
		{"steady", func(d *device) {}, 566, 3 + 0.06*84, time.Minute, false},
		// It would end at 3 − 0.2·20 = −1, so P = 650 − 9/0.06 = 500
		{"rising", func(d *device) { d.slope = -0.2 }, 500, -1 + 0.06*150, time.Minute, false},
		{"cooling is not counted on", func(d *device) { d.slope = 0.5 }, 566, 3 + 0.06*84, time.Minute, false},
		// Taken as 25 s: it would end at 3 − 0.2·25 = −2, so P = 650 − 10/0.06 = 483.3
		{"rise without a time constant", func(d *device) { d.slope, d.tau = -0.2, unknown }, 483, -2 + 0.06*167, time.Minute, false},
		// A rise of 1 °C/s is counted as 10 °C: P = 650 − 15/0.06 = 400
		{"fast rise without a time constant", func(d *device) { d.slope, d.tau = -1, unknown }, 400, -7 + 0.06*250, time.Minute, false},
		// The core is at 87 °C, so R is at least (87 − 45)/650 and P = 650 − 5/0.0646 = 572.6
		{"resistance not known", func(d *device) { d.r = unknown }, 572, 3 + 42./650*78, time.Minute, false},
		{"resistance of no device", func(d *device) { d.r = -1 }, 572, 3 + 42./650*78, time.Minute, false},
		// P = 650 − 5/0.05 = 550
		{"resistance not known, cooling", func(d *device) { d.r, d.slope = unknown, 0.5 }, 550, 3 + 0.05*100, time.Minute, false},
		// Without the power no resistance follows from the temperature.
		{"neither resistance nor power known", func(d *device) { d.r, d.power = unknown, unknown }, 600, 3 + 0.05*100, time.Minute, false},
		// One act cuts at most 0.4 · 700 = 280 W from the 650 W it draws.
		{"largest cut", func(d *device) { d.slope = -2 }, 370, -37 + 0.06*280, time.Minute, true},
		{"least limit", func(d *device) { d.slope, d.min = -2, 400 }, 400, -37 + 0.06*250, time.Minute, true},
		{"least limit is not whole", func(d *device) { d.slope, d.min = -2, 400.5 }, 401, -37 + 0.06*249, time.Minute, true},
		{"default not known", func(d *device) { d.slope, d.default_ = -2, unknown }, 370, -37 + 0.06*280, time.Minute, true},
		{"power not known", func(d *device) { d.power = unknown }, 616, 3 + 0.06*84, time.Minute, false},
		{"power above the limit is noise", func(d *device) { d.power = 720 }, 616, 3 + 0.06*84, time.Minute, false},
		{"floor of the policy", func(d *device) { d.limit, d.power, d.slope = 500, 500, -1 }, 350, -17 + 0.06*150, time.Minute, true},
		{"already capped", func(d *device) { d.limit, d.power = 500, 500 }, 416, 3 + 0.06*84, time.Minute, false},
		{"fast device", func(d *device) { d.tau = 2 }, 566, 3 + 0.06*84, 15 * time.Second, false},
		{"slow device", func(d *device) { d.tau = 100 }, 566, 3 + 0.06*84, 2 * time.Minute, false},
		{"beyond slowdown", func(d *device) { d.headroom = -2 }, 483, -2 + 0.06*167, time.Minute, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := h100()
			c.change(&d)
			p, refusals := propose(t, d)
			if len(p.Steps) != 1 {
				t.Fatalf("no step: %v", refusals)
			}
			step := p.Steps[0]
			if got := *step.Params.PowerLimitWatts; got != c.watts {
				t.Errorf("%v W, want %v", got, c.watts)
			}
			if got := p.Effect.After; math.Abs(got-c.after) > 0.001 {
				t.Errorf("predicted %.3f °C, want %.3f", got, c.after)
			}
			if p.Effect.Before != d.headroom || time.Duration(p.Effect.Within) != c.within || p.Effect.Signal != "gpu_thermal_headroom_celsius" {
				t.Errorf("effect %+v, want within %s", p.Effect, c.within)
			}
			short := slices.ContainsFunc(refusals, func(r telemetry.Refusal) bool { return r.Reason == telemetry.RefusalNotEnough })
			if short != c.short || len(refusals) > 1 {
				t.Errorf("refusals %v, want not_enough %v", refusals, c.short)
			}
			if step.Kind != telemetry.StepPowerCap || step.Backend != "node" || *step.Params.FoundWatts != d.limit || step.Target.UUID != "GPU-1" || step.Target.Generation != 1 {
				t.Errorf("step %+v", step)
			}
			if !p.Safety {
				t.Error("a thermal cap is for safety")
			}
		})
	}
}

func TestNetBenefit(t *testing.T) {
	gang := func(n int) *cluster.Workload {
		w := &cluster.Workload{InventoryWorkload: telemetry.InventoryWorkload{Ref: "slurm:1"}}
		for i := range n { // the first is the device itself
			w.GPUs = append(w.GPUs, cluster.NewGPU(cluster.GPU{UUID: fmt.Sprintf("other-%d", i), Node: "n2"}))
		}
		return w
	}
	speed := math.Cbrt(566.0 / 650)
	cases := []struct {
		name       string
		change     func(*device)
		jobs       []*cluster.Workload
		gain, cost float64
	}{
		{"it never gets to slowdown", func(d *device) {}, nil, 0, 600 * (1 - speed)},
		{"it throttles already", func(d *device) { d.throttled = true }, nil, 300, 600 * (1 - speed)},
		{"a gang loses as a whole", func(d *device) { d.throttled = true }, []*cluster.Workload{gang(8)}, 2400, 8 * 600 * (1 - speed)},
		// It ends at −1: at slowdown after 20 · ln(4/1) = 27.7 s.
		{"it gets there", func(d *device) { d.slope = -0.2 }, nil, (600 - 20*math.Log(4)) / 2, 600 * (1 - math.Cbrt(500.0/650))},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := h100()
			c.change(&d)
			p, _ := propose(t, d, c.jobs...)
			if math.Abs(p.Gain-c.gain) > 0.01 || math.Abs(p.Cost-c.cost) > 0.01 || p.Risk != 0 {
				t.Errorf("gain %.2f, cost %.2f, risk %v; want %.2f, %.2f, 0", p.Gain, p.Cost, p.Risk, c.gain, c.cost)
			}
		})
	}
}

func TestDetect(t *testing.T) {
	cases := []struct {
		name    string
		change  func(*device)
		spec    func(*rebalancer.PolicySpec)
		seen    bool
		beyond  bool
		agrees  string
		missing bool
	}{
		{name: "cool", change: func(d *device) { d.headroom = 30 }},
		{name: "between the marks", change: func(d *device) { d.headroom = 7 }, seen: true},
		{name: "between the marks, no prediction", change: func(d *device) { d.headroom = 7 }, spec: func(s *rebalancer.PolicySpec) { s.Predict = 0 }},
		{name: "at the mark", change: func(d *device) { d.headroom = 5 }, seen: true, beyond: true},
		{name: "beyond", change: func(d *device) {}, seen: true, beyond: true},
		{name: "beyond and throttled", change: func(d *device) { d.throttled = true }, seen: true, beyond: true, agrees: "throttle reason hw_thermal"},
		{name: "throttled within the mark", change: func(d *device) { d.headroom, d.throttled = 6, true }, seen: true},
		{name: "throttle reason not fresh", change: func(d *device) {
			d.more = []cluster.Reading{{ID: telemetry.GPUThrottleActiveSWThermal, V: 1, At: now.Add(-time.Minute), Quality: telemetry.Quality_QUALITY_OK}}
		}, seen: true, beyond: true},
		{name: "the same sensor is no second value", change: func(d *device) {
			d.more = []cluster.Reading{ok(telemetry.GPUSlowdownThresholdCelsius, 90), ok(telemetry.GPUSlowdownOffsetCelsius, -2)}
		}, seen: true, beyond: true},
		{name: "slowdown in 14 s", change: func(d *device) { d.headroom, d.slope = 7, -0.5 }, seen: true, beyond: true},
		{name: "slowdown in 35 s", change: func(d *device) { d.headroom, d.slope = 7, -0.2 }, seen: true},
		{name: "slowdown in 18 s from above the aim", change: func(d *device) { d.headroom, d.slope = 9, -0.5 }},
		{name: "prediction off", change: func(d *device) { d.headroom, d.slope = 7, -0.5 }, spec: func(s *rebalancer.PolicySpec) { s.Predict = 0 }},
		{name: "no headroom", change: func(d *device) { d.headroom = unknown }},
		{name: "no headroom, throttled", change: func(d *device) { d.headroom, d.throttled = unknown, true }, seen: true, missing: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := h100()
			c.change(&d)
			var changes []func(*rebalancer.PolicySpec)
			if c.spec != nil {
				changes = append(changes, c.spec)
			}
			s, _ := d.scene(t)
			got := thermal(t, changes...).Detect(s)
			if (len(got) == 1) != c.seen {
				t.Fatalf("sightings %+v", got)
			}
			if !c.seen {
				return
			}
			g := got[0]
			if g.Beyond != c.beyond || g.Violation.Agrees != c.agrees || g.Sure != (c.agrees != "") || (g.Missing != "") != c.missing {
				t.Errorf("beyond %v, agrees %q, sure %v, missing %q", g.Beyond, g.Violation.Agrees, g.Sure, g.Missing)
			}
			if !c.missing && (len(g.Readings) != 1 || g.Readings[0].ID != telemetry.GPUThermalHeadroomCelsius || g.Violation.Value != d.headroom || g.Violation.Mark != 5 || g.Violation.Aim != 8) {
				t.Errorf("readings %v, violation %+v", g.Readings, g.Violation)
			}
		})
	}
}

// Without a headroom reading the temperature is the sample it rests on.
func TestDetectOnTheAbsoluteModel(t *testing.T) {
	g := cluster.NewGPU(cluster.GPU{UUID: "GPU-1", Node: "n1", State: cluster.GPUOK, HeadroomC: cluster.Some(2)}, ok(telemetry.GPUTemperatureCelsiusCore, 88))
	n := &cluster.Node{Name: "n1", State: cluster.NodeUp, GPUs: []*cluster.GPU{g}}
	got := thermal(t).Detect(sceneOf(t, cluster.NewView(now, []*cluster.Node{n}, nil), rebalancer.Memory{}))
	if len(got) != 1 || len(got[0].Readings) != 1 || got[0].Readings[0].ID != telemetry.GPUTemperatureCelsiusCore {
		t.Errorf("%+v", got)
	}
}

func TestReview(t *testing.T) {
	watts := func(v float64) *float64 { return &v }
	cases := []struct {
		name     string
		change   func(*device)
		before   float64 // drawn when the cap was decided
		found    *float64
		restored float64
		enough   bool
		helped   bool
	}{
		// 18 − 0.06 · (650 − 500) = 9: one degree short of aim and margin
		{"within the margin", func(d *device) { d.headroom = 18 }, 650, watts(700), 9, false, true},
		{"clear", func(d *device) { d.headroom = 19 }, 650, watts(700), 10, true, true},
		{"still warming", func(d *device) { d.headroom, d.slope = 25, -0.5 }, 650, watts(700), 6, false, true},
		{"cooling is not counted on", func(d *device) { d.headroom, d.slope = 18, 0.5 }, 650, watts(700), 9, false, true},
		{"the work has ended", func(d *device) { d.headroom, d.power = 44, 80 }, 650, watts(700), 44 - 0.06*570, false, true},
		{"the work has ended, cool air", func(d *device) { d.headroom, d.power = 50, 80 }, 650, watts(700), 50 - 0.06*570, true, true},
		// 0.12 °C/W: 20 − 0.12 · 150 = 2
		{"resistance not known", func(d *device) { d.headroom, d.r = 20, unknown }, 650, watts(700), 2, false, true},
		// 62 °C, of which 5 °C at least are the air: (62 − 5)/500 = 0.114 °C/W at most
		{"no more than the core has above the coldest air", func(d *device) { d.headroom, d.r = 28, unknown }, 650, watts(700), 10.9, true, true},
		// (50 − 5)/500 = 0.09 °C/W, whatever was learned: 40 − 0.09 · 150 = 26.5
		{"learned in bad weather", func(d *device) { d.headroom, d.r = 40, 0.3 }, 650, watts(700), 26.5, true, true},
		{"drawn power not known: the limit", func(d *device) { d.headroom = 22 }, 0, watts(700), 10, true, true},
		{"never more than the found limit", func(d *device) { d.headroom = 22 }, 900, watts(700), 10, true, true},
		{"beyond the mark", func(d *device) { d.headroom = 4 }, 650, watts(700), -5, false, false},
		{"power not known: no prediction", func(d *device) { d.headroom, d.power = 60, unknown }, 650, watts(700), 0, false, true},
		{"found limit not known: no prediction", func(d *device) { d.headroom = 60 }, 650, nil, 0, false, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := h100()
			d.power, d.limit = 500, 500
			c.change(&d)
			s, _ := d.scene(t)
			dec := &telemetry.Decision{ID: "d-1", Target: telemetry.Target{UUID: "GPU-1", Node: "n1"}}
			if c.before > 0 {
				dec.Violations = []telemetry.Violation{{Evidence: []telemetry.Evidence{{Signal: "gpu_power_watts", Value: c.before}}}}
			}
			got := thermal(t).Review(s, rebalancer.Held{Decision: dec, Step: telemetry.Step{Params: telemetry.Params{FoundWatts: c.found}}})
			if got.Refusal != nil {
				t.Fatalf("refused: %v", got.Refusal)
			}
			if math.Abs(got.Restored-c.restored) > 1e-9 || got.Enough != c.enough || got.Helped != c.helped || got.Value != d.headroom {
				t.Errorf("%+v, want restored %v, enough %v, helped %v", got, c.restored, c.enough, c.helped)
			}
		})
	}
}

func TestEase(t *testing.T) {
	cases := []struct {
		name   string
		change func(*device)
		held   time.Duration
		watts  float64 // 0: no easing
	}{
		// 16 − 8 − 2 = 6 °C of room are 6/0.06 = 100 W, but 18 °C would be needed
		// for all of it to come back.
		{"room", func(d *device) { d.headroom = 16 }, 3 * time.Minute, 600},
		{"too soon", func(d *device) { d.headroom = 16 }, time.Minute, 0},
		{"still cooling", func(d *device) { d.headroom, d.slope = 16, 0.2 }, 3 * time.Minute, 0},
		{"not known whether it moves", func(d *device) { d.headroom, d.slope = 16, unknown }, 3 * time.Minute, 0},
		{"not worth an act", func(d *device) { d.headroom = 12 }, 3 * time.Minute, 0},
		{"no room", func(d *device) { d.headroom = 9 }, 3 * time.Minute, 0},
		{"all of it can come back", func(d *device) { d.headroom = 22 }, 3 * time.Minute, 0},
		// 18 − 10 = 8 °C at no more than 0.12 °C/W
		{"resistance not known", func(d *device) { d.headroom, d.r = 18, unknown }, 3 * time.Minute, 566},
		{"power not known", func(d *device) { d.headroom, d.power = 16, unknown }, 3 * time.Minute, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := h100()
			d.power, d.limit = 500, 500
			c.change(&d)
			s, g := d.scene(t)
			found, capped := 700.0, 500.0
			h := rebalancer.Held{
				Decision: &telemetry.Decision{ID: "d-000001", Target: telemetry.Target{Node: "n1", UUID: g.UUID}, Violations: []telemetry.Violation{{
					Evidence: []telemetry.Evidence{{Signal: "gpu_power_watts", Value: 650}}}}},
				Step: telemetry.Step{Kind: telemetry.StepPowerCap, Params: telemetry.Params{PowerLimitWatts: &capped, FoundWatts: &found}},
				From: now.Add(-c.held),
			}
			r := thermal(t).Review(s, h)
			if c.watts == 0 {
				if r.Ease != nil {
					t.Fatalf("eases to %v W", *r.Ease.Proposal.Steps[0].Params.PowerLimitWatts)
				}
				return
			}
			if r.Ease == nil {
				t.Fatalf("does not ease: %+v", r)
			}
			p := r.Ease.Proposal
			if got := *p.Steps[0].Params.PowerLimitWatts; got != c.watts || *p.Steps[0].Params.FoundWatts != found {
				t.Errorf("%v W, want %v", got, c.watts)
			}
			if p.Effect.After < 10-0.001 || p.Gain <= 0 || p.Safety {
				t.Errorf("proposal %+v", p)
			}
		})
	}
}

func TestReviewOfWhatCannotBeSeen(t *testing.T) {
	held := func(uuid string) rebalancer.Held {
		return rebalancer.Held{Decision: &telemetry.Decision{Target: telemetry.Target{UUID: uuid}}}
	}
	d := h100()
	s, g := d.scene(t)
	if r := thermal(t).Review(s, held("GPU-9")); r.Refusal == nil || r.Refusal.Reason != telemetry.RefusalUnknown {
		t.Errorf("a GPU that is not there: %+v", r)
	}
	n, _ := s.View.Node("n1")
	n.State = cluster.NodeGone
	if r := thermal(t).Review(s, held(g.UUID)); r.Refusal == nil || r.Refusal.Reason != telemetry.RefusalStale {
		t.Errorf("a node that is gone: %+v", r)
	}
	n.State = cluster.NodeUp
	g.HeadroomC = cluster.Opt{}
	if r := thermal(t).Review(s, held(g.UUID)); r.Refusal == nil || r.Refusal.Reason != telemetry.RefusalUnknown {
		t.Errorf("no headroom: %+v", r)
	}
}

// Memory's own resistance stands in for a missing fit.
func TestLearnedResistance(t *testing.T) {
	d := h100()
	d.r = unknown
	s, g := d.scene(t)
	s = sceneOf(t, s.View, rebalancer.Memory{GPUs: map[string]rebalancer.GPUMemory{g.UUID: {LearnedR: 0.1}}})
	p := thermal(t)
	got, _ := p.Propose(s, p.Detect(s)[0], telemetry.ActCap)
	if w := *got.Steps[0].Params.PowerLimitWatts; w != 600 {
		t.Errorf("%v W, want 650 − 5/0.1", w)
	}
	if !strings.Contains(got.Effect.Note, "0.100 °C/W") {
		t.Errorf("note %q", got.Effect.Note)
	}
}

func TestNewThermalRefuses(t *testing.T) {
	for want, change := range map[string]func(*rebalancer.PolicySpec){
		"mode":                         func(s *rebalancer.PolicySpec) { s.Mode = "" },
		"want gpu_thermal":             func(s *rebalancer.PolicySpec) { s.Signal = "gpu_power_watts" },
		"0 <= act < aim":               func(s *rebalancer.PolicySpec) { s.Act, s.Aim = 8, 5 },
		"act -1":                       func(s *rebalancer.PolicySpec) { s.Act = -1 },
		"is not an act of this policy": func(s *rebalancer.PolicySpec) { s.Ladder = append(s.Ladder, telemetry.ActDrain) },
	} {
		s := policy.Defaults()[0]
		change(&s)
		if _, err := policy.NewThermal(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestNew(t *testing.T) {
	if ps, err := policy.New(policy.Defaults()); err != nil || len(ps) != 1 || ps[0].Spec().Type != policy.TypeThermal {
		t.Errorf("%v, %v", ps, err)
	}
	for want, specs := range map[string][]rebalancer.PolicySpec{
		"there twice":      append(policy.Defaults(), policy.Defaults()...),
		`type "weather"`:   {{Type: "weather"}},
		"budget.percent 0": {{Type: policy.TypeThermal}},
	} {
		if _, err := policy.New(specs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The file that people read and the values in the program are the same.
func TestDefaultsYAML(t *testing.T) {
	dec := yaml.NewDecoder(bytes.NewReader(policy.DefaultsYAML))
	dec.KnownFields(true)
	var got []rebalancer.PolicySpec
	for {
		var f rebalancer.PolicyFile
		if err := dec.Decode(&f); err != nil {
			if err.Error() != "EOF" {
				t.Fatal(err)
			}
			break
		}
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
		got = append(got, f.Spec)
	}
	if diff := cmp.Diff(policy.Defaults(), got); diff != "" {
		t.Errorf("defaults (-program +file):\n%s", diff)
	}
}
