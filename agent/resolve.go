package agent

// resolveUnfinished finds out what became of the orders that a former run did
// not end, by reading the device, and reports them before anything else.
func (a *Agent) resolveUnfinished() error {
	for _, e := range a.left {
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
