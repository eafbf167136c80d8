package collector

import (
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// gpuBlock holds the metrics of one device.
type gpuBlock struct {
	round     uint64
	labels    []*dto.LabelPair
	values    [128]series // by id
	up        series
	age       series
	allocated series
	health    info
	describe  info
	hung      info
	idle      info
	contend   info
	workloads []info
	// newest is the time of the last fast sample. It outlives the values, since
	// its age matters most when they are no longer shown.
	newest time.Time
}

func (b *gpuBlock) own() []*dto.LabelPair { return slices.Clone(b.labels) }

// fill adds what is known of a device. One that is absent has no values.
func (b *gpuBlock) fill(x *exposition, v *cluster.View, n *cluster.Node, g *cluster.GPU, now time.Time) {
	up := 0.0
	if g.State == cluster.GPUOK {
		up = 1
	}
	b.up.set(x, telemetry.GPUUp, up, b.own)
	b.health.set(x, telemetry.GPUHealth, b.labels, g.Health)
	b.load(x, v, n, g)
	if g.State == cluster.GPUAbsent {
		return
	}
	if g.PCI != "" {
		b.describe.set(x, telemetry.GPUInfo, b.labels, strconv.Itoa(g.Index), g.PCI, g.Model, g.Driver, g.Arch)
	}
	if g.HungCall != "" {
		b.hung.set(x, telemetry.NodeDriverCallHung, b.labels[:1], g.UUID, g.HungCall) // the row is the node's
		*b.hung.m.Gauge.Value = g.HungFor.Seconds()
	}
	for r := range g.Readings() {
		if int(r.ID) >= len(b.values) || r.ID == telemetry.GPUUp {
			continue
		}
		if r.At.After(b.newest) && telemetry.RateOf(r.ID) == telemetry.Fast {
			b.newest = r.At
		}
		if usable(r, n, now) {
			b.values[r.ID].set(x, r.ID, r.V, func() []*dto.LabelPair { return b.closed(r.ID) })
		}
	}
	b.judged(x, n, g, now)
	if !b.newest.IsZero() {
		b.age.set(x, telemetry.GPUSampleAge, max(now.Sub(b.newest).Seconds(), 0), b.own)
	}
}

// closed is the labels of a series whose label values are a closed list.
func (b *gpuBlock) closed(id telemetry.ID) []*dto.LabelPair {
	return append(b.own(), closedLabels[id]...)
}

// closedLabels are, by id, the labels that all devices have in common.
var closedLabels = func() (of [len(gpuBlock{}.values)][]*dto.LabelPair) {
	for i := range telemetry.Catalog {
		row := &telemetry.Catalog[i]
		for _, s := range row.Series {
			if int(s.ID) >= len(of) || row.Per != telemetry.PerGPU {
				continue
			}
			for k, value := range s.Values {
				of[s.ID] = append(of[s.ID], pair(row.Labels[k], value))
			}
		}
	}
	return of
}()

// load adds who holds the device. That nobody does can be said only of a node
// that a scheduler knows.
func (b *gpuBlock) load(x *exposition, v *cluster.View, n *cluster.Node, g *cluster.GPU) {
	on := v.WorkloadsOn(g.UUID)
	if len(n.Sources) > 0 || len(on) > 0 {
		held := 0.0
		if len(on) > 0 {
			held = 1
		}
		b.allocated.set(x, telemetry.GPUAllocated, held, b.own)
	}
	for i, w := range on {
		if i == len(b.workloads) {
			b.workloads = append(b.workloads, info{})
		}
		b.workloads[i].set(x, telemetry.GPUWorkloadInfo, b.labels, string(w.Ref), w.Ref.Kind(), w.Owner)
	}
	b.workloads = b.workloads[:len(on)]
}
