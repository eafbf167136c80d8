package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Options is what a collector needs. Bus is required.
type Options struct {
	Bus Bus
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Log takes what a person may have to act on; slog.Default() if nil.
	Log *slog.Logger
	// Registry takes the collector's own metrics and is served with the fleet's
	// on /metrics; a new one if nil.
	Registry *prometheus.Registry
	// Workers decode and judge; as many as cores if zero.
	Workers int
	// Queue is how many frames may wait, over all workers.
	Queue int
	// MaxNodes bounds the nodes taken; frames of more are refused.
	MaxNodes int
	// PerLink serves the series of single NVLinks too.
	PerLink bool
	// HistoryGPUs bounds the devices whose past is kept, 20 kB each.
	HistoryGPUs int
	// MaxDecisions bounds the decisions kept.
	MaxDecisions int
	// Inventory is the file that says what the fleet should be; none if nil.
	Inventory *InventoryFile
	// Partitions is the share of the fleet that is heard; all if zero.
	Partitions telemetry.PartitionSet
	// Lease says which of the collectors of these partitions speaks for them;
	// this one always if nil. Name tells it from the others, and is the same
	// after a restart.
	Lease Lease
	Name  string
}

// Defaults of Options.
const (
	DefaultQueue        = 16384
	DefaultMaxNodes     = 20000
	DefaultHistoryGPUs  = 4096
	DefaultMaxDecisions = 10000
)

func (o *Options) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	for _, d := range []struct {
		v    *int
		when int
	}{{&o.Workers, runtime.GOMAXPROCS(0)}, {&o.Queue, DefaultQueue}, {&o.MaxNodes, DefaultMaxNodes}, {&o.HistoryGPUs, DefaultHistoryGPUs}, {&o.MaxDecisions, DefaultMaxDecisions}} {
		if *d.v <= 0 {
			*d.v = d.when
		}
	}
	if o.Partitions == 0 {
		o.Partitions = telemetry.AllPartitions
	}
}

// Collector brings the fleet together.
type Collector struct {
	opts      Options
	log       *slog.Logger
	state     *cluster.State
	metrics   *metrics
	workers   []*worker
	nodes     nodes
	history   *history
	decisions *decisions
	receipts  receipts
	changes   changes
	ready     ready
	families  *exposition
	file      *fileSource // nil without a file
	lead      *lead
	scrapers  scrapers
}

// New returns a collector that does nothing until Run.
func New(o Options) (*Collector, error) {
	if o.Bus == nil {
		return nil, errors.New("collector: no bus given")
	}
	o.defaults()
	c := &Collector{
		opts: o, log: o.Log, state: cluster.NewState(), metrics: newMetrics(o.Registry, o.Now, o.Inventory != nil),
		nodes:   nodes{limit: o.MaxNodes, by: map[string]*entry{}},
		history: newHistory(o.HistoryGPUs), decisions: newDecisions(o.MaxDecisions),
	}
	if o.Partitions != telemetry.AllPartitions {
		c.state = cluster.NewShare(o.Partitions.HasNode)
	}
	c.lead = newLead(o.Name, o.Lease, o.Now, c.speaking)
	registerLead(c)
	for range o.Workers {
		c.workers = append(c.workers, newWorker(c, max(o.Queue/o.Workers, 1)))
	}
	if o.Inventory != nil {
		c.file = &fileSource{InventoryFile: *o.Inventory, c: c}
		if c.file.Active == nil {
			c.file.Active = c.Active
		}
	}
	o.Registry.MustRegister(newFleetMetrics(c))
	c.families = newExposition(c)
	return c, nil
}

// Run takes from the bus until ctx ends or the bus refuses a subscription.
func (c *Collector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, w := range c.workers {
		wg.Go(func() { w.run(ctx) })
	}
	stop, err := c.subscribe(ctx)
	defer stop()
	if err != nil {
		return err
	}
	c.ready.start(c.opts.Now())
	wg.Go(func() { c.follow(ctx) })
	if c.file != nil {
		wg.Go(func() { c.file.run(ctx) })
	}
	if c.opts.Lease != nil {
		wg.Go(func() { c.contend(ctx) })
	}
	c.pulse(ctx)
	return nil
}

// subscribe opens every subscription, frames last: what they are joined with
// should be there first. stop closes those that were opened.
func (c *Collector) subscribe(ctx context.Context) (stop func(), err error) {
	var open []func()
	stop = func() {
		for _, s := range open {
			s()
		}
	}
	for _, sub := range []struct {
		what string
		open func() (func(), error)
	}{
		{"inventory", func() (func(), error) { return c.opts.Bus.Inventories(ctx, c.takeInventory) }},
		{"receipts", func() (func(), error) { return c.opts.Bus.Receipts(c.takeReceipt) }},
		{"frames", func() (func(), error) { return c.opts.Bus.FramesOf(c.opts.Partitions, c.takeFrame) }},
	} {
		s, err := sub.open()
		if err != nil {
			return stop, fmt.Errorf("collector: subscribe to %s: %w", sub.what, err)
		}
		open = append(open, s)
	}
	return stop, nil
}

// pulse tells readers once a second that time has passed, as a node that falls
// silent sends nothing to be told by, and looks after what no frame does.
func (c *Collector) pulse(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.beat()
		}
	}
}

func (c *Collector) beat() {
	now := c.opts.Now()
	if c.opts.Bus.Connected() {
		c.ready.at(now) // and so it stays, whether or not somebody asked meanwhile
	} else {
		c.ready.wait(now)
	}
	c.nodes.sweep(now)
	c.changes.notify()
}

// contend holds the lease or waits for it. It ends only with ctx or the bus.
func (c *Collector) contend(ctx context.Context) {
	if err := c.lead.hold(ctx, c.opts.Lease); err != nil && ctx.Err() == nil {
		c.log.Error("the lease cannot be waited for any more", "partitions", c.opts.Partitions.String(), "err", err)
	}
}

// speaking says who speaks now, which is what people look for after a night.
func (c *Collector) speaking(yes bool) {
	c.log.Info("this collector speaks for its partitions", "partitions", c.opts.Partitions.String(), "speaks", yes)
}

// follow folds the journal. A journal that cannot be read costs the decisions
// on the page, nothing else.
func (c *Collector) follow(ctx context.Context) {
	wait := time.Second
	for ctx.Err() == nil {
		started := time.Now()
		c.decisions.clear() // a journal is told from its beginning; a new one knows nothing of the old
		err := c.opts.Bus.FollowJournal(ctx, func(_ uint64, r telemetry.Record) {
			if c.decisions.fold(r) {
				c.changes.notify()
			}
		})
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("journal cannot be followed; decisions may be missing until it can", "err", err, "retry_in", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		if wait = min(2*wait, 30*time.Second); time.Since(started) > time.Minute {
			wait = time.Second
		}
	}
}

// takeReceipt refuses a receipt of another node than that of its subject.
func (c *Collector) takeReceipt(subject string, r telemetry.Receipt) {
	if err := telemetry.CheckReceipt(subject, &r); err != nil {
		c.metrics.drop(telemetry.WhyDropped(err), 1)
		return
	}
	c.state.Receipt(c.opts.Now(), r)
	c.receipts.add(r)
	c.changes.notify()
}

// Gatherer gives the fleet's families and the collector's own, on a standby
// too. What it returns is valid until done.
func (c *Collector) Gatherer() prometheus.TransactionalGatherer { return c.families }

// Ready says whether the fleet is known: a full tick was received since the
// start.
func (c *Collector) Ready() bool { return c.ready.at(c.opts.Now()) }

// GPUs is how many devices the fleet has, seen or not.
func (c *Collector) GPUs() int {
	n := 0
	for range c.state.View(c.opts.Now()).GPUs() {
		n++
	}
	return n
}
