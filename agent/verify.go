package agent

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// skewMost is how far the clock may be from an order's send time before a
	// disruptive order is refused.
	skewMost = 30 * time.Second
	// early is how far two kept clocks may differ: an order is not turned away
	// for coming that much too soon.
	early = time.Second
	// repeatWait is how long a repeated order waits for the first one's end.
	repeatWait = 2 * time.Second
)

// kindAsk stands for an order that only asks: it is neither counted nor warned
// of, whatever the answer.
const kindAsk telemetry.StepKind = "ask"

// process takes an order from its bytes to its receipt.
func (a *Agent) process(data []byte) (telemetry.Receipt, telemetry.StepKind) {
	o, err := a.trust.OpenOrder(data)
	if err != nil {
		why := telemetry.RefuseMalformed
		if telemetry.WhyDropped(err) == telemetry.DropForged {
			why = telemetry.RefuseSignature
		}
		r := a.receipt(&telemetry.Order{}) // nothing in it can be believed
		return refuse(r, why, "%v", err), ""
	}
	r := a.receipt(o)
	if o.Target.Node != a.cfg.Node {
		return refuse(r, telemetry.RefuseWrongNode, "the order is for node %q, this is %q", o.Target.Node, a.cfg.Node), o.Kind
	}
	if o.DryRun {
		return a.dryRun(o, r), o.Kind
	}
	kind := o.Kind
	if o.Asks() {
		kind = kindAsk
	}
	// A repeated order is answered from the ledger, however late it comes.
	if e, known, err := a.ledger.entry(o.ID); err != nil {
		return a.ledgerFailed(r, err), o.Kind
	} else if known && sameLife(&e.Order, o) {
		return a.repeat(e, o, r), kind
	}
	if o.Asks() {
		return refuse(r, telemetry.RefuseExpired, "not known here, and an order that only asks begins nothing"), kind
	}
	if no := a.check(o, r, time.Now()); no != nil {
		// An expired order is not taken into the ledger: it may be an old one that
		// was done and forgotten, whose record must not be spoilt.
		if no.Why == telemetry.RefuseExpired {
			return *no, o.Kind
		}
		return a.takeIn(o, r, func() telemetry.Receipt { return a.settle(o, outcome{receipt: *no}) }), o.Kind
	}
	carryOut := func() telemetry.Receipt {
		return a.takeIn(o, r, func() telemetry.Receipt { return a.execute(o, r) })
	}
	if o.Kind == telemetry.StepPreempt {
		return a.besides(o, r, carryOut), o.Kind
	}
	return carryOut(), o.Kind
}

// besides carries out an order that may take minutes. Its request is answered
// pending when it has waited long enough, and so is each repetition; the receipt
// is published when there is one.
func (a *Agent) besides(o *telemetry.Order, r telemetry.Receipt, carryOut func() telemetry.Receipt) telemetry.Receipt {
	over := make(chan telemetry.Receipt, 1)
	var first atomic.Bool // of the two, the one that comes second knows that the other has gone
	a.aside.Go(func() {
		end := carryOut()
		over <- end
		if first.Swap(true) {
			a.note(end, o.Kind)
		}
	})
	t := time.NewTimer(repeatWait)
	defer t.Stop()
	select {
	case end := <-over:
		return end
	case <-t.C:
		if first.Swap(true) {
			return <-over
		}
	}
	e, known, err := a.ledger.entry(o.ID)
	if err != nil || !known {
		r.Result, r.Detail = telemetry.Pending, "the order is being taken in"
		return r
	}
	return a.stored(e, o, r)
}

// check is all that can be judged without a device.
func (a *Agent) check(o *telemetry.Order, r telemetry.Receipt, now time.Time) *telemetry.Receipt {
	no := func(why telemetry.RefuseReason, format string, args ...any) *telemetry.Receipt {
		r := refuse(r, why, format, args...)
		return &r
	}
	if !now.Before(o.Expires) {
		return no(telemetry.RefuseExpired, "expired %s ago", now.Sub(o.Expires).Round(time.Millisecond))
	}
	if wait := o.NotBefore.Sub(now); !o.NotBefore.IsZero() && wait > early {
		return no(telemetry.RefuseNotYet, "not to be done for another %s", wait.Round(time.Millisecond))
	}
	if !gentle(o.Kind) {
		if skew := now.Sub(o.SentAt).Abs(); skew > skewMost {
			return no(telemetry.RefuseClock, "this clock and the order's send time are %s apart, at most %s for a disruptive step", skew.Round(time.Second), skewMost)
		}
		if a.cfg.RequireSync {
			if synced, err := a.o.ClockSynced(); err != nil {
				return no(telemetry.RefuseClock, "whether the clock is synchronised is not known: %v", err)
			} else if !synced {
				return no(telemetry.RefuseClock, "the kernel reports its clock as not synchronised; run an NTP client, or set clock.require_sync: false")
			}
		}
	}
	if !a.cfg.allows(o.Kind) {
		return no(telemetry.RefuseNotAllowed, "%s is not in this agent's allow-list", o.Kind)
	}
	return nil
}

// takeIn records the order, carries it out once, and makes its end final.
func (a *Agent) takeIn(o *telemetry.Order, r telemetry.Receipt, do func() telemetry.Receipt) telemetry.Receipt {
	first, over := a.enter(o.ID)
	if first != nil {
		return a.await(first, o, r)
	}
	a.work.Add(1)
	defer a.work.Done()
	defer over()

	known, moved, err := a.ledger.receive(o)
	var fenced errEpoch
	switch {
	case errors.As(err, &fenced):
		return refuse(r, telemetry.RefuseEpoch, "%s", fenced)
	case err != nil:
		return a.ledgerFailed(r, err)
	case known != nil: // it ended between the look-up and here
		return a.stored(*known, o, r)
	}
	if moved != nil {
		a.mu.Lock()
		if a.held[moved.UUID].Step == o.ID { // it may have ended meanwhile
			a.held[moved.UUID] = *moved
		}
		a.mu.Unlock()
	}
	return do()
}

// enter marks an order as under way until over is called, unless it is: then
// first is closed at its end.
func (a *Agent) enter(id string) (first <-chan struct{}, over func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first, ok := a.inflight[id]; ok {
		return first, nil
	}
	end := make(chan struct{})
	a.inflight[id] = end
	return nil, func() {
		a.mu.Lock()
		delete(a.inflight, id)
		a.mu.Unlock()
		close(end)
	}
}

// sameLife says whether two orders come from the same life of the lease
// bucket. After a lost store the journal counts anew, and so do the ids.
func sameLife(a, b *telemetry.Order) bool { return a.Epoch.Incarnation == b.Epoch.Incarnation }

// repeat answers an order whose id is known.
func (a *Agent) repeat(e entry, o *telemetry.Order, r telemetry.Receipt) telemetry.Receipt {
	a.mu.Lock()
	first, running := a.inflight[o.ID]
	a.mu.Unlock()
	if running && e.Phase != ended {
		return a.await(first, o, r)
	}
	return a.stored(e, o, r)
}

// await waits a little for the first delivery of an order to end.
func (a *Agent) await(first <-chan struct{}, o *telemetry.Order, r telemetry.Receipt) telemetry.Receipt {
	t := time.NewTimer(repeatWait)
	defer t.Stop()
	select {
	case <-first:
	case <-t.C:
	}
	e, known, err := a.ledger.entry(o.ID)
	if err != nil {
		return a.ledgerFailed(r, err)
	}
	if !known {
		r.Result, r.Detail = telemetry.Pending, "the first delivery was not taken in; repeat the order"
		return r
	}
	return a.stored(e, o, r)
}

func (a *Agent) stored(e entry, o *telemetry.Order, r telemetry.Receipt) telemetry.Receipt {
	switch {
	case !sameOrder(&e.Order, o):
		return refuse(r, telemetry.RefuseMalformed, "id %s was used before, for %s of %s", o.ID, e.Order.Kind, e.Order.Target)
	case e.Phase == signalled && e.Preempt != nil:
		r.Result, r.Detail = telemetry.Pending, fmt.Sprintf("%s was sent; the processes have until %s to end", e.Preempt.Signal, e.Preempt.Until.UTC().Format(time.RFC3339))
		return r
	case e.Phase != ended && o.Kind == telemetry.StepPreempt:
		r.Result, r.Detail = telemetry.Pending, "the workload is being looked at"
		return r
	case e.Phase != ended:
		r.Result, r.Detail = telemetry.Pending, "the device has not answered yet"
		return r
	}
	return e.Receipt
}

func (a *Agent) dryRun(o *telemetry.Order, r telemetry.Receipt) telemetry.Receipt {
	if no := a.check(o, r, time.Now()); no != nil {
		return *no
	}
	var fenced errEpoch
	if err := a.ledger.checkEpoch(o.Epoch); errors.As(err, &fenced) {
		return refuse(r, telemetry.RefuseEpoch, "%s", fenced)
	} else if err != nil {
		return a.ledgerFailed(r, err)
	}
	return a.execute(o, r)
}

func (a *Agent) ledgerFailed(r telemetry.Receipt, err error) telemetry.Receipt {
	a.ledgerState(err)
	return fail(r, "nothing was done: %v", err)
}
