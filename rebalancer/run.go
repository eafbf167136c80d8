package rebalancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Config is what an engine is made from.
type Config struct {
	// Holder names this process in the lease.
	Holder    string
	Policies  []Policy
	Actuators []Actuator
	Journal   Journal
	Lease     Lease
	Metrics   *Metrics
	Log       *slog.Logger
	// Now is the clock. Tests that run in a bubble give the bubble's.
	Now func() time.Time
	// Breaker is DefaultBreaker if zero.
	Breaker BreakerLimits
	// Tick is how often a pass runs when no View comes (1 s if zero): silence
	// must not keep leases from being renewed. Expiry is how long a step may
	// wait for its backend (30 s if zero).
	Tick, Expiry time.Duration
}

// Engine runs passes over the newest View and carries out what they plan, as
// long as it holds the lease. All of its state but leadership and View belongs
// to the goroutine of Run.
type Engine struct {
	planner Planner
	config  Config
	log     *slog.Logger
	now     func() time.Time

	view atomic.Pointer[cluster.View]
	lead leadership
	wake chan struct{} // a new View or leadership

	receipts chan telemetry.Receipt
	results  chan result
	asks     chan ask
	slots    chan struct{}
	workers  sync.WaitGroup

	mem     Memory
	synced  bool            // Memory is a fold of the whole journal …
	under   telemetry.Epoch // … as read under this epoch
	running map[string]bool
	// attempts counts the records this process has tried to write.
	attempts uint64
	// unread are receipts that came while this process did not lead or could
	// not write. The leader of that time may not have lived to write them.
	unread []telemetry.Receipt
	ring   ring
	last   Plan
}

// New makes an engine. It does nothing before Run.
func New(c Config) (*Engine, error) {
	if c.Journal == nil || c.Lease == nil || c.Now == nil || c.Metrics == nil || c.Log == nil || c.Holder == "" {
		return nil, errors.New("rebalancer: Holder, Journal, Lease, Metrics, Log and Now must be given")
	}
	if c.Breaker == (BreakerLimits{}) {
		c.Breaker = DefaultBreaker
	}
	if c.Tick <= 0 {
		c.Tick = time.Second
	}
	if c.Expiry <= 0 {
		c.Expiry = 30 * time.Second
	}
	names := map[string]bool{}
	for _, a := range c.Actuators {
		if names[a.Name()] {
			return nil, fmt.Errorf("rebalancer: two actuators are called %q", a.Name())
		}
		names[a.Name()] = true
	}
	return &Engine{
		planner: Planner{Policies: c.Policies, Actuators: c.Actuators, Breaker: c.Breaker, Expiry: c.Expiry},
		config:  c, log: c.Log, now: c.Now,
		wake: make(chan struct{}, 1), receipts: make(chan telemetry.Receipt, 1024), results: make(chan result), asks: make(chan ask),
		slots: make(chan struct{}, parallelSteps), running: map[string]bool{},
	}, nil
}

var errLeaseEnded = errors.New("lease holder ended before it was told to")

// Update gives the engine a View. It never blocks; an older one that was not
// looked at yet is dropped.
func (e *Engine) Update(v *cluster.View) {
	e.view.Store(v)
	e.nudge()
}

func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Receipt gives the engine a receipt from the bus: a late answer, or what an
// agent did on its own. It never blocks; what does not fit is asked for again
// by the step's own execution.
func (e *Engine) Receipt(r telemetry.Receipt) {
	select {
	case e.receipts <- r:
	default:
		e.log.Warn("receipt dropped, too many at once", "step", r.StepID)
	}
}

// Run holds the lease, passes and acts until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	leaseEnded := make(chan error, 1)
	go func() { leaseEnded <- e.config.Lease.Hold(ctx, e.config.Holder, e.setLeadership) }()
	defer e.workers.Wait()
	defer cancel()
	tick := time.NewTicker(e.config.Tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			<-leaseEnded //nolint:errcheck // it ends because ctx did
			return nil
		case err := <-leaseEnded:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("rebalancer: the lease is no longer kept: %w", errors.Join(err, errLeaseEnded))
		case <-e.wake:
			e.pass(ctx)
		case <-tick.C:
			e.pass(ctx)
		case r := <-e.results:
			e.finish(ctx, drain(e.results, r))
		case r := <-e.receipts:
			e.news(ctx, drain(e.receipts, r))
		case q := <-e.asks:
			body, err := e.answer(ctx, q.verb, q.body)
			q.reply <- answer{body, err}
		}
	}
}

// pass is one look at the newest View and what follows from it.
func (e *Engine) pass(ctx context.Context) {
	v := e.view.Load()
	now := e.now()
	epoch, leads := e.mayAct(now)
	e.config.Metrics.leader.Set(flag(leads))
	if v == nil || leads && !e.sync(ctx) {
		return
	}
	if leads && len(e.unread) > 0 {
		if e.news(ctx, nil); !e.synced {
			return
		}
	}
	e.mem.Leading, e.mem.Epoch = leads, epoch
	var plan Plan
	plan, e.mem = e.planner.Step(now, v, e.mem)
	e.last = plan
	for _, r := range e.ring.add(plan) {
		e.config.Metrics.refusals.WithLabelValues(string(r.Reason)).Inc()
	}
	e.carryOut(ctx, plan)
	if leads {
		e.resume(ctx)
	}
	e.config.Metrics.passed(now, e.now().Sub(now), &e.mem)
}

// carryOut writes the entries and starts the step of each as soon as it is
// written. The first record that cannot be written ends it: the rest was
// planned on a memory that no longer holds.
func (e *Engine) carryOut(ctx context.Context, plan Plan) {
	if len(plan.Entries) == 0 {
		return
	}
	e.config.Metrics.pending.Set(float64(len(plan.Entries)))
	defer e.config.Metrics.pending.Set(0)
	rs := make([]telemetry.Record, len(plan.Entries))
	for i, entry := range plan.Entries {
		rs[i] = telemetry.Record{Topic: entry.Topic, Decision: entry.Decision, Breaker: entry.Breaker, Refused: entry.Refused}
	}
	type unwanted struct {
		step telemetry.Step
		why  telemetry.Refusal
	}
	var drop []unwanted // written once the rest is
	e.writeAll(ctx, rs, func(i int) {
		entry := plan.Entries[i]
		if entry.Do == nil {
			return
		}
		// Also where no View has come: the write may have taken so long that the
		// values are old.
		if why := e.planner.ChangedSince(e.now(), e.view.Load(), &e.mem, entry.Decision, *entry.Do); why != nil {
			drop = append(drop, unwanted{*entry.Do, *why})
			return
		}
		e.start(ctx, *entry.Do, false)
	})
	for _, u := range drop {
		if d := e.mem.Decisions[u.step.Decision]; d != nil {
			e.giveUp(ctx, u.step, u.why)
		}
	}
}

// giveUp ends a step that is no longer wanted before it was ordered.
func (e *Engine) giveUp(ctx context.Context, s telemetry.Step, why telemetry.Refusal) {
	e.config.Metrics.refusals.WithLabelValues(string(why.Reason)).Inc()
	e.write(ctx, telemetry.Record{Topic: telemetry.TopicOutcome, Decision: withoutStep(e.mem.Decisions[s.Decision], s, why, e.now())})
}

// resume looks after steps that a process before this one began.
func (e *Engine) resume(ctx context.Context) {
	for _, d := range e.mem.open() {
		if s := pendingStep(d); s != nil && !standing(d) {
			e.start(ctx, *s, true)
		}
	}
}

// drained is how much is taken in together.
const drained = 64

// drain takes what else is there already: what came together is written
// together.
func drain[T any](c <-chan T, first T) []T {
	all := []T{first}
	for len(all) < drained {
		select {
		case v := <-c:
			all = append(all, v)
		default:
			return all
		}
	}
	return all
}

// finish takes in how steps ended.
func (e *Engine) finish(ctx context.Context, rs []result) {
	w := outcomes{engine: e}
	defer func() { w.flush(ctx) }()
	for _, r := range rs {
		delete(e.running, r.step.ID)
		if w.about(r.step.Decision) {
			w.flush(ctx)
		}
		d := e.mem.Decisions[r.step.Decision]
		v := e.view.Load()
		if r.ending == abandoned || d == nil || v == nil || receiptKnown(d, r.step.ID) || !stepKnown(d, r.step.ID) {
			continue
		}
		if r.ending == ended {
			w.add(WithReceipt(d, r.receipt, e.now()))
			continue
		}
		over := e.now().After(BeginBy(r.step))
		switch why := e.planner.ChangedSince(e.now(), v, &e.mem, d, r.step); {
		case over && (why == nil || lasts(r.step.Kind)):
			// After its deadline nobody is asked about an act that lasts, so that
			// unseen is no word of its backend: it may be in force.
			w.add(WithReceipt(d, neverBegun(r.step, e.now()), e.now()))
		case why != nil && !over && r.ending == unseen && begins(r.step.Kind):
			// An order of it may still be on its way, and another act in its place
			// would come on top: it is asked for until it can no longer be begun.
		case why != nil:
			w.flush(ctx)
			e.giveUp(ctx, r.step, *why)
		default:
			e.start(ctx, r.step, false)
		}
	}
}

// maxUnread bounds the receipts that wait for this process to lead.
const maxUnread = 1024

// news takes in receipts that came by themselves.
func (e *Engine) news(ctx context.Context, rs []telemetry.Receipt) {
	rs = append(e.unread, rs...)
	e.unread = nil
	if _, leads := e.mayAct(e.now()); !leads || !e.sync(ctx) {
		e.keep(rs) // the leader writes it, if it lives to
		return
	}
	w := outcomes{engine: e}
	for _, r := range rs {
		if d := e.concerns(r); d != nil && w.about(d.ID) {
			w.flush(ctx)
		}
		if d := e.concerns(r); d != nil { // as it stands after the flush
			w.add(WithNews(d, r, e.now()))
		}
	}
	if w.flush(ctx); !e.synced {
		e.keep(rs) // what is written of it already changes nothing a second time
	}
}

// keep puts receipts aside, the newest of those that nobody will ask for again.
func (e *Engine) keep(rs []telemetry.Receipt) {
	rs = slices.DeleteFunc(rs, func(r telemetry.Receipt) bool { return r.Kind == telemetry.StepRenew })
	e.unread = slices.Clone(rs[max(len(rs)-maxUnread, 0):])
}

// concerns finds the decision that a receipt is about, which not every receipt
// names: an open one, or one that has ended without word of its act.
func (e *Engine) concerns(r telemetry.Receipt) *telemetry.Decision {
	for _, d := range append(e.mem.open(), e.mem.Closed...) {
		if stepKnown(d, r.StepID) {
			return d
		}
	}
	return nil
}

// outcomes gathers records that do not depend on each other.
type outcomes struct {
	engine  *Engine
	records []telemetry.Record
}

func (w *outcomes) add(d *telemetry.Decision) {
	if d != nil {
		w.records = append(w.records, telemetry.Record{Topic: telemetry.TopicOutcome, Decision: d})
	}
}

// about says that a record of a decision is among them.
func (w *outcomes) about(id string) bool {
	return slices.ContainsFunc(w.records, func(r telemetry.Record) bool { return r.Decision.ID == id })
}

func (w *outcomes) flush(ctx context.Context) {
	if len(w.records) > 0 {
		w.engine.writeAll(ctx, w.records, nil)
	}
	w.records = nil
}
