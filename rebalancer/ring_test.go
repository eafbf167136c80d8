package rebalancer

import (
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func idlePlan(after time.Duration, reasons ...telemetry.RefusalReason) Plan {
	p := Plan{Time: noon.Add(after), Refused: telemetry.RefusalSet{Counts: map[telemetry.RefusalReason]int{}}}
	for _, r := range reasons {
		p.Refused.Counts[r]++
		p.Refused.Details = append(p.Refused.Details, Refuse(r, telemetry.Target{UUID: "GPU-1"}, "because of %s", r))
	}
	return p
}

// The ring's size follows changes, not passes, and time bounds it.
func TestRingFollowsChanges(t *testing.T) {
	var r ring
	for i := range 3600 { // an hour at two passes a second, one reason
		r.add(idlePlan(time.Duration(i)*time.Second/2, telemetry.RefusalBudget))
	}
	if len(r.idle) != 1 || r.idle[0].Passes != 3600 || !r.idle[0].First.Equal(noon) {
		t.Fatalf("%d entries, %+v", len(r.idle), r.idle[0])
	}
	r.add(idlePlan(31*time.Minute, telemetry.RefusalMode))
	r.add(idlePlan(32*time.Minute, telemetry.RefusalMode, telemetry.RefusalBudget))
	r.add(idlePlan(33 * time.Minute))
	if len(r.idle) != 4 {
		t.Fatalf("%d entries after three changes", len(r.idle))
	}
	r.add(idlePlan(91*time.Minute + time.Second))
	if len(r.idle) != 2 { // the empty set goes on
		t.Errorf("%d entries, those of more than an hour ago must be gone", len(r.idle))
	}
	r.add(idlePlan(5*time.Hour, telemetry.RefusalStale))
	if len(r.idle) != 1 || r.idle[0].Passes != 1 {
		t.Errorf("after a long silence: %+v", r.idle)
	}
}

// A set that changes at every pass fills the ring to its bound and no further.
func TestRingIsBounded(t *testing.T) {
	var r ring
	for i := range 2 * maxIdle {
		p := idlePlan(time.Duration(i)*100*time.Millisecond, telemetry.RefusalBudget)
		p.Refused.Details[0].Target.UUID = fmt.Sprintf("GPU-%d", i%2)
		r.add(p)
	}
	if len(r.idle) != maxIdle {
		t.Errorf("%d entries, want %d", len(r.idle), maxIdle)
	}
	if last := r.idle[len(r.idle)-1]; !last.Last.Equal(noon.Add((2*maxIdle - 1) * 100 * time.Millisecond)) {
		t.Errorf("the newest is of %s", last.Last)
	}
}

// A refusal is counted when it begins, not at every pass that it lasts; one
// that comes back counts again.
func TestRingCountsARefusalOnce(t *testing.T) {
	var r ring
	for i, c := range []struct {
		plan  Plan
		fresh int
	}{
		{idlePlan(0, telemetry.RefusalBudget), 1},
		{idlePlan(1, telemetry.RefusalBudget), 0},
		{idlePlan(2, telemetry.RefusalBudget, telemetry.RefusalMode), 1},
		{idlePlan(3, telemetry.RefusalMode, telemetry.RefusalMode), 0},
		{idlePlan(4), 0},
		{idlePlan(5, telemetry.RefusalBudget, telemetry.RefusalBudget), 1},
	} {
		if fresh := r.add(c.plan); len(fresh) != c.fresh {
			t.Errorf("pass %d: %d new refusals, want %d", i, len(fresh), c.fresh)
		}
	}
}

// A pass that decides something is no idle pass, and ends the run of them.
func TestRingSkipsPassesThatAct(t *testing.T) {
	var r ring
	r.add(idlePlan(0, telemetry.RefusalBudget))
	busy := idlePlan(time.Second, telemetry.RefusalBudget)
	busy.Entries = []Entry{{Topic: telemetry.TopicIntent, Decision: &telemetry.Decision{ID: "d-1"}}}
	r.add(busy)
	r.add(idlePlan(2*time.Second, telemetry.RefusalBudget))
	if len(r.idle) != 2 || r.idle[0].Passes != 1 || r.idle[1].Passes != 1 {
		t.Errorf("%+v", r.idle)
	}
	said := idlePlan(3*time.Second, telemetry.RefusalBudget)
	said.Entries = []Entry{{Topic: telemetry.TopicOutcome, Refused: &said.Refused}}
	r.add(said)
	if len(r.idle) != 2 || r.idle[1].Passes != 2 {
		t.Errorf("a pass that only says why not is idle too: %+v", r.idle)
	}
}

// Refusals are all counted; details are kept up to a record's limit, the
// lasting ones first.
func TestRefusedKeepsTheLastingOnes(t *testing.T) {
	var c refused
	for i := range 3 * telemetry.MaxDetailedRefusals {
		target := telemetry.Target{UUID: fmt.Sprintf("GPU-%03d", i)}
		c.add(Refuse(telemetry.RefusalSettling, target, "wait"))
		if i%10 == 0 {
			c.add(Refuse(telemetry.RefusalBudget, target, "no room"))
		}
	}
	set := c.set()
	if set.Counts[telemetry.RefusalSettling] != 150 || set.Counts[telemetry.RefusalBudget] != 15 {
		t.Errorf("counts %v", set.Counts)
	}
	if len(set.Details) != telemetry.MaxDetailedRefusals {
		t.Fatalf("%d details", len(set.Details))
	}
	for i, r := range set.Details {
		if lasting := r.Reason == telemetry.RefusalBudget; lasting != (i < 15) {
			t.Fatalf("detail %d is %s", i, r.Reason)
		}
	}
	if keys := lastingKeys(set); len(keys) != 15 || keys[0] != "budget  GPU-000" && keys[0] != "budget  GPU-000 on " {
		t.Errorf("%d keys, the first %q", len(keys), keys[0])
	}
}

// Every reason has its place in the line of reasons, in the order of the list.
func TestReasonsInWords(t *testing.T) {
	counts := map[telemetry.RefusalReason]int{}
	if got := reasons(counts); got != "" {
		t.Errorf("none: %q", got)
	}
	counts[telemetry.RefusalMode], counts[telemetry.RefusalStale], counts[telemetry.RefusalBudget] = 2, 1, 30
	if got := reasons(counts); got != "stale 1, budget 30, mode 2" {
		t.Errorf("%q", got)
	}
}
