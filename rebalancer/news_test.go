package rebalancer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// decided is a decision in each state in which a receipt can find it.
func decided(state string) *telemetry.Decision {
	watts, found := 500.0, 700.0
	on := telemetry.Target{Node: "n1", UUID: "GPU-1", Generation: 1}
	first := telemetry.Step{ID: "d-1.1", Decision: "d-1", Kind: telemetry.StepPowerCap, Target: on, Params: telemetry.Params{PowerLimitWatts: &watts, FoundWatts: &found}, Lease: telemetry.Duration(10 * time.Minute)}
	d := &telemetry.Decision{ID: "d-1", Policy: "thermal", Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: on, Outcome: telemetry.OutcomeIntended, Time: start,
		Predicted: &telemetry.Effect{Signal: "s", Within: telemetry.Duration(time.Minute)}, Act: &telemetry.Act{ID: "d-1", Steps: []telemetry.Step{first}, Lease: first.Lease},
		Steps: []telemetry.StepRecord{{Step: first, OrderID: first.ID}}}
	with := func(kind telemetry.StepKind, id string) {
		s := first
		s.ID, s.Kind, s.Params.Of = id, kind, first.ID
		d.Steps = append(d.Steps, telemetry.StepRecord{Step: s, OrderID: id})
	}
	done := &telemetry.Receipt{StepID: first.ID, Result: telemetry.Done, Node: "n1"}
	switch state {
	case "intended":
	case "held", "renewing", "undoing":
		d.Steps[0].Receipt, d.Outcome = done, telemetry.OutcomeVerified
		if state == "renewing" {
			with(telemetry.StepRenew, "d-1.2")
		}
		if state == "undoing" {
			with(telemetry.StepUndo, "d-1.2")
		}
	case "not ordered":
		d.Steps, d.Outcome, d.Ended, d.Ending = nil, telemetry.OutcomeRefused, start, "not ordered: cool by now"
	case "no word":
		d.Steps[0].Receipt = &telemetry.Receipt{StepID: first.ID, Result: telemetry.Unknown}
		d.Outcome, d.Ended = telemetry.OutcomeExpired, start
	case "refused there":
		d.Steps[0].Receipt = &telemetry.Receipt{StepID: first.ID, Result: telemetry.Refused, Why: telemetry.RefuseLimit}
		d.Outcome, d.Ended = telemetry.OutcomeRefused, start
	case "lease over":
		d.Steps[0].Receipt, d.Outcome, d.Ended = done, telemetry.OutcomeExpired, start
	case "undone":
		d.Steps[0].Receipt, d.Outcome, d.Ended = done, telemetry.OutcomeUndone, start
	default:
		panic(state)
	}
	return d
}

// What a receipt makes of a decision, in every state and of every kind. A dash
// is a receipt that changes nothing; the words are the outcome, and whether the
// decision has ended.
func TestNewsInEveryState(t *testing.T) {
	receipts := []struct {
		name string
		r    telemetry.Receipt
	}{
		{"done", telemetry.Receipt{StepID: "d-1.1", Kind: telemetry.StepPowerCap, Result: telemetry.Done}},
		{"refused", telemetry.Receipt{StepID: "d-1.1", Kind: telemetry.StepPowerCap, Result: telemetry.Refused, Why: telemetry.RefuseLimit}},
		{"failed", telemetry.Receipt{StepID: "d-1.1", Kind: telemetry.StepPowerCap, Result: telemetry.Failed}},
		{"second done", telemetry.Receipt{StepID: "d-1.2", Result: telemetry.Done}},
		{"second refused", telemetry.Receipt{StepID: "d-1.2", Result: telemetry.Refused, Why: telemetry.RefuseBusy}},
		{"second failed", telemetry.Receipt{StepID: "d-1.2", Result: telemetry.Failed}},
		{"second lost", telemetry.Receipt{StepID: "d-1.2", Result: telemetry.Refused, Why: telemetry.RefuseNotOurs}},
		{"second unknown", telemetry.Receipt{StepID: "d-1.2", Result: telemetry.Unknown}},
		{"lease ended", telemetry.Receipt{StepID: "d-1.1", Kind: telemetry.StepUndo, Result: telemetry.Done, Spontaneous: true}},
		{"lease ended, left", telemetry.Receipt{StepID: "d-1.1", Kind: telemetry.StepUndo, Result: telemetry.Refused, Why: telemetry.RefuseNotOurs, Spontaneous: true}},
		{"lease ended, failed", telemetry.Receipt{StepID: "d-1.1", Kind: telemetry.StepUndo, Result: telemetry.Failed, Spontaneous: true}},
		{"another step", telemetry.Receipt{StepID: "d-2.1", Result: telemetry.Done}},
		{"another node", telemetry.Receipt{StepID: "d-1.1", Result: telemetry.Done, Node: "n2"}},
	}
	const no = "-"
	want := map[string][]string{
		//                done     refused        failed        2nd done          2nd refused 2nd failed  2nd lost  unknown         lease ended …
		"intended":      {"acted", "refused end", "failed end", no, no, no, no, no, "acted", "refused end", "failed end", no, no},
		"held":          {no, no, no, no, no, no, no, no, "undone end", "undone end", no, no, no},
		"renewing":      {no, no, no, "verified", "verified", "verified", "undone end", "verified", "undone end", "undone end", no, no, no},
		"undoing":       {no, no, no, "undone end", "verified", "verified", "undone end", "verified", "undone end", "undone end", no, no, no},
		"not ordered":   {"acted", no, no, no, no, no, no, no, no, no, no, no, no},
		"no word":       {"acted", no, no, no, no, no, no, no, no, no, no, no, no},
		"refused there": {no, no, no, no, no, no, no, no, no, no, no, no, no},
		"lease over":    {no, no, no, no, no, no, no, no, no, no, no, no, no},
		"undone":        {no, no, no, no, no, no, no, no, no, no, no, no, no},
	}
	for state, row := range want {
		for i, c := range receipts {
			before := decided(state)
			next := rebalancer.WithNews(before, c.r, start.Add(time.Second))
			got := no
			if next != nil {
				got = string(next.Outcome)
				if !next.Ended.IsZero() {
					got += " end"
				}
			}
			if got != row[i] {
				t.Errorf("%s, receipt %q: %s, want %s", state, c.name, got, row[i])
			}
			if fmt.Sprintf("%+v", before) != fmt.Sprintf("%+v", decided(state)) || len(before.Steps) != len(decided(state).Steps) {
				t.Errorf("%s, receipt %q: the decision before was changed", state, c.name)
			}
		}
	}
}

// An act that turns out to have been done is looked after again: it holds its
// GPU and its budget, is renewed, verified and undone.
func TestLateWordTakesADecisionUpAgain(t *testing.T) {
	w := newWorld(1, 1)
	b := newBench(t, w)
	b.run(5 * time.Second)
	d := w.device("GPU-00-0")
	d.r = 0.09
	var order telemetry.Step
	b.deaf = true
	b.until(time.Minute, "intended", func() bool { return len(b.decisions()) == 1 })
	b.deaf = false
	open := b.only()
	order = open.Steps[0].Step
	late, err := w.Do(t.Context(), order) // done, and nobody hears of it
	if err != nil {
		t.Fatal(err)
	}
	why := rebalancer.Refuse(telemetry.RefusalChangedSince, open.Target, "it is cool by now")
	b.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: rebalancer.WithoutStep(open, order, why, w.now)})
	if len(b.mem.Decisions) != 0 || len(b.mem.Closed) != 1 {
		t.Fatalf("%d open, %d closed after giving up", len(b.mem.Decisions), len(b.mem.Closed))
	}
	w.now = w.now.Add(time.Second)
	next := rebalancer.WithNews(b.mem.Closed[0], late, w.now)
	if next == nil {
		t.Fatal("late word is not heard")
	}
	b.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: next})
	if len(b.mem.Decisions) != 1 || len(b.mem.Closed) != 0 || b.mem.GPUs[d.uuid].LimitW != d.limit {
		t.Fatalf("%d open, %d closed, limit %v: want it open again with the limit %v", len(b.mem.Decisions), len(b.mem.Closed), b.mem.GPUs[d.uuid].LimitW, d.limit)
	}
	b.until(3*time.Minute, "verified", outcomeIs(b, telemetry.OutcomeVerified))
	d.r = 0.06
	b.until(10*time.Minute, "undone", func() bool { return d.limit == defaultW })
	if got := b.only(); got.Outcome != telemetry.OutcomeUndone {
		t.Errorf("%s, want undone", got.Outcome)
	}
	if again := rebalancer.WithNews(b.only(), late, w.now); again != nil {
		t.Errorf("the same word a second time: %v", again)
	}
}

// A step that was taken back leaves its number behind: the agent may yet have it.
func TestStepNumbersAreNotUsedTwice(t *testing.T) {
	b, d := capped(t)
	b.until(5*time.Minute, "verified", outcomeIs(b, telemetry.OutcomeVerified))
	d.r = 0.06
	b.deaf = true
	used := map[string]telemetry.StepKind{}
	for range 3 {
		b.until(5*time.Minute, "undo intended", func() bool {
			all := b.only().Steps
			return all[len(all)-1].Step.Kind == telemetry.StepUndo && all[len(all)-1].Receipt == nil
		})
		open := b.only()
		undo := open.Steps[len(open.Steps)-1].Step
		if used[undo.ID] != "" {
			t.Fatalf("%s is used again", undo.ID)
		}
		used[undo.ID] = undo.Kind
		why := rebalancer.Refuse(telemetry.RefusalChangedSince, open.Target, "warm again")
		b.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: rebalancer.WithoutStep(open, undo, why, b.w.now)})
		b.mem = b.journal.fold(t) // also by a process that reads it all anew
		b.mem.Leading, b.mem.Epoch = true, epoch
	}
	if len(used) != 3 {
		t.Errorf("%v", used)
	}
}

// A leader whose epoch has been passed in the journal does nothing more.
func TestLaterEpochFencesTheLeader(t *testing.T) {
	for _, c := range []struct {
		name    string
		writer  telemetry.Epoch
		stopped bool
	}{
		{"a later epoch", telemetry.Epoch{Incarnation: "test", Revision: 99}, true},
		{"its own", telemetry.Epoch{Incarnation: "test", Revision: 1}, false},
		{"another life of the lease", telemetry.Epoch{Incarnation: "earlier", Revision: 99}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(1, 1)
				l := newLive(t, w)
				l.run(5 * time.Second)
				yes := false
				if _, err := l.journal.Append(t.Context(), uint64(len(l.journal.all())), telemetry.Record{ID: "x", Topic: telemetry.TopicMode, Time: time.Now(), Epoch: c.writer, Mode: &telemetry.ModeChange{Paused: &yes, By: "ada"}}); err != nil {
					t.Fatal(err)
				}
				w.device("GPU-00-0").r = 0.1
				l.run(2 * time.Minute)
				if stopped := w.device("GPU-00-0").sets == 0; stopped != c.stopped {
					t.Errorf("acted: %v, %d records", !stopped, len(l.journal.all()))
				}
			})
		})
	}
}

// The fence is part of the fold, through snapshots too.
func TestFenceOutlivesASnapshot(t *testing.T) {
	var m rebalancer.Memory
	fold := func(seq, revision uint64, r telemetry.Record) {
		t.Helper()
		r.Epoch = telemetry.Epoch{Incarnation: "a", Revision: revision}
		if err := m.Fold(seq, r); err != nil {
			t.Fatal(err)
		}
	}
	mode := telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Mode: telemetry.Observe, By: "ada"}}
	fold(1, 7, mode)
	data, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	m = rebalancer.Memory{}
	fold(2, 8, telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data})
	for revision, want := range map[uint64]bool{6: true, 7: true, 8: false, 9: false} {
		if got := m.Fenced(telemetry.Epoch{Incarnation: "a", Revision: revision}); got != want {
			t.Errorf("revision %d fenced: %v", revision, got)
		}
	}
	if m.Fenced(telemetry.Epoch{Incarnation: "b", Revision: 1}) {
		t.Error("an epoch of another life is fenced")
	}
}

// Notice given, the act is judged again when its time has come.
func TestNoticeEndsInARecheck(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Notice = telemetry.Duration(time.Minute) })
		})
		l.run(5 * time.Second)
		d := w.device("GPU-00-0")
		d.r = 0.1
		l.until(time.Minute, "intended", func() bool { return l.outcome() == telemetry.OutcomeIntended })
		d.r = 0.04 // the fan is back
		l.run(70 * time.Second)
		if d.sets != 0 || l.outcome() != telemetry.OutcomeRefused {
			t.Errorf("limit set %d times, decision %s; want it refused, since the heat is gone", d.sets, l.outcome())
		}
		if got := l.metric("evenkeel_refusals_total", "reason", string(telemetry.RefusalChangedSince)); got != 1 {
			t.Errorf("%v refusals for what changed", got)
		}
	})
}
