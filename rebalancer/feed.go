package rebalancer

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// feedQueue holds two seconds of observations of the largest fleet.
const feedQueue = 1 << 15

// Feed folds what arrives into the model and hands on a new View after each
// burst: one View per observation would cost more than the pass.
type Feed struct {
	state   *cluster.State
	now     func() time.Time
	log     *slog.Logger
	queue   chan arrival
	dropped atomic.Uint64
}

// arrival is an encoded observation, an inventory or a receipt.
type arrival struct {
	subject   string
	data      []byte
	inventory *telemetry.Inventory
	receipt   *telemetry.Receipt
}

// NewFeed makes a feed with an empty model.
func NewFeed(now func() time.Time, log *slog.Logger) *Feed {
	return &Feed{state: cluster.NewState(), now: now, log: log, queue: make(chan arrival, feedQueue)}
}

// Observation takes an encoded observation. Like the others it only enqueues;
// when the queue is full the oldest goes, since it says least.
func (f *Feed) Observation(subject string, data []byte) { f.put(arrival{subject: subject, data: data}) }

// Inventory takes a snapshot.
func (f *Feed) Inventory(inv telemetry.Inventory) { f.put(arrival{inventory: &inv}) }

// Receipt takes a receipt.
func (f *Feed) Receipt(r telemetry.Receipt) { f.put(arrival{receipt: &r}) }

// Dropped counts what did not find room.
func (f *Feed) Dropped() uint64 { return f.dropped.Load() }

// Register puts the count into the metrics.
func (f *Feed) Register(reg prometheus.Registerer) {
	const name = "evenkeel_feed_dropped_total"
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help(name)}, func() float64 { return float64(f.Dropped()) }))
}

func (f *Feed) put(a arrival) {
	for {
		select {
		case f.queue <- a:
			return
		default:
		}
		select {
		case <-f.queue:
			f.dropped.Add(1)
		default:
		}
	}
}

// Run folds until ctx ends and calls update with each new View.
func (f *Feed) Run(ctx context.Context, update func(*cluster.View)) error {
	var o telemetry.Observation
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-f.queue:
			f.fold(a, &o)
		}
		for range len(f.queue) { // not what comes meanwhile: the View must not wait for a lull
			select {
			case a := <-f.queue:
				f.fold(a, &o)
			default:
			}
		}
		update(f.state.View(f.now()))
	}
}

// fold takes one arrival in. What is not what it should be is said and left
// out; the rest is not disturbed.
func (f *Feed) fold(a arrival, o *telemetry.Observation) {
	now := f.now()
	switch {
	case a.inventory != nil:
		if err := f.state.Inventory(now, *a.inventory); err != nil {
			f.log.Warn("inventory refused; the last one of its source stays", "source", a.inventory.Source, "why", telemetry.WhyDropped(err), "err", err)
		}
	case a.receipt != nil:
		f.state.Receipt(now, *a.receipt)
	default:
		node, err := telemetry.SubjectNode(a.subject)
		if err == nil {
			err = telemetry.DecodeObservation(a.data, o)
		}
		if err == nil {
			err = telemetry.CheckNode(node, o.GetNode())
		}
		if err == nil {
			err = f.state.Observe(now, o)
		}
		if err != nil {
			f.log.Warn("observation refused", "subject", a.subject, "why", telemetry.WhyDropped(err), "err", err)
		}
	}
}
