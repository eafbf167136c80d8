package rebalancer_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The bus stalls: the intent takes seconds to be stored, and no View comes
// either. What was planned then rests on values that no longer count.
func TestASlowJournalMakesValuesOld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		var intents atomic.Int32
		l.journal.hook(func(r telemetry.Record) error {
			if r.Topic == telemetry.TopicIntent && intents.Add(1) == 1 {
				time.Sleep(4500 * time.Millisecond)
			}
			return nil
		}, nil, nil)
		w.device("GPU-00-0").r = 0.1
		for range 60 {
			l.run(time.Second)
			if intents.Load() > 0 {
				break
			}
		}
		time.Sleep(5 * time.Second)
		l.settle()
		if n := w.device("GPU-00-0").sets; n != 0 {
			t.Errorf("%d limits set on a value that is 4.5 s old", n)
		}
		if got := l.outcome(); got != telemetry.OutcomeRefused {
			t.Errorf("the act is %s", got)
		}
	})
}

// Word that came while nobody led, or nobody could write, is not lost: what its
// owner has undone does not count as held until the next renewal.
func TestNewsFromBeforeTheLead(t *testing.T) {
	undone := func(l *live, step string) {
		l.engine.Receipt(telemetry.Receipt{StepID: step, Kind: telemetry.StepUndo, Result: telemetry.Done, Spontaneous: true, Node: "n00", Target: target, Detail: "lease ended"})
	}
	setUp := func(t *testing.T) (*live, string) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		w.device("GPU-00-0").r = 0.1
		l.until(3*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		for _, d := range l.journal.fold(t).Decisions {
			return l, d.Steps[0].Step.ID
		}
		return l, ""
	}
	want := func(t *testing.T, l *live) {
		t.Helper()
		l.run(3 * time.Second)
		for _, r := range l.journal.all() {
			if r.Decision != nil && r.Decision.Outcome == telemetry.OutcomeUndone {
				return
			}
		}
		t.Errorf("not known to be undone: %v", l.outcome())
	}
	t.Run("a process that starts", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			l, step := setUp(t)
			l.end()
			l.lease.take(true)
			l.begin()
			undone(l, step)
			l.run(5 * time.Second)
			l.lease.take(false)
			l.run(3 * time.Second)
			want(t, l)
		})
	})
	t.Run("a journal that fails", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			l, step := setUp(t)
			l.journal.hook(func(telemetry.Record) error { return rebalancer.ErrConflict }, nil, nil)
			undone(l, step)
			l.run(5 * time.Second)
			l.journal.hook(nil, nil, nil)
			want(t, l)
		})
	})
}
