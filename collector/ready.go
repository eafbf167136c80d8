package collector

import (
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// ready says whether a full tick was received since the start: every node that
// lives has then been heard. Until then series would come back one by one, and
// look like nodes that fell away.
type ready struct {
	since  atomic.Int64 // start, nanoseconds
	period atomic.Int64 // the longest heard
	done   atomic.Bool
}

const (
	// readyMargin is what a frame may take on its way.
	readyMargin = 500 * time.Millisecond
	// readyAlone is when a collector that hears nobody takes that as the truth.
	readyAlone = 10 * time.Second
)

func (r *ready) start(now time.Time) { r.since.Store(now.UnixNano()) }

// wait puts the start off while nobody can be heard; once ready it stays so.
func (r *ready) wait(now time.Time) {
	if !r.done.Load() {
		r.start(now)
	}
}

func (r *ready) heard(f *telemetry.Frame) {
	p := int64(min(max(f.GetPeriodNano(), 1), uint64(readyAlone)))
	for {
		old := r.period.Load()
		if old >= p || r.period.CompareAndSwap(old, p) {
			return
		}
	}
}

func (r *ready) at(now time.Time) bool {
	if r.done.Load() {
		return true
	}
	since, period := r.since.Load(), time.Duration(r.period.Load())
	if since == 0 {
		return false
	}
	wait := readyAlone
	if period > 0 {
		wait = min(period+readyMargin, readyAlone)
	}
	if now.UnixNano()-since < int64(wait) {
		return false
	}
	r.done.Store(true)
	return true
}
