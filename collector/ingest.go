package collector

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// entry is a node as its worker and the exposition share it.
type entry struct {
	name string
	mu   sync.Mutex // held by the worker while it judges
	j    *cluster.Judge
	last time.Time // arrival of the last frame taken
	// refused counts values in the node's frames, by why.
	refused map[string]uint64
}

func (e *entry) judge(at time.Time, f *telemetry.Frame, x *cluster.Judged) (cluster.Verdict, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v, err := e.j.JudgeInto(at, f, x)
	if err != nil {
		return v, err
	}
	e.last = at
	if o := x.Message; v.Publish && len(o.GetRefused()) > 0 {
		e.count(o)
	}
	return v, nil
}

// count adds what the judge refused; its reasons are few.
func (e *entry) count(o *telemetry.Observation) {
	if e.refused == nil {
		e.refused = map[string]uint64{}
	}
	for _, r := range o.GetRefused() {
		e.refused[r.GetWhy()] += uint64(r.GetCount())
	}
}

// nodes are all entries, bounded in number.
type nodes struct {
	mu    sync.RWMutex
	limit int
	by    map[string]*entry
	swept time.Time // when silent ones were last looked for
	drops atomic.Uint64
}

func (n *nodes) get(name string) *entry {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.by[name]
}

// The search for silent nodes looks at each one. It is made now and then, and
// more often while somebody is refused, who asks again with each frame.
const (
	sweepEvery = time.Minute
	sweepFull  = 10 * time.Second
)

// add returns the entry of a node, nil if there are too many. A node that has
// been silent for longer than any is kept makes room.
func (n *nodes) add(name string, now time.Time, links bool) *entry {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.by[name]; e != nil {
		return e
	}
	if len(n.by) >= n.limit {
		n.forget(now, sweepFull)
	}
	if len(n.by) >= n.limit {
		return nil
	}
	e := &entry{name: name, j: cluster.NewJudge(name, links)}
	n.by[name] = e
	return e
}

// sweep forgets nodes that have been silent for longer than any is kept.
func (n *nodes) sweep(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget(now, sweepEvery)
}

func (n *nodes) forget(now time.Time, every time.Duration) {
	if now.Sub(n.swept) < every {
		return
	}
	n.swept = now
	for name, e := range n.by {
		e.mu.Lock()
		silent := now.Sub(e.last) > cluster.ForgetAfter
		e.mu.Unlock()
		if silent {
			delete(n.by, name)
			n.drops.Add(1)
		}
	}
}

// worker decodes and judges the frames of its share of the nodes.
type worker struct {
	c     *Collector
	queue *ring
	// bySubject saves parsing a subject that was found good.
	bySubject map[string]*entry
	drops     uint64 // nodes forgotten when bySubject was last looked through
	decoder   telemetry.FrameDecoder
	judged    cluster.Judged
	encoder   encoder
	complain  time.Time // when a failed publication may be logged again
}

func newWorker(c *Collector, queue int) *worker {
	return &worker{c: c, queue: newRing(queue), bySubject: map[string]*entry{}}
}

var hashSeed = maphash.MakeSeed()

// takeFrame is the bus's callback: it only enqueues. All frames of a subject go
// to the same worker, so they stay in order and a judge has one caller.
func (c *Collector) takeFrame(subject string, data []byte) {
	if len(data) > telemetry.MaxFrameBytes {
		c.metrics.drop(telemetry.DropOversized, 1)
		return
	}
	w := c.workers[maphash.String(hashSeed, subject)%uint64(len(c.workers))]
	if w.queue.push(arrival{subject, data, c.opts.Now()}) {
		c.metrics.drop(telemetry.DropQueueFull, 1)
	}
}

func (w *worker) run(ctx context.Context) {
	batch := make([]arrival, 0, 64)
	for {
		batch = w.queue.take(batch)
		for _, a := range batch {
			w.take(a)
		}
		if len(batch) == 0 || ctx.Err() != nil {
			select {
			case <-ctx.Done():
				return
			case <-w.queue.wake:
			}
		}
	}
}

// take counts a frame that is refused. A frame that makes the code panic is
// refused like any other: one node must not take the fleet's eyes.
func (w *worker) take(a arrival) {
	defer func() {
		if p := recover(); p != nil {
			w.c.metrics.drop(telemetry.DropMalformed, 1)
			w.c.log.Error("a frame was refused because judging it panicked; please report it", "subject", a.subject, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	if err := w.judge(a); err != nil {
		w.c.metrics.drop(telemetry.WhyDropped(err), 1)
	}
}

func (w *worker) judge(a arrival) error {
	f, e, err := w.entry(a)
	if err != nil {
		return err
	}
	v, err := e.judge(a.at, f, &w.judged)
	if err != nil {
		return err
	}
	if v.Lost > 0 {
		w.c.metrics.drop(telemetry.DropLost, v.Lost)
	}
	w.c.metrics.lag.saw(a.at, v.Age+w.c.opts.Now().Sub(a.at))
	w.c.ready.heard(f)
	if !v.Publish {
		return nil
	}
	return w.publish(a.at, e.name)
}

// entry decodes a frame and finds its node; only a frame that is sound in
// itself can make a node known.
func (w *worker) entry(a arrival) (*telemetry.Frame, *entry, error) {
	if drops := w.c.nodes.drops.Load(); drops != w.drops {
		w.drops = drops
		maps.DeleteFunc(w.bySubject, func(_ string, e *entry) bool { return w.c.nodes.get(e.name) != e })
	}
	e := w.bySubject[a.subject]
	var name string
	if e != nil {
		name = e.name
	} else {
		var err error
		if name, err = frameNode(a.subject); err != nil {
			return nil, nil, err
		}
	}
	f, err := w.decoder.Decode(a.data)
	if err != nil {
		return nil, nil, err
	}
	if err := telemetry.CheckNode(name, f.GetNode()); err != nil {
		return nil, nil, err
	}
	if e == nil || w.c.nodes.get(name) != e {
		delete(w.bySubject, a.subject)
		if e = w.c.nodes.add(name, a.at, w.c.opts.PerLink); e == nil {
			return nil, nil, &telemetry.DropError{Why: telemetry.DropTooMany, Detail: fmt.Sprintf("node %s: %d nodes are the most taken", name, w.c.opts.MaxNodes)}
		}
		w.bySubject[strings.Clone(a.subject)] = e
	}
	return f, e, nil
}

// frameNode is the node of a frame's subject.
func frameNode(subject string) (string, error) {
	if !strings.HasPrefix(subject, telemetry.Root+"."+telemetry.FamilyFrame+".") || strings.Count(subject, ".") != 4 {
		return "", &telemetry.DropError{Why: telemetry.DropForeign, Detail: "subject " + subject}
	}
	return telemetry.SubjectNode(subject)
}

// publish folds the observation and sends it.
func (w *worker) publish(at time.Time, node string) error {
	c := w.c
	if err := c.state.ObserveJudged(at, &w.judged); err != nil {
		return err
	}
	c.history.add(at, &w.judged)
	c.changes.notify()
	if !c.lead.leads() {
		return nil
	}
	data, err := w.encoder.encode(&w.judged)
	if err == nil && c.lead.leads() { // the last moment to see that the lease is over
		err = c.opts.Bus.PublishObservation(node, data)
	}
	if err != nil && at.After(w.complain) {
		w.complain = at.Add(10 * time.Second)
		c.log.Warn("observation not sent; the rebalancer does not see this node", "node", node, "err", err)
	}
	return nil
}
