package policy_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func preempting(s *rebalancer.PolicySpec) {
	s.Ladder = []telemetry.ActKind{telemetry.ActSteer, telemetry.ActCap, telemetry.ActPreempt}
}

// atFloor is a device that the lowest cap does not keep cool.
func atFloor() device {
	return device{headroom: 2, tau: 20, r: 0.06, power: 350, limit: 350, min: 200, default_: 700}
}

// job is a process tree on the device and on as many others as make up gpus.
func job(pid, gpus int) *cluster.Workload {
	w := &cluster.Workload{Source: cluster.SourceNode, Name: "train", GPUs: make([]*cluster.GPU, gpus)}
	w.Ref, w.Owner = telemetry.WorkloadRef("proc:n1/"+string(rune('0'+pid))+"@9"), "ada"
	for i := range w.GPUs {
		w.GPUs[i] = &cluster.GPU{UUID: "GPU-x", Node: "n1"}
	}
	return w
}

// end asks the policy about the first of the jobs.
func end(t testing.TB, d device, share float64, jobs ...*cluster.Workload) (rebalancer.Proposal, []telemetry.Refusal) {
	t.Helper()
	s, g := d.scene(t, jobs...)
	n, _ := s.View.Node("n1")
	target := telemetry.Target{Node: "n1", UUID: g.UUID, Generation: 1}
	sighting := rebalancer.Sighting{Node: n, GPU: g, Violation: telemetry.Violation{Target: target, Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Value: d.headroom, Mark: 5, Aim: 8}}
	target.Workload, target.PID, target.PIDStart, target.BootID = jobs[0].Ref, 1, 9, "b"
	sighting.Victim = &rebalancer.Victim{Workload: jobs[0], Share: share, Target: target}
	return thermal(t, preempting).Propose(s, sighting, telemetry.ActPreempt)
}

// Of the power the share goes, less what the device draws idle, and headroom
// rises by R times that.
func TestEndOfAWorkloadIsPredicted(t *testing.T) {
	cases := []struct {
		name   string
		change func(*device)
		share  float64
		after  float64
		within time.Duration
	}{
		// All but 0.1 · 700 = 70 W goes: 2 + 0.06 · 280
		{"the only one", func(*device) {}, 1, 2 + 0.06*280, time.Minute},
		{"a share that cannot be", func(*device) {}, 1.5, 2 + 0.06*280, time.Minute},
		{"a half of it", func(*device) {}, 0.5, 2 + 0.06*140, time.Minute},
		{"it draws less than the limit", func(d *device) { d.power = 270 }, 0.5, 2 + 0.06*100, time.Minute},
		// It would end at 2 − 0.1·20 = 0
		{"rising", func(d *device) { d.slope = -0.1 }, 1, 0.06 * 280, time.Minute},
		// The core is at 88 °C: R is at least (88 − 45)/350 = 0.12286, more than any has
		{"resistance not known", func(d *device) { d.r = unknown }, 0.5, 2 + 0.12*140, time.Minute},
		{"neither resistance nor power known", func(d *device) { d.r, d.power = unknown, unknown }, 1, 2 + 0.05*280, time.Minute},
		{"default not known: the limit found stands in", func(d *device) { d.default_ = unknown }, 1, 2 + 0.06*315, time.Minute},
		{"slow device", func(d *device) { d.tau = 100 }, 1, 2 + 0.06*280, 2 * time.Minute},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := atFloor()
			c.change(&d)
			d.more = append(d.more, ok(telemetry.GPUThrottleActiveHWThermal, 1)) // whatever it costs
			p, refusals := end(t, d, c.share, job(1, 1))
			if len(refusals) != 0 || len(p.Steps) != 1 {
				t.Fatalf("%+v, %v", p, refusals)
			}
			e := p.Effect
			if math.Abs(e.After-c.after) > 1e-6 || e.Before != d.headroom || time.Duration(e.Within) != c.within || !strings.Contains(e.Note, "of the") {
				t.Errorf("%+v, want %v within %s", e, c.after, c.within)
			}
		})
	}
}

// What it leaves the others take, as far as the limit lets them: a device that
// wants more than its limit is relieved by less than the share.
func TestTheOthersTakeWhatItLeaves(t *testing.T) {
	watts, found := 350.0, 700.0
	decided := func(drawn float64) rebalancer.Memory {
		d := &telemetry.Decision{ID: "d-000001", Policy: "thermal", Outcome: telemetry.OutcomeVerified, Target: telemetry.Target{Node: "n1", UUID: "GPU-1", Generation: 1},
			Violations: []telemetry.Violation{{Evidence: []telemetry.Evidence{{Signal: "gpu_power_watts", Value: drawn}}}}}
		step := telemetry.Step{ID: "d-000001.1", Kind: telemetry.StepPowerCap, Lease: telemetry.Duration(time.Hour), Params: telemetry.Params{PowerLimitWatts: &watts, FoundWatts: &found}}
		d.Steps = []telemetry.StepRecord{{Step: step, Receipt: &telemetry.Receipt{StepID: step.ID, Result: telemetry.Done}}}
		d.Act = &telemetry.Act{Steps: []telemetry.Step{step}}
		return rebalancer.Memory{Decisions: map[string]*telemetry.Decision{d.ID: d}, Leases: map[string]time.Time{d.ID: now}}
	}
	for _, c := range []struct {
		drawn, power, share, after float64
		refused                    bool
	}{
		// Wanted are 650: half of it leaves 70 + 290 = 360, which is no relief.
		{650, 350, 0.5, 0, true},
		// 70 + 0.4 · 580 = 302 are left of 350
		{650, 350, 0.6, 2 + 0.06*48, false},
		// The device does not draw its limit: what it drew before is long past.
		{650, 300, 0.5, 2 + 0.06*115, false},
		{350, 350, 0.5, 2 + 0.06*140, false},
	} {
		d := atFloor()
		d.power = c.power
		d.more = append(d.more, ok(telemetry.GPUThrottleActiveHWThermal, 1))
		s, g := d.scene(t, job(1, 1))
		s = sceneOf(t, s.View, decided(c.drawn))
		n, _ := s.View.Node("n1")
		w, _ := s.View.Workload("proc:n1/1@9")
		p, refusals := thermal(t, preempting).Propose(s, rebalancer.Sighting{Node: n, GPU: g, Violation: telemetry.Violation{Target: telemetry.Target{Node: "n1", UUID: g.UUID}}, Victim: &rebalancer.Victim{Workload: w, Share: c.share}}, telemetry.ActPreempt)
		if c.refused != (len(p.Steps) == 0) || c.refused && refusals[0].Reason != telemetry.RefusalNotEnough || !c.refused && math.Abs(p.Effect.After-c.after) > 1e-6 {
			t.Errorf("%+v: %+v, %v", c, p.Effect, refusals)
		}
	}
}

// The net benefit: what the others gain against the work lost and the time that
// nothing is done. Only hardware that is being slowed down does without.
func TestWorthOfAnEnd(t *testing.T) {
	cases := []struct {
		name       string
		change     func(*device, *cluster.Workload)
		others     []*cluster.Workload
		gain, cost float64
		safety     bool
		refused    bool
	}{
		// The device would not reach slowdown: 2 °C are left and nothing rises.
		{"alone, started an hour ago", func(*device, *cluster.Workload) {}, nil, 0, 3600 + 30 + 600, false, false},
		{"saved a minute ago", func(_ *device, w *cluster.Workload) {
			w.Checkpoint = &telemetry.Checkpoint{Last: now.Add(-time.Minute)}
		}, nil, 0, 60 + 30 + 600, false, false},
		{"a checkpoint from before the start", func(_ *device, w *cluster.Workload) {
			w.Checkpoint = &telemetry.Checkpoint{Last: now.Add(-2 * time.Hour)}
		}, nil, 0, 3600 + 30 + 600, false, false},
		{"it needs time to save", func(_ *device, w *cluster.Workload) {
			w.Checkpoint = &telemetry.Checkpoint{Grace: telemetry.Duration(5 * time.Minute), Last: now}
		}, nil, 0, 300 + 600, false, false},
		{"high priority", func(_ *device, w *cluster.Workload) { w.Priority = 20 }, nil, 0, 3 * 4230, false, false},
		{"negative priority is no discount", func(_ *device, w *cluster.Workload) { w.Priority = -20 }, nil, 0, 4230, false, false},
		// The others are spared 600 s at half speed, four GPUs of them.
		{"others are slowed down with it", func(d *device, _ *cluster.Workload) {
			d.more = []cluster.Reading{ok(telemetry.GPUThrottleActiveSWThermal, 1)}
		}, []*cluster.Workload{job(2, 1), job(3, 3)}, 1200, 4230, false, false},
		{"headroom is used up", func(d *device, _ *cluster.Workload) { d.headroom = 0 }, nil, 0, 4230, true, false},
		{"the hardware slows it down", func(d *device, _ *cluster.Workload) { d.throttled = true }, nil, 0, 4230, true, false},
		{"an old word that the hardware does", func(d *device, _ *cluster.Workload) {
			d.more = []cluster.Reading{{ID: telemetry.GPUThrottleActiveHWThermal, V: 1, At: now.Add(-time.Minute), Quality: telemetry.Quality_QUALITY_OK}}
		}, nil, 0, 4230, false, false},
		{"since when it runs is not known", func(_ *device, w *cluster.Workload) { w.Start = time.Time{} }, nil, 0, 0, false, true},
		{"not known, and the hardware slows it down", func(d *device, w *cluster.Workload) {
			d.throttled, w.Start, w.Seen = true, time.Time{}, now.Add(-10*time.Minute)
		}, nil, 0, 600 + 30 + 600, true, false},
		{"not known, and saved a minute ago", func(_ *device, w *cluster.Workload) {
			w.Start, w.Checkpoint = time.Time{}, &telemetry.Checkpoint{Last: now.Add(-time.Minute)}
		}, nil, 0, 60 + 30 + 600, false, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d, w := atFloor(), job(1, 1)
			w.Start = now.Add(-time.Hour)
			c.change(&d, w)
			p, refusals := end(t, d, 0.5, append([]*cluster.Workload{w}, c.others...)...)
			if c.refused {
				if len(p.Steps) != 0 || len(refusals) != 1 || refusals[0].Reason != telemetry.RefusalNotWorth {
					t.Errorf("%+v, %v", p, refusals)
				}
				return
			}
			if math.Abs(p.Gain-c.gain) > 1e-6 || math.Abs(p.Cost-c.cost) > 1e-6 || p.Safety != c.safety || len(refusals) != 0 {
				t.Errorf("gain %v, cost %v, safety %v, %v; want %v, %v, %v", p.Gain, p.Cost, p.Safety, refusals, c.gain, c.cost, c.safety)
			}
		})
	}
	// Every GPU of a gang counts.
	w := job(1, 4)
	w.Start = now.Add(-time.Minute)
	if p, _ := end(t, atFloor(), 1, w); math.Abs(p.Cost-4*690) > 1e-6 {
		t.Errorf("a gang of four costs %v", p.Cost)
	}
}

// The step says all that its agent and its owner need.
func TestEndingStep(t *testing.T) {
	for name, c := range map[string]struct {
		checkpoint *telemetry.Checkpoint
		signal     string
		grace      time.Duration
	}{
		"nothing is known of it":        {nil, "TERM", 45 * time.Second},
		"it saves on a signal":          {&telemetry.Checkpoint{Signal: "USR1", Grace: telemetry.Duration(3 * time.Minute)}, "USR1", 3 * time.Minute},
		"by its long name":              {&telemetry.Checkpoint{Signal: "SIGusr2"}, "USR2", 45 * time.Second},
		"it wants time, and no signal":  {&telemetry.Checkpoint{Grace: telemetry.Duration(time.Second)}, "TERM", time.Second},
		"it is only known when it last": {&telemetry.Checkpoint{Last: now}, "TERM", 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d, w := atFloor(), job(1, 1)
			w.Checkpoint, d.throttled = c.checkpoint, true
			s, g := d.scene(t, w)
			n, _ := s.View.Node("n1")
			p := thermal(t, preempting, func(s *rebalancer.PolicySpec) { s.Grace = telemetry.Duration(45 * time.Second) })
			target := telemetry.Target{Node: "n1", UUID: g.UUID, Workload: w.Ref, PID: 1, PIDStart: 9, BootID: "b"}
			got, _ := p.Propose(s, rebalancer.Sighting{Node: n, GPU: g, Violation: telemetry.Violation{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Value: 2, Mark: 5}, Victim: &rebalancer.Victim{Workload: w, Share: 1, Target: target}}, telemetry.ActPreempt)
			step := got.Steps[0]
			if step.Kind != telemetry.StepPreempt || step.Backend != "node" || step.Target != target || step.Lease != 0 || step.Params.Signal != c.signal || time.Duration(step.Params.Grace) != c.grace {
				t.Errorf("%+v", step)
			}
			m := step.Params.Message
			for _, word := range []string{"GPU-1", "n1", "thermal headroom 2 °C", "mark 5 °C", "350 W"} {
				if !strings.Contains(m, word) {
					t.Errorf("the owner is told %q, without %q", m, word)
				}
			}
			if strings.ContainsAny(m, "\n\r") || len(m) > 300 {
				t.Errorf("not one short line: %q", m)
			}
			if !strings.Contains(got.Summary, "proc:n1/1@9, train of ada") || !strings.Contains(got.Summary, "SIG"+c.signal) {
				t.Errorf("summary %q", got.Summary)
			}
		})
	}
}

// Without its limit it is not known what a cap could do.
func TestNoEndWithoutALimit(t *testing.T) {
	d := atFloor()
	d.limit = unknown
	if p, refusals := end(t, d, 1, job(1, 1)); len(p.Steps) != 0 || len(refusals) != 1 || refusals[0].Reason != telemetry.RefusalUnknown {
		t.Errorf("%+v, %v", p, refusals)
	}
}

// The ladder may end with preempt, and only on top of caps; grace belongs to it.
func TestPreemptInTheLadder(t *testing.T) {
	steer, limit, preempt := telemetry.ActSteer, telemetry.ActCap, telemetry.ActPreempt
	if slices.Contains(thermal(t).Spec().Ladder, preempt) {
		t.Error("processes are ended by default")
	}
	for _, c := range []struct {
		ladder []telemetry.ActKind
		grace  time.Duration
		want   string
	}{
		{[]telemetry.ActKind{steer, limit, preempt}, 30 * time.Second, ""},
		{[]telemetry.ActKind{limit, preempt}, 10 * time.Minute, ""},
		{[]telemetry.ActKind{limit, preempt}, time.Second, ""},
		{[]telemetry.ActKind{limit}, 0, ""}, // a file from before there was a grace
		{[]telemetry.ActKind{preempt}, 30 * time.Second, "preempt without cap"},
		{[]telemetry.ActKind{steer, preempt}, 30 * time.Second, "preempt without cap"},
		{[]telemetry.ActKind{preempt, limit}, 30 * time.Second, "cheapest first"},
		{[]telemetry.ActKind{limit, preempt}, 0, "grace 0s: want 1s or more"},
		{[]telemetry.ActKind{limit, preempt}, 11 * time.Minute, "grace 11m0s: want at most 10m0s"},
		{[]telemetry.ActKind{limit}, -time.Second, "grace -1s"},
	} {
		s := thermal(t).Spec()
		s.Ladder, s.Grace = c.ladder, telemetry.Duration(c.grace)
		if _, err := policy.NewThermal(s); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v, grace %s: %v, want %q", c.ladder, c.grace, err, c.want)
		}
	}
}
