package rebalancer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// tooHot is a world with a GPU that the lowest cap does not keep from slowing
// down, and one process on it.
func tooHot(gpus int) (*world, *device, *tree) {
	w := newWorld(1, gpus)
	for _, d := range w.devices {
		d.load = 30
		d.temp = w.inlet[d.node] + d.r*d.load
	}
	d := w.device("GPU-00-0")
	d.r = 0.18
	return w, d, w.run(11, 500, d.uuid)
}

// endings are the preemptions among the decisions, as they stand.
func endings(all []*telemetry.Decision) []*telemetry.Decision {
	return slices.DeleteFunc(slices.Clone(all), func(d *telemetry.Decision) bool { return d.Kind != telemetry.ActPreempt })
}

// outcomesOf are the outcomes that a decision went through, in their order.
func outcomesOf(records []telemetry.Record, id string) []telemetry.Outcome {
	var out []telemetry.Outcome
	for _, r := range records {
		if r.Decision != nil && r.Decision.ID == id {
			out = append(out, r.Decision.Outcome)
		}
	}
	return out
}

// From the cap that does not suffice to the undo of what is no longer needed.
func TestEndingFromHeatToCold(t *testing.T) {
	w, d, tree := tooHot(2)
	b := newBench(t, w, preempting()...)
	b.until(3*time.Minute, "told to end", func() bool { return len(tree.signals) == 1 })
	if d.limit != leastCapW {
		t.Errorf("ended at a limit of %v W", d.limit)
	}
	capped := b.on(d)[0]
	if capped.Outcome != telemetry.OutcomeVerified && capped.Outcome != telemetry.OutcomeIneffective {
		t.Errorf("ended while the cap was %s", capped.Outcome)
	}
	b.until(time.Minute, "acted", func() bool { return endings(b.decisions())[0].Outcome == telemetry.OutcomeActed })
	at := b.w.now
	b.until(2*time.Minute, "looked at", func() bool { return !endings(b.decisions())[0].Ended.IsZero() })
	e := endings(b.decisions())[0]
	if since := b.w.now.Sub(at); since != time.Minute {
		t.Errorf("looked at after %s, want three time constants", since)
	}
	if e.Outcome != telemetry.OutcomeVerified || e.Observed == nil || e.Observed.After < 5 || e.Ending != "done, and it helped" || e.Open() {
		t.Errorf("%s, observed %+v: %s", e.Outcome, e.Observed, e.Ending)
	}
	if want := []telemetry.Outcome{telemetry.OutcomeIntended, telemetry.OutcomeActed, telemetry.OutcomeVerified}; !slices.Equal(outcomesOf(b.journal.all(), e.ID), want) {
		t.Errorf("it went through %v, want %v", outcomesOf(b.journal.all(), e.ID), want)
	}
	if d.limit != leastCapW {
		t.Errorf("the cap was given back before the effect was read: %v W", d.limit)
	}
	d.r = 0.06 // and its cooler is cleaned
	b.until(3*time.Minute, "the cap undone", func() bool { return d.limit == defaultW })
	if len(tree.signals) != 1 || len(endings(b.decisions())) != 1 {
		t.Errorf("%d signals, %d endings", len(tree.signals), len(endings(b.decisions())))
	}
	if m := b.mem.Moves; len(m) != 1 || m[0].Ref != tree.ref() || m[0].Work != "n00/ada/job11" || m[0].Result != telemetry.Done || m[0].Node != "n00" {
		t.Errorf("remembered: %+v", m)
	}
}

// The grace is the process's own; nothing else is done to its GPU meanwhile.
func TestGraceIsWaitedFor(t *testing.T) {
	w, d, tree := tooHot(2)
	tree.deaf = true
	other := w.run(10, 100, d.uuid)
	w.jobs = []telemetry.InventoryWorkload{{Ref: tree.ref(), Priority: -1, Requests: telemetry.Requests{Share: 0.8}, Members: []telemetry.WorkloadMember{{ID: tree.member().ID, GPUs: tree.gpus}}, Checkpoint: &telemetry.Checkpoint{Signal: "USR1", Grace: telemetry.Duration(5 * time.Minute)}}}
	b := newBench(t, w, preempting()...)
	b.until(3*time.Minute, "told to end", func() bool { return len(tree.signals) == 1 })
	if p := tree.told[0]; p.Signal != "USR1" || time.Duration(p.Grace) != 5*time.Minute || !strings.Contains(p.Message, d.uuid) {
		t.Errorf("told %+v", p)
	}
	told, written := b.w.now, len(b.journal.all())
	b.until(6*time.Minute, "over", func() bool { return tree.over })
	if since := b.w.now.Sub(told); since != 5*time.Minute {
		t.Errorf("ended after %s", since)
	}
	for _, r := range b.journal.all()[written:] {
		if r.Decision != nil && r.Topic == telemetry.TopicIntent && !slices.ContainsFunc(r.Decision.Steps, func(s telemetry.StepRecord) bool { return s.Step.Kind == telemetry.StepRenew }) {
			t.Errorf("meanwhile: %s", r.Decision)
		}
	}
	b.run(10 * time.Minute)
	if len(tree.signals) != 1 || len(other.signals) != 0 {
		t.Errorf("%d and %d signals", len(tree.signals), len(other.signals))
	}
}

// What became of it, by what its agent said.
func TestHowAnEndingEnds(t *testing.T) {
	cases := []struct {
		name    string
		arm     func(*world, *tree)
		outcome telemetry.Outcome
		ending  string
		signals int
		// acts after the first within 25 minutes
		again int
	}{
		{"it does as it is told", func(*world, *tree) {}, telemetry.OutcomeVerified, "it helped", 1, 0},
		{"it is gone when it is told", func(_ *world, t *tree) { t.elusive = true }, telemetry.OutcomeRefused, "no_target", 0, 2},
		{"KILL does not end it", func(_ *world, t *tree) { t.stuck = true }, telemetry.OutcomeFailed, "still there 10 s after KILL", 1, 0},
		{"it was not what heats", func(w *world, t *tree) { w.device("GPU-00-0").load, t.watts = 500, 30 }, telemetry.OutcomeIneffective, "it did not help", 1, 0},
		{"the agent may not", func(w *world, _ *tree) {
			w.refuseKind = map[telemetry.StepKind]telemetry.RefuseReason{telemetry.StepPreempt: telemetry.RefuseNotAllowed}
		}, telemetry.OutcomeRefused, "refused where it would be done (not_allowed)", 0, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w, d, tree := tooHot(2)
			b := newBench(t, w, preempting()...)
			c.arm(w, tree)
			b.until(4*time.Minute, "an ending", func() bool { return len(endings(b.decisions())) == 1 })
			b.until(4*time.Minute, "its end", func() bool { return !endings(b.decisions())[0].Ended.IsZero() })
			e := endings(b.decisions())[0]
			if e.Outcome != c.outcome || !strings.Contains(e.Ending, c.ending) || len(tree.signals) != c.signals {
				t.Errorf("%s, %q, %d signals; want %s, %q, %d", e.Outcome, e.Ending, len(tree.signals), c.outcome, c.ending, c.signals)
			}
			if e.Outcome == telemetry.OutcomeVerified {
				return
			}
			b.run(25 * time.Minute)
			if again := len(endings(b.decisions())) - 1; again != c.again || len(tree.signals) != c.signals {
				t.Errorf("%d more, %d signals; want %d", again, len(tree.signals), c.again)
			}
			// Whatever became of it, caps go on: the GPU cools and gets its limit back.
			d.r = 0.02
			b.until(20*time.Minute, "the cap undone", func() bool { return d.limit == defaultW })
		})
	}
}

// Of two on one GPU the second waits until it is known what the end of the first
// did, and the settle time.
func TestTheNextWaitsForTheEffectOfTheFirst(t *testing.T) {
	w, d, first := tooHot(21)
	d.r, first.watts, first.pid, first.start, first.name = 0.25, 200, 20, 20000, "job20"
	second := w.run(11, 250, d.uuid)
	b := newBench(t, w, preempting(func(p *rebalancer.PolicySpec) { p.Settle = telemetry.Duration(90 * time.Second) })...)
	b.until(4*time.Minute, "the first told", func() bool { return len(first.signals) == 1 })
	b.until(time.Minute, "the first over", func() bool { return first.over })
	over := b.w.now
	b.until(5*time.Minute, "the second told", func() bool { return len(second.signals) == 1 })
	if since := b.w.now.Sub(over); since < 90*time.Second {
		t.Errorf("the second is told %s after the end of the first", since)
	}
	all := endings(b.decisions())
	if len(all) != 2 || !all[0].Ended.Before(all[1].Time) || all[0].Target.Workload != first.ref() {
		t.Errorf("%v", all)
	}
}

// The same work, started again and again by whoever minds it, is ended three
// times a day at most, and not twice within ten minutes.
func TestWorkThatComesBackIsNotEndedForEver(t *testing.T) {
	w, d, tree := tooHot(1)
	b := newBench(t, w, preempting()...)
	for range 26 * 3600 / 3 {
		w.advance(3 * time.Second)
		b.pass()
		if tree.over {
			next := w.run(tree.pid+1, tree.watts, d.uuid)
			next.name, tree = tree.name, next
		}
		if b.mem.Breaker.Open {
			b.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{By: "ada"}})
		}
	}
	var told []time.Time
	for _, e := range endings(b.decisions()) {
		told = append(told, e.Time)
	}
	if len(told) < 4 {
		t.Fatalf("ended %d times in 26 hours", len(told))
	}
	for i := range told {
		if i > 0 && told[i].Sub(told[i-1]) < 10*time.Minute {
			t.Errorf("ended again after %s", told[i].Sub(told[i-1]))
		}
		if i >= 3 && told[i].Sub(told[i-3]) < 24*time.Hour {
			t.Errorf("ended four times within %s", told[i].Sub(told[i-3]))
		}
	}
	if b.last.Refused.Counts[telemetry.RefusalMoves] != 1 {
		t.Errorf("refused %v, want it said that it is too often", b.last.Refused.Details)
	}
}

// Many GPUs too hot at once: a twentieth of the fleet is disturbed, and then a
// person is asked.
func TestABreakerStopsAnAvalanche(t *testing.T) {
	w := newWorld(5, 4)
	var trees []*tree
	for i, d := range w.devices {
		d.load, d.r = 30, 0.18
		d.temp = w.inlet[d.node] + d.r*d.load
		x := w.run(100+i, 500, d.uuid)
		trees = append(trees, x)
	}
	b := newBench(t, w, preempting()...)
	b.run(6 * time.Minute)
	told := func() (n int) {
		for _, x := range trees {
			n += len(x.signals)
		}
		return n
	}
	if !b.mem.Breaker.Open || told() != 1 || !strings.Contains(b.mem.Breaker.Reason, "2 of 20 GPUs would be disrupted within 10m0s") {
		t.Fatalf("%d of %d told, %+v", told(), len(trees), b.mem.Breaker)
	}
	if !slices.Contains(reasonsOf(b.last), telemetry.RefusalBreaker) {
		t.Errorf("refused for %v, want it said", reasonsOf(b.last))
	}
	b.run(12 * time.Minute)
	if told() != 1 {
		t.Errorf("%d told by and by, though nobody closed the breaker", told())
	}
	b.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{By: "ada"}})
	b.run(5 * time.Minute)
	if told() != 2 || !b.mem.Breaker.Open {
		t.Errorf("%d told after a person closed it once, open %v", told(), b.mem.Breaker.Open)
	}
}

// What is shown to a person may be more than what may be done at once, and opens
// nothing.
func TestRecommendationsOpenNoBreaker(t *testing.T) {
	w := newWorld(5, 4)
	for i, d := range w.devices {
		d.load, d.r, d.limit = 30, 0.18, leastCapW
		d.temp = w.inlet[d.node] + d.r*d.load
		w.run(100+i, 500, d.uuid)
	}
	b := newBench(t, w, preempting(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Recommend })...)
	b.run(3 * time.Minute)
	if n := len(endings(b.decisions())); n != 1 || b.mem.Breaker.Open || b.last.Refused.Counts[telemetry.RefusalBreaker] != 19 {
		t.Errorf("%d recommended, open %v, refused %v", n, b.mem.Breaker.Open, b.last.Refused.Counts)
	}
}

// A fleet of one node can have one process ended without tripping over itself.
func TestTheFirstEndingOfASmallFleetIsNoAvalanche(t *testing.T) {
	w, d, tree := tooHot(8)
	next := w.run(5, 100, "GPU-00-1")
	b := newBench(t, w, preempting()...)
	b.until(6*time.Minute, "over and read", func() bool { e := endings(b.decisions()); return len(e) == 1 && !e[0].Ended.IsZero() })
	b.run(5 * time.Second)
	if b.mem.Breaker.Open || !tree.over {
		t.Fatalf("the breaker opened after one of eight GPUs: %+v", b.mem.Breaker)
	}
	d.r = 0.06
	x := w.device("GPU-00-1")
	x.r, next.watts = 0.18, 500
	b.until(8*time.Minute, "the breaker open", func() bool { return b.mem.Breaker.Open })
	if !strings.Contains(b.mem.Breaker.Reason, "2 of 8 GPUs would be disrupted") || next.over {
		t.Errorf("two of eight within ten minutes: %+v", b.mem.Breaker)
	}
}

// What a leader knows of endings is in the journal, and in its snapshots.
func TestMovesSurviveASnapshot(t *testing.T) {
	w, _, _ := tooHot(2)
	b := newBench(t, w, preempting()...)
	b.run(6 * time.Minute)
	if len(b.mem.Moves) != 1 {
		t.Fatalf("moves %+v", b.mem.Moves)
	}
	data, err := b.mem.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var next rebalancer.Memory
	if err := next.Fold(b.mem.Seq, telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(next.Moves, b.mem.Moves) {
		t.Errorf("restored %+v, was %+v", next.Moves, b.mem.Moves)
	}
	later := b.mem.Moves[0].At.Add(24*time.Hour + time.Second)
	if err := next.Fold(b.mem.Seq+1, telemetry.Record{Topic: telemetry.TopicBreaker, Time: later, Breaker: &telemetry.BreakerTrip{}}); err != nil || len(next.Moves) != 0 {
		t.Errorf("after a day %+v, %v", next.Moves, err)
	}
}

// A View without the members of its nodes, as after a restart of the collector,
// begins nothing.
func TestNothingIsEndedThatIsNotSeen(t *testing.T) {
	w, _, tree := tooHot(1)
	b := newBench(t, w, preempting()...)
	kind := tree.kind
	for _, k := range []string{"unknown", "job", ""} {
		tree.kind = k
		b.run(5 * time.Minute)
	}
	if len(tree.signals) != 0 {
		t.Fatalf("told %v", tree.signals)
	}
	tree.kind = kind
	b.until(time.Minute, "told", func() bool { return len(tree.signals) == 1 })
}

// The hand that would know is configured away: an ending has an end all the same.
func TestEndingWithoutAHandToAsk(t *testing.T) {
	s := newEnding(t)
	d := s.preempted(11, telemetry.OutcomeIntended, target.UUID)
	s.planner.Actuators = nil
	s.w.now = d.Act.Steps[0].Deadline
	if p := s.plan(); slices.ContainsFunc(p.Entries, func(e rebalancer.Entry) bool { return e.Decision != nil }) {
		t.Fatalf("before its deadline: %+v", p.Entries)
	}
	s.w.now = s.w.now.Add(time.Second)
	if got := s.keep(s.plan()); got.ID != d.ID || got.Outcome != telemetry.OutcomeExpired || !strings.Contains(got.Ending, "backend node is no longer configured") || len(s.mem.Moves) != 1 {
		t.Errorf("%s: %s, moves %+v", got.Outcome, got.Ending, s.mem.Moves)
	}
}
