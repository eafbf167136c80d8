package cluster

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// block is the memory of a folded node. It may be used again for another once
// nobody can see the node any more.
type block struct {
	node     Node
	gpus     []GPU
	list     []*GPU
	readings []reading
}

// room makes room for an observation.
func (b *block) room(gpus, readings int) {
	if cap(b.gpus) < gpus {
		b.gpus, b.list = make([]GPU, gpus), make([]*GPU, gpus)
	}
	if cap(b.readings) < readings {
		b.readings = make([]reading, 0, readings)
	}
	b.gpus = b.gpus[:cap(b.gpus)]
	clear(b.gpus) // what is not used now must hold nothing either
	b.gpus, b.list, b.readings = b.gpus[:gpus], b.list[:gpus], b.readings[:0]
	for i := range b.gpus {
		b.list[i] = &b.gpus[i]
	}
}

// fold makes a node of an observation. Text that did not change is taken from
// the old node, so that one copy of it stays in memory. Values are those of
// judged, if there is one.
func (b *block) fold(now time.Time, o *telemetry.Observation, judged *Judged, old *Node) *Node {
	skew := time.Duration(min(max(o.GetSkewMs(), -maxSkewMS), maxSkewMS)) * time.Millisecond
	seen := time.Unix(0, o.GetSampleTimeUnixNano()).Add(-skew)
	if seen.After(now) {
		seen = now
	}
	n := &b.node
	*n = Node{
		Name: o.GetNode(), Cluster: o.GetCluster(), BootID: o.GetBootId(), Incarnation: o.GetIncarnation(),
		State: NodeUp, Seen: seen, Heard: now,
		Period: clampPeriod(time.Duration(min(o.GetPeriodMs(), 1<<32)) * time.Millisecond), Skew: skew,
		ClockSynchronized: o.GetClockSynchronized(), DriverFault: o.GetDriverFault(),
		reported: int(min(o.GetGpusExpected(), telemetry.MaxGPUs)), Doubt: o.GetDoubt(),
	}
	n.Expected = n.reported
	if a := o.GetAir(); a != nil {
		n.InletC, n.AirC = opt(a.HasInletC(), a.GetInletC()), opt(a.HasBaseC(), a.GetBaseC())
	}
	n.Since = since(o, seen, skew)
	if old != nil {
		if old.Incarnation == n.Incarnation && !old.Since.After(seen) { // after: the viewer's clock was set back
			n.Since = old.Since
		}
		keep(&n.Name, old.Name)
		keep(&n.Cluster, old.Cluster)
		keep(&n.BootID, old.BootID)
		n.Host = old.Host
	}
	n.Host = foldHost(o.GetHost(), n.Host)
	total := 0
	if judged != nil {
		total = len(judged.values)
	}
	for _, g := range o.GetGpus() {
		total += len(g.GetValues())
	}
	b.room(len(o.GetGpus()), total)
	n.GPUs = b.list
	for i, g := range o.GetGpus() {
		x, before := &b.gpus[i], old.last(i, g.GetUuid())
		from := len(b.readings)
		if judged != nil {
			b.readings = foldJudged(b.readings, judged.Values(i))
		} else {
			b.readings = foldValues(b.readings, g.GetValues())
		}
		x.readings, x.base = b.readings[from:len(b.readings):len(b.readings)], seen
		x.fold(n.Name, g, before)
		x.DoubtfulIdentity = n.Doubt != "" || x.Health == HealthDoubtful
	}
	slices.SortStableFunc(n.GPUs, compareGPUs)
	return n
}

// last is a device as the node had it; nil if it had not. It is where it was, or
// has moved because another came or went.
func (n *Node) last(i int, uuid string) *GPU {
	if n == nil {
		return nil
	}
	if i < len(n.GPUs) && n.GPUs[i].UUID == uuid {
		return n.GPUs[i]
	}
	for _, g := range n.GPUs {
		if g.UUID == uuid {
			return g
		}
	}
	return nil
}

// maxSkewMS is a century: more could overflow.
const maxSkewMS = 100 * 365 * 24 * 3600 * 1000

// since is when the node's process started by the viewer's clock, or the first
// sample if it does not tell a time that can be.
func since(o *telemetry.Observation, seen time.Time, skew time.Duration) time.Time {
	if inc := o.GetIncarnation(); inc < maxUnixNano {
		start := time.Unix(0, int64(inc)).Add(-skew)
		if !start.After(seen) && seen.Sub(start) < 20*365*24*time.Hour {
			return start
		}
	}
	return seen
}

// keep replaces text by an equal one that is already in memory.
func keep(s *string, old string) {
	if *s == old {
		*s = old
	}
}

// compareGPUs puts devices that were never described last.
func compareGPUs(a, b *GPU) int {
	return cmp.Or(cmp.Compare(boolToInt(a.PCI == ""), boolToInt(b.PCI == "")), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// foldValues appends readings in the order of their ids, each id once, times
// relative to the node's sample.
func foldValues(to []reading, values []*telemetry.Value) []reading {
	from := len(to)
	sorted := true
	for _, v := range values {
		if !finite(v.GetV()) || v.GetId() > math.MaxUint16 || v.GetQuality() < 0 || v.GetQuality() > telemetry.Quality_QUALITY_UNSUPPORTED {
			continue
		}
		r := reading{v: v.GetV(), off: agedOffset(v.GetAgeMs()), id: uint16(v.GetId()), q: uint8(v.GetQuality())}
		sorted = sorted && (len(to) == from || to[len(to)-1].id < r.id)
		to = append(to, r)
	}
	if sorted {
		return to
	}
	slices.SortStableFunc(to[from:], func(a, b reading) int { return int(a.id) - int(b.id) })
	return to[:from+len(slices.CompactFunc(to[from:], func(a, b reading) bool { return a.id == b.id }))]
}

// foldJudged is foldValues for values that are known to be sound and in order.
func foldJudged(to []reading, values []Value) []reading {
	for _, v := range values {
		if finite(v.V) {
			to = append(to, reading{v: v.V, off: agedOffset(v.AgeMs), id: v.ID, q: v.Quality})
		}
	}
	return to
}

// agedOffset is the offset of what was read so long before.
func agedOffset(ms uint32) int32 {
	return int32(max(-int64(ms)*int64(time.Millisecond/offUnit), math.MinInt32))
}

var stateOf = map[telemetry.GPUState]GPUState{
	telemetry.GPUState_GPU_STATE_OK:     GPUOK,
	telemetry.GPUState_GPU_STATE_HUNG:   GPUHung,
	telemetry.GPUState_GPU_STATE_LOST:   GPULost,
	telemetry.GPUState_GPU_STATE_ABSENT: GPUAbsent,
}

func (g *GPU) fold(node string, o *telemetry.GPUObservation, old *GPU) {
	g.UUID, g.Node, g.PCI, g.Index = o.GetUuid(), node, o.GetPci(), int(o.GetIndex())
	g.Model, g.Arch, g.Driver = o.GetModel(), o.GetArch(), o.GetDriver()
	g.State, g.Generation = GPUUnknown, o.GetGeneration()
	if s, ok := stateOf[o.GetState()]; ok {
		g.State = s
	}
	if h := o.GetHung(); h != nil {
		g.HungCall, g.HungFor = h.GetCall(), time.Duration(min(h.GetForMs(), 1<<40))*time.Millisecond
	}
	g.HeadroomC = opt(o.HasHeadroomC(), o.GetHeadroomC())
	g.SlopeCPerS = opt(o.HasSlopeCPerS(), o.GetSlopeCPerS())
	g.SecondsToSlowdown = opt(o.HasSecondsToSlowdown(), o.GetSecondsToSlowdown())
	g.RCPerW = opt(o.HasRCPerW(), o.GetRCPerW())
	g.TauS = opt(o.HasTauS(), o.GetTauS())
	g.BaseC = opt(o.HasBaseC(), o.GetBaseC())
	if p := o.GetPower(); p != nil {
		g.LimitW = opt(p.HasLimitW(), p.GetLimitW())
		g.MinW = opt(p.HasMinW(), p.GetMinW())
		g.DefaultW = opt(p.HasDefaultW(), p.GetDefaultW())
		g.MaxW = opt(p.HasMaxW(), p.GetMaxW())
	}
	g.foldVerdicts(o, old)
	var holders []Member
	if old != nil && old.UUID == g.UUID {
		holders = old.Members
	}
	g.Members = foldMembers(o.GetMembers(), holders)
	if old != nil {
		keep(&g.UUID, old.UUID)
		keep(&g.PCI, old.PCI)
		keep(&g.Model, old.Model)
		keep(&g.Arch, old.Arch)
		keep(&g.Driver, old.Driver)
		keep(&g.Health, old.Health)
		keep(&g.HealthReason, old.HealthReason)
	}
}

func opt(ok bool, v float64) Opt {
	if !ok || !finite(v) {
		return Opt{}
	}
	return Some(v)
}
