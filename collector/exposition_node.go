package collector

import (
	"maps"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// nodeBlock holds the metrics of a node and its devices.
type nodeBlock struct {
	partition int

	round    uint64
	labels   []*dto.LabelPair
	up       series
	last     series
	expected series
	skew     series
	doubtful series
	air      series
	host     []info
	place    info
	refused  map[string]*series
	gpus     map[string]*gpuBlock
}

func newNodeBlock(name string) *nodeBlock {
	return &nodeBlock{partition: telemetry.Partition(name), labels: []*dto.LabelPair{pair("node", name)}, gpus: map[string]*gpuBlock{}}
}

// own is the labels of a node's series; each metric gets its own list.
func (b *nodeBlock) own() []*dto.LabelPair { return slices.Clone(b.labels) }

// fill adds what is known of a node. Of one that is not heard nothing stays but
// that it is not up.
func (b *nodeBlock) fill(x *exposition, v *cluster.View, n *cluster.Node, now time.Time) {
	up := 0.0
	if n.State == cluster.NodeUp {
		up = 1
	}
	b.up.set(x, telemetry.NodeUp, up, b.own)
	b.place.set(x, telemetry.NodeInfo, b.labels, n.Cluster, n.Rack, n.Row, n.Feed)
	if n.Expected > 0 {
		b.expected.set(x, telemetry.NodeGpusExpected, float64(n.Expected), b.own)
	}
	e := x.c.nodes.get(n.Name)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.last.IsZero() {
		b.last.set(x, telemetry.NodeLastFrame, float64(e.last.UnixMilli())/1000, b.own)
	}
	b.refusals(x, e)
	if n.State != cluster.NodeUp {
		clear(b.gpus)
		return
	}
	b.skew.set(x, telemetry.NodeClockSkew, n.Skew.Seconds(), b.own)
	b.judged(x, n)
	for _, g := range n.GPUs {
		gb := b.gpus[g.UUID]
		if gb == nil {
			gb = &gpuBlock{labels: append(b.own(), pair("uuid", g.UUID))}
			b.gpus[g.UUID] = gb
		}
		gb.round = x.round
		gb.fill(x, v, n, g, now)
	}
	for uuid, gb := range b.gpus {
		if gb.round != x.round {
			delete(b.gpus, uuid)
		}
	}
	b.samples(x, e.j)
	b.links(x, e.j)
}

// refusals adds how much of what the node said was not taken.
func (b *nodeBlock) refusals(x *exposition, e *entry) {
	for _, why := range slices.Sorted(maps.Keys(e.refused)) {
		s := b.refused[why]
		if s == nil {
			if b.refused == nil {
				b.refused = map[string]*series{}
			}
			s = new(series)
			b.refused[why] = s
		}
		s.set(x, telemetry.NodeValuesRefused, float64(e.refused[why]), func() []*dto.LabelPair { return append(b.own(), pair("why", why)) })
	}
}

// samples adds the series whose labels are not a closed list.
func (b *nodeBlock) samples(x *exposition, j *cluster.Judge) {
	for s := range j.Samples() {
		if x.of[s.ID] == 0 || s.ID == telemetry.GPUInfo {
			continue // not served here, or told by the View
		}
		labels := b.own()
		if s.UUID != "" {
			labels = append(labels, pair("uuid", s.UUID))
		}
		for i, name := range s.Row.Labels {
			labels = append(labels, pair(name, s.Labels[i]))
		}
		var one series
		one.set(x, s.ID, s.V, func() []*dto.LabelPair { return labels })
	}
}

func (b *nodeBlock) links(x *exposition, j *cluster.Judge) {
	if !x.c.opts.PerLink {
		return
	}
	for l := range j.Links() {
		row, s, _ := telemetry.Lookup(l.ID)
		labels := append(b.own(), pair("uuid", l.UUID))
		for i, name := range row.Labels {
			value := s.Values
			if name == "link" {
				labels = append(labels, pair(name, strconv.Itoa(l.Link)))
				continue
			}
			labels = append(labels, pair(name, value[i]))
		}
		var one series
		one.set(x, l.ID, l.V, func() []*dto.LabelPair { return labels })
	}
}
