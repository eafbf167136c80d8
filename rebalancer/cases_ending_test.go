package rebalancer_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Public failures of schedulers that evict and preempt, as far as they can
// befall one that ends processes. Those that loops, waves and gangs make have
// tests of their own beside the victims and the endings.

// The model keeps the old place for a while: what was ended is still shown, and
// is not ended again for that.
func TestCaseAStaleModelEndsNothingTwice(t *testing.T) {
	w, d, tree := tooHot(2)
	tree.lingers = true
	b := newBench(t, w, preempting(func(p *rebalancer.PolicySpec) { p.Settle = telemetry.Duration(time.Second) })...)
	d.load = 400 // which its own end does not cool
	b.run(20 * time.Minute)
	if len(tree.signals) != 1 || len(endings(b.decisions())) != 1 {
		t.Errorf("%d signals, %d endings", len(tree.signals), len(endings(b.decisions())))
	}
	if b.last.Refused.Counts[telemetry.RefusalRepeat] != 1 {
		t.Errorf("refused %v, want it said that it was done", b.last.Refused.Details)
	}
}

// Old values keep evicting: without a sample nothing is ended, and a silent node
// is not a hot one.
func TestCaseOldValuesEndNothing(t *testing.T) {
	for name, spoil := range map[string]func(*scene){
		"a silent node": func(s *scene) { s.node.State = cluster.NodeGone },
		"an old sample": func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.At = r.At.Add(-time.Minute) })
		},
		"a doubtful one": func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = telemetry.Quality_QUALITY_SUSPECT })
		},
		"one from before the restart of its source": func(s *scene) { s.node.Since = s.w.now.Add(-100 * time.Millisecond) },
		"none at all":                   func(s *scene) { s.gpu.HeadroomC = cluster.Opt{} },
		"a device that does not answer": func(s *scene) { s.gpu.State = cluster.GPUHung },
	} {
		s := newEnding(t)
		spoil(s)
		if p := s.plan(); len(steps(p)) != 0 || len(p.Refused.Counts) == 0 {
			t.Errorf("%s: %v, refused %v", name, steps(p), p.Refused.Counts)
		}
	}
}

// Victims own what is contested: what runs elsewhere on the node is nobody's
// victim, however little it has to lose.
func TestCaseVictimsAreOnTheGPU(t *testing.T) {
	s := newEnding(t)
	s.second = []cluster.Member{holder(12)} // on the same GPU it would go first
	if got := steps(s.plan()); len(got) != 1 || got[0].Target.Workload != refOf(11) {
		t.Errorf("steps %v", got)
	}
}

// Opting out after a person has said yes still counts.
func TestCaseOptOutAfterAnApproval(t *testing.T) {
	s := newEnding(t)
	s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Approve}
	d := s.keep(s.plan())
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: d.ID, By: "ada", At: s.w.now, Verdict: rebalancer.VerdictApprove}})
	s.listed(func(w *telemetry.InventoryWorkload) { w.OptOut = []string{"all"} })
	if p := s.plan(); len(steps(p)) != 0 || p.Refused.Counts[telemetry.RefusalOptOut] != 1 {
		t.Errorf("%v, refused %v", steps(p), p.Refused.Details)
	}
}

// A yes ends after ten minutes; nothing is ended on a yes of yesterday.
func TestCaseAnOldApprovalEndsNothing(t *testing.T) {
	s := newEnding(t)
	s.mem.Modes = map[string]telemetry.Mode{"/disruptive": telemetry.Approve}
	d := s.keep(s.plan())
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: d.ID, By: "ada", At: s.w.now.Add(-10 * time.Minute), Verdict: rebalancer.VerdictApprove}})
	p := s.plan()
	s.keep(p)
	if old, _ := s.mem.Decision(d.ID); len(steps(p)) != 0 || old.Outcome != telemetry.OutcomeExpired || !strings.Contains(old.Ending, "could not be done within 10m0s") {
		t.Errorf("%v; %s is %s: %s", steps(p), old.ID, old.Outcome, old.Ending)
	}
}

// A guard that refuses is asked again at every pass: what stood in the way may
// have gone.
func TestCaseRecoveryEndsTheWait(t *testing.T) {
	w, _, tree := tooHot(2)
	room := 0
	w.jobs = []telemetry.InventoryWorkload{{Ref: tree.ref(), PDBRoom: &room, Members: []telemetry.WorkloadMember{{ID: tree.member().ID, GPUs: tree.gpus}}}}
	b := newBench(t, w, preempting()...)
	b.run(5 * time.Minute)
	written := len(b.journal.all())
	b.run(5 * time.Minute)
	if len(tree.signals) != 0 || b.last.Refused.Counts[telemetry.RefusalPDB] != 1 {
		t.Fatalf("%d signals, refused %v", len(tree.signals), b.last.Refused.Details)
	}
	for _, r := range b.journal.all()[written:] {
		if r.Refused != nil {
			t.Errorf("the same refusal is written again: %+v", r.Refused)
		}
	}
	room = 1
	b.until(5*time.Second, "told", func() bool { return len(tree.signals) == 1 })
}

// A dry run is the live run, up to and without the last step.
func TestCaseADryRunOfAnEnding(t *testing.T) {
	w, _, tree := tooHot(2)
	tree.deaf = true
	b := newBench(t, w, preempting()...)
	for range 240 {
		w.advance(time.Second)
		dry, _ := b.planner.Step(w.now, w.view(), b.mem.Clone())
		told := len(tree.signals)
		if live := b.pass(); asJSON(t, dry) != asJSON(t, live) {
			t.Fatalf("dry: %s\nlive: %s", asJSON(t, dry), asJSON(t, live))
		}
		if len(tree.signals) > told && !slices.ContainsFunc(dry.Entries, func(e rebalancer.Entry) bool { return e.Do != nil && e.Do.Kind == telemetry.StepPreempt }) {
			t.Fatal("told without a plan that says so")
		}
	}
	if len(tree.signals) != 1 {
		t.Fatalf("%d signals; the test proves nothing", len(tree.signals))
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A pid that is used again is another process: between the plan and the order,
// and between the order and its agent.
func TestCaseAPidThatIsUsedAgain(t *testing.T) {
	w, d, tree := tooHot(2)
	b := newBench(t, w, preempting()...)
	b.until(2*time.Minute, "the cap read", func() bool { ds := b.decisions(); return len(ds) == 1 && ds[0].Observed != nil })
	b.deaf = true // from now on orders are written and do not go out
	b.until(4*time.Minute, "intended", func() bool { return len(endings(b.decisions())) == 1 })
	step := endings(b.decisions())[0].Act.Steps[0]
	tree.over = true
	next := w.run(tree.pid, 500, d.uuid)
	next.start++
	if r := b.planner.ChangedSince(w.now, w.view(), &b.mem, endings(b.decisions())[0], step); r == nil || !strings.Contains(r.Text, "no longer holds the GPU") {
		t.Errorf("the order would go out: %v", r)
	}
	if r, err := w.Do(t.Context(), step); err != nil || r.Result != telemetry.Refused || r.Why != telemetry.RefuseNoTarget || len(next.signals) != 0 {
		t.Errorf("%+v, %v; the next one was told %d times", r, err, len(next.signals))
	}
}
