package rebalancer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The order of the victims is pinned: the lowest priority, the largest share,
// the latest start, the reference. Who goes first, and what is said of the rest.
func TestVictimOrderIsPinned(t *testing.T) {
	inventory := func(pid, priority int, share float64) telemetry.InventoryWorkload {
		return telemetry.InventoryWorkload{Ref: refOf(pid), Priority: priority, Requests: telemetry.Requests{Share: share}, Members: []telemetry.WorkloadMember{{ID: holder(pid).ID}}}
	}
	cases := []struct {
		name string
		pids []int
		plan []telemetry.InventoryWorkload
		goes int
		rest []string // said of the others, in their order
	}{
		{"the one that began last", []int{11, 13, 12}, nil, 13, []string{"proc:n00/12@12000 of ada (priority 0, share 33 %): it began earlier", "proc:n00/11@11000 of ada (priority 0, share 33 %): it began earlier"}},
		{"by its start, not by the letters of its pid", []int{9, 10}, nil, 10, []string{"proc:n00/9@9000"}},
		{"the lowest priority, whatever it draws", []int{11, 12}, []telemetry.InventoryWorkload{inventory(11, 1, 0.9), inventory(12, -1, 0.1)}, 12, []string{"priority 1, share 90 %): its priority is higher"}},
		{"of equal priority the one that draws most", []int{11, 12}, []telemetry.InventoryWorkload{inventory(11, 3, 0.6), inventory(12, 3, 0.4)}, 11, []string{"share 40 %): its share is smaller"}},
		{"what an inventory says counts, not that it says it", []int{11, 12}, []telemetry.InventoryWorkload{inventory(12, 1, 0)}, 11, []string{"priority 1, share 50 %): its priority is higher"}},
		{"the protected one is passed over", []int{11, 12}, []telemetry.InventoryWorkload{{Ref: refOf(12), OptOut: []string{"preempt"}, Members: []telemetry.WorkloadMember{{ID: holder(12).ID}}}}, 11, []string{"opt_out"}},
		{"the tiny one is no cause, and shields nobody", []int{11, 12}, []telemetry.InventoryWorkload{inventory(11, 5, 0.97), inventory(12, 0, 0.03)}, 11, []string{"not_enough: it has 3 %"}},
		{"a scheduler's work of low priority shields the process", []int{11}, []telemetry.InventoryWorkload{{Ref: "slurm:7", Priority: -5}}, 0, []string{"unmovable: slurm:7", "priority: its priority is 0, and slurm:7 of priority -5 stays"}},
		{"a scheduler's work of high priority does not", []int{11}, []telemetry.InventoryWorkload{{Ref: "slurm:7", Priority: 5}}, 11, []string{"slurm:7 (priority 5, share 50 %): its priority is higher"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newEnding(t)
			s.gpu.Members, s.work = nil, c.plan
			for _, pid := range c.pids {
				s.gpu.Members = append(s.gpu.Members, holder(pid))
			}
			p := s.plan()
			if c.goes == 0 {
				for _, want := range c.rest {
					if !slices.ContainsFunc(p.Refused.Details, func(r telemetry.Refusal) bool { return strings.Contains(r.String(), want) }) {
						t.Errorf("refused %v, want %q", p.Refused.Details, want)
					}
				}
				if len(steps(p)) != 0 {
					t.Errorf("acts: %v", steps(p))
				}
				return
			}
			if got := steps(p); len(got) != 1 || got[0].Target.Workload != refOf(c.goes) {
				t.Fatalf("steps %v, want the end of %s", got, refOf(c.goes))
			}
			var said []string
			chosen := 0
			for _, a := range p.Entries[0].Decision.Alternatives {
				switch {
				case a.Chosen:
					chosen++
				case a.Act == telemetry.ActPreempt:
					line := a.Summary
					for _, r := range a.Refusals {
						line += " " + r.String()
					}
					said = append(said, line)
				}
			}
			if chosen != 1 || len(said) != len(c.rest) {
				t.Fatalf("%d chosen, of the others %q", chosen, said)
			}
			for i, want := range c.rest {
				if !strings.Contains(said[i], want) {
					t.Errorf("of another %q, want %q", said[i], want)
				}
			}
		})
	}
}

// Of very many workloads on a GPU a record keeps some, the chosen one always.
func TestAlternativesAreBounded(t *testing.T) {
	const all = 15
	for _, protected := range []int{0, all - 1} {
		s := newEnding(t)
		s.gpu.Members = nil
		for pid := 1; pid <= all; pid++ {
			s.gpu.Members = append(s.gpu.Members, holder(pid))
			if pid > all-protected {
				s.work = append(s.work, telemetry.InventoryWorkload{Ref: refOf(pid), OptOut: []string{"all"}, Members: []telemetry.WorkloadMember{{ID: holder(pid).ID}}})
			}
		}
		p := s.plan()
		got := steps(p)
		if want := refOf(all - protected); len(got) != 1 || got[0].Target.Workload != want {
			t.Fatalf("steps %v, want the end of %s", got, want)
		}
		d := p.Entries[0].Decision
		chosen := 0
		for _, a := range d.Alternatives {
			if a.Chosen {
				chosen++
			}
		}
		if len(d.Alternatives) > 12 || chosen != 1 || d.RefusalCount[telemetry.RefusalOptOut] != protected {
			t.Errorf("%d alternatives, %d chosen, %v", len(d.Alternatives), chosen, d.RefusalCount)
		}
	}
}

// Nothing is ended while a cap would do. That one cannot be set for another
// reason than that it is as low as it goes makes no difference.
func TestNothingIsEndedWhileACapWouldDo(t *testing.T) {
	cases := []struct {
		name   string
		change func(*scene)
		want   telemetry.StepKind // empty: nothing is done
	}{
		{"at the floor", func(*scene) {}, telemetry.StepPreempt},
		{"below the floor by another's hand", func(s *scene) { s.gpu.LimitW = cluster.Some(300) }, telemetry.StepPreempt},
		{"it draws less than the floor", func(s *scene) { s.gpu.LimitW = cluster.Some(700); s.read(telemetry.GPUPowerWatts, 340) }, telemetry.StepPreempt},
		{"the limit can go lower", func(s *scene) { s.gpu.LimitW = cluster.Some(500); s.read(telemetry.GPUPowerWatts, 480) }, telemetry.StepPowerCap},
		{"the limit can go a little lower", func(s *scene) { s.gpu.LimitW = cluster.Some(360); s.read(telemetry.GPUPowerWatts, 360) }, telemetry.StepPowerCap},
		{"somebody on it has opted out of caps", func(s *scene) {
			s.gpu.LimitW = cluster.Some(500)
			s.read(telemetry.GPUPowerWatts, 480)
			s.listed(func(w *telemetry.InventoryWorkload) { w.OptOut = []string{"cap"} })
		}, ""},
		{"the limit is not known", func(s *scene) { s.gpu.LimitW = cluster.Opt{} }, ""},
		{"the least limit is not known", func(s *scene) { s.gpu.MinW = cluster.Opt{} }, ""},
		{"the budget for acts is used up", func(s *scene) {
			s.policies = preempting(atOnce, func(p *rebalancer.PolicySpec) { p.Budget.Max = 1 })
			s.gpu.LimitW, s.node.Expected = cluster.Some(500), 2
			s.read(telemetry.GPUPowerWatts, 480)
			s.pending(telemetry.Target{Node: "n00", UUID: "GPU-00-1"}, telemetry.OutcomeVerified)
		}, ""},
		{"gentle acts are only observed", func(s *scene) {
			s.gpu.LimitW = cluster.Some(500)
			s.read(telemetry.GPUPowerWatts, 480)
			s.mem.Modes = map[string]telemetry.Mode{"/gentle": telemetry.Observe}
		}, ""},
		{"the ladder has no preempt", func(s *scene) { s.policies = enforcing(atOnce) }, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newEnding(t)
			c.change(s)
			p := s.plan()
			got := steps(p)
			if c.want == "" && len(got) != 0 || c.want != "" && (len(got) != 1 || got[0].Kind != c.want) {
				t.Fatalf("steps %v, want %q; refused %v", got, c.want, p.Refused.Details)
			}
		})
	}
}

// What was not weighed is said, so that nobody wonders.
func TestCapThatWouldDoIsSaid(t *testing.T) {
	s := newEnding(t)
	s.gpu.LimitW = cluster.Some(500)
	s.read(telemetry.GPUPowerWatts, 480)
	s.planner.Actuators = []rebalancer.Actuator{picky{s.w}}
	p := s.plan()
	if len(p.Entries) != 1 || p.Entries[0].Refused == nil || p.Refused.Counts[telemetry.RefusalStale] != 1 {
		t.Errorf("entries %+v, refused %v", p.Entries, p.Refused)
	}
}

// A gang is one: all its GPUs are held, counted and settled, and it waits for
// what is on its way to any of them.
func TestGangIsHeldWhole(t *testing.T) {
	gang := func() *scene {
		s := newEnding(t)
		s.second = []cluster.Member{holder(11)}
		return s
	}
	s := gang()
	p := s.plan()
	if len(steps(p)) != 1 || !slices.Equal(p.Entries[0].Decision.Act.GPUs, []string{"GPU-00-0", "GPU-00-1"}) {
		t.Fatalf("%v, act %+v", steps(p), p.Entries[0].Decision.Act)
	}
	for name, change := range map[string]func(*scene){
		"a cap on its way to its other GPU": func(s *scene) {
			s.pending(telemetry.Target{Node: "n00", UUID: "GPU-00-1", Generation: 1}, telemetry.OutcomeActed)
		},
		"a preemption of another workload on its other GPU": func(s *scene) {
			s.preempted(12, telemetry.OutcomeActed, "GPU-00-1")
		},
		"its own end, for its other GPU": func(s *scene) { s.preempted(11, telemetry.OutcomeIntended, "GPU-00-1", "GPU-00-0") },
		"its own end, recommended for its other GPU": func(s *scene) {
			s.preempted(11, telemetry.OutcomeRecommended, "GPU-00-1", "GPU-00-0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := gang()
			change(s)
			p := s.plan()
			if got := steps(p); len(got) != 0 || p.Refused.Counts[telemetry.RefusalInFlight] != 1 {
				t.Errorf("steps %v, refused %v", got, p.Refused.Details)
			}
		})
	}
	for _, c := range []struct {
		percent float64
		want    int
	}{{100, 1}, {50, 0}} { // of two GPUs
		s := gang()
		s.policies = preempting(atOnce, func(p *rebalancer.PolicySpec) { p.Budget.Percent = c.percent })
		p := s.plan()
		if got := steps(p); len(got) != c.want || (c.want == 0) != (p.Refused.Counts[telemetry.RefusalBudget] == 1) {
			t.Errorf("budget of %v %%: %v, refused %v", c.percent, got, p.Refused.Details)
		}
	}
}

// A gang with one GPU at the floor and a hotter one that a cap would help: the
// cap is set, and nothing is ended in the same plan.
func TestCapOfOneGPUKeepsTheGangFromItsEnd(t *testing.T) {
	w := newWorld(1, 2)
	a, b := w.devices[0], w.devices[1]
	a.load, a.r, a.limit, a.temp = 30, 0.18, leastCapW, 92
	b.load, b.r, b.temp = 30, 0.14, 94
	w.run(11, 600, a.uuid, b.uuid)
	bench := newBench(t, w, preempting(atOnce)...)
	got := steps(bench.pass())
	if len(got) != 1 || got[0].Kind != telemetry.StepPowerCap || got[0].Target.UUID != b.uuid {
		t.Fatalf("steps %v", got)
	}
	if r := bench.last.Refused; r.Counts[telemetry.RefusalInFlight] != 1 || !slices.ContainsFunc(r.Details, func(r telemetry.Refusal) bool {
		return strings.Contains(r.Text, "an act on GPU-00-1, which it has too, is part of this very plan")
	}) {
		t.Errorf("refused %v", r.Details)
	}
}

// preempted puts the end of a workload into memory, triggered by the first GPU.
func (s *scene) preempted(pid int, o telemetry.Outcome, gpus ...string) *telemetry.Decision {
	t := targetOf(pid)
	t.UUID = gpus[0]
	id := "d-000002"
	step := telemetry.Step{ID: id + ".1", Decision: id, Kind: telemetry.StepPreempt, Backend: "node", Target: t, NotBefore: start, Deadline: start.Add(2 * time.Minute),
		Params: telemetry.Params{Signal: "TERM", Grace: telemetry.Duration(30 * time.Second)}}
	d := &telemetry.Decision{ID: id, Policy: "thermal", Kind: telemetry.ActPreempt, Class: telemetry.Disruptive, Target: t, Outcome: o, Time: start, VerifyBy: start.Add(time.Minute), Predicted: &telemetry.Effect{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Before: -1, After: 12},
		Violations: []telemetry.Violation{{Target: target, Mark: 5, Aim: 8, Needed: 3}}, Act: &telemetry.Act{ID: id, Kind: telemetry.ActPreempt, Target: t, GPUs: gpus, Steps: []telemetry.Step{step}},
		Candidates: []telemetry.Candidate{{Workload: t.Workload, Owner: "ada", Name: "job", Share: 1}}}
	if o != telemetry.OutcomeRecommended && o != telemetry.OutcomeAwaiting {
		d.Steps = []telemetry.StepRecord{{Step: step}}
	}
	if o == telemetry.OutcomeActed {
		d.Steps[0].Receipt = &telemetry.Receipt{StepID: step.ID, Result: telemetry.Done}
	}
	if s.mem.Decisions == nil {
		s.mem.Decisions = map[string]*telemetry.Decision{}
	}
	s.mem.Decisions[id] = d
	return d
}

// While a workload is being ended nothing else is done to its GPUs, and nothing
// is given back there.
func TestGPUsOfAnEndingAreLeftAlone(t *testing.T) {
	for _, o := range []telemetry.Outcome{telemetry.OutcomeIntended, telemetry.OutcomeActed} {
		s := newScene(t) // hot, and would be capped
		s.preempted(11, o, "GPU-00-7", target.UUID)
		p := s.plan()
		if got := steps(p); len(got) != 0 || p.Refused.Counts[telemetry.RefusalInFlight] != 1 || !strings.Contains(p.Refused.Details[0].Text, "preempt of d-000002 is on its way to this GPU") {
			t.Errorf("%s: %v, refused %v", o, got, p.Refused.Details)
		}
		// Cool by now: the cap that is held there would be undone, and is renewed instead.
		s = newScene(t)
		s.policies = enforcing(atOnce)
		s.gpu.HeadroomC = cluster.Some(60)
		s.read(telemetry.GPUThermalHeadroomCelsius, 60)
		s.read(telemetry.GPUThrottleActiveSWThermal, 0)
		s.pending(target, telemetry.OutcomeVerified)
		if got := steps(s.plan()); len(got) != 1 || got[0].Kind != telemetry.StepUndo {
			t.Fatalf("without the ending: %v, want the undo", got)
		}
		s.preempted(11, o, "GPU-00-7", target.UUID)
		s.mem.Leases["d-000001"] = start.Add(-30 * time.Minute)
		if got := steps(s.plan()); len(got) != 1 || got[0].Kind != telemetry.StepRenew {
			t.Errorf("%s: %v, want the renewal", o, got)
		}
	}
}

// Modes of the class: recommended, awaiting, done; a yes counts for this
// workload alone, and only for as long as it counts.
func TestEndingAsPeopleWant(t *testing.T) {
	for _, c := range []struct {
		mode telemetry.Mode
		want telemetry.Outcome
	}{{telemetry.Recommend, telemetry.OutcomeRecommended}, {telemetry.Approve, telemetry.OutcomeAwaiting}, {telemetry.Enforce, telemetry.OutcomeIntended}} {
		s := newEnding(t)
		s.mem.Modes = map[string]telemetry.Mode{"thermal/disruptive": c.mode}
		p := s.plan()
		if len(p.Entries) != 1 || p.Entries[0].Decision.Outcome != c.want || (p.Entries[0].Do != nil) != (c.want == telemetry.OutcomeIntended) {
			t.Errorf("%s: %+v", c.mode, p.Entries)
		}
	}
	if d := preempting()[0].Spec(); d.Mode != telemetry.Enforce {
		t.Fatal("the tests enforce")
	}
}

func TestApprovalIsForOneWorkload(t *testing.T) {
	s := newEnding(t)
	s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Approve}
	first := s.keep(s.plan())
	if first.Outcome != telemetry.OutcomeAwaiting || first.Target != targetOf(11) {
		t.Fatalf("%+v", first)
	}
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: first.ID, By: "ada", At: s.w.now, Verdict: rebalancer.VerdictApprove}})
	// Before it is done another workload comes first.
	s.gpu.Members = append(s.gpu.Members, holder(12))
	p := s.plan()
	if got := steps(p); len(got) != 0 {
		t.Fatalf("a yes to one workload ends another: %v", got)
	}
	second := s.keep(p)
	if second.ID == first.ID || second.Target != targetOf(12) || second.Outcome != telemetry.OutcomeAwaiting || second.Approval != nil {
		t.Errorf("%+v", second)
	}
	if old, _ := s.mem.Decision(first.ID); old.Outcome != telemetry.OutcomeExpired || !strings.Contains(old.Ending, "another act is proposed in its place") {
		t.Errorf("the first one is %s: %s", old.Outcome, old.Ending)
	}
	// Yes to this one, and it is done under the same id.
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: second.ID, By: "ada", At: s.w.now, Verdict: rebalancer.VerdictApprove}})
	p = s.plan()
	if got := steps(p); len(got) != 1 || got[0].Decision != second.ID || got[0].Target != targetOf(12) {
		t.Errorf("approved: %v", got)
	}
}

// A yes to a cap is none to the end of a workload.
func TestApprovalOfACapEndsNothing(t *testing.T) {
	s := newEnding(t)
	s.gpu.LimitW = cluster.Some(500)
	s.read(telemetry.GPUPowerWatts, 480)
	s.mem.Modes = map[string]telemetry.Mode{"/": telemetry.Approve}
	first := s.keep(s.plan())
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: first.ID, By: "ada", At: s.w.now, Verdict: rebalancer.VerdictApprove}})
	s.gpu.LimitW = cluster.Some(leastCapW) // somebody else has capped it
	p := s.plan()
	if got := steps(p); first.Kind != telemetry.ActCap || len(got) != 0 {
		t.Fatalf("a yes to %s does %v", first.Kind, got)
	}
	if d := s.keep(p); d.Kind != telemetry.ActPreempt || d.ID == first.ID || d.Outcome != telemetry.OutcomeAwaiting {
		t.Errorf("%+v", d)
	}
}

// A no spares the GPUs of the workload from such acts, and from no others.
func TestRejectionSparesTheWork(t *testing.T) {
	s := newEnding(t)
	s.second = []cluster.Member{holder(11)}
	s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Approve}
	d := s.keep(s.plan())
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: d.ID, By: "ada", At: s.w.now, Verdict: rebalancer.VerdictReject}})
	for _, uuid := range []string{"GPU-00-0", "GPU-00-1"} {
		if g := s.mem.GPUs[uuid]; !g.Spared.Equal(s.w.now.Add(10*time.Minute)) || g.SparedBy != "ada" || !g.Rejected.IsZero() {
			t.Errorf("%s: %+v", uuid, g)
		}
	}
	p := s.plan()
	if len(p.Entries) != 1 || p.Entries[0].Decision.Outcome != telemetry.OutcomeRejected || p.Refused.Counts[telemetry.RefusalMode] != 1 {
		t.Errorf("entries %+v, refused %v", p.Entries, p.Refused.Details)
	}
	s.gpu.LimitW = cluster.Some(500)
	s.read(telemetry.GPUPowerWatts, 480)
	if got := steps(s.plan()); len(got) != 1 || got[0].Kind != telemetry.StepPowerCap {
		t.Errorf("a cap is what is left: %v", got)
	}
}

// A recommendation goes when the workload does.
func TestRecommendationEndsWithItsWorkload(t *testing.T) {
	s := newEnding(t)
	s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Recommend}
	d := s.keep(s.plan())
	for _, e := range s.plan().Entries {
		if e.Decision != nil {
			t.Fatalf("written again: %+v", e.Decision)
		}
	}
	s.gpu.Members = nil
	p := s.plan()
	if got := s.keep(p); got.ID != d.ID || got.Outcome != telemetry.OutcomeExpired || !strings.Contains(got.Ending, "is no longer seen") {
		t.Errorf("%s is %s: %s", got.ID, got.Outcome, got.Ending)
	}
}

// keep writes a plan and returns its last decision.
func (s *scene) keep(p rebalancer.Plan) *telemetry.Decision {
	s.t.Helper()
	var last *telemetry.Decision
	for _, e := range p.Entries {
		s.write(telemetry.Record{Topic: e.Topic, Decision: e.Decision, Breaker: e.Breaker, Refused: e.Refused})
		if e.Decision != nil {
			last = e.Decision
		}
	}
	if last == nil {
		s.t.Fatalf("nothing is decided: %v", p.Refused.Details)
	}
	return last
}
