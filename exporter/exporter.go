package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Periods and bounds of the tick.
const (
	DefaultPeriod = time.Second
	MinPeriod     = 100 * time.Millisecond
	LinkPeriod    = 5 * time.Second
	SlowPeriod    = 15 * time.Second
	maxWait       = 200 * time.Millisecond // for rounds of this tick, at most a quarter of the period
	minHang       = 150 * time.Millisecond // a call that is younger is not called hung
	missedTicks   = 2                      // after which a GPU is down
)

// Options of an Exporter.
type Options struct {
	Node    string
	Cluster string
	Source  Source
	Sink    Sink          // nil: /metrics only
	Period  time.Duration // 0: DefaultPeriod
	Members Members       // nil: frames do not say who holds a GPU
	// Samples tell what is not the devices' own.
	Samples []SampleSource
	Compat  string // CompatDCGM, or nothing
	// Registry takes the exporter's own metrics and is served with the devices';
	// a new one if nil.
	Registry *prometheus.Registry
	Log      *slog.Logger
}

// Exporter reads the GPUs of one node. Run it once, or take one frame by Once.
type Exporter struct {
	opt     Options
	log     *slog.Logger
	start   time.Time // base of monotonic time, and the incarnation
	driver  *driver
	metrics *metrics
	events  *events
	// listener has no source where there is no driver that says anything.
	listener listener
	busy     atomic.Int32
	done     chan uint64
	alive    atomic.Int64 // last tick, since start

	// Of the tick alone.
	seq      uint64
	lastLink time.Time
	lastSlow time.Time
	version  uint64 // of the driver state the list of GPUs was made from
	changed  bool   // something of the slow part is new

	incomplete bool           // a device could not be opened
	nameless   map[int]string // what was logged of a place whose GPU has no name
	frame      frame
	workers    context.Context

	driverTold condition
	wasUp      bool // the driver was, at some time

	mu    sync.Mutex // guards what a scrape or the listener reads
	gpus  []*gpu     // in order of PCI address
	state driverState
	expo  exposition
}

// New checks the options and prepares an exporter. It makes no driver call.
func New(opt Options) (*Exporter, error) {
	if opt.Period == 0 {
		opt.Period = DefaultPeriod
	}
	switch {
	case opt.Node == "":
		return nil, errors.New("exporter: a node name is needed")
	case opt.Source == nil:
		return nil, errors.New("exporter: a source is needed")
	case opt.Compat != "" && opt.Compat != CompatDCGM:
		return nil, fmt.Errorf("exporter: compat %q, want %s or nothing", opt.Compat, CompatDCGM)
	case opt.Period < MinPeriod:
		return nil, fmt.Errorf("exporter: period %v is below %v", opt.Period, MinPeriod)
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	e := &Exporter{
		opt: opt, log: opt.Log.With("component", "exporter"), start: time.Now(),
		done: make(chan uint64, 2*telemetry.MaxGPUs), nameless: map[int]string{},
	}
	e.driver = newDriver(opt.Source, e.log, e.start, func() int { return int(e.busy.Load()) })
	e.state = e.driver.now(e.start)
	if opt.Registry == nil {
		opt.Registry = prometheus.NewRegistry()
	}
	var err error
	if e.metrics, err = newMetrics(opt.Registry, opt.Source); err != nil {
		return nil, err
	}
	e.expo.init(opt.Node)
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		e.log.Warn("no boot id; a reboot cannot be told from a restart", "err", err)
	}
	boot := string(bytes.TrimSpace(id))
	e.frame.init(opt, boot, e.start)
	if e.events, err = newEvents(opt, boot, e.start, opt.Registry, e.log); err != nil {
		return nil, err
	}
	e.listener = listener{events: e.events, driver: e.driver, log: e.log, heard: e.heard}
	e.listener.call.epoch, e.listener.stuck.epoch = e.start, e.start
	e.listener.src, _ = opt.Source.(Notifier)
	return e, nil
}

// Run ticks until ctx ends. It returns nil then.
func (e *Exporter) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.workers = ctx
	if e.opt.Members != nil {
		go e.opt.Members.Run(ctx)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		e.driver.run(ctx)
	}()
	deaf, given := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(deaf)
		if e.listener.src != nil {
			e.listener.run(ctx) // closing the driver ends its wait
		}
	}()
	go func() {
		defer close(given)
		e.events.run(ctx)
	}()
	timer := time.NewTimer(untilTick(time.Now(), e.opt.Period, e.opt.Node))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			// A driver that hangs does not keep the process from ending.
			end := time.After(settleFor + 2*time.Second)
			for _, done := range [...]chan struct{}{closed, given, deaf} {
				select {
				case <-done:
				case <-end:
					e.log.Warn("ending with a call outstanding")
					return nil
				}
			}
			return nil
		case <-timer.C:
		}
		e.tick(min(e.opt.Period/4, maxWait))
		timer.Reset(untilTick(time.Now(), e.opt.Period, e.opt.Node))
	}
}

// untilTick is the time to the next tick. Ticks of a node lie at a fixed place
// in the period, taken from its name, so that a fleet does not send all its
// frames at once. One that is less than half a period away is left out: it
// would catch up on a late one, and two samples close together tell nothing.
func untilTick(now time.Time, period time.Duration, node string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	offset := time.Duration(uint64(h.Sum32()) * uint64(period) >> 32)
	wait := now.Truncate(period).Add(offset).Sub(now)
	for wait < period/2 {
		wait += period
	}
	return wait
}

// tick reads what answers in time, and says so.
func (e *Exporter) tick(wait time.Duration) {
	now := time.Now()
	e.seq++
	e.alive.Store(int64(now.Sub(e.start)))
	e.metrics.ticks.Inc()
	e.follow(e.driver.now(now))
	d := due{link: e.turn(&e.lastLink, now, LinkPeriod)}
	if e.turn(&e.lastSlow, now, SlowPeriod) {
		d = everything
	}
	e.await(e.dispatch(d), wait)
	e.collect(now)
	d.link = e.tell() || d.link
	e.events.flush(now)
	e.send(now, d)
}

// turn says whether a slower part is due, and if so that it has been read.
func (e *Exporter) turn(last *time.Time, now time.Time, period time.Duration) bool {
	if !last.IsZero() && now.Sub(*last) < period-e.opt.Period/2 {
		return false
	}
	*last = now
	return true
}

// dispatch gives each worker that is free a round, and returns how many.
func (e *Exporter) dispatch(d due) int {
	given := 0
	e.nudge()
	for _, g := range e.gpus {
		g.want = g.want.or(d)
		if g.device == nil {
			continue
		}
		j := job{tick: e.seq, due: g.want, device: g.device, generation: g.generation()}
		if e.driver.give(g.opens, func() bool { return g.worker.offer(j) }) {
			g.want = due{}
			given++
		}
	}
	return given
}

// nudge has what the driver said something of read at once.
func (e *Exporter) nudge() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.gpus {
		if g.nudged {
			g.nudged, g.want = false, everything
		}
	}
}

// await waits until n rounds of this tick are in, and no longer than wait.
func (e *Exporter) await(n int, wait time.Duration) {
	if n == 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for n > 0 {
		select {
		case seq := <-e.done:
			if seq == e.seq {
				n--
			}
		case <-timer.C:
			return
		}
	}
}

// send makes the frame and gives it to the sink.
func (e *Exporter) send(now time.Time, d due) {
	d.slow = d.slow || e.changed || e.events.fresh.Swap(false)
	for _, g := range e.gpus {
		if g.got && g.front.slow.rounds != g.sentSlow {
			g.sentSlow, d.slow = g.front.slow.rounds, true
		}
		if g.got && g.front.link.rounds != g.sentLink {
			g.sentLink, d.link = g.front.link.rounds, true
		}
	}
	e.changed = false
	d.link = d.link || d.slow && e.opt.Members != nil // members come with the link part
	data, err := e.frame.encode(e, now, d)
	if err == nil && e.opt.Sink != nil {
		err = e.opt.Sink.Frame(data)
	}
	if err != nil {
		e.metrics.dropped(err)
		e.log.Debug("frame not sent", "sequence", e.seq, "err", err)
	}
}

// Once opens the driver, reads every GPU one time and returns the frame. A
// driver that is not there is no error: the frame says so. ctx bounds it all.
func (e *Exporter) Once(ctx context.Context) (*telemetry.Frame, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.workers = ctx
	if e.opt.Members != nil {
		go e.opt.Members.Run(ctx)
	}
	opened := make(chan error, 1)
	go func() { opened <- e.driver.open() }()
	select {
	case err := <-opened:
		if err != nil {
			e.driver.down(err)
		}
	case <-ctx.Done():
		e.driver.down(&DriverError{Call: callNames[callOpen], Fault: Hung})
	}
	e.tick(patience)
	err := e.wholeFrame(ctx)
	up := e.driver.now(time.Now()).up
	cancel()
	if up {
		e.driver.stop()
	}
	return e.frame.msg, err
}

// wholeFrame makes the frame again with who holds the GPUs, which a tick does
// not wait for.
func (e *Exporter) wholeFrame(ctx context.Context) error {
	if e.opt.Members == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e.opt.Members.Settle(ctx)
	e.holders()
	_, err := e.frame.encode(e, time.Now(), due{link: true, slow: true})
	return err
}

// Gatherer serves what /metrics serves, for one caller at a time and not beside
// Handler: its families are valid until the next Gather.
func (e *Exporter) Gatherer() prometheus.Gatherer {
	return prometheus.GathererFunc(e.gather)
}
