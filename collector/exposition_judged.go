package collector

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// judged adds what the judge made of a device's values, for as long as the
// values themselves would be shown.
func (b *gpuBlock) judged(x *exposition, n *cluster.Node, g *cluster.GPU, now time.Time) {
	b.values[telemetry.GPUHealthScore].set(x, telemetry.GPUHealthScore, g.HealthScore, b.own)
	if now.Sub(n.Seen) > cluster.StaleAfter(telemetry.GPUThermalHeadroomCelsius, n.Period) {
		return
	}
	if !g.IdleSince.IsZero() {
		b.idle.set(x, telemetry.GPUIdle, b.labels, g.IdleCause)
		*b.idle.m.Gauge.Value = max(now.Sub(g.IdleSince).Seconds(), 0)
	}
	if c := g.Contention; c != nil {
		b.contend.set(x, telemetry.GPUContention, b.labels, c.Kind)
		*b.contend.m.Gauge.Value = c.Ratio
	}
	b.opt(x, telemetry.GPUThermalHeadroomSlope, g.SlopeCPerS)
	b.opt(x, telemetry.GPUTimeToSlowdown, g.SecondsToSlowdown)
	b.opt(x, telemetry.GPUThermalResistance, g.RCPerW)
	b.opt(x, telemetry.GPUThermalTimeConstant, g.TauS)
	b.opt(x, telemetry.GPUThermalBase, g.BaseC)
	switch f := g.Fabric; f.State {
	case "", cluster.FabricUnknown:
	default:
		b.opt(x, telemetry.GPUNVLinkLinksUp, cluster.Some(float64(f.LinksUp)))
		b.opt(x, telemetry.GPUNVLinkSaturation, f.Saturation)
		b.opt(x, telemetry.GPUNVLinkErrorsPerSecond, f.ErrorsPerSecond)
	}
}

func (b *gpuBlock) opt(x *exposition, id telemetry.ID, v cluster.Opt) {
	if v.OK {
		b.values[id].set(x, id, v.V, b.own)
	}
}

// judged adds what was judged of the node itself.
func (b *nodeBlock) judged(x *exposition, n *cluster.Node) {
	doubtful := 0.0
	if n.Doubt != "" {
		doubtful = 1
	}
	b.doubtful.set(x, telemetry.NodeDoubtful, doubtful, b.own)
	if n.AirC.OK {
		b.air.set(x, telemetry.NodeGPUAirCelsius, n.AirC.V, b.own)
	}
	for i := range n.Host {
		v := &n.Host[i]
		if i == len(b.host) {
			b.host = append(b.host, info{})
		}
		b.host[i].set(x, telemetry.NodeHostVerdict, b.labels, v.Name)
		holds := 0.0
		if v.Holds {
			holds = 1
		}
		*b.host[i].m.Gauge.Value = holds
	}
	b.host = b.host[:len(n.Host)]
}
