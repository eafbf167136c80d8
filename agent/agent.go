package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Bus is how orders come in and receipts go out.
type Bus interface {
	// HandleOrders calls fn with every order for the node, several at a time,
	// and sends back what it returns.
	HandleOrders(node string, fn func(data []byte) []byte) (stop func(), err error)
	// PublishReceipt sends a receipt until it is stored, and then calls stored.
	PublishReceipt(node string, r telemetry.Receipt, stored func()) error
}

// Options are what an agent is made of.
type Options struct {
	Config
	Writer Writer
	Bus    Bus
	// Headroom reads how far, in celsius, a device is from slowing down; an error
	// says that it is not known. It may block. Nil: every device counts as cool.
	Headroom func(uuid string) (celsius float64, err error)
	// Lister says who holds the devices. Without it no process is ended.
	Lister Lister
	// Processes are those of the node; process.Proc{} unless set.
	Processes Processes
	// Generation is the present generation of a device's layout; an order for
	// another one is refused. Without it a device is known by its uuid alone.
	Generation func(uuid string) (uint64, error)
	// ClockSynced is the kernel's word on its clock; adjtimex unless set.
	ClockSynced func() (bool, error)
	// BootID is the life of the node; read from the kernel unless set.
	BootID string
	// Registry takes the metrics and serves them in Handler; a new one unless set.
	Registry *prometheus.Registry
	Log      *slog.Logger
}

const (
	// undoEvery spreads the load that comes back when many leases end at once.
	undoEvery = 5 * time.Second
	// busyAfter is how long an order waits for its device.
	busyAfter = 5 * time.Second
	// keepEnded is how long ended orders stay known.
	keepEnded = 24 * time.Hour
)

// Agent executes orders. New opens its ledger, Run works until its end.
type Agent struct {
	cfg      Config
	o        Options
	trust    telemetry.Trust
	writer   Writer
	ledger   *ledger
	log      *slog.Logger
	metrics  *metrics
	bootID   string
	life     uint64 // incarnation of this process
	running  atomic.Bool
	broken   atomic.Pointer[string] // why the ledger cannot be written
	lastUndo time.Time
	work     sync.WaitGroup
	closing  sync.Once
	lists    *lists // nil without a Lister
	// As the constants; tests are impatient.
	killWithin, releaseWithin time.Duration

	stopping chan struct{}  // closed when the agent is to end
	aside    sync.WaitGroup // orders that outlast their request

	mu       sync.Mutex
	devices  map[string]chan struct{} // a slot each: who holds it may touch the device
	inflight map[string]chan struct{} // by order id, closed at its end
	ending   map[process.ID]string    // processes that are being ended: the step that does
	left     []entry                  // orders that a former run did not end
	held     map[string]hold          // by uuid, as in the ledger
	retry    map[string]retry         // by uuid, of undos that failed
	waits    map[string]*wait         // by uuid, of those whose lease is over
	sent     []uint64                 // receipts that the bus has stored since the ledger was told
}

// retry paces the attempts to undo what could not be undone.
type retry struct {
	at       time.Time
	pause    time.Duration
	reported bool
}

// New opens the ledger and checks the configuration.
func New(o Options) (*Agent, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Writer == nil || o.Bus == nil {
		return nil, errors.New("agent: no writer or no bus")
	}
	trust, err := telemetry.NewTrust(o.TrustedKeys...)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{
		cfg: o.Config, o: o, trust: trust, writer: guarded{o.Writer}, log: o.Log, bootID: o.BootID,
		life:     uint64(time.Now().UnixNano()),
		devices:  map[string]chan struct{}{},
		inflight: map[string]chan struct{}{},
		ending:   map[process.ID]string{},
		stopping: make(chan struct{}), killWithin: killLasts, releaseWithin: releaseLasts,
		held:  map[string]hold{},
		retry: map[string]retry{},
		waits: map[string]*wait{},
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if o.Lister != nil {
		a.lists = newLists(o.Lister)
	}
	if a.o.Processes == nil {
		a.o.Processes = process.Proc{}
	}
	if a.o.Registry == nil {
		a.o.Registry = prometheus.NewRegistry()
	}
	if a.o.ClockSynced == nil {
		a.o.ClockSynced = clockSynced
	}
	if a.bootID == "" {
		if a.bootID, err = bootID(); err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
	}
	if a.metrics, err = newMetrics(a.o.Registry); err != nil {
		return nil, err
	}
	if err := a.open(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) open() (err error) {
	if a.ledger, err = openLedger(a.cfg.Ledger); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	// Read before the first order can come: what this run begins is not taken
	// for what a former one left.
	holds, err := a.ledger.holds()
	if err == nil {
		a.left, err = a.ledger.unfinished()
	}
	if err == nil && a.cfg.AcceptEpoch {
		a.log.Warn("forgetting the highest epoch seen, as asked; take --accept-epoch off again")
		err = a.ledger.forgetEpoch()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("agent: %w", err), a.ledger.close())
	}
	for _, h := range holds {
		a.held[h.UUID] = h
	}
	a.metrics.caps.Set(float64(len(a.held)))
	return nil
}

// Run resolves and reports what an earlier run left unfinished, then takes
// orders and undoes what runs out, until ctx ends. Limits that still hold then
// stay: their leases are in the ledger and the next run minds them.
func (a *Agent) Run(ctx context.Context) error {
	defer a.Close()
	if err := a.resolveUnfinished(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if err := a.publishWaiting(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	stop, err := a.o.Bus.HandleOrders(a.cfg.Node, a.Handle)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.running.Store(true)
	a.sayWhose()
	a.log.Info("agent takes orders", "node", a.cfg.Node, "allow", a.cfg.Allow, "caps", len(a.held))
	a.mind(ctx)
	a.running.Store(false)
	a.halt()
	stop()
	a.aside.Wait()
	a.work.Wait()
	a.forgetSent()
	return ctx.Err()
}

// sayWhose logs whose processes may be ended, and who is named and unknown here.
func (a *Agent) sayWhose() {
	if !slices.Contains(a.cfg.Allow, telemetry.StepPreempt) {
		return
	}
	a.log.Info("processes may be ended", "users", a.cfg.Processes.Users, "cgroups", a.cfg.Processes.Cgroups, "notices", a.cfg.Notices)
	if a.lists != nil {
		go func() { _, _ = a.lists.find() }() // the first order need not wait for it
	}
	if unknown := a.cfg.Processes.Unknown(); len(unknown) > 0 {
		a.log.Warn("processes.users names whom this node does not know; nobody's processes are meant by that", "users", unknown)
	}
}

// halt ends what outlasts its request; the next run goes on with it.
func (a *Agent) halt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.halted() {
		close(a.stopping)
	}
}

func (a *Agent) halted() bool {
	select {
	case <-a.stopping:
		return true
	default:
		return false
	}
}

// Close closes the ledger. Run does so at its end.
func (a *Agent) Close() {
	a.halt()
	a.aside.Wait()
	a.closing.Do(func() {
		if err := a.ledger.close(); err != nil {
			a.log.Error("close ledger", "err", err)
		}
	})
}

// mind is the agent's own clockwork.
func (a *Agent) mind(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	pruned := time.Time{}
	for {
		now := time.Now()
		a.undoDue(now)
		a.forgetSent()
		if now.Sub(pruned) >= time.Hour {
			pruned = now
			if n, err := a.ledger.prune(now.Add(-keepEnded)); err != nil {
				a.log.Error("prune ledger", "err", err)
			} else if n > 0 {
				a.log.Debug("ledger pruned", "orders", n)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Handle carries out one signed order and returns its encoded receipt. It may
// be called for several orders at a time.
func (a *Agent) Handle(data []byte) []byte {
	r, kind := a.process(data)
	a.note(r, kind)
	answer, err := json.Marshal(r)
	if err != nil { // a number that JSON lacks; the ledger would have refused it
		a.log.Error("encode receipt", "id", r.StepID, "err", err)
		return nil
	}
	return answer
}

// note counts and logs what became of an order.
func (a *Agent) note(r telemetry.Receipt, kind telemetry.StepKind) {
	if kind == kindAsk {
		a.log.Debug("asked", "id", r.StepID, "result", r.Result, "detail", r.Detail)
		return
	}
	a.metrics.order(kind, r.Result)
	if r.Result == telemetry.Refused || r.Result == telemetry.Failed {
		a.log.Warn("order", "id", r.StepID, "kind", kind, "target", r.Target.String(), "result", r.Result, "why", r.Why, "detail", r.Detail, "undone", r.Undone)
	} else {
		a.log.Info("order", "id", r.StepID, "kind", kind, "target", r.Target.String(), "result", r.Result, "dry_run", r.DryRun, "detail", r.Detail)
	}
}

// finish makes an outcome final and hands its receipt to the bus.
func (a *Agent) finish(out outcome) error {
	key, err := a.ledger.end(out, time.Now())
	a.ledgerState(err)
	if err != nil {
		return err
	}
	a.mu.Lock()
	if out.drop != "" {
		delete(a.held, out.drop)
		delete(a.retry, out.drop)
		delete(a.waits, out.drop)
	}
	if out.hold != nil {
		a.held[out.hold.UUID] = *out.hold
		delete(a.retry, out.hold.UUID)
		delete(a.waits, out.hold.UUID)
	}
	a.metrics.caps.Set(float64(len(a.held)))
	a.mu.Unlock()
	a.publish(key, out.receipt)
	return nil
}

func (a *Agent) publish(key uint64, r telemetry.Receipt) {
	err := a.o.Bus.PublishReceipt(a.cfg.Node, r, func() {
		// The next receipt waits for this call to end, so it writes nothing: a
		// receipt that the ledger does not know as sent is only sent again.
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sent = append(a.sent, key)
	})
	if err != nil {
		a.log.Error("receipt not sent", "id", r.StepID, "err", err)
	}
}

// forgetSent tells the ledger what the bus has stored.
func (a *Agent) forgetSent() {
	a.mu.Lock()
	keys := a.sent
	a.sent = nil
	a.mu.Unlock()
	if err := a.ledger.sent(keys...); err != nil {
		a.log.Warn("receipts will be sent again at the next start", "receipts", len(keys), "err", err)
	}
}

func (a *Agent) publishWaiting() error {
	keys, receipts, err := a.ledger.waiting()
	if err != nil {
		return err
	}
	for i, r := range receipts {
		a.publish(keys[i], r)
	}
	return nil
}

// ledgerState notes for the health check whether the last write succeeded.
func (a *Agent) ledgerState(err error) {
	if err == nil {
		a.broken.Store(nil)
		return
	}
	text := err.Error()
	a.broken.Store(&text)
	a.log.Error("ledger", "err", err)
}

// lock waits for a device, bounded.
func (a *Agent) lock(uuid string, wait time.Duration) bool {
	a.mu.Lock()
	slot := a.devices[uuid]
	if slot == nil {
		slot = make(chan struct{}, 1)
		a.devices[uuid] = slot
	}
	a.mu.Unlock()
	if wait <= 0 {
		select {
		case slot <- struct{}{}:
			return true
		default:
			return false
		}
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case slot <- struct{}{}:
		return true
	case <-t.C:
		return false
	}
}

func (a *Agent) unlock(uuid string) {
	a.mu.Lock()
	slot := a.devices[uuid]
	a.mu.Unlock()
	<-slot
}

func (a *Agent) holdOf(uuid string) (hold, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok := a.held[uuid]
	return h, ok
}

// receipt begins the receipt of a step.
func (a *Agent) receipt(o *telemetry.Order) telemetry.Receipt {
	return telemetry.Receipt{
		StepID: o.ID, Decision: o.Decision, Kind: o.Kind, Target: o.Target, DryRun: o.DryRun,
		Started: time.Now().Round(0), Node: a.cfg.Node, BootID: a.bootID, Incarnation: a.life,
	}
}

func refuse(r telemetry.Receipt, why telemetry.RefuseReason, format string, args ...any) telemetry.Receipt {
	r.Result, r.Why, r.Detail, r.Ended = telemetry.Refused, why, fmt.Sprintf(format, args...), time.Now().Round(0)
	return r
}

func fail(r telemetry.Receipt, format string, args ...any) telemetry.Receipt {
	r.Result, r.Detail, r.Ended = telemetry.Failed, fmt.Sprintf(format, args...), time.Now().Round(0)
	return r
}

func done(r telemetry.Receipt, format string, args ...any) telemetry.Receipt {
	r.Result, r.Detail, r.Ended = telemetry.Done, fmt.Sprintf(format, args...), time.Now().Round(0)
	return r
}

// guarded makes a panic of the driver's wrapper an error: one device must not
// take the agent, and with it the leases of the others, down.
type guarded struct{ w Writer }

func (g guarded) PowerLimits(uuid string) (l telemetry.PowerLimits, err error) {
	defer recovered(&err)
	return g.w.PowerLimits(uuid)
}

func (g guarded) SetPowerLimit(uuid string, watts float64) (err error) {
	defer recovered(&err)
	return g.w.SetPowerLimit(uuid, watts)
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic in the driver call: %v", p)
	}
}
