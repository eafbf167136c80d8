package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// leaderlessRows are the points at which the agent of TestLeaderIsDead dies,
// each in the middle of an undo of its own.
var leaderlessRows = []kill{
	agent("raise.before", atOnce),
	agent("raise.after", shortly),
	agent("receipt.lease_end.before", atOnce),
	agent("receipt.lease_end.after", shortly),
	agent("receipt.lease_end.stored", atOnce),
}

// TestLeaderIsDead kills the leader for good. Its caps hold as long as their
// leases and no longer: the agent undoes them one after the other, whatever it
// dies of itself meanwhile.
func TestLeaderIsDead(t *testing.T) {
	t.Parallel()
	const gpus = 5
	events := hotInTurn(gpus, time.Second)
	for i := range events {
		events[i].lasts = 85 * time.Second // time for a busy machine to cap them all
	}
	r := newCrashRig(t, quick(events...))
	leader := r.run("rebalancer")
	ends := r.run("agent", "EVENKEEL_CRASH_AT="+leaderlessRows[0].at)
	r.eventually(90*time.Second, "all are capped", func() error { return r.holds(gpus) })
	time.Sleep(time.Until(r.calm.Add(-15 * time.Second))) // cool before the first lease ends
	if err := r.holds(gpus); err != nil {
		t.Fatal(err)
	}
	leader.kill()
	until := r.leases()

	for i, row := range leaderlessRows {
		ok := t.Run(row.role+" "+row.at, func(t *testing.T) {
			ends.diesAt(t, row.at, 120*time.Second)
			if early := time.Until(earliest(until)); early > 0 {
				t.Errorf("an undo began %s before the first lease was over", early)
			}
			if err := r.sound(); err != nil {
				t.Error(err)
			}
		})
		if !ok {
			return
		}
		time.Sleep(row.pause)
		env := []string{}
		if i+1 < len(leaderlessRows) {
			env = append(env, "EVENKEEL_CRASH_AT="+leaderlessRows[i+1].at)
		}
		ends = r.run("agent", env...)
	}
	r.eventually(60*time.Second, "every cap is undone", func() error { return r.holds(0) })
	r.outlived(t, until, time.Minute)
	r.run("rebalancer")
	r.endsRight(t)
	for _, d := range r.decisions() {
		if d.Outcome != telemetry.OutcomeUndone {
			t.Errorf("%s is %s: %s", d.ID, d.Outcome, d.Ending)
		}
	}
}

// TestAgentIsDead kills first both at once, which changes nothing, and then the
// agent until the leases are over: it undoes at once when it is back.
func TestAgentIsDead(t *testing.T) {
	t.Parallel()
	r := newCrashRig(t, quick(hotInTurn(2, 2*time.Second)...))
	leader, keeper := r.run("rebalancer"), r.run("agent")
	r.eventually(60*time.Second, "both are capped", func() error { return r.holds(2) })

	both := make(chan struct{}, 2)
	for _, p := range []*proc{leader, keeper} {
		go func() { p.kill(); both <- struct{}{} }()
	}
	<-both
	<-both
	time.Sleep(shortly)
	keeper = r.run("agent")
	r.eventually(30*time.Second, "its caps are known to it", func() error { return r.holds(2) })
	time.Sleep(afterAll - shortly)
	r.run("rebalancer")
	before := r.leases()
	r.eventually(60*time.Second, "the leases are renewed", func() error {
		for uuid, until := range r.leases() {
			if !until.After(before[uuid]) {
				return fmt.Errorf("the lease on %s ends at %s as before", uuid, until)
			}
		}
		return nil
	})
	if err := r.sound(); err != nil {
		t.Error(err)
	}

	keeper.kill()
	until := r.leases()
	time.Sleep(time.Until(latest(until).Add(3 * time.Second)))
	back := time.Now()
	r.run("agent")
	r.eventually(60*time.Second, "every cap is undone", func() error { return r.holds(0) })
	for gpu, ws := range r.writes() {
		// One at once, the other five seconds later; the rest is slack for a start
		// on a busy machine.
		if w := ws[len(ws)-1]; w.watts != defaultWatts || w.at.Before(back) || w.at.After(back.Add(20*time.Second)) {
			t.Errorf("GPU %d was set to %g W %s after the agent's return", gpu, w.watts, w.at.Sub(back))
		}
	}
	r.endsRight(t)
}

// holds wants n caps at the agent, all of them done by the journal.
func (r *crashRig) holds(n int) error {
	caps, err := r.caps()
	if err != nil {
		return err
	}
	if int(caps) != n {
		return fmt.Errorf("the agent holds %g caps, want %d", caps, n)
	}
	acted := 0
	for _, d := range r.decisions() {
		if d.Outcome == telemetry.OutcomeActed || d.Outcome == telemetry.OutcomeVerified {
			acted++
		}
	}
	if acted < n {
		return fmt.Errorf("%d decisions are acted, want %d", acted, n)
	}
	return nil
}

// leases are when the caps that hold end unless they are renewed, by uuid.
func (r *crashRig) leases() map[string]time.Time {
	out := map[string]time.Time{}
	for _, got := range r.reported() {
		if got.Result == telemetry.Done && got.LeaseUntil.After(out[got.Target.UUID]) {
			out[got.Target.UUID] = got.LeaseUntil
		}
	}
	return out
}

func earliest(until map[string]time.Time) time.Time {
	return slices.MinFunc(slices.Collect(maps.Values(until)), time.Time.Compare)
}

func latest(until map[string]time.Time) time.Time {
	return slices.MaxFunc(slices.Collect(maps.Values(until)), time.Time.Compare)
}

// outlived wants every cap to have been undone after its lease, not before, and
// within a bound: the wait for its turn, for its agent, and for a busy machine.
func (r *crashRig) outlived(t *testing.T, until map[string]time.Time, bound time.Duration) {
	t.Helper()
	gpus, err := list[gpuItem](r.stack, "gpus")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		end, capped := until[g.UUID]
		if !capped {
			continue
		}
		ws := r.writes()[g.Index]
		if len(ws) != 2 || ws[1].watts != defaultWatts {
			t.Errorf("GPU %d: %+v, want a cap and its undo", g.Index, ws)
			continue
		}
		t.Logf("GPU %d was undone %s after its lease", g.Index, ws[1].at.Sub(end).Round(time.Millisecond))
		// The world looks for writes every 25 ms and notes them later than they are.
		if late := ws[1].at.Sub(end); late < 0 || late > bound {
			t.Errorf("GPU %d was undone %s after its lease, want 0 to %s", g.Index, late, bound)
		}
	}
}
