package sim

import "github.com/evenkeel-gpu/evenkeel/exporter"

// sampler is the driver's utilisation buffer of every GPU of a node. Worlds
// keep one only for nodes that somebody reads as a driver.
type sampler struct {
	node  int32
	rings []sampleRing
}

// sampleRing holds the last samples of a GPU; count is of all ever taken.
type sampleRing struct {
	count uint64
	ring  [keepSamples]exporter.Sample
}

// samplerOf returns the node's sampler and makes it at first use.
func (w *World) samplerOf(nodeIndex int32) *sampler {
	for _, s := range w.samplers {
		if s.node == nodeIndex {
			return s
		}
	}
	s := &sampler{node: nodeIndex, rings: make([]sampleRing, w.nodes[nodeIndex].count)}
	w.samplers = append(w.samplers, s)
	return s
}

// sample adds one sample to every buffer that is kept.
func (w *World) sample() {
	micros := uint64(w.epoch.Add(w.elapsed).UnixMicro())
	for _, s := range w.samplers {
		first := w.nodes[s.node].first
		for slot := range s.rings {
			r := &s.rings[slot]
			r.ring[r.count%keepSamples] = exporter.Sample{Micros: micros, Value: wholePercent(w.gpus[first+int32(slot)].busyRatio)}
			r.count++
		}
	}
}

// since appends the samples of a GPU that are newer than a time, oldest first.
func (s *sampler) since(slot int, micros uint64, to []exporter.Sample) []exporter.Sample {
	r := &s.rings[slot]
	for i := r.count - min(r.count, keepSamples); i < r.count; i++ {
		if sample := r.ring[i%keepSamples]; sample.Micros > micros {
			to = append(to, sample)
		}
	}
	return to
}
