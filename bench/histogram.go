package bench

import (
	"math"
	"sync/atomic"
	"time"
)

// histogram counts durations in buckets that grow by a twentieth from 10 µs on,
// so a quantile is at most that much too high; the largest is kept exactly. The
// last bucket takes all that is longer than two minutes.
type histogram struct {
	counts [buckets]atomic.Uint64
	most   atomic.Int64
}

const (
	buckets   = 336
	firstEdge = 10 * time.Microsecond
	growth    = 1.05
)

func (h *histogram) add(d time.Duration) {
	i := 0
	if d > firstEdge {
		i = min(int(math.Ceil(math.Log(float64(d)/float64(firstEdge))/math.Log(growth))), buckets-1)
	}
	h.counts[i].Add(1)
	for old := h.most.Load(); int64(d) > old; old = h.most.Load() {
		if h.most.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

func (h *histogram) total() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// quantile is the upper edge of the bucket that q of all durations are not above.
func (h *histogram) quantile(q float64) time.Duration {
	want := uint64(math.Ceil(q * float64(h.total())))
	n := uint64(0)
	for i := range h.counts {
		if n += h.counts[i].Load(); n >= want && n > 0 {
			edge := time.Duration(float64(firstEdge) * math.Pow(growth, float64(i)))
			return min(edge, h.max())
		}
	}
	return h.max()
}

func (h *histogram) max() time.Duration { return time.Duration(h.most.Load()) }
