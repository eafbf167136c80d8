package rebalancer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func inMode(m telemetry.Mode) []rebalancer.Policy {
	return enforcing(func(p *rebalancer.PolicySpec) { p.Mode = m })
}

// hotBench is a world with one GPU beyond its mark, and no act yet.
func hotBench(t testing.TB, mode telemetry.Mode) *bench {
	w := newWorld(1, 2)
	b := newBench(t, w, inMode(mode)...)
	b.run(10 * time.Second)
	w.device("GPU-00-0").r = 0.09
	return b
}

func (b *bench) say(verdict string, id string) {
	b.t.Helper()
	b.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: id, By: "ada", At: b.w.now, Verdict: verdict}})
}

func outcomeIs(b *bench, want telemetry.Outcome) func() bool {
	return func() bool {
		ds := b.decisions()
		return len(ds) > 0 && ds[len(ds)-1].Outcome == want
	}
}

func TestRecommendationStandsAsOneDecision(t *testing.T) {
	b := hotBench(t, telemetry.Recommend)
	b.until(2*time.Minute, "recommended", outcomeIs(b, telemetry.OutcomeRecommended))
	first := b.only()
	if first.Act == nil || first.Predicted == nil || len(first.Steps) != 0 || first.FirstSeen != first.Time {
		t.Errorf("recommendation is not whole: %+v", first)
	}
	if len(first.Refusals) != 1 || first.Refusals[0].Reason != telemetry.RefusalMode {
		t.Errorf("refusals %v, want the mode", first.Refusals)
	}
	b.run(5 * time.Minute)
	if b.w.device("GPU-00-0").sets != 0 {
		t.Fatal("a recommendation acted")
	}
	d := b.only()
	writes := 0
	for _, r := range b.journal.all() {
		if r.Decision != nil {
			writes++
		}
	}
	if writes > 6 {
		t.Errorf("written %d times in five minutes, want once and when the cap it asks for changes", writes)
	}
	now, ok := b.mem.Decision(d.ID)
	if !ok || b.w.now.Sub(now.LastSeen) > 2*time.Second || !now.FirstSeen.Equal(first.Time) {
		t.Errorf("first seen %v, last seen %v at %v", now.FirstSeen, now.LastSeen, b.w.now)
	}
	b.w.device("GPU-00-0").r = 0.06
	b.until(3*time.Minute, "lapsed", outcomeIs(b, telemetry.OutcomeExpired))
	if d := b.only(); !strings.Contains(d.Ending, "no longer needed") || d.Ended.IsZero() || d.LastSeen.Before(first.Time) {
		t.Errorf("ended %v: %q, last seen %v", d.Ended, d.Ending, d.LastSeen)
	}
	if len(b.mem.Decisions) != 0 {
		t.Errorf("still open: %v", b.mem.Decisions)
	}
}

func TestRecommendationIsTakenUpWhenTheModeChanges(t *testing.T) {
	b := hotBench(t, telemetry.Recommend)
	b.until(2*time.Minute, "recommended", outcomeIs(b, telemetry.OutcomeRecommended))
	id := b.only().ID
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Mode: telemetry.Enforce, By: "ada"}})
	b.run(2 * time.Second)
	d := b.only()
	if d.ID != id || d.Outcome != telemetry.OutcomeActed || d.Mode != telemetry.Enforce || !d.FirstSeen.Before(d.Time) || len(d.Refusals) != 0 {
		t.Errorf("%s is %s in mode %s, first seen %v, refusals %v", d.ID, d.Outcome, d.Mode, d.FirstSeen, d.Refusals)
	}
}

// A restart forgets the samples, not the recommendation: it does not lapse
// before as many samples as it would take to make it.
func TestStandingDecisionOutlivesARestart(t *testing.T) {
	b := hotBench(t, telemetry.Recommend)
	b.until(2*time.Minute, "recommended", outcomeIs(b, telemetry.OutcomeRecommended))
	b.mem = b.journal.fold(t)
	b.mem.Leading, b.mem.Epoch = true, epoch
	d := b.w.device("GPU-00-0")
	d.r, d.temp = 0.06, 60
	for range 4 {
		b.run(time.Second)
		if b.only().Outcome != telemetry.OutcomeRecommended {
			t.Fatal("lapsed on fewer samples than the filter asks for")
		}
	}
	b.until(5*time.Second, "lapsed", outcomeIs(b, telemetry.OutcomeExpired))
}

func TestStandingDecisionIsForgottenWhenUnseen(t *testing.T) {
	b := hotBench(t, telemetry.Recommend)
	b.until(2*time.Minute, "recommended", outcomeIs(b, telemetry.OutcomeRecommended))
	v := b.w.view()
	b.w.now = b.w.now.Add(30 * time.Minute)
	b.pass(v) // all of it is stale
	if o := b.only().Outcome; o != telemetry.OutcomeRecommended {
		t.Fatalf("%s after half an hour of silence", o)
	}
	b.w.now = b.w.now.Add(31 * time.Minute)
	b.pass(v)
	if d := b.only(); d.Outcome != telemetry.OutcomeExpired || d.Ending != "not seen for 1h0m0s" {
		t.Errorf("%s: %q", d.Outcome, d.Ending)
	}
}

func TestApproval(t *testing.T) {
	b := hotBench(t, telemetry.Approve)
	b.until(2*time.Minute, "awaiting", outcomeIs(b, telemetry.OutcomeAwaiting))
	id := b.only().ID
	b.run(time.Minute)
	if b.w.device("GPU-00-0").sets != 0 {
		t.Fatal("acted without approval")
	}
	b.say(rebalancer.VerdictApprove, id)
	b.run(time.Second)
	d := b.only()
	if d.ID != id || d.Outcome != telemetry.OutcomeActed || d.Approval == nil || d.Approval.By != "ada" || b.w.device("GPU-00-0").sets != 1 {
		t.Errorf("%s is %s, approval %v, limit set %d times", d.ID, d.Outcome, d.Approval, b.w.device("GPU-00-0").sets)
	}
	b.until(3*time.Minute, "verified", outcomeIs(b, telemetry.OutcomeVerified))
}

func TestApprovalReRunsTheGuards(t *testing.T) {
	b := hotBench(t, telemetry.Approve)
	b.until(2*time.Minute, "awaiting", outcomeIs(b, telemetry.OutcomeAwaiting))
	id := b.only().ID
	paused := true
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &paused, All: true, By: "bob"}})
	b.say(rebalancer.VerdictApprove, id)
	b.run(9 * time.Minute)
	if b.w.device("GPU-00-0").sets != 0 {
		t.Fatal("an approval went past the pause")
	}
	b.run(2 * time.Minute)
	d := b.decisions()[0]
	if d.Outcome != telemetry.OutcomeExpired || !strings.Contains(d.Ending, "approved by ada, but it could not be done within 10m0s") {
		t.Errorf("%s: %q", d.Outcome, d.Ending)
	}
}

func TestRejection(t *testing.T) {
	b := hotBench(t, telemetry.Approve)
	b.until(2*time.Minute, "awaiting", outcomeIs(b, telemetry.OutcomeAwaiting))
	b.say(rebalancer.VerdictReject, b.only().ID)
	b.run(time.Second)
	if d := b.only(); d.Outcome != telemetry.OutcomeRejected || d.Ending != "rejected by ada" {
		t.Errorf("%s: %q", d.Outcome, d.Ending)
	}
	b.run(9 * time.Minute)
	if n := len(b.decisions()); n != 1 {
		t.Errorf("%d decisions while the no holds", n)
	}
	if b.last.Refused.Counts[telemetry.RefusalMode] != 1 {
		t.Errorf("refused %v, want the person's no to be said", b.last.Refused.Counts)
	}
	b.until(3*time.Minute, "asked again", func() bool { return len(b.decisions()) == 2 })
}

func TestUndoOnRequest(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	b.until(4*time.Minute, "verified", outcomeIs(b, telemetry.OutcomeVerified))
	d := b.only()
	b.say(rebalancer.VerdictUndo, d.ID)
	b.run(time.Second)
	d = b.only()
	if d.Outcome != telemetry.OutcomeUndone || d.Ending != "undone: asked for by ada" || b.w.device("GPU-00-0").limit != defaultW {
		t.Errorf("%s: %q, limit %v", d.Outcome, d.Ending, b.w.device("GPU-00-0").limit)
	}
	b.run(9 * time.Minute)
	if n := len(b.decisions()); n != 1 {
		t.Errorf("capped again while the person's word holds: %v", b.decisions())
	}
	b.until(2*time.Minute, "capped again", func() bool { return len(b.decisions()) == 2 })
}

func TestVerdictOnWhatHasEndedChangesNothing(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	before := b.mem.Clone()
	b.say(rebalancer.VerdictApprove, "d-000099")
	if len(b.mem.Decisions) != len(before.Decisions) || len(b.mem.GPUs) != 0 {
		t.Errorf("memory changed: %+v", b.mem)
	}
}
