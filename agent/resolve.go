package agent

import (
	"fmt"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// resolveUnfinished finds out what became of the orders that a former run did
// not end, by reading the device, and reports them before anything else. What
// takes its time, the end of processes, goes on beside the orders that come.
func (a *Agent) resolveUnfinished() error {
	for _, e := range a.left {
		if e.Preempt != nil {
			a.resume(e)
			continue
		}
		out := a.resolve(e)
		out.receipt.Spontaneous = true
		a.log.Warn("order left unfinished by a former run", "id", e.Order.ID, "kind", e.Order.Kind, "result", out.receipt.Result, "detail", out.receipt.Detail)
		if err := a.finish(out); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) resolve(e entry) outcome {
	r := a.receipt(&e.Order)
	if e.Order.Kind == telemetry.StepUndo {
		return a.resolveUndo(e.Order.Params.Of, r)
	}
	if e.Phase == received || e.Will == nil {
		return outcome{receipt: fail(r, "the agent ended before it began; nothing was done")}
	}
	will := *e.Will
	r.Before = limit(e.Found)
	l, err := a.writer.PowerLimits(will.UUID)
	if err != nil {
		// Kept on the books: the end of the lease compares and undoes.
		r.LeaseUntil, will.Or = will.Until, e.Found
		return outcome{receipt: fail(r, "the agent ended while it set the limit, and device %s does not answer: %v; undone when the lease ends", will.UUID, err), hold: &will}
	}
	r.After = limit(l.Current)
	previous, chained := a.holdOf(will.UUID)
	switch {
	case near(l.Current, will.Set):
		r.LeaseUntil = will.Until
		out := outcome{receipt: done(r, "the agent ended while it set the limit, which reads %s as ordered", watts(l.Current)), hold: &will}
		if chained && previous.Step != will.Step {
			out.gone, out.why = previous.Step, "superseded by step "+will.Step
		}
		return out
	case near(l.Current, e.Found):
		return outcome{receipt: fail(r, "the agent ended before it set the limit; it reads %s as it was found", watts(l.Current))}
	}
	out := outcome{receipt: fail(r, "the agent ended while it set the limit, which reads %s, neither found nor ordered: somebody else changed it, so it is left", watts(l.Current))}
	if chained {
		out.drop, out.gone, out.why = will.UUID, previous.Step, out.receipt.Detail
	}
	return out
}

// resume goes on with the end of a workload where a former run has left it. The
// signal is never sent again.
func (a *Agent) resume(e entry) {
	first, over := a.enter(e.Order.ID)
	if first != nil {
		return
	}
	r := a.receipt(&e.Order)
	a.claim(e.Order.ID, r, slices.Concat(e.Preempt.Ever, []process.ID{e.Preempt.Family.Root})...) // no order has come yet that could have
	a.aside.Go(func() {
		defer over()
		defer a.unclaim(e.Order.ID)
		r.Spontaneous = true
		r.Before = measured(len(e.Preempt.Ever), e.Preempt.Held)
		r = a.resumed(e, r)
		a.log.Warn("processes that a former run was ending", "id", e.Order.ID, "phase", e.Phase, "result", r.Result, "detail", r.Detail)
	})
}

func (a *Agent) resumed(e entry, r telemetry.Receipt) telemetry.Receipt {
	p := e.Preempt
	if p.BootID != a.bootID {
		r.After = measured(0, nil)
		return a.settle(&e.Order, outcome{receipt: done(r, "the node has restarted, so nothing of %s runs any more", p.What)})
	}
	w := a.watch(e.Order.ID, p)
	defer w.close()
	if e.Phase == signalled {
		return a.seeThrough(&e.Order, r, w)
	}
	left, err := w.living()
	if err == nil && len(left) == 0 {
		return a.released(&e.Order, r, w, fmt.Sprintf("the agent ended as it was about to send %s, and the processes of %s (%s) have ended; the owner: %s", p.Signal, p.Owner, p.What, p.Told))
	}
	r.After = measured(len(left), p.Held)
	r = fail(r, "the agent ended as it was about to send %s; whether it did is not known, and nothing is sent again: left are %s; the owner: %s", p.Signal, listed(left), p.Told)
	if err != nil {
		r.Detail += fmt.Sprintf("; %v", err)
	}
	return a.settle(&e.Order, outcome{receipt: r})
}

// resolveUndo finds out whether an undo was done. The ledger tells only once it
// is over; the device tells before.
func (a *Agent) resolveUndo(step string, r telemetry.Receipt) outcome {
	h, ok := a.holding(step)
	if !ok {
		return outcome{receipt: fail(r, "the agent ended before it began; nothing was done")}
	}
	l, err := a.writer.PowerLimits(h.UUID)
	if err != nil {
		return outcome{receipt: fail(r, "the agent ended before it had put the limit back, or as it did, and device %s does not answer: %v", h.UUID, err)}
	}
	r.Before, r.After = limit(l.Current), limit(l.Current)
	if !near(l.Current, h.Found) {
		return outcome{receipt: fail(r, "the agent ended before it put the limit back; it reads %s", watts(l.Current))}
	}
	out := outcome{drop: h.UUID, gone: h.Step, why: "power limit put back to " + watts(l.Current)}
	r.Before = limit(h.Set)
	out.receipt = done(r, "the agent ended while it put the limit back, which reads %s as it was found", watts(l.Current))
	return out
}

// holding finds what a step holds.
func (a *Agent) holding(step string) (hold, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.held {
		if h.Step == step {
			return h, true
		}
	}
	return hold{}, false
}
