package agent

import (
	"fmt"
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// limitKey is the name of a power limit in a receipt's Before and After.
const limitKey = "power_limit_watts"

// near says whether two limits are the same: drivers round to their own steps.
func near(a, b float64) bool { return math.Abs(a-b) <= 1 }

func watts(v float64) string { return telemetry.Number(v, "watts") }

func limit(v float64) map[string]float64 { return map[string]float64{limitKey: v} }

// execute finds the device, waits for its turn on it, acts, and makes the end
// final before the next may act.
func (a *Agent) execute(o *telemetry.Order, r telemetry.Receipt) telemetry.Receipt {
	if o.Kind == telemetry.StepPreempt {
		return a.preempt(o, r) // takes no device's turn: a cap must not wait for a grace
	}
	uuid, no := a.device(o, r)
	if no != nil {
		return a.settle(o, outcome{receipt: *no})
	}
	if !a.lock(uuid, min(busyAfter, time.Until(o.Expires))) {
		return a.settle(o, outcome{receipt: refuse(r, telemetry.RefuseBusy, "another step on %s has not ended", uuid)})
	}
	defer a.unlock(uuid)
	return a.settle(o, a.act(o, r, uuid))
}

// device is the one that an order is about: for a renewal or an undo, the one
// of the step they name.
func (a *Agent) device(o *telemetry.Order, r telemetry.Receipt) (uuid string, no *telemetry.Receipt) {
	uuid = o.Target.UUID
	if o.Kind == telemetry.StepRenew || o.Kind == telemetry.StepUndo {
		e, known, err := a.ledger.entry(o.Params.Of)
		switch {
		case err != nil:
			r = a.ledgerFailed(r, err)
			return "", &r
		case !known:
			r = refuse(r, telemetry.RefuseUnknownStep, "step %s is not in this agent's ledger", o.Params.Of)
			return "", &r
		case uuid != "" && uuid != e.Order.Target.UUID:
			r = refuse(r, telemetry.RefuseNoTarget, "step %s was about %s, not about %s", o.Params.Of, e.Order.Target.UUID, uuid)
			return "", &r
		}
		uuid = e.Order.Target.UUID
	}
	if uuid == "" {
		r = refuse(r, telemetry.RefuseNoTarget, "the order names no device")
		return "", &r
	}
	return uuid, nil
}

// settle makes an end final. If that cannot be written, a new limit must not
// stay: nothing would undo it.
func (a *Agent) settle(o *telemetry.Order, out outcome) telemetry.Receipt {
	if o.DryRun {
		return out.receipt
	}
	err := a.finish(out)
	if err == nil {
		return out.receipt
	}
	r := fail(out.receipt, "the ledger cannot be written: %v", err)
	r.After, r.LeaseUntil = nil, time.Time{}
	if o.Kind == telemetry.StepPowerCap && out.receipt.Result == telemetry.Done {
		before := out.receipt.Before[limitKey]
		if now, err := a.write(out.hold.UUID, before); err != nil {
			r.Detail += fmt.Sprintf("; and the limit could not be put back: %v; tried again when the lease ends", err)
			a.mu.Lock()
			a.held[out.hold.UUID] = *out.hold // in memory alone; a restart finds it by the started order
			a.mu.Unlock()
		} else {
			r.Undone, r.After = "power limit put back to "+watts(now), limit(now)
		}
	}
	return r
}

func (a *Agent) act(o *telemetry.Order, r telemetry.Receipt, uuid string) outcome {
	switch o.Kind {
	case telemetry.StepPowerCap:
		return a.powerCap(o, r)
	case telemetry.StepRenew:
		return a.renew(o, r, uuid)
	case telemetry.StepUndo:
		return a.undo(o, r, uuid)
	}
	return outcome{receipt: refuse(r, telemetry.RefuseUnsupported, "this agent cannot carry out %s", o.Kind)}
}

// write sets a limit and reads it back: what the driver answers to the write
// does not count.
func (a *Agent) write(uuid string, to float64) (now float64, err error) {
	setErr := a.writer.SetPowerLimit(uuid, to)
	l, err := a.writer.PowerLimits(uuid)
	switch {
	case err != nil && setErr != nil:
		return 0, fmt.Errorf("%w; and it cannot be read back: %w", setErr, err)
	case err != nil:
		return 0, fmt.Errorf("it cannot be read back: %w", err)
	case near(l.Current, to):
		return l.Current, nil
	case setErr != nil:
		return l.Current, setErr
	}
	return l.Current, fmt.Errorf("it reads back as %s, not as %s", watts(l.Current), watts(to))
}

// powerCap lowers the limit of a device under a lease. One that is held
// already is taken over: the limit to put back stays the one first found.
func (a *Agent) powerCap(o *telemetry.Order, r telemetry.Receipt) outcome {
	uuid := o.Target.UUID
	if no := a.checkCap(o, r); no != nil {
		return outcome{receipt: *no}
	}
	l, err := a.writer.PowerLimits(uuid)
	if err != nil {
		return outcome{receipt: refuse(r, telemetry.RefuseNoTarget, "device %s does not answer: %v", uuid, err)}
	}
	r.Before = limit(l.Current)
	previous, chained := a.holdOf(uuid)
	original := l.Current
	if chained && previous.is(l.Current) {
		original = previous.Found
	}
	want := *o.Params.PowerLimitWatts
	if no := a.checkLimit(r, l, want, original); no != nil {
		return outcome{receipt: *no}
	}
	if o.DryRun {
		r.LeaseUntil = time.Now().Add(a.lease(o)).Round(0)
		return outcome{receipt: done(r, "would set the power limit from %s to %s", watts(l.Current), watts(want))}
	}
	will := hold{Step: o.ID, Decision: o.Decision, UUID: uuid, Found: original, Set: want, Until: time.Now().Add(a.lease(o)), BootID: a.bootID}
	if err := a.ledger.start(o.ID, l.Current, will); err != nil {
		a.ledgerState(err)
		return outcome{receipt: fail(r, "nothing was done: %v", err)}
	}
	now, err := a.write(uuid, want)
	if err != nil {
		return a.putBack(r, l.Current, now, will, err)
	}
	will.Set = now
	r.After, r.LeaseUntil = limit(now), will.Until.Round(0)
	out := outcome{receipt: done(r, "power limit set from %s to %s", watts(l.Current), watts(now)), hold: &will}
	if chained {
		out.gone, out.why = previous.Step, "superseded by step "+o.ID
	}
	return out
}

// checkCap is what a cap must bring, whatever the device says.
func (a *Agent) checkCap(o *telemetry.Order, r telemetry.Receipt) *telemetry.Receipt {
	no := func(why telemetry.RefuseReason, format string, args ...any) *telemetry.Receipt {
		r := refuse(r, why, format, args...)
		return &r
	}
	switch {
	case o.Params.PowerLimitWatts == nil:
		return no(telemetry.RefuseMalformed, "a power cap without a limit")
	case o.Lease <= 0:
		return no(telemetry.RefuseMalformed, "a power cap without a lease would hold for ever")
	case o.Target.GI != nil:
		return no(telemetry.RefuseUnsupported, "a power limit is one of the whole device, not of an instance")
	}
	// A whole device is its uuid, so without a source of generations that is enough.
	if o.Target.Generation == 0 || a.o.Generation == nil {
		return nil
	}
	switch now, err := a.o.Generation(o.Target.UUID); {
	case err != nil:
		return no(telemetry.RefuseNoTarget, "device %s: %v", o.Target.UUID, err)
	case now != o.Target.Generation:
		return no(telemetry.RefuseGeneration, "the order is for generation %d, the device is at %d", o.Target.Generation, now)
	}
	return nil
}

// checkLimit holds a wanted limit against the device's range, the agent's own
// hard limit, and the limit that was found: a cap only lowers.
func (a *Agent) checkLimit(r telemetry.Receipt, l telemetry.PowerLimits, want, original float64) *telemetry.Receipt {
	no := func(why telemetry.RefuseReason, format string, args ...any) *telemetry.Receipt {
		r := refuse(r, why, format, args...)
		return &r
	}
	if !(l.Min > 0 && l.Max >= l.Min && l.Current > 0) {
		return no(telemetry.RefuseUnsupported, "the device has no power limit that can be set")
	}
	floor := max(a.cfg.MinPowerWatts, a.cfg.MinPowerRatio*l.Default)
	switch {
	case !(want >= l.Min):
		return no(telemetry.RefuseLimit, "%s is below %s, the device's minimum", watts(want), watts(l.Min))
	case want < floor:
		return no(telemetry.RefuseLimit, "%s is below %s, this agent's hard limit", watts(want), watts(floor))
	case want > l.Max:
		return no(telemetry.RefuseLimit, "%s is above %s, the device's maximum", watts(want), watts(l.Max))
	case want > original && !near(want, original):
		return no(telemetry.RefuseLimit, "%s is above %s, the limit found: a cap does not raise", watts(want), watts(original))
	}
	return nil
}

// lease is how long an effect holds.
func (a *Agent) lease(o *telemetry.Order) time.Duration {
	return min(time.Duration(o.Lease), a.cfg.MaxLease)
}

// putBack ends a cap that did not verify. If even that fails the device stays
// on our books, and the end of the lease tries again.
func (a *Agent) putBack(r telemetry.Receipt, found, now float64, will hold, why error) outcome {
	back, err := a.write(will.UUID, found)
	if err == nil {
		r.Undone, r.After = "power limit put back to "+watts(back), limit(back)
		return outcome{receipt: fail(r, "power limit of %s not set: %v", watts(will.Set), why)}
	}
	if back > 0 {
		now = back
	}
	if now > 0 {
		will.Set, r.After = now, limit(now)
	} else {
		will.Or = found
	}
	r.LeaseUntil = will.Until.Round(0)
	out := outcome{receipt: fail(r, "power limit of %s not set: %v; and %s not put back: %v; tried again when the lease ends", watts(will.Set), why, watts(found), err), hold: &will}
	if previous, ok := a.holdOf(will.UUID); ok {
		out.gone, out.why = previous.Step, "superseded by step "+will.Step
	}
	return out
}
