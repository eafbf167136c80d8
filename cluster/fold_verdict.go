package cluster

import (
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// foldHost makes the verdicts on a host; the old list if nothing changed.
func foldHost(list []*telemetry.HostVerdict, old []HostVerdict) []HostVerdict {
	if len(list) == 0 {
		return nil
	}
	if slices.EqualFunc(list, old, func(v *telemetry.HostVerdict, o HostVerdict) bool { return hostVerdictOf(v) == o }) {
		return old
	}
	out := make([]HostVerdict, 0, min(len(list), 2*len(HostVerdicts)))
	for _, v := range list[:cap(out)] {
		out = append(out, hostVerdictOf(v))
	}
	return out
}

func hostVerdictOf(v *telemetry.HostVerdict) HostVerdict {
	return HostVerdict{
		Name: v.GetName(), Holds: v.GetHolds(), Value: opt(v.HasValue(), v.GetValue()),
		Evidence: v.GetEvidence(), Since: unixTime(v.GetSinceUnixNano()),
	}
}

// unixTime is a time that may be missing.
func unixTime(nanos int64) time.Time {
	if nanos <= 0 || nanos > maxUnixNano {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// noGPU stands for a device that was not there before.
var noGPU GPU

// foldVerdicts takes what was judged of a device. Evidence that did not change
// is the old one's, so that one copy of it stays in memory.
func (g *GPU) foldVerdicts(o *telemetry.GPUObservation, old *GPU) {
	if old == nil {
		old = &noGPU
	}
	h := o.GetHealth()
	g.Health, g.HealthScore, g.HealthReason = h.GetClass(), h.GetScore(), h.GetReason()
	g.HealthSince, g.HealthEvidence = unixTime(h.GetSinceUnixNano()), texts(h.GetEvidence(), old.HealthEvidence)
	if !finite(g.HealthScore) {
		g.HealthScore = 0
	}
	if i := o.GetIdle(); i != nil {
		g.IdleSince, g.IdleCause, g.IdleEvidence = unixTime(i.GetSinceUnixNano()), i.GetCause(), texts(i.GetEvidence(), old.IdleEvidence)
	}
	if f := o.GetFabric(); f != nil {
		g.Fabric = Fabric{
			State: f.GetState(), LinksUp: int(min(f.GetLinksUp(), telemetry.MaxLinks)), LinksExpected: int(min(f.GetLinksExpected(), telemetry.MaxLinks)),
			Saturation:      opt(f.HasSaturationRatio(), f.GetSaturationRatio()),
			ErrorsPerSecond: opt(f.HasErrorsPerSecond(), f.GetErrorsPerSecond()),
			Since:           unixTime(f.GetSinceUnixNano()), Evidence: texts(f.GetEvidence(), old.Fabric.Evidence),
		}
		keep(&g.Fabric.State, old.Fabric.State)
	}
	c := o.GetContention()
	if c == nil || !finite(c.GetRatio()) {
		return
	}
	before := old.Contention
	if before == nil {
		before = &Contention{}
	}
	g.Contention = &Contention{
		Kind: c.GetKind(), Ratio: c.GetRatio(), Since: unixTime(c.GetSinceUnixNano()),
		With: texts(c.GetWith(), before.With), Evidence: texts(c.GetEvidence(), before.Evidence),
	}
}

// texts is a list of its own, or the old one if they are equal.
func texts(list, old []string) []string {
	if len(list) == 0 {
		return nil
	}
	if slices.Equal(list, old) {
		return old
	}
	return slices.Clone(list)
}

// silence is a device that nothing is heard of any more: what was judged of it
// is no longer so.
func (g *GPU) silence(why string) {
	g.State, g.Health, g.HealthScore, g.HealthReason = GPUUnknown, HealthUnknown, 0, why
	g.HealthSince, g.HealthEvidence = time.Time{}, nil
	g.IdleSince, g.IdleCause, g.IdleEvidence = time.Time{}, IdleUnknown, []string{why}
	g.Contention = nil
	if g.Fabric.State != "" {
		g.Fabric = Fabric{State: FabricUnknown, LinksExpected: g.Fabric.LinksExpected}
	}
}
