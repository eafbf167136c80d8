package rebalancer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// preempting are policies whose ladder ends with preempt.
func preempting(change ...func(*rebalancer.PolicySpec)) []rebalancer.Policy {
	return enforcing(append([]func(*rebalancer.PolicySpec){func(p *rebalancer.PolicySpec) {
		p.Ladder = []telemetry.ActKind{telemetry.ActSteer, telemetry.ActCap, telemetry.ActPreempt}
	}}, change...)...)
}

// atOnce takes one sample for enough.
func atOnce(p *rebalancer.PolicySpec) { p.Filter = rebalancer.Filter{N: 1, M: 5} }

func holder(pid int) cluster.Member {
	return cluster.Member{ID: fmt.Sprintf("%d@%d+%s", pid, 1000*pid, bootID), Kind: cluster.KindProcess, Workload: refOf(pid), Owner: "ada", Name: fmt.Sprintf("job%d", pid)}
}

func refOf(pid int) telemetry.WorkloadRef {
	return telemetry.WorkloadRef(fmt.Sprintf("proc:n00/%d@%d", pid, 1000*pid))
}

func targetOf(pid int) telemetry.Target {
	t := target
	t.Workload, t.PID, t.PIDStart, t.BootID = refOf(pid), pid, uint64(1000*pid), bootID
	return t
}

// newEnding is a scene whose process 11 would be ended at once: the GPU is at
// the lowest cap and beyond slowdown.
func newEnding(t testing.TB) *scene {
	s := newScene(t)
	s.policies = preempting(atOnce)
	s.node.BootID = bootID
	s.gpu.Members = []cluster.Member{holder(11)}
	s.gpu.HeadroomC, s.gpu.LimitW = cluster.Some(-1), cluster.Some(leastCapW)
	s.read(telemetry.GPUThermalHeadroomCelsius, -1)
	s.read(telemetry.GPUTemperatureCelsiusCore, 91)
	s.read(telemetry.GPUPowerWatts, leastCapW)
	s.read(telemetry.GPUPowerLimitWatts, leastCapW)
	return s
}

// listed puts process 11 into an inventory.
func (s *scene) listed(change func(*telemetry.InventoryWorkload)) {
	w := telemetry.InventoryWorkload{Ref: refOf(11), Owner: "ada", Members: []telemetry.WorkloadMember{{ID: holder(11).ID, Node: "n00"}}}
	change(&w)
	s.work = append(s.work, w)
}

func (s *scene) moved(ref telemetry.WorkloadRef, ago time.Duration, change ...func(*rebalancer.PastMove)) {
	m := rebalancer.PastMove{At: start.Add(-ago), Ref: ref, Node: "n00", Step: "d-000001.1", Result: telemetry.Done}
	for _, f := range change {
		f(&m)
	}
	s.mem.Moves = append(s.mem.Moves, m)
}

func TestEndingIsOrdered(t *testing.T) {
	s := newEnding(t)
	p := s.plan()
	got := steps(p)
	if len(got) != 1 || got[0].Kind != telemetry.StepPreempt || got[0].Target != targetOf(11) || got[0].Lease != 0 || got[0].Backend != "node" {
		t.Fatalf("steps %+v, refused %v", got, p.Refused.Details)
	}
	step, d := got[0], p.Entries[0].Decision
	if want := step.NotBefore.Add(30*time.Second + rebalancer.RunTime(step)); !step.Deadline.Equal(want) || !rebalancer.BeginBy(step).Equal(step.NotBefore.Add(30*time.Second)) {
		t.Errorf("to be begun by %v, known by %v; want 30 s and the run time", rebalancer.BeginBy(step), step.Deadline)
	}
	if run := rebalancer.RunTime(step); run < time.Duration(step.Params.Grace)+30*time.Second {
		t.Errorf("%s to run with a grace of %s: no room for KILL and for the device to be released", run, time.Duration(step.Params.Grace))
	}
	if d.Kind != telemetry.ActPreempt || d.Class != telemetry.Disruptive || d.Target != targetOf(11) || d.Outcome != telemetry.OutcomeIntended || d.Act.Lease != 0 || !slices.Equal(d.Act.GPUs, []string{target.UUID}) || d.Act.Class != telemetry.Disruptive {
		t.Errorf("decision %+v, act %+v", d, d.Act)
	}
	if v := d.Violations[0]; v.Seen != 1 || v.Of != 1 || v.Needed != 1 || v.Target != target {
		t.Errorf("violation %+v", v)
	}
	if !slices.ContainsFunc(d.Candidates, func(c telemetry.Candidate) bool {
		return c.Workload == refOf(11) && c.Owner == "ada" && c.Name == "job11" && c.Share == 1
	}) {
		t.Errorf("candidates %+v", d.Candidates)
	}
}

// Every refusal of an act on a workload, each from the one thing that causes it.
// Without the change the workload is ended.
var workRefusals = []refusalCase{
	{name: "its scheduler runs it", want: telemetry.RefusalUnmovable, text: "slurm:7 is no process tree of this node", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.gpu.Members = nil
			s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7", Owner: "ada"}}
		}},
	{name: "its scheduler has one process of the tree", want: telemetry.RefusalUnmovable, text: "slurm:7 is no process tree", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7", Members: []telemetry.WorkloadMember{{ID: holder(11).ID}}}}
		}},
	{name: "another node's process", want: telemetry.RefusalUnmovable, text: "no process tree of this node", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.gpu.Members = nil
			s.work = []telemetry.InventoryWorkload{{Ref: "proc:n77/11@11000"}}
		}},
	{name: "no boot of its node is known", want: telemetry.RefusalUnmovable, text: "no process tree of this node", act: telemetry.ActPreempt,
		change: func(s *scene) { s.node.BootID = "" }},
	{name: "its processes are not seen", want: telemetry.RefusalUnknown, text: "sees no process of", act: telemetry.ActPreempt,
		change: func(s *scene) { s.gpu.Members = nil; s.listed(func(*telemetry.InventoryWorkload) {}) }},
	{name: "one in its tree is not ours", want: telemetry.RefusalUnmovable, text: "40@1+boot-1 on GPU-00-0 is in its tree and is not ours (unknown)", act: telemetry.ActPreempt,
		change: func(s *scene) {
			m := holder(11)
			m.ID, m.Kind = "40@1+boot-1", "unknown"
			s.gpu.Members = append(s.gpu.Members, m)
		}},
	{name: "nobody knows who is there", want: telemetry.RefusalUnsupported, text: "no workload is known there, so there is nothing to preempt", act: telemetry.ActPreempt,
		change: func(s *scene) { s.gpu.Members[0].Kind = "unknown" }},
	{name: "opted out of preempt", want: telemetry.RefusalOptOut, text: "proc:n00/11@11000 has opted out of preempt", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.OptOut = []string{"migrate", "preempt"} })
		}},
	{name: "draws too little", want: telemetry.RefusalNotEnough, text: "it has 4 % of what the GPU draws", have: number(0.04), need: number(0.05), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.Requests.Share = 0.04 })
		}},
	{name: "one of lower priority stays", want: telemetry.RefusalPriority, text: "its priority is 5, and proc:n00/12@12000 of priority 0 stays", have: number(5), need: number(0), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.Priority = 5 })
			s.gpu.Members = append(s.gpu.Members, holder(12))
			s.work = append(s.work, telemetry.InventoryWorkload{Ref: refOf(12), OptOut: []string{"all"}, Members: []telemetry.WorkloadMember{{ID: holder(12).ID}}})
		}},
	{name: "younger than what is promised", want: telemetry.RefusalMinRunTime, text: "it has run for 5m0s, and 10m0s is promised", have: number(300), need: number(600), until: start.Add(5 * time.Minute), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) {
				w.MinRunTime, w.Start = telemetry.Duration(10*time.Minute), start.Add(-5*time.Minute)
			})
		}},
	{name: "its age is not known", want: telemetry.RefusalMinRunTime, text: "since when it runs is not known", have: number(0), need: number(600), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.MinRunTime = telemetry.Duration(10 * time.Minute) })
		}},
	{name: "a gang of which a part is elsewhere", want: telemetry.RefusalGang, text: "3 of the 4 members of its gang g are elsewhere", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.Gang, w.GangSize = "g", 4 })
		}},
	{name: "a gang of two workloads", want: telemetry.RefusalGang, text: "proc:n00/12@12000 is of its gang g too", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.Gang, w.GangSize = "g", 1 })
			s.work = append(s.work, telemetry.InventoryWorkload{Ref: refOf(12), Gang: "g"})
		}},
	{name: "it has a GPU of another node", want: telemetry.RefusalGang, text: "it has GPU-77-0 on n77 too, and is ended whole or not at all", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(*telemetry.InventoryWorkload) {})
			s.also = []*cluster.GPU{{UUID: "GPU-77-0", Node: "n77"}}
		}},
	{name: "its data is here alone", want: telemetry.RefusalUnmovable, text: "its data is on this node alone", act: telemetry.ActPreempt,
		change: func(s *scene) { s.listed(func(w *telemetry.InventoryWorkload) { w.LocalData = true }) }},
	{name: "a queue owns it", want: telemetry.RefusalHeldByOther, text: "kueue owns its queue", act: telemetry.ActPreempt,
		change: func(s *scene) { s.listed(func(w *telemetry.InventoryWorkload) { w.QueueOwner = "kueue" }) }},
	{name: "its budget has no room", want: telemetry.RefusalPDB, text: "has no room", act: telemetry.ActPreempt,
		change: func(s *scene) {
			room := 0
			s.listed(func(w *telemetry.InventoryWorkload) { w.PDBRoom = &room })
		}},
	{name: "it may not be down", want: telemetry.RefusalDowntime, text: "it may be down for 1m0s at most", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) { w.MaxDowntime = telemetry.Duration(time.Minute) })
		}},
	{name: "it needs too long to save", want: telemetry.RefusalUnmovable, text: "it needs 20m0s to save its state, and at most 10m0s is given", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.listed(func(w *telemetry.InventoryWorkload) {
				w.Checkpoint = &telemetry.Checkpoint{Grace: telemetry.Duration(20 * time.Minute)}
			})
		}},
	{name: "it was preempted already", want: telemetry.RefusalRepeat, text: "it was preempted 2h0m0s ago by step d-000001.1 (done)", act: telemetry.ActPreempt,
		change: func(s *scene) { s.moved(refOf(11), 2*time.Hour) }},
	{name: "it did not end when it was told", want: telemetry.RefusalRepeat, text: "(failed); that is not done twice", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.moved(refOf(11), 2*time.Hour, func(m *rebalancer.PastMove) { m.Result = telemetry.Failed })
		}},
	{name: "nobody knows whether it was told", want: telemetry.RefusalRepeat, text: "left alone for 10m0s", until: start.Add(8 * time.Minute), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.moved(refOf(11), 2*time.Minute, func(m *rebalancer.PastMove) { m.Result = telemetry.Unknown })
		}},
	{name: "the agent has refused it", want: telemetry.RefusalRepeat, text: "the node's agent refused step d-000001.1 2m0s ago (not_ours)", until: start.Add(8 * time.Minute), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.moved(refOf(11), 2*time.Minute, func(m *rebalancer.PastMove) { m.Result, m.Why = telemetry.Refused, telemetry.RefuseNotOurs })
		}},
	{name: "the agent takes none at all", want: telemetry.RefusalRepeat, text: "(not_allowed)", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.moved(refOf(99), 2*time.Minute, func(m *rebalancer.PastMove) { m.Result, m.Why = telemetry.Refused, telemetry.RefuseNotAllowed })
		}},
	{name: "the same work was preempted before it was started again", want: telemetry.RefusalRepeat, text: "proc:n00/10@10000 was preempted 2m0s ago (done); it is left alone for 10m0s", until: start.Add(8 * time.Minute), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.moved(refOf(10), 2*time.Minute, func(m *rebalancer.PastMove) { m.Work = "n00/ada/job11" })
		}},
	{name: "three times within a day", want: telemetry.RefusalMoves, text: "job11 of ada has been preempted 3 times within a day", have: number(3), need: number(3), act: telemetry.ActPreempt,
		change: func(s *scene) {
			for i := range 3 {
				s.moved(refOf(20+i), time.Duration(1+i)*time.Hour, func(m *rebalancer.PastMove) { m.Work = "n00/ada/job11" })
			}
		}},
	{name: "a person has said no", want: telemetry.RefusalMode, text: "eve has said no to preempt on GPU-00-0", until: start.Add(time.Minute), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.mem.GPUs = map[string]rebalancer.GPUMemory{target.UUID: {Spared: start.Add(time.Minute), SparedBy: "eve"}}
		}},
	{name: "only on its way to the mark", want: telemetry.RefusalUnconfirmed, text: "on its way to the mark of 5 °C", have: number(6), need: number(5), act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.gpu.HeadroomC, s.gpu.SlopeCPerS, s.gpu.SecondsToSlowdown = cluster.Some(6), cluster.Some(-1), cluster.Some(6)
			s.read(telemetry.GPUThermalHeadroomCelsius, 6)
			s.read(telemetry.GPUThrottleActiveHWThermal, 1)
		}},
	{name: "one sample, though a second value agrees", want: telemetry.RefusalUnconfirmed, text: "beyond the mark in 1 of the last 1 samples; disruptive acts need 3 of 5", have: number(1), need: number(3), act: telemetry.ActPreempt,
		change: func(s *scene) { s.policies = preempting() }},
	{name: "it costs more than it gains", want: telemetry.RefusalNotWorth, text: "GPU-seconds", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.gpu.HeadroomC = cluster.Some(2)
			s.read(telemetry.GPUThermalHeadroomCelsius, 2)
			s.listed(func(w *telemetry.InventoryWorkload) { w.Start = start.Add(-time.Minute) })
		}},
	{name: "disruptive acts are paused", want: telemetry.RefusalPaused, text: "disruptive acts are paused", act: telemetry.ActPreempt,
		change: func(s *scene) { s.mem.Paused = true }},
	{name: "the breaker is open", want: telemetry.RefusalBreaker, text: "a person must close it", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.mem.Breaker = rebalancer.BreakerState{BreakerTrip: telemetry.BreakerTrip{Open: true}}
		}},
	{name: "too little is seen", want: telemetry.RefusalCoverage, text: "1 of 10 GPUs are seen fresh", act: telemetry.ActPreempt,
		change: func(s *scene) { s.node.Expected = 10 }},
	{name: "mode observe for the class", want: telemetry.RefusalMode, text: "mode observe for disruptive acts", act: telemetry.ActPreempt,
		change: func(s *scene) { s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Observe} }},
	{name: "no hand for the node", want: telemetry.RefusalNoActuator, text: `backend "node"`, act: telemetry.ActPreempt,
		change: func(s *scene) { s.planner.Actuators = nil }},
	{name: "budget used up", want: telemetry.RefusalBudget, text: "1 GPUs of the fleet are under acts of policy thermal, 1 are allowed", act: telemetry.ActPreempt,
		change: func(s *scene) {
			s.policies = preempting(atOnce, func(p *rebalancer.PolicySpec) { p.Budget.Max = 1 })
			s.node.Expected = 4
			s.pending(telemetry.Target{Node: "n00", UUID: "GPU-00-1"}, telemetry.OutcomeVerified)
			s.mem.Modes = nil
		}},
}

func TestWorkRefusals(t *testing.T) {
	for _, c := range workRefusals {
		t.Run(c.name, func(t *testing.T) {
			if got := steps(newEnding(t).plan()); len(got) != 1 {
				t.Fatalf("without the change: %v, want the preemption", got)
			}
			s := newEnding(t)
			c.change(s)
			p := s.plan()
			if got := steps(p); len(got) != 0 {
				t.Fatalf("acts: %+v", got)
			}
			i := slices.IndexFunc(p.Refused.Details, func(r telemetry.Refusal) bool {
				return r.Reason == c.want && r.Act == c.act && strings.Contains(r.Text, c.text)
			})
			if i < 0 {
				t.Fatalf("no refusal %s with %q in %v", c.want, c.text, p.Refused.Details)
			}
			r := p.Refused.Details[i]
			if r.Target.UUID != target.UUID || c.have != nil && (r.Have == nil || !near(*r.Have, *c.have) || !near(*r.Need, *c.need) || r.Unit == "") || !c.until.IsZero() && !r.Until.Equal(c.until) {
				t.Errorf("%+v, have %v of %v", r, deref(r.Have), deref(r.Need))
			}
		})
	}
}

// What protects a workload protects it again right before the order.
func TestWorkRefusalsHoldBeforeTheOrder(t *testing.T) {
	// What only the plan asks: how long the signal lasted, budgets and the hand.
	planned := []string{"one sample, though a second value agrees", "budget used up", "no hand for the node", "too little is seen"}
	for _, c := range workRefusals {
		if slices.Contains(planned, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s := newEnding(t)
			entry := s.plan().Entries[0]
			s.write(telemetry.Record{Topic: entry.Topic, Decision: entry.Decision})
			if r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, entry.Decision, *entry.Do); r != nil {
				t.Fatalf("without the change: %v", r)
			}
			c.change(s)
			r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, entry.Decision, *entry.Do)
			if r == nil || r.Reason != telemetry.RefusalChangedSince || r.Act != telemetry.ActPreempt || r.Text == "" {
				t.Errorf("%v", r)
			}
		})
	}
}

// What else must still be so.
func TestChangedSinceForAPreemption(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*scene)
		want   string // empty: still wanted
	}{
		{"hotter", func(s *scene) { s.gpu.HeadroomC = cluster.Some(-4) }, ""},
		{"another came to share the GPU", func(s *scene) { s.gpu.Members = append(s.gpu.Members, holder(9)) }, ""},
		{"within the mark", func(s *scene) { s.gpu.HeadroomC = cluster.Some(6) }, "is 6 °C by now, the mark is 5 °C"},
		{"no longer for safety", func(s *scene) { s.gpu.HeadroomC = cluster.Some(3) }, "since when it runs is not known"},
		{"it has ended", func(s *scene) { s.gpu.Members = nil }, "no longer holds the GPU"},
		{"another process has its pid", func(s *scene) {
			s.gpu.Members[0].ID, s.gpu.Members[0].Workload = "11@99+boot-1", "proc:n00/11@99"
		}, "no longer holds the GPU"},
		{"its node was started anew", func(s *scene) { s.node.BootID = "boot-2" }, "the node was started anew"},
		{"it has gone to another GPU", func(s *scene) {
			s.gpu.UUID = "GPU-00-7"
		}, "no longer in view"},
		{"it holds one more GPU", func(s *scene) {
			s.more = []*cluster.Node{}
			s.gpu.Members = append(s.gpu.Members, cluster.Member{ID: "12@1+boot-1", Kind: cluster.KindProcess, Workload: refOf(11)})
			s.second = []cluster.Member{holder(11)}
		}, "holds other GPUs by now"},
		{"the limit was raised, and it draws more", func(s *scene) {
			s.gpu.LimitW = cluster.Some(600)
			s.read(telemetry.GPUPowerWatts, 590)
		}, "a cap would do by now"},
		{"the limit was raised, and it draws no more than the lowest", func(s *scene) { s.gpu.LimitW = cluster.Some(600) }, ""},
		{"the limit is not known", func(s *scene) { s.gpu.LimitW = cluster.Opt{} }, "a cap would do by now"},
		{"stale", func(s *scene) { s.node.State = cluster.NodeGone }, "node gone"},
		{"made anew", func(s *scene) { s.gpu.Generation = 2 }, "generation 2, not 1"},
		{"the class is to ask", func(s *scene) { s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Approve} }, "in mode approve for disruptive acts"},
		{"only gentle acts are to ask", func(s *scene) { s.mem.Modes = map[string]telemetry.Mode{"/gentle": telemetry.Approve} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newEnding(t)
			entry := s.plan().Entries[0]
			s.write(telemetry.Record{Topic: entry.Topic, Decision: entry.Decision})
			c.change(s)
			r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, entry.Decision, *entry.Do)
			if c.want == "" && r != nil || c.want != "" && (r == nil || r.Reason != telemetry.RefusalChangedSince || !strings.Contains(r.Text, c.want)) {
				t.Errorf("%v, want %q", r, c.want)
			}
		})
	}
}
