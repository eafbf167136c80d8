package collector

import (
	"math"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Point is one sample of a GPU's past, in base units.
type Point struct {
	At          time.Time
	Headroom    cluster.Opt // celsius to slowdown
	Core        cluster.Opt // celsius
	Memory      cluster.Opt // celsius
	Power       cluster.Opt // watts
	Limit       cluster.Opt // watts
	Utilization cluster.Opt // ratio
	Clock       cluster.Opt // hertz, of the multiprocessors
}

const (
	historyPoints = 600
	historySpan   = 10 * time.Minute
	// historyStep is the least distance of two points.
	historyStep = 500 * time.Millisecond
)

// The columns of a point as kept; NaN is no value.
const (
	colHeadroom = iota
	colCore
	colMemory
	colPower
	colLimit
	colUtilization
	colClock
	columns
)

// history keeps ten minutes of each device at one point a second.
type history struct {
	mu    sync.RWMutex
	limit int
	of    map[string]*past
	swept time.Time
}

// past is the ring of one device, free of pointers. Times are milliseconds
// before the newest.
type past struct {
	mu     sync.Mutex
	newest int64 // milliseconds
	next   int
	count  int
	points [historyPoints]point
}

// point is a point as kept: half a cache line.
type point struct {
	at uint32 // low bits of the time in milliseconds
	v  [columns]float32
}

func newHistory(limit int) *history { return &history{limit: limit, of: map[string]*past{}} }

// add takes a point of every device of an observation.
func (h *history) add(now time.Time, x *cluster.Judged) {
	for i, g := range x.Message.GetGpus() {
		values := x.Values(i)
		if len(values) == 0 {
			continue
		}
		if p := h.past(now, g.GetUuid()); p != nil {
			p.add(now, g, values)
		}
	}
}

// past finds or makes the ring of a device. When there are too many, those
// whose points are all too old to be shown make room; else the device has none.
func (h *history) past(now time.Time, uuid string) *past {
	h.mu.RLock()
	p, ok := h.of[uuid]
	full := len(h.of) >= h.limit && now.Sub(h.swept) < time.Minute
	h.mu.RUnlock()
	if ok || full {
		return p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p, ok := h.of[uuid]; ok {
		return p
	}
	if len(h.of) >= h.limit {
		h.swept = now
		for id, p := range h.of {
			p.mu.Lock()
			if now.UnixMilli()-p.newest > historySpan.Milliseconds() {
				delete(h.of, id)
			}
			p.mu.Unlock()
		}
		if len(h.of) >= h.limit {
			return nil
		}
	}
	p = new(past)
	h.of[uuid] = p
	return p
}

func (p *past) add(now time.Time, g *telemetry.GPUObservation, values []cluster.Value) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := now.UnixMilli()
	if since := at - p.newest; p.count > 0 && since < historyStep.Milliseconds() {
		if since > -historyStep.Milliseconds() {
			return
		}
		p.count = 0 // the clock was set back; what was kept lies in the future
	}
	row := &p.points[p.next].v
	for i := range row {
		row[i] = float32(math.NaN())
	}
	for _, v := range values {
		if q := telemetry.Quality(v.Quality); q != telemetry.Quality_QUALITY_OK && q != telemetry.Quality_QUALITY_SUSPECT {
			continue
		}
		switch telemetry.ID(v.ID) {
		case telemetry.GPUTemperatureCelsiusCore:
			row[colCore] = float32(v.V)
		case telemetry.GPUTemperatureCelsiusMemory:
			row[colMemory] = float32(v.V)
		case telemetry.GPUPowerWatts:
			row[colPower] = float32(v.V)
		case telemetry.GPUUtilizationRatio:
			row[colUtilization] = float32(v.V)
		case telemetry.GPUClockHertzSM:
			row[colClock] = float32(v.V)
		}
	}
	if g.HasHeadroomC() {
		row[colHeadroom] = float32(g.GetHeadroomC())
	}
	if g.GetPower().HasLimitW() {
		row[colLimit] = float32(g.GetPower().GetLimitW())
	}
	p.points[p.next].at, p.newest = uint32(at), at
	p.next = (p.next + 1) % historyPoints
	p.count = min(p.count+1, historyPoints)
}

// list is what is kept of a device and not older than the span, oldest first.
func (h *history) list(now time.Time, uuid string) []Point {
	h.mu.RLock()
	p := h.of[uuid]
	h.mu.RUnlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Point, 0, p.count)
	for i := range p.count {
		k := (p.next - p.count + i + historyPoints) % historyPoints
		at := time.UnixMilli(p.newest - int64(uint32(p.newest)-p.points[k].at))
		if now.Sub(at) > historySpan {
			continue
		}
		v := &p.points[k].v
		out = append(out, Point{
			At: at, Headroom: known(v[colHeadroom]), Core: known(v[colCore]), Memory: known(v[colMemory]), Power: known(v[colPower]),
			Limit: known(v[colLimit]), Utilization: known(v[colUtilization]), Clock: known(v[colClock]),
		})
	}
	return out
}

func known(v float32) cluster.Opt {
	if v != v {
		return cluster.Opt{}
	}
	return cluster.Some(float64(v))
}
