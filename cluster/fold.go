package cluster

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// fold makes a node of an observation. Text that did not change is taken from
// the old node, so that one copy of it stays in memory.
func fold(now time.Time, o *telemetry.Observation, old *Node) *Node {
	skew := time.Duration(min(max(o.GetSkewMs(), -maxSkewMS), maxSkewMS)) * time.Millisecond
	seen := time.Unix(0, o.GetSampleTimeUnixNano()).Add(-skew)
	if seen.After(now) {
		seen = now
	}
	n := &Node{
		Name: o.GetNode(), Cluster: o.GetCluster(), BootID: o.GetBootId(), Incarnation: o.GetIncarnation(),
		State: NodeUp, Seen: seen, Heard: now,
		Period: clampPeriod(time.Duration(min(o.GetPeriodMs(), 1<<32)) * time.Millisecond), Skew: skew,
		ClockSynchronized: o.GetClockSynchronized(), DriverFault: o.GetDriverFault(),
		Expected: int(min(o.GetGpusExpected(), telemetry.MaxGPUs)),
	}
	n.Since = since(o, seen, skew)
	if old != nil {
		if old.Incarnation == n.Incarnation && !old.Since.After(seen) { // after: the viewer's clock was set back
			n.Since = old.Since
		}
		keep(&n.Name, old.Name)
		keep(&n.Cluster, old.Cluster)
		keep(&n.BootID, old.BootID)
	}
	total := 0
	for _, g := range o.GetGpus() {
		total += len(g.GetValues())
	}
	gpus := make([]GPU, len(o.GetGpus()))
	n.GPUs = make([]*GPU, len(gpus))
	room := make([]reading, 0, total)
	for i, g := range o.GetGpus() {
		var before *GPU
		if old != nil && i < len(old.GPUs) {
			before = old.GPUs[i]
		}
		from := len(room)
		room = foldValues(room, g.GetValues())
		gpus[i].readings, gpus[i].base = room[from:len(room):len(room)], seen
		gpus[i].fold(n.Name, g, before)
		n.GPUs[i] = &gpus[i]
	}
	slices.SortStableFunc(n.GPUs, compareGPUs)
	return n
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
		r := reading{v: v.GetV(), off: offset(-time.Duration(v.GetAgeMs()) * time.Millisecond), id: uint16(v.GetId()), q: uint8(v.GetQuality())}
		sorted = sorted && (len(to) == from || to[len(to)-1].id < r.id)
		to = append(to, r)
	}
	if sorted {
		return to
	}
	slices.SortStableFunc(to[from:], func(a, b reading) int { return int(a.id) - int(b.id) })
	return to[:from+len(slices.CompactFunc(to[from:], func(a, b reading) bool { return a.id == b.id }))]
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
	h := o.GetHealth()
	g.Health, g.HealthScore, g.HealthReason = h.GetClass(), h.GetScore(), h.GetReason()
	if i := o.GetIdle(); i != nil {
		g.IdleSince, g.IdleCause, g.IdleEvidence = time.Unix(0, i.GetSinceUnixNano()), i.GetCause(), slices.Clone(i.GetEvidence())
	}
	for _, m := range o.GetMembers() {
		x := Member{ID: m.GetId(), Kind: m.GetKind(), UUID: m.GetUuid()}
		if m.HasGi() {
			gi := m.GetGi()
			x.GI = &gi
		}
		g.Members = append(g.Members, x)
	}
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
