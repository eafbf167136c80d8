package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// own returns what a step still holds, or the refusal that says why not.
func (a *Agent) own(o *telemetry.Order, r telemetry.Receipt, uuid string) (hold, *telemetry.Receipt) {
	h, ok := a.holdOf(uuid)
	if ok && h.Step == o.Params.Of {
		return h, nil
	}
	e, _, err := a.ledger.entry(o.Params.Of)
	switch {
	case err != nil:
		r = a.ledgerFailed(r, err)
	case e.Gone != "":
		r = refuse(r, telemetry.RefuseNotOurs, "step %s holds nothing: %s", o.Params.Of, e.Gone)
	default:
		r = refuse(r, telemetry.RefuseNotOurs, "step %s holds nothing", o.Params.Of)
	}
	return hold{}, &r
}

// renew extends a lease, if what it is about is still there.
func (a *Agent) renew(o *telemetry.Order, r telemetry.Receipt, uuid string) outcome {
	if o.Lease <= 0 {
		return outcome{receipt: refuse(r, telemetry.RefuseMalformed, "a renewal without a lease")}
	}
	if !a.cfg.allows(telemetry.StepPowerCap) {
		return outcome{receipt: refuse(r, telemetry.RefuseNotAllowed, "%s is not in this agent's allow-list; its lease will run out", telemetry.StepPowerCap)}
	}
	h, no := a.own(o, r, uuid)
	if no != nil {
		return outcome{receipt: *no}
	}
	l, err := a.writer.PowerLimits(uuid)
	if err != nil {
		return outcome{receipt: fail(r, "device %s does not answer: %v", uuid, err)}
	}
	r.Before, r.After = limit(l.Current), limit(l.Current)
	if !h.is(l.Current) {
		why := fmt.Sprintf("the limit is %s, not the %s that was set: somebody else changed it, so it is left", watts(l.Current), watts(h.Set))
		out := outcome{receipt: refuse(r, telemetry.RefuseNotOurs, "%s", why)}
		if !o.DryRun {
			out.drop, out.gone, out.why = uuid, h.Step, why
		}
		return out
	}
	if until := time.Now().Add(a.lease(o)); until.After(h.Until) {
		h.Until = until
	}
	r.LeaseUntil = h.Until.Round(0)
	if o.DryRun {
		return outcome{receipt: done(r, "would renew the lease")}
	}
	return outcome{receipt: done(r, "lease renewed"), hold: &h}
}

// undo puts back what a step found.
func (a *Agent) undo(o *telemetry.Order, r telemetry.Receipt, uuid string) outcome {
	h, no := a.own(o, r, uuid)
	if no != nil {
		return outcome{receipt: *no}
	}
	return a.restore(h, r, o.DryRun)
}

// restore is compare-and-set: it puts the found limit back only if the present
// one is what we set. What is no longer ours is left, and said.
func (a *Agent) restore(h hold, r telemetry.Receipt, dry bool) outcome {
	l, err := a.writer.PowerLimits(h.UUID)
	if err != nil {
		return outcome{receipt: fail(r, "device %s does not answer: %v", h.UUID, err)}
	}
	r.Before, r.After = limit(l.Current), limit(l.Current)
	out := outcome{drop: h.UUID, gone: h.Step}
	switch {
	case near(l.Current, h.Found):
		out.why = "power limit is " + watts(l.Current) + " as it was found"
		out.receipt = done(r, "%s", out.why)
	case !h.is(l.Current):
		out.why = fmt.Sprintf("the limit is %s, not the %s that was set: somebody else changed it, so it is left", watts(l.Current), watts(h.Set))
		out.receipt = refuse(r, telemetry.RefuseNotOurs, "%s", out.why)
	case dry:
		out.receipt = done(r, "would put the power limit back from %s to %s", watts(l.Current), watts(h.Found))
	default:
		now, err := a.write(h.UUID, h.Found)
		if err != nil {
			if now > 0 {
				r.After = limit(now)
			}
			return outcome{receipt: fail(r, "power limit not put back to %s: %v", watts(h.Found), err)}
		}
		r.After = limit(now)
		out.why = "power limit put back to " + watts(now)
		out.receipt = done(r, "%s", out.why)
	}
	if dry {
		out = outcome{receipt: out.receipt}
	}
	return out
}

// over says whether a lease has ended. After a restart only the wall clock is
// left: an end further off than any lease, or of another life of the node,
// cannot be believed and counts as reached.
func (a *Agent) over(h hold, now time.Time) bool {
	return !now.Before(h.Until) || h.Until.Sub(now) > a.cfg.MaxLease+time.Minute || h.BootID != a.bootID
}

// undoDue begins to undo the effect whose lease has been over for longest, one
// device per interval, and none that still has to wait.
func (a *Agent) undoDue(now time.Time) {
	if !a.lastUndo.IsZero() && now.Sub(a.lastUndo) < undoEvery {
		return
	}
	for _, h := range a.due(now) {
		if !a.mayUndo(h, now) {
			continue
		}
		if !a.lock(h.UUID, 0) {
			continue
		}
		a.lastUndo = now
		a.work.Go(func() {
			defer a.unlock(h.UUID)
			a.expire(h)
		})
		return
	}
}

func (a *Agent) due(now time.Time) []hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []hold
	for _, h := range a.held {
		if a.over(h, now) && !now.Before(a.retry[h.UUID].at) {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(x, y hold) int {
		return cmp.Or(x.Until.Compare(y.Until), cmp.Compare(x.UUID, y.UUID))
	})
	return due
}

// expire undoes one effect by the agent's own decision and reports it. What
// fails is reported once and tried again, ever more slowly.
func (a *Agent) expire(h hold) {
	if now, ok := a.holdOf(h.UUID); !ok || now.Step != h.Step || !a.over(now, time.Now()) {
		return // renewed, undone or taken over while we waited
	}
	r := a.receipt(&telemetry.Order{ID: h.Step, Decision: h.Decision, Kind: telemetry.StepUndo, Target: telemetry.Target{Node: a.cfg.Node, UUID: h.UUID}})
	r.Spontaneous = true
	out := a.restore(h, r, false)
	cause := "lease ended: "
	if h.BootID != a.bootID {
		cause = "node restarted: "
	}
	out.receipt.Detail = cause + out.receipt.Detail
	if out.why != "" {
		out.why = cause + out.why
	}
	a.log.Info("lease ended", "uuid", h.UUID, "step", h.Step, "result", out.receipt.Result, "detail", out.receipt.Detail)
	if out.receipt.Result == telemetry.Failed && a.again(h.UUID) {
		return
	}
	if err := a.finish(out); err != nil {
		a.again(h.UUID)
	}
}

// again paces the next attempt and says whether the failure was reported before.
func (a *Agent) again(uuid string) (reported bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.retry[uuid]
	t.pause = min(max(2*t.pause, undoEvery), time.Minute)
	t.at = time.Now().Add(t.pause)
	reported, t.reported = t.reported, true
	a.retry[uuid] = t
	return reported
}
