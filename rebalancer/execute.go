package rebalancer

import (
	"context"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// retryEvery is the pause between two attempts at a step.
	retryEvery = time.Second
	// maxCall bounds one call to a backend.
	maxCall = 5 * time.Second
	// parallelSteps bounds how many steps are on their way at once. Steps to
	// agents that are cut off hold their place for as long as they may wait.
	parallelSteps = 1024
)

// execution is one step on its way, in a goroutine of its own.
type execution struct {
	engine *Engine
	hand   Actuator
	step   telemetry.Step
	// ask starts by asking what became of the step: it may have been done by
	// a process that did not live to write it down.
	ask bool
}

// ending says what an execution came to.
type ending int

const (
	ended     ending = iota // there is a receipt
	noticed                 // its notice is over, and it was not ordered
	unseen                  // the backend has not seen it
	abandoned               // this process may no longer act; the next leader asks
)

// result is what an execution hands back to the loop.
type result struct {
	step    telemetry.Step
	receipt telemetry.Receipt
	ending  ending
}

// start carries a step out, or resumes it, unless that is under way already.
func (e *Engine) start(ctx context.Context, s telemetry.Step, ask bool) {
	if e.running[s.ID] {
		return
	}
	hand := e.planner.actuator(s.Backend)
	if hand == nil {
		return // configured away since; the lease ends what may be in force
	}
	e.running[s.ID] = true
	x := execution{e, hand, s, ask}
	e.workers.Go(func() {
		out, early := x.notice(ctx) // in no slot: others need not wait for it
		if !early {
			select {
			case e.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			out = x.run(ctx)
			<-e.slots
		}
		select {
		case e.results <- out:
		case <-ctx.Done():
		}
	})
}

// notice waits until the step may begin. If it had to, early is set for a step
// that was not ordered yet: is it still wanted?
func (x *execution) notice(ctx context.Context) (out result, early bool) {
	wait := x.step.NotBefore.Sub(x.engine.now())
	switch {
	case wait <= 0:
		return result{}, false
	case !pause(ctx, wait):
		return x.with(telemetry.Receipt{}, abandoned), true
	}
	return x.with(telemetry.Receipt{}, noticed), !x.ask
}

func (x *execution) run(ctx context.Context) result {
	for {
		now := x.engine.now()
		epoch, ok := x.engine.mayAct(now)
		if !ok {
			return x.with(telemetry.Receipt{}, abandoned)
		}
		r, err := x.attempt(ctx, now, epoch)
		switch {
		case err == nil && r.Result == telemetry.Unknown && x.ask:
			return x.with(r, unseen)
		case err == nil && r.Result != telemetry.Pending && r.Result != telemetry.Unknown:
			return x.with(r, ended)
		case now.After(x.last()):
			return x.with(x.given("no answer from its backend before it expired"), ended)
		}
		x.ask = true
		if !pause(ctx, retryEvery) {
			return x.with(telemetry.Receipt{}, abandoned)
		}
	}
}

func (x *execution) with(r telemetry.Receipt, end ending) result { return result{x.step, r, end} }

// attempt makes one call, whose deadline is shorter than the leadership.
func (x *execution) attempt(ctx context.Context, now time.Time, epoch telemetry.Epoch) (telemetry.Receipt, error) {
	until := now.Add(maxCall)
	if lease := x.engine.actUntil(); lease.Before(until) {
		until = lease
	}
	call, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if x.ask { // under the epoch it was ordered by: to ask is no act
		r, err := x.hand.Observe(call, x.step)
		if err == nil && !ownerSays(x.step, r) {
			r.Result = telemetry.Unknown
		}
		return r, err
	}
	x.step.Epoch = epoch
	return x.hand.Do(call, x.step)
}

// last is when to stop asking. A step that was sent may have been done, and
// then its effect lasts as long as its lease.
func (x *execution) last() time.Time {
	if x.step.Kind == telemetry.StepRenew || x.step.Kind == telemetry.StepUndo {
		return x.step.Deadline // planned anew while it is wanted
	}
	return x.step.Deadline.Add(time.Duration(x.step.Lease))
}

func (x *execution) given(why string) telemetry.Receipt {
	return unknownReceipt(x.step, why, x.engine.now())
}

// unknownReceipt ends a step of which nothing is known to have been done.
func unknownReceipt(s telemetry.Step, why string, now time.Time) telemetry.Receipt {
	return telemetry.Receipt{StepID: s.ID, Decision: s.Decision, Kind: s.Kind, Target: s.Target, Result: telemetry.Unknown, Detail: why, Ended: now}
}

// pause waits and says whether to go on.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
