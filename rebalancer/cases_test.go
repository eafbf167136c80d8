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

// Public failures of schedulers and rebalancers, as far as they can befall one
// that caps power: each is a symptom that people reported, and what must happen
// instead.

// Loops and thrash.

// An air supply that swings faster than a cap can settle moves no limit back
// and forth with it: no cap within the settle time of an act, no undo before it
// is known whether the cap helped.
func TestCaseSwingingAirDoesNotSwingTheLimit(t *testing.T) {
	w := newWorld(1, 1)
	b := newBench(t, w)
	d := w.device("GPU-00-0")
	for i := range 60 {
		w.inlet["n00"] = []float64{30, 52}[i%2]
		b.run(20 * time.Second)
	}
	if d.sets == 0 {
		t.Fatal("never capped")
	}
	settle, verified := time.Duration(enforcing()[0].Spec().Settle), 0
	var last time.Time
	for _, x := range b.decisions() {
		if !last.IsZero() && x.Time.Sub(last) < settle {
			t.Errorf("%s comes %s after the act before it", x.ID, x.Time.Sub(last))
		}
		for _, s := range x.Steps {
			if s.Step.Kind == telemetry.StepUndo && s.Step.NotBefore.Before(x.VerifyBy) {
				t.Errorf("%s is undone before it was known whether it helps", x.ID)
			}
			if s.Receipt != nil && s.Step.Kind != telemetry.StepRenew {
				last = s.Receipt.Ended
			}
		}
		verified++
	}
	if swings := 20 * 60 / 40; verified > swings/2 {
		t.Errorf("%d caps for %d swings: the limit follows the air", verified, swings)
	}
}

// One GPU that runs hot for good is capped as far as it goes, and not again at
// every pass.
func TestCaseTheSameTargetIsNotActedOnEveryPass(t *testing.T) {
	w := newWorld(1, 2)
	b := newBench(t, w)
	d := w.device("GPU-00-0")
	d.r = 0.3 // beyond what any cap mends
	b.run(time.Hour)
	if d.limit != leastCapW {
		t.Errorf("limit %v W, want the least of %v W", d.limit, leastCapW)
	}
	if d.sets > 3 || len(b.on(d)) > 3 {
		t.Errorf("limit set %d times by %d decisions in an hour", d.sets, len(b.on(d)))
	}
	if !slices.Contains(reasonsOf(b.last), telemetry.RefusalAtLimit) {
		t.Errorf("refusals %v, want at_limit said at every pass", reasonsOf(b.last))
	}
}

// A spike shorter than the filter is no violation, however high it is.
func TestCaseASpikeShorterThanTheFilterIsNothing(t *testing.T) {
	for _, samples := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("%d samples", samples), func(t *testing.T) {
			s := newScene(t)
			s.policies = enforcing(func(p *rebalancer.PolicySpec) { p.Filter, p.Predict = rebalancer.Filter{N: 4, M: 5}, 0 })
			acts := 0
			for i := range 20 {
				s.w.now = s.w.now.Add(time.Second)
				headroom := 20.0
				if i >= 10 && i < 10+samples {
					headroom = 1
				}
				s.gpu.HeadroomC = cluster.Some(headroom)
				s.read(telemetry.GPUThermalHeadroomCelsius, headroom)
				s.read(telemetry.GPUTemperatureCelsiusCore, 90-headroom)
				s.read(telemetry.GPUThrottleActiveSWThermal, 0)
				acts += len(steps(s.plan()))
			}
			if want := samples >= 4; (acts > 0) != want {
				t.Errorf("%d acts for a spike of %d samples, 4 of 5 are needed", acts, samples)
			}
		})
	}
}

// Acts that cannot be carried out are not tried for ever at the same pace.
func TestCaseWhatFailsIsTriedLessAndLess(t *testing.T) {
	w := newWorld(1, 1)
	b := newBench(t, w)
	b.run(5 * time.Second)
	w.refuse = telemetry.RefuseNotAllowed
	w.device("GPU-00-0").r = 0.1
	tries := func(d time.Duration) int {
		before := len(b.decisions())
		b.run(d)
		return len(b.decisions()) - before
	}
	first, second, third := tries(10*time.Minute), tries(10*time.Minute), tries(10*time.Minute)
	if first == 0 || second > first || third > 1 || first+second+third > 9 {
		t.Errorf("%d, %d and %d attempts in three times ten minutes", first, second, third)
	}
	if r := b.last.Refused; r.Counts[telemetry.RefusalSettling] != 1 || !strings.Contains(r.Details[0].Text, "attempts in a row failed") {
		t.Errorf("refused %+v, want it to say since when and why it waits", r)
	}
}

// A fresh install acts on nothing: it says what it would do.
func TestCaseNothingIsDoneByDefault(t *testing.T) {
	w := newWorld(2, 2)
	b := newBench(t, w, inMode(telemetry.Recommend)...)
	for _, d := range w.devices {
		d.r = 0.1
	}
	b.run(10 * time.Minute)
	for _, d := range w.devices {
		if d.sets != 0 {
			t.Errorf("%s was touched", d.uuid)
		}
	}
	if n := len(b.mem.Decisions); n == 0 {
		t.Error("nothing is recommended either")
	}
}

// Nowhere to go.

// What cannot suffice is said: the record has the number reached and the number
// wanted, and the act is taken as far as it goes, for safety.
func TestCaseNotEnoughIsSaidWithNumbers(t *testing.T) {
	s := newScene(t)
	s.gpu.RCPerW = cluster.Some(0.02)
	s.gpu.HeadroomC = cluster.Some(-3)
	s.read(telemetry.GPUThermalHeadroomCelsius, -3)
	p := s.plan()
	if len(steps(p)) != 1 {
		t.Fatalf("steps %v", steps(p))
	}
	d := p.Entries[0].Decision
	i := slices.IndexFunc(d.Alternatives[1].Refusals, func(r telemetry.Refusal) bool { return r.Reason == telemetry.RefusalNotEnough })
	if i < 0 {
		t.Fatalf("alternatives %+v", d.Alternatives)
	}
	if r := d.Alternatives[1].Refusals[i]; r.Have == nil || r.Need == nil || *r.Have >= *r.Need || *r.Need != 8 {
		t.Errorf("refusal %+v, want both numbers", r)
	}
}

// Devices that nobody reports on are not room in a budget: they count as what
// they were when they went out of sight.
func TestCaseGhostsTakeTheirRoom(t *testing.T) {
	b := hotFleet(t, 2, 2, rebalancer.Budget{Percent: 50, Per: rebalancer.PerFleet})
	b.until(2*time.Minute, "two capped", func() bool { return len(b.mem.Decisions) == 2 })
	for range 30 {
		b.w.advance(time.Second)
		v := b.w.view()
		var rest []*cluster.Node
		for n := range v.Nodes() {
			if len(rest) == 0 {
				rest = append(rest, n) // the other node is in no View any more
			}
		}
		b.pass(cluster.NewView(b.w.now, rest, nil))
		under := map[string]bool{}
		for _, d := range b.mem.Decisions {
			under[d.Target.UUID] = true
		}
		if len(under) > 2 {
			t.Fatalf("%d GPUs under acts after half the fleet went out of sight", len(under))
		}
	}
}

// Telemetry that lies.

// One node without values stops nobody else's relief.
func TestCaseANodeWithoutValuesStopsNobody(t *testing.T) {
	w := newWorld(2, 1)
	b := newBench(t, w)
	w.device("GPU-01-0").r = 0.1
	for range 60 {
		w.advance(time.Second)
		v := w.view()
		var nodes []*cluster.Node
		for n := range v.Nodes() {
			if n.Name == "n00" {
				blind := *n
				blind.State, blind.GPUs = cluster.NodeGone, []*cluster.GPU{cluster.NewGPU(cluster.GPU{UUID: "GPU-00-0", Node: "n00", State: cluster.GPUUnknown})}
				n = &blind
			}
			nodes = append(nodes, n)
		}
		b.pass(cluster.NewView(w.now, nodes, nil))
	}
	if w.device("GPU-01-0").sets == 0 {
		t.Error("the hot GPU of the node that can be seen was not capped")
	}
	if w.device("GPU-00-0").sets != 0 {
		t.Error("the GPU that cannot be seen was touched")
	}
}

// An old value does not keep acting.
func TestCaseAnOldValueActsOnNothing(t *testing.T) {
	w := newWorld(1, 1)
	b := newBench(t, w)
	w.device("GPU-00-0").temp = 88
	w.device("GPU-00-0").r = 0.1
	frozen := w.view()
	for i := range 120 {
		w.now = w.now.Add(time.Second)
		v := cluster.NewView(w.now, slices.Collect(frozen.Nodes()), nil)
		p := b.pass(v)
		if i >= 3 && len(steps(p)) > 0 {
			t.Fatalf("acts %s after the last value", time.Duration(i+1)*time.Second)
		}
	}
	if got := b.last.Refused.Counts[telemetry.RefusalStale]; got != 1 {
		t.Errorf("refused %v, want stale", b.last.Refused.Counts)
	}
}

// What is missing is neither cool nor hot.
func TestCaseMissingIsNotZeroAndNotFull(t *testing.T) {
	drop := func(ids ...telemetry.ID) func(*scene) {
		return func(s *scene) {
			for _, id := range ids {
				delete(s.readings, id)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*scene)
		acts   bool
	}{
		"no power: the limit bounds it":        {drop(telemetry.GPUPowerWatts), true},
		"no headroom, no temperature":          {func(s *scene) { drop(telemetry.GPUThermalHeadroomCelsius, telemetry.GPUTemperatureCelsiusCore)(s) }, false},
		"no judged headroom":                   {func(s *scene) { s.gpu.HeadroomC = cluster.Opt{} }, false},
		"no limit":                             {func(s *scene) { s.gpu.LimitW = cluster.Opt{}; drop(telemetry.GPUPowerLimitWatts)(s) }, false},
		"no least limit":                       {func(s *scene) { s.gpu.MinW = cluster.Opt{} }, false},
		"no resistance, no time constant":      {func(s *scene) { s.gpu.RCPerW, s.gpu.TauS = cluster.Opt{}, cluster.Opt{} }, true},
		"no slope":                             {func(s *scene) { s.gpu.SlopeCPerS = cluster.Opt{} }, true},
		"no throttle reason: nothing confirms": {drop(telemetry.GPUThrottleActiveSWThermal), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			c.change(s)
			p := s.plan()
			if acts := len(steps(p)) > 0; acts != c.acts {
				t.Errorf("acts: %v, refused %v", acts, p.Refused.Counts)
			}
			if !c.acts && len(p.Refused.Counts) == 0 {
				t.Error("and does not say why")
			}
		})
	}
}

// The order of the victims is pinned: the hottest first, then by name.
func TestCaseVictimOrderIsPinned(t *testing.T) {
	var order []string
	for range 5 { // whatever the order of maps
		w := newWorld(3, 2)
		b := newBench(t, w)
		for i, uuid := range []string{"GPU-02-1", "GPU-00-1", "GPU-01-0"} {
			w.device(uuid).temp = 88 - float64(i%2)
			w.device(uuid).load, w.device(uuid).r = 650, 0.09
		}
		var got []string
		for range 5 {
			w.advance(10 * time.Millisecond)
			w.now = w.now.Add(time.Second)
			for _, s := range steps(b.pass()) {
				got = append(got, s.Target.UUID)
			}
		}
		if order == nil {
			order = got
		}
		if len(got) != 3 || !slices.Equal(got, order) || got[2] != "GPU-00-1" {
			t.Fatalf("order %v, before %v", got, order)
		}
	}
}

// Events from before a restart do not count after it: a new process starts from
// the journal and from what is seen now.
func TestCaseColdStartReconcilesBeforeItActs(t *testing.T) {
	w := newWorld(1, 1)
	b := newBench(t, w, enforcing(func(p *rebalancer.PolicySpec) { p.Predict = 0 })...)
	d := w.device("GPU-00-0")
	d.temp, d.r = 88, 0.12
	w.advance(10 * time.Millisecond)
	b.mem = rebalancer.Memory{Leading: true, Epoch: epoch}
	p := b.pass()
	if len(steps(p)) != 0 || p.Refused.Counts[telemetry.RefusalUnconfirmed] != 1 {
		t.Errorf("the first pass of a process acts on one sample: %v, %v", steps(p), p.Refused.Counts)
	}
	b.until(time.Minute, "capped", func() bool { return d.sets == 1 })
	restarted := b.journal.fold(t)
	restarted.Leading, restarted.Epoch = true, epoch
	b.mem = restarted
	b.run(5 * time.Second)
	if d.sets != 1 {
		t.Errorf("a second process acted again: limit set %d times", d.sets)
	}
}

// The truth is read again after each act: the limit in force is what the
// receipt said, not what was asked for.
func TestCaseTruthIsReadAgainAfterEachAct(t *testing.T) {
	b, d := capped(t)
	x := b.only()
	rounded := *x.Steps[0].Step.Params.PowerLimitWatts - 10
	var m rebalancer.Memory
	for i, r := range b.journal.all() {
		if r.Decision != nil && len(r.Decision.Steps) > 0 && r.Decision.Steps[0].Receipt != nil {
			dec := *r.Decision
			dec.Steps = slices.Clone(dec.Steps)
			receipt := *dec.Steps[0].Receipt
			receipt.After = map[string]float64{"power_limit_watts": rounded} // the driver rounds down
			dec.Steps[0].Receipt = &receipt
			r.Decision = &dec
		}
		if err := m.Fold(uint64(i+1), r); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.GPUs[d.uuid].LimitW; got != rounded {
		t.Errorf("limit %v W is remembered, %v W was read back", got, rounded)
	}
}

// Budgets and protected work.

// Not all GPUs of an owner's gang at once where the budget is by node.
func TestCaseBudgetSpreadsOverNodes(t *testing.T) {
	b := hotFleet(t, 3, 4, rebalancer.Budget{Percent: 25, Per: rebalancer.PerNode})
	b.run(5 * time.Minute)
	for place, n := range cappedBy(b.w, func(d *device) string { return d.node }) {
		if n > 1 {
			t.Errorf("%d of 4 GPUs of %s are capped, 1 may be", n, place)
		}
	}
	if got := b.last.Refused.Counts[telemetry.RefusalBudget]; got == 0 {
		t.Errorf("refused %v: the budget blocks silently", b.last.Refused.Counts)
	}
}

// A guard that blocks everything says so, with its numbers, and in words.
func TestCaseNoGuardBlocksInSilence(t *testing.T) {
	for _, c := range refusals {
		s := newScene(t)
		c.change(s)
		p := s.plan()
		if len(steps(p)) > 0 {
			continue
		}
		if len(p.Refused.Counts) == 0 || len(p.Refused.Details) == 0 {
			t.Errorf("%s: nothing is done and nothing said", c.name)
		}
		for _, r := range p.Refused.Details {
			if r.Text == "" || r.Target == (telemetry.Target{}) {
				t.Errorf("%s: %+v without words or target", c.name, r)
			}
		}
	}
}

// Opting out is honoured in every path: by the act's name, by all, by one of two
// workloads on the GPU, and when the mode is changed to act.
func TestCaseOptOutIsHonouredInEveryPath(t *testing.T) {
	for name, jobs := range map[string][]telemetry.InventoryWorkload{
		"by name":           {{Ref: "slurm:1", OptOut: []string{"cap"}}},
		"of all":            {{Ref: "slurm:1", OptOut: []string{"all"}}},
		"one of two":        {{Ref: "slurm:1"}, {Ref: "slurm:2", OptOut: []string{"cap"}}},
		"among others":      {{Ref: "slurm:1", OptOut: []string{"drain", "migrate", "cap"}}},
		"of something else": {{Ref: "slurm:1", OptOut: []string{"drain", "migrate"}}},
	} {
		for _, mode := range []telemetry.Mode{telemetry.Enforce, telemetry.Approve, telemetry.Recommend} {
			s := newScene(t)
			s.policies, s.work = inMode(mode), jobs
			p := s.plan()
			wants := name == "of something else"
			if got := len(p.Entries) > 0 && p.Entries[0].Decision != nil; got != wants {
				t.Errorf("%s, mode %s: decides %v, refused %v", name, mode, got, p.Refused.Counts)
			}
		}
	}
}

// The controller itself.

// What another lowered is not raised: a cap is never above the limit in force,
// and an undo leaves a limit that is not ours.
func TestCaseWhatAnotherLoweredIsNotRaised(t *testing.T) {
	b, d := capped(t)
	d.limit = 300 // somebody else
	d.r = 0.05
	b.run(15 * time.Minute)
	if d.limit != 300 {
		t.Errorf("limit %v W, another set 300 W", d.limit)
	}
	if x := b.only(); x.Outcome != telemetry.OutcomeUndone || !strings.Contains(x.Ending, "no longer ours") {
		t.Errorf("%s: %q", x.Outcome, x.Ending)
	}
}

// The breaker holds across restarts, and through a snapshot.
func TestCaseTheBreakerHoldsAcrossRestarts(t *testing.T) {
	b := newBench(t, newWorld(1, 1))
	b.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{Open: true, Reason: "6 of 10 acts failed", Have: 0.6, Limit: 0.2}})
	data, err := b.mem.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	b.write(telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data})
	m := b.journal.fold(t)
	if !m.Breaker.Open || m.Breaker.Reason != "6 of 10 acts failed" || m.Breaker.Since.IsZero() {
		t.Errorf("after a restart: %+v", m.Breaker)
	}
}

// A dry run is the live run up to the last step, and refused candidates come
// with their reasons in both.
func TestCaseADryRunReportsWhatTheLiveRunDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 1)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) {
				p.Budget = rebalancer.Budget{Percent: 50, Max: 1, Per: rebalancer.PerFleet}
			})
		})
		l.run(5 * time.Second)
		for _, d := range w.devices {
			d.r = 0.1
		}
		l.until(time.Minute, "one capped", func() bool { return w.devices[0].sets+w.devices[1].sets == 1 })
		var dry rebalancer.DryRun
		if err := l.ask(rebalancer.VerbPlan, rebalancer.Request{}, &dry); err != nil {
			t.Fatal(err)
		}
		if dry.Refused.Counts[telemetry.RefusalBudget] != 1 || !strings.Contains(dry.Text, "budget") || !strings.Contains(dry.Text, "nothing would be done") {
			t.Errorf("dry run:\n%s", dry.Text)
		}
	})
}

// Recovery ends the wait: what stood in the way is asked again at every pass,
// and each state is written once.
func TestCaseRecoveryIsTriedAgainWithoutAStorm(t *testing.T) {
	w := newWorld(1, 1)
	b := newBench(t, w)
	w.jobs = []telemetry.InventoryWorkload{{Ref: "slurm:1", OptOut: []string{"cap"}, Members: []telemetry.WorkloadMember{{ID: "1.0", Node: "n00", GPUs: []string{"GPU-00-0"}}}}}
	w.device("GPU-00-0").r = 0.1
	b.run(10 * time.Minute)
	if n := len(b.journal.all()); n > 4 {
		t.Errorf("%d records while the same thing stands in the way", n)
	}
	w.jobs[0].OptOut = nil
	b.until(5*time.Second, "capped", func() bool { return w.device("GPU-00-0").sets == 1 })
}

// An agent sets a cap and dies before any word of it. When the order expires the
// cap is no longer wanted, but nobody can say that it was not done: the decision
// keeps the step, and the agent's own word of it, once it is back, is written.
func TestCaseACapWithoutWordIsNotTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		d := w.device("GPU-00-0")
		d.r, w.lost = 0.1, true // done, and no answer comes
		l.until(time.Minute, "capped", func() bool { return d.sets == 1 })
		w.lost, w.down = false, map[string]bool{d.node: true}
		d.r, d.temp = 0.02, 40
		l.until(2*time.Minute, "ended", func() bool { return l.outcome() != telemetry.OutcomeIntended })
		m := l.journal.fold(t)
		if len(m.Closed) != 1 || m.Closed[0].Outcome != telemetry.OutcomeExpired || len(m.Closed[0].Act.Steps) != 1 {
			t.Fatalf("%s, want expired with its step: %+v", l.outcome(), m.Closed)
		}
		step := m.Closed[0].Act.Steps[0]
		w.down = nil
		l.engine.Receipt(w.ledger[step.ID])
		l.run(5 * time.Second)
		if got := l.outcome(); got != telemetry.OutcomeActed && got != telemetry.OutcomeVerified && got != telemetry.OutcomeUndone {
			t.Errorf("%s after its agent said that it was done", got)
		}
	})
}
