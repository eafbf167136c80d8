package rebalancer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// leadership is the lease as this process may use it.
type leadership struct {
	mu    sync.Mutex
	state Leadership
	since time.Time // when this state of the lease was told
}

func (e *Engine) setLeadership(l Leadership) {
	e.lead.mu.Lock()
	fresh := !e.lead.state.Held || e.lead.state.Epoch != l.Epoch
	e.lead.state, e.lead.since = l, e.now()
	e.lead.mu.Unlock()
	if fresh || !l.Held {
		e.log.Info("leadership changed", "leading", l.Held, "revision", l.Epoch.Revision)
		e.nudge()
	}
}

// actUntil is when this process stops acting: with a third of the lease left.
func (e *Engine) actUntil() time.Time {
	e.lead.mu.Lock()
	defer e.lead.mu.Unlock()
	if !e.lead.state.Held {
		return time.Time{}
	}
	return e.lead.state.Until.Add(-e.lead.state.Until.Sub(e.lead.since) / 3)
}

// mayAct says whether this process may act now, and under which epoch.
func (e *Engine) mayAct(now time.Time) (telemetry.Epoch, bool) {
	until := e.actUntil()
	e.lead.mu.Lock()
	defer e.lead.mu.Unlock()
	return e.lead.state.Epoch, e.lead.state.Held && now.Before(until)
}

// sync makes Memory the fold of the whole journal, of which the last snapshot
// stands for all that came before it. It reads only when it must:
// when this process has begun to lead, or somebody else has written.
func (e *Engine) sync(ctx context.Context) bool {
	epoch, _ := e.mayAct(e.now())
	if e.synced && e.under == epoch {
		return true
	}
	mem := Memory{filters: e.mem.filters, seen: e.mem.seen, covered: e.mem.covered, Leading: true, Epoch: epoch}
	last, err := e.config.Journal.Resume(ctx, mem.Fold)
	if err != nil {
		e.log.Error("journal cannot be read; nothing is done until it can", "error", err)
		e.refuseForJournal()
		return false
	}
	if mem.Fenced(epoch) {
		e.log.Warn("another leader has written under a later epoch; nothing is done until the lease is clear", "own", epoch.Revision, "later", mem.Fence.Revision)
		return false
	}
	mem.Seq = last
	e.mem, e.synced, e.under = mem, true, epoch
	e.log.Info("journal read", "sequence", last, "open", len(mem.Decisions))
	return true
}

func (e *Engine) refuseForJournal() {
	e.config.Metrics.refusals.WithLabelValues(string(telemetry.RefusalJournal)).Inc()
	r := Refuse(telemetry.RefusalJournal, telemetry.Target{}, "the journal cannot be read or written, and nothing is done that is not written first")
	e.ring.add(Plan{Time: e.now(), Refused: telemetry.RefusalSet{Counts: map[telemetry.RefusalReason]int{r.Reason: 1}, Details: []telemetry.Refusal{r}}})
	e.last.Refused = telemetry.RefusalSet{Counts: map[telemetry.RefusalReason]int{r.Reason: 1}, Details: []telemetry.Refusal{r}}
}

// write appends a record if nobody else has written since, and folds it.
func (e *Engine) write(ctx context.Context, r telemetry.Record) bool {
	return e.writeAll(ctx, []telemetry.Record{r}, nil)
}

// writeAll appends records in order if nobody else has written since, folds
// each as it is stored, and then calls then with its place. then must not
// write. After a failure it is not known which of the rest are there, so Memory
// is read again before anything else is planned.
func (e *Engine) writeAll(ctx context.Context, rs []telemetry.Record, then func(i int)) bool {
	now := e.now()
	epoch, leads := e.mayAct(now)
	if !leads || !e.synced {
		return false
	}
	for i := range rs {
		// Epoch and attempt are part of the id: a journal that knows records by
		// their ids must never take another leader's record, or an earlier one
		// whose fate is not known, for this one.
		e.attempts++
		rs[i].ID = fmt.Sprintf("%s-%d-%d-%d", epoch.Incarnation, epoch.Revision, e.mem.Seq+1+uint64(i), e.attempts)
		rs[i].Time, rs[i].Epoch = now, epoch
	}
	within, cancel := context.WithDeadline(ctx, e.actUntil()) // a write must not outlive the right to it
	defer cancel()
	i := 0
	err := e.config.Journal.AppendAll(within, e.mem.Seq, rs, func(seq uint64) {
		if e.synced = e.synced && e.fold(seq, rs[i]); e.synced && then != nil {
			then(i)
		}
		i++
	})
	switch {
	case errors.Is(err, ErrConflict):
		e.log.Warn("journal has moved on; the rest of the plan is dropped", "expected", e.mem.Seq)
		e.synced = false
	case err != nil:
		e.log.Error("journal cannot be written; the rest of the plan is dropped", "error", err)
		e.synced = false
		e.refuseForJournal()
	}
	if !e.synced {
		return false
	}
	e.snapshot(ctx)
	return true
}

// fold takes a record that is in the journal into Memory.
func (e *Engine) fold(seq uint64, r telemetry.Record) bool {
	var before *telemetry.Decision
	if r.Decision != nil {
		before = e.mem.Decisions[r.Decision.ID]
	}
	if err := e.mem.Fold(seq, r); err != nil {
		e.log.Error("record cannot be folded", "error", err)
		return false
	}
	if r.Decision != nil {
		e.config.Metrics.recorded(before, r.Decision)
		e.log.Info("decision", "decision", r.Decision)
	}
	return true
}

// snapshot writes Memory when enough records have come since the last one.
func (e *Engine) snapshot(ctx context.Context) {
	if e.mem.Seq-e.mem.SnapshotSeq < snapshotEvery {
		return
	}
	data, err := e.mem.Snapshot()
	if err != nil {
		e.log.Error("no snapshot; starts will take longer", "error", err)
		e.mem.SnapshotSeq = e.mem.Seq // try again after as many records
		return
	}
	e.write(ctx, telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data})
}
