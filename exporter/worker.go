package exporter

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// sample is what one round found. It belongs to the worker while it is filled
// and to the tick once it is handed over.
type sample struct {
	at         time.Time // start of the round
	fast       values
	link, slow part
	links      linkValues
	linkWhys   [linkKinds][whys]uint32
	processes  []Process // of the last link round
	listed     bool      // the driver could list them
	invalid    [maxSlots][whys]uint32
	results    []result
	fatal      Fault // the device, or the whole driver, is gone
	fatalErr   error
}

func newSample() *sample { return &sample{results: make([]result, len(readers))} }

// dropped calls f for each metric and reason with the number of values that were
// dropped, over all series of the metric.
func (s *sample) dropped(f func(metric string, w why, n float64)) {
	for i := 0; i < len(slots); {
		row := slots[i].row
		var sum [whys]float64
		for ; i < len(slots) && slots[i].row == row; i++ {
			for w, n := range s.invalid[i] {
				sum[w] += float64(n)
			}
		}
		told(row, &sum, f)
	}
	for k := linkKind(0); k < linkKinds; {
		row := telemetry.RowOf(linkCounts[k].id)
		var sum [whys]float64
		for ; k < linkKinds && telemetry.RowOf(linkCounts[k].id) == row; k++ {
			for w, n := range s.linkWhys[k] {
				sum[w] += float64(n)
			}
		}
		told(row, &sum, f)
	}
}

func told(row *telemetry.Row, sum *[whys]float64, f func(metric string, w why, n float64)) {
	for w, n := range sum {
		if n > 0 {
			f(row.Name, why(w), n)
		}
	}
}

// answered says that the device gave an answer in this round.
func (s *sample) answered() bool { return s.fatal == "" }

// job asks a worker for one round.
type job struct {
	tick       uint64
	due        due
	device     Device
	generation uint64
}

// worker reads one GPU. Only its goroutine calls the device, so there is never
// more than one call outstanding, and one that hangs holds up nothing else.
type worker struct {
	jobs   chan job
	busy   atomic.Bool   // from the moment a job is given until its sample is handed over
	all    *atomic.Int32 // how many workers are busy
	call   callMark
	period time.Duration
	mem    memory
	back   *sample // the worker's own

	mu    sync.Mutex // held for swaps of pointers only
	ready *sample
	fresh bool
}

func newWorker(period time.Duration, epoch time.Time, all *atomic.Int32) *worker {
	w := &worker{
		jobs: make(chan job, 1), period: period, all: all,
		back: newSample(), ready: newSample(),
	}
	w.call.epoch = epoch
	w.mem.results = make([]result, len(readers))
	return w
}

// offer gives the worker a job unless it is still at one.
func (w *worker) offer(j job) bool {
	if !w.busy.CompareAndSwap(false, true) {
		return false
	}
	w.all.Add(1)
	w.jobs <- j // has room: the worker takes a job before it stops being busy
	return true
}

// take exchanges the tick's sample for a newer one, if there is one.
func (w *worker) take(front *sample) (*sample, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.fresh {
		return front, false
	}
	w.fresh = false
	front, w.ready = w.ready, front
	return front, true
}

// run serves jobs until ctx ends. done is told which tick a round was for.
func (w *worker) run(ctx context.Context, done chan<- uint64) {
	var r reading
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-w.jobs:
			w.round(&r, j)
			w.handOver()
			w.busy.Store(false)
			w.all.Add(-1)
			select {
			case done <- j.tick:
			default: // nobody waits for a round that is this late
			}
		}
	}
}

func (w *worker) round(r *reading, j job) {
	s := w.back
	s.fast.mark = [maxSlots]mark{}
	if j.generation != w.mem.generation {
		w.mem.generation, w.mem.arch = j.generation, archOf(j.device.Identity().Arch)
		w.mem.at = time.Time{}
		w.mem.links.restart()
		j.due = everything
	}
	at := time.Now()
	*r = reading{
		dev: j.device, at: at, period: w.period, due: j.due, out: s, mem: &w.mem, call: &w.call,
		fields: r.fields, perLink: r.perLink, samples: r.samples,
	}
	if !w.mem.at.IsZero() {
		r.elapsed = at.Sub(w.mem.at)
	}
	r.round(readers)
	s.fatal, s.fatalErr = FaultOf(r.fatal), r.fatal
	if r.fatal == nil {
		w.mem.at = at
	}
	s.at, s.link, s.slow = at, w.mem.link, w.mem.slow
	w.mem.links.copyTo(&s.links)
	s.linkWhys = w.mem.links.invalid
	s.processes, s.listed = append(s.processes[:0], w.mem.processes...), w.mem.listed
	s.invalid = w.mem.invalid
	copy(s.results, w.mem.results)
}

func (w *worker) handOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.back, w.ready = w.ready, w.back
	w.fresh = true
}
