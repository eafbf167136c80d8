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

// capped is a world with one GPU under a verified cap.
func capped(t testing.TB) (*bench, *device) {
	b := hotBench(t, telemetry.Enforce)
	b.until(4*time.Minute, "verified", outcomeIs(b, telemetry.OutcomeVerified))
	return b, b.w.device("GPU-00-0")
}

func TestVerifyWaitsForThePredictedTime(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	b.until(2*time.Minute, "acted", outcomeIs(b, telemetry.OutcomeActed))
	d := b.only()
	if want := b.w.now.Add(time.Duration(d.Predicted.Within)); !d.VerifyBy.Equal(want) || time.Duration(d.Predicted.Within) != time.Minute {
		t.Errorf("verified by %v, want %v: three time constants of 20 s", d.VerifyBy, want)
	}
	for b.w.now.Add(time.Second).Before(d.VerifyBy) {
		b.run(time.Second)
		if o := b.only().Outcome; o != telemetry.OutcomeActed {
			t.Fatalf("%s at %v, before %v", o, b.w.now, d.VerifyBy)
		}
	}
	b.run(time.Second)
	d = b.only()
	if d.Outcome != telemetry.OutcomeVerified || d.Observed == nil || d.Observed.After <= d.Observed.Before || !d.Ended.IsZero() {
		t.Fatalf("%s, observed %+v", d.Outcome, d.Observed)
	}
	if diff := d.Observed.After - d.Predicted.After; diff < -0.5 || diff > 0.5 {
		t.Errorf("observed %.2f, predicted %.2f", d.Observed.After, d.Predicted.After)
	}
}

func TestVerifySaysWhatCannotBeRead(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	b.until(2*time.Minute, "acted", outcomeIs(b, telemetry.OutcomeActed))
	v := b.w.view()
	b.w.now = b.only().VerifyBy.Add(30 * time.Second)
	b.pass(v)
	if o := b.only().Outcome; o != telemetry.OutcomeActed {
		t.Fatalf("%s on a stale value", o)
	}
	b.w.now = b.w.now.Add(30 * time.Second)
	b.pass(v)
	d := b.only()
	if d.Outcome != telemetry.OutcomeIneffective || d.Observed != nil || len(d.Refusals) != 1 || d.Refusals[0].Reason != telemetry.RefusalStale {
		t.Errorf("%s, observed %v, refusals %v", d.Outcome, d.Observed, d.Refusals)
	}
}

// The air goes on warming after the cap, so that it does not suffice: the next
// decision goes lower, the undo goes back to before the first.
func TestEscalation(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	d := b.w.device("GPU-00-0")
	b.until(2*time.Minute, "acted", outcomeIs(b, telemetry.OutcomeActed))
	first := d.limit
	b.w.inlet["n00"] = 48
	b.until(5*time.Minute, "a second decision acted", func() bool {
		ds := b.on(d)
		return len(ds) >= 2 && ds[1].Outcome == telemetry.OutcomeActed
	})
	b.run(time.Second)
	ds := b.on(d)
	if ds[0].Outcome != telemetry.OutcomeEscalated || ds[0].Ending != ds[1].ID+" took its place" {
		t.Errorf("first decision %s: %q", ds[0].Outcome, ds[0].Ending)
	}
	if d.limit >= first {
		t.Errorf("second cap at %v, first at %v", d.limit, first)
	}
	if found := ds[1].Steps[0].Step.Params.FoundWatts; found == nil || *found != defaultW {
		t.Errorf("second cap would go back to %v", found)
	}
	if before, ok := rebalancer.PowerBefore(ds[1]); !ok || before < 640 {
		t.Errorf("power without acts is %v, want the 650 W from before the first", before)
	}
	b.until(10*time.Minute, "cool", func() bool { return d.headroom() > 7 })
	b.w.inlet["n00"] = 30
	d.r = 0.06
	b.until(10*time.Minute, "undone", func() bool { return d.limit == defaultW })
	for _, d := range b.decisions() {
		if d.Ended.IsZero() && d.Target.UUID == "GPU-00-0" {
			t.Errorf("%s is left %s", d.ID, d.Outcome)
		}
	}
}

// A cap that did not move the signal is said to be ineffective.
func TestIneffective(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	d := b.w.device("GPU-00-0")
	b.until(2*time.Minute, "acted", outcomeIs(b, telemetry.OutcomeActed))
	b.w.inlet["n00"] = 55
	b.until(2*time.Minute, "ineffective", func() bool { return b.decisions()[0].Outcome == telemetry.OutcomeIneffective })
	first := b.decisions()[0]
	if first.Observed == nil || first.Observed.Note == "" {
		t.Errorf("observed %+v", first.Observed)
	}
	b.run(20 * time.Minute)
	if d.limit < minW {
		t.Errorf("limit %v is under what the device accepts", d.limit)
	}
	if len(b.mem.Decisions) == 0 {
		t.Error("a GPU this hot holds no cap")
	}
}

// Escalation ends at the least limit, and then says so.
func TestEscalationEndsAtTheMinimum(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	d := b.w.device("GPU-00-0")
	b.w.inlet["n00"] = 85
	b.run(10 * time.Minute)
	if d.limit != leastCapW {
		t.Fatalf("limit %v, want the least, %v", d.limit, leastCapW)
	}
	sets := d.sets
	b.run(10 * time.Minute)
	if d.sets != sets {
		t.Errorf("limit set %d more times at the least", d.sets-sets)
	}
	if b.last.Refused.Counts[telemetry.RefusalAtLimit] == 0 {
		t.Errorf("refused %v, want at_limit", b.last.Refused.Counts)
	}
	notEnough := false
	for _, d := range b.decisions() {
		notEnough = notEnough || d.RefusalCount[telemetry.RefusalNotEnough] > 0
	}
	if !notEnough {
		t.Error("no decision says that its cap is not enough")
	}
}

func TestSettleKeepsTheNextActAway(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	b.w.refuse = telemetry.RefuseBusy
	b.until(2*time.Minute, "refused", outcomeIs(b, telemetry.OutcomeRefused))
	for want, wait := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		b.run(wait - time.Second)
		if n := len(b.decisions()); n != want+1 {
			t.Fatalf("%d decisions within the wait of %s after %d failures, want %d", n, wait, want+1, want+1)
		}
		b.run(time.Second)
	}
	if b.w.device("GPU-00-0").sets != 0 {
		t.Error("limit set though refused")
	}
}

func TestRenewAtAThirdOfTheLease(t *testing.T) {
	b, d := capped(t)
	act := b.only().Steps[0]
	from := act.Receipt.Ended
	b.until(10*time.Minute, "renewed", func() bool { return d.leaseEnds.After(from.Add(10 * time.Minute)) })
	if after := b.w.now.Sub(from); after != 200*time.Second {
		t.Errorf("renewed after %s, want a third of 10 min", after)
	}
	b.run(time.Hour)
	got := b.only()
	if got.Outcome != telemetry.OutcomeVerified || d.limit == defaultW {
		t.Fatalf("%s, limit %v after an hour", got.Outcome, d.limit)
	}
	if len(got.Steps) != 2 {
		t.Errorf("%d steps in the record after an hour, want the cap and the last renewal", len(got.Steps))
	}
	ids := map[string]bool{}
	for _, r := range b.journal.all() {
		if r.Topic == telemetry.TopicIntent {
			id := r.Decision.Steps[len(r.Decision.Steps)-1].Step.ID
			if ids[id] {
				t.Errorf("step id %s used twice", id)
			}
			ids[id] = true
		}
	}
	last := got.Steps[1].Step
	if last.Params.Of != act.Step.ID || last.Lease != act.Step.Lease || last.Kind != telemetry.StepRenew {
		t.Errorf("renewal %+v", last)
	}
}

// The agent is away: renewals fail, the lease runs out, and the decision ends
// without another word to the device.
func TestLeaseThatCannotBeRenewed(t *testing.T) {
	b, d := capped(t)
	b.w.down["n00"] = true
	sets := d.sets
	b.run(12 * time.Minute)
	got := b.only()
	if got.Outcome != telemetry.OutcomeExpired || !strings.Contains(got.Ending, "lease") {
		t.Errorf("%s: %q", got.Outcome, got.Ending)
	}
	if d.sets != sets {
		t.Error("limit set while the agent was away")
	}
}

// The bench gives no answer for an absent agent; the renewal then stays
// pending, as it does after a leader's death.
func TestPendingStepEndsWithItsLease(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	b.deaf = true
	b.until(2*time.Minute, "intended", outcomeIs(b, telemetry.OutcomeIntended))
	b.run(10 * time.Minute)
	if o := b.only().Outcome; o != telemetry.OutcomeIntended {
		t.Fatalf("%s while it may be in force", o)
	}
	b.run(2 * time.Minute)
	if d := b.decisions()[0]; d.Outcome != telemetry.OutcomeExpired {
		t.Errorf("%s: %q", d.Outcome, d.Ending)
	}
}

func TestUndoWaitsForTheMargin(t *testing.T) {
	b, d := capped(t)
	// With the limit back it would draw 650 W: 0.09 · 650 = 58.5 °C above the
	// inlet, so an inlet of 23 °C leaves 8.5 °C, above the aim but not by 2 °C.
	b.w.inlet["n00"] = 23
	b.run(5 * time.Minute)
	if d.limit == defaultW {
		t.Fatal("undone within the margin")
	}
	b.w.inlet["n00"] = 21
	b.until(5*time.Minute, "undone", func() bool { return d.limit == defaultW })
	before := len(b.decisions())
	b.run(10 * time.Minute)
	if n := len(b.decisions()); n != before {
		t.Errorf("%d decisions more, the undo brought the violation back", n-before)
	}
}

// A cap that turns out deeper than the lasting heat needs is eased towards the
// aim and its margin, never past the aim, and then left alone.
func TestADeepCapIsEased(t *testing.T) {
	b, d := capped(t)
	found, cap := defaultW, d.limit
	b.w.inlet["n00"] = 23 // cooler than at the cap, too warm for all of the power
	b.until(10*time.Minute, "eased", func() bool { return d.limit > cap })
	if d.limit >= found {
		t.Fatalf("limit %v: given back whole", d.limit)
	}
	sets := 0
	for range 60 {
		b.run(time.Minute)
		if h := slowdownC - d.temp; h < 8 {
			t.Fatalf("headroom %.1f °C after easing, under the aim", h)
		}
		sets = d.sets
	}
	if sets > 4 {
		t.Errorf("limit set %d times in an hour of steady heat", sets)
	}
	newest := b.decisions()[len(b.decisions())-1]
	if v := newest.Violations[0]; v.Needed != 0 || v.Seen < 3 {
		t.Errorf("an eased cap is told as a violation: %+v", v)
	}
	if first := b.decisions()[0]; first.Outcome != telemetry.OutcomeEased {
		t.Errorf("the cap before is %s", first.Outcome)
	}
	b.w.inlet["n00"] = 15
	b.until(10*time.Minute, "undone", func() bool { return d.limit == found })
}

// Whoever wants to be asked is asked for eased caps too: none is set unasked.
func TestEasingAsksWhereActsDo(t *testing.T) {
	b, d := capped(t)
	b.mem.Modes = map[string]telemetry.Mode{"thermal/gentle": telemetry.Approve}
	cap := d.limit
	b.w.inlet["n00"] = 23
	b.run(15 * time.Minute)
	if d.limit != cap {
		t.Errorf("limit %v, was %v", d.limit, cap)
	}
}

func TestUndoNeedsSamples(t *testing.T) {
	b, d := capped(t)
	d.r, d.temp = 0.06, 50
	b.run(2 * time.Second)
	if d.limit == defaultW {
		t.Fatal("undone on two samples")
	}
	b.run(time.Second)
	if d.limit != defaultW {
		t.Error("not undone on three samples of five")
	}
}

// What cannot be seen is not known to be cool.
func TestUndoNeedsAFreshValue(t *testing.T) {
	b, d := capped(t)
	d.r, d.temp = 0.06, 50
	for range 60 {
		b.w.advance(time.Second)
		v := b.w.view()
		n, _ := v.Node("n00")
		n.State = cluster.NodeGone
		b.pass(v)
	}
	if d.limit == defaultW {
		t.Error("undone on what nobody sees")
	}
}

func TestUndoOneAtATimePerCoolingDomain(t *testing.T) {
	w := newWorld(4, 4) // two rows
	b := newBench(t, w)
	b.run(10 * time.Second)
	for n := range w.inlet {
		w.inlet[n] = 50
	}
	b.run(4 * time.Minute)
	for n := range w.inlet {
		w.inlet[n] = 20
	}
	undone := map[string]time.Time{} // by row
	for range 300 {
		b.run(time.Second)
		rows := map[string]int{}
		for _, s := range steps(b.last) {
			if s.Kind != telemetry.StepUndo {
				continue
			}
			row := w.rows[s.Target.Node]
			rows[row]++
			if gap := w.now.Sub(undone[row]); gap < 5*time.Second {
				t.Fatalf("two undos in %s within %s", row, gap)
			}
			undone[row] = w.now
		}
		for row, n := range rows {
			if n > 1 {
				t.Fatalf("%d undos in %s in one pass", n, row)
			}
		}
	}
	for _, d := range w.devices {
		if d.limit != defaultW {
			t.Errorf("%s is still capped", d.uuid)
		}
	}
}

func TestUndoLeavesWhatIsNoLongerOurs(t *testing.T) {
	b, d := capped(t)
	d.limit = 400 // somebody else
	d.r = 0.06
	b.until(5*time.Minute, "ended", outcomeIs(b, telemetry.OutcomeUndone))
	if d.limit != 400 {
		t.Errorf("limit %v, want what the other set", d.limit)
	}
	if got := b.only(); !strings.Contains(got.Ending, "left as it is") {
		t.Errorf("ending %q", got.Ending)
	}
}

func TestRenewalOfWhatIsGone(t *testing.T) {
	b, _ := capped(t)
	b.w.refuse = telemetry.RefuseUnknownStep
	b.until(5*time.Minute, "ended", outcomeIs(b, telemetry.OutcomeUndone))
	if got := b.only(); !strings.Contains(got.Ending, "no longer in force when it was renewed") {
		t.Errorf("ending %q", got.Ending)
	}
}

func TestFailedUndoIsTriedAgain(t *testing.T) {
	b, d := capped(t)
	d.r = 0.06
	b.w.refuse = telemetry.RefuseBusy
	b.run(3 * time.Minute)
	got := b.only()
	if got.Outcome != telemetry.OutcomeVerified || len(got.Steps) > 3 {
		t.Fatalf("%s with %d steps after undos that failed", got.Outcome, len(got.Steps))
	}
	b.w.refuse = ""
	b.until(time.Minute, "undone", func() bool { return d.limit == defaultW })
}

// The policy is taken out of the configuration: what it holds is undone.
func TestUndoWithoutItsPolicy(t *testing.T) {
	b, d := capped(t)
	b.planner.Policies = nil
	b.run(time.Second)
	if got := b.only(); got.Outcome != telemetry.OutcomeUndone || d.limit != defaultW {
		t.Errorf("%s, limit %v", got.Outcome, d.limit)
	}
}

// Pause stops new acts; what is held goes on being looked after.
func TestPauseAllKeepsRenewingAndUndoing(t *testing.T) {
	b, d := capped(t)
	paused := true
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &paused, All: true, By: "ada"}})
	b.run(20 * time.Minute)
	if d.limit == defaultW || d.leaseEnds.Before(b.w.now) {
		t.Fatalf("limit %v, lease until %v at %v", d.limit, d.leaseEnds, b.w.now)
	}
	d.r = 0.06
	b.until(5*time.Minute, "undone", func() bool { return d.limit == defaultW })
}

// The device's own reading of its limit is slow: for up to 15 s it shows the
// limit from before the cap, and after the undo the one from before the undo.
func TestLimitIsTheNewerOfReadingAndReceipt(t *testing.T) {
	b, _ := capped(t)
	v := b.w.view()
	_, g, _ := v.GPU("GPU-00-0")
	limit := func(reading, at float64) cluster.Opt {
		old := *g
		old.LimitW = cluster.Some(reading)
		readings := slices.Collect(g.Readings())
		for i := range readings {
			if readings[i].ID == telemetry.GPUPowerLimitWatts {
				readings[i].V, readings[i].At = reading, b.w.now.Add(time.Duration(at)*time.Second)
			}
		}
		var got cluster.Opt
		spy := spying{enforcing()[0], func(s *rebalancer.Scene) { got = s.LimitW(cluster.NewGPU(old, readings...)) }}
		pl := b.planner
		pl.Policies = []rebalancer.Policy{spy}
		pl.Step(b.w.now, v, b.mem)
		return got
	}
	receipt := b.w.device("GPU-00-0").limit
	if got := limit(defaultW, -600); got.V != receipt {
		t.Errorf("an old reading wins: %v, the receipt said %v", got, receipt)
	}
	if got := limit(444, 0); got.V != 444 {
		t.Errorf("a newer reading loses: %v", got)
	}
}

// spying shows the Scene to a test.
type spying struct {
	rebalancer.Policy
	see func(*rebalancer.Scene)
}

func (s spying) Detect(scene *rebalancer.Scene) []rebalancer.Sighting {
	s.see(scene)
	return s.Policy.Detect(scene)
}
