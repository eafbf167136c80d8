//go:build crashpoints

package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/app/crashpoint"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	nodeactuator "github.com/evenkeel-gpu/evenkeel/rebalancer/actuator/node"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Names of the places before and after which a rebalancer can end.
var (
	// crashRecords are what a journal record can be about; after means that the
	// bus has stored it and this process does not know.
	crashRecords = []string{"refusals", "waiting", "approval", "intent.power_cap", "intent.preempt", "acted", "judged", "intent.renew", "renewed", "replaced", "intent.undo", "undone", "unsuccessful"}
	// crashSteps are the kinds of steps that an actuator is given.
	crashSteps = []telemetry.StepKind{telemetry.StepPowerCap, telemetry.StepRenew, telemetry.StepUndo, telemetry.StepPreempt}
)

// crashPoints decorates the ports of a rebalancer with places at which a test
// can end the process.
type crashPoints struct{ *crashpoint.Points }

func newCrashPoints() (crashPoints, error) {
	places := []string{"lease.acquired", "lease.renewed", "observe", "order"}
	for _, what := range crashRecords {
		places = append(places, "journal."+what)
	}
	for _, kind := range crashSteps {
		places = append(places, "do."+string(kind))
	}
	var names []string
	for _, p := range places {
		names = append(names, p+".before", p+".after")
	}
	p, err := crashpoint.New(names)
	return crashPoints{p}, err
}

// before says whether the process was stopped there, and continued.
func (c crashPoints) before(place string) (stopped bool) {
	return place != "" && c.Pass(place+".before")
}

func (c crashPoints) after(place string) {
	if place != "" {
		c.Pass(place + ".after")
	}
}

func (c crashPoints) journal(j rebalancer.Journal) rebalancer.Journal {
	return &crashJournal{Journal: j, crash: c, last: map[string]telemetry.Outcome{}}
}

func (c crashPoints) lease(l rebalancer.Lease) rebalancer.Lease { return crashLease{l, c} }

func (c crashPoints) actuator(a rebalancer.Actuator) rebalancer.Actuator { return crashActuator{a, c} }

func (c crashPoints) orders(o nodeactuator.Orders) nodeactuator.Orders { return crashOrders{o, c} }

// crashJournal ends before a record is sent and once it is stored.
type crashJournal struct {
	rebalancer.Journal
	crash crashPoints

	mu   sync.Mutex
	last map[string]telemetry.Outcome // by decision
}

// Append implements rebalancer.Journal.
func (j *crashJournal) Append(ctx context.Context, expect uint64, r telemetry.Record) (uint64, error) {
	place := j.place(r)
	j.crash.before(place)
	seq, err := j.Journal.Append(ctx, expect, r)
	if err == nil {
		j.crash.after(place)
		j.note(r)
	}
	return seq, err
}

// AppendAll implements rebalancer.Journal.
func (j *crashJournal) AppendAll(ctx context.Context, expect uint64, rs []telemetry.Record, stored func(seq uint64)) error {
	for _, r := range rs {
		if j.crash.before(j.place(r)) {
			var cancel context.CancelFunc
			ctx, cancel = onItsWay(ctx)
			defer cancel()
		}
	}
	n := 0
	return j.Journal.AppendAll(ctx, expect, rs, func(seq uint64) {
		j.crash.after(j.place(rs[n]))
		j.note(rs[n])
		n++
		stored(seq)
	})
}

// Replay implements rebalancer.Journal.
func (j *crashJournal) Replay(ctx context.Context, fn func(uint64, telemetry.Record) error) (uint64, error) {
	return j.Journal.Replay(ctx, func(seq uint64, r telemetry.Record) error {
		j.note(r)
		return fn(seq, r)
	})
}

// Resume implements rebalancer.Journal.
func (j *crashJournal) Resume(ctx context.Context, fn func(uint64, telemetry.Record) error) (uint64, error) {
	return j.Journal.Resume(ctx, func(seq uint64, r telemetry.Record) error {
		j.note(r)
		return fn(seq, r)
	})
}

func (j *crashJournal) note(r telemetry.Record) {
	if r.Decision == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last[r.Decision.ID] = r.Decision.Outcome
}

// place names what a record is about; empty for what is no step on the way
// from a detection to its outcome.
func (j *crashJournal) place(r telemetry.Record) string {
	what := ""
	switch {
	case r.Refused != nil:
		what = "refusals"
	case r.Approval != nil:
		what = "approval"
	case r.Decision != nil && r.Topic == telemetry.TopicIntent:
		what = "intent." + string(r.Decision.Steps[len(r.Decision.Steps)-1].Step.Kind)
	case r.Decision != nil:
		what = j.outcome(r.Decision)
	}
	if !slices.Contains(crashRecords, what) {
		return ""
	}
	return "journal." + what
}

func (j *crashJournal) outcome(d *telemetry.Decision) string {
	j.mu.Lock()
	before := j.last[d.ID]
	j.mu.Unlock()
	if d.Outcome == before {
		if n := len(d.Steps); n > 0 && d.Steps[n-1].Step.Kind == telemetry.StepRenew && d.Steps[n-1].Receipt != nil {
			return "renewed"
		}
		return ""
	}
	switch d.Outcome {
	case telemetry.OutcomeRecommended, telemetry.OutcomeAwaiting:
		return "waiting"
	case telemetry.OutcomeActed:
		return "acted"
	case telemetry.OutcomeVerified, telemetry.OutcomeIneffective:
		return "judged"
	case telemetry.OutcomeEscalated, telemetry.OutcomeEased:
		return "replaced"
	case telemetry.OutcomeUndone:
		return "undone"
	case telemetry.OutcomeRefused, telemetry.OutcomeFailed, telemetry.OutcomeExpired, telemetry.OutcomeRejected:
		return "unsuccessful"
	}
	return ""
}

// crashLease ends before and after the engine is told that it leads, and that
// it goes on leading.
type crashLease struct {
	rebalancer.Lease
	crash crashPoints
}

// Hold implements rebalancer.Lease.
func (l crashLease) Hold(ctx context.Context, holder string, changed func(rebalancer.Leadership)) error {
	held := false
	return l.Lease.Hold(ctx, holder, func(now rebalancer.Leadership) {
		place := ""
		switch {
		case now.Held && held:
			place = "lease.renewed"
		case now.Held:
			place = "lease.acquired"
		}
		held = now.Held
		l.crash.before(place)
		changed(now)
		l.crash.after(place)
	})
}

// onItsWay is the context of what a process was about to send when it was
// stopped. It is sent when the process goes on, whatever has run out meanwhile:
// it stands for what a socket or a switch has held for as long, where no
// deadline of the sender reaches.
func onItsWay(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

// crashActuator ends before a step is handed over and after its receipt.
type crashActuator struct {
	rebalancer.Actuator
	crash crashPoints
}

// Do implements rebalancer.Actuator.
func (a crashActuator) Do(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	place := ""
	if slices.Contains(crashSteps, s.Kind) {
		place = "do." + string(s.Kind)
	}
	a.crash.before(place)
	r, err := a.Actuator.Do(ctx, s)
	if err == nil {
		a.crash.after(place)
	}
	return r, err
}

// Observe implements rebalancer.Actuator.
func (a crashActuator) Observe(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	a.crash.before("observe")
	r, err := a.Actuator.Observe(ctx, s)
	if err == nil {
		a.crash.after("observe")
	}
	return r, err
}

// crashOrders ends once an order is signed, and once it is answered.
type crashOrders struct {
	nodeactuator.Orders
	crash crashPoints
}

// RequestOrder implements nodeactuator.Orders.
func (o crashOrders) RequestOrder(ctx context.Context, node string, data []byte) ([]byte, error) {
	if o.crash.before("order") {
		var cancel context.CancelFunc
		ctx, cancel = onItsWay(ctx)
		defer cancel()
	}
	reply, err := o.Orders.RequestOrder(ctx, node, data)
	if err == nil {
		o.crash.after("order")
	}
	return reply, err
}
