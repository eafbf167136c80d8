package cluster

import (
	"iter"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Sample is a kept value whose labels are not a closed list, or that is the
// node's.
type Sample struct {
	Row    *telemetry.Row
	ID     telemetry.ID
	UUID   string
	Labels []string
	V      float64
	at     uint32
}

// sampleTable keeps the last value of each labelled series.
type sampleTable struct {
	at   map[string]int
	list []Sample
	key  []byte
	// swept is when stale ones were last dropped.
	swept uint32
}

func (s *sampleTable) clear() { s.at, s.list = nil, nil }

// take folds the samples of a frame.
func (s *sampleTable) take(f *telemetry.Frame, j *Judge, k tick) {
	for _, x := range f.GetSamples() {
		row, ok := allowedSample(x)
		if !ok || row.Per != telemetry.PerNode && !j.knows(x.GetUuid()) {
			j.refused.count(RefusedSample)
			continue
		}
		s.key = appendKey(s.key[:0], x)
		i, known := s.at[string(s.key)]
		if !known {
			if len(s.list) >= telemetry.MaxSamples {
				j.refused.count(RefusedSample)
				continue
			}
			if s.at == nil {
				s.at = map[string]int{}
			}
			i = len(s.list)
			s.at[string(s.key)] = i
			s.list = append(s.list, Sample{Row: row, ID: telemetry.ID(x.GetId()), UUID: x.GetUuid(), Labels: slices.Clone(x.GetLabels())})
		}
		if known && stateLabel(x) && !slices.Equal(s.list[i].Labels, x.GetLabels()) {
			s.list[i].Labels = slices.Clone(x.GetLabels())
		}
		s.list[i].V, s.list[i].at = x.GetValue(), k.at
	}
	if len(s.list) > 0 && k.at-s.swept > 5000 {
		s.sweep(k)
	}
}

// allowedSample says whether a sample is one that a node may send.
func allowedSample(x *telemetry.Sample) (*telemetry.Row, bool) {
	row := telemetry.RowOf(telemetry.ID(x.GetId()))
	if row == nil || row.Origin != telemetry.FromNode || row.Wire.Kind != telemetry.NoWire || row.Per == telemetry.PerLink {
		return nil, false
	}
	if len(x.GetLabels()) != len(row.Labels) || !finite(x.GetValue()) || !row.InRange(x.GetValue()) {
		return nil, false
	}
	for _, l := range x.GetLabels() {
		if len(l) > 2*maxText {
			return nil, false
		}
	}
	return row, (row.Per == telemetry.PerNode) == (x.GetUuid() == "")
}

func (j *Judge) knows(uuid string) bool {
	return slices.ContainsFunc(j.tracks, func(t *track) bool { return t.uuid == uuid })
}

// stateLabel says that a sample's label is the state of its one series and not
// the name of one of many: with a new label it takes the old one's place.
func stateLabel(x *telemetry.Sample) bool { return telemetry.ID(x.GetId()) == telemetry.NodeDriverUp }

func appendKey(b []byte, x *telemetry.Sample) []byte {
	b = append(b, byte(x.GetId()), byte(x.GetId()>>8))
	b = append(b, x.GetUuid()...)
	if stateLabel(x) {
		return b
	}
	for _, l := range x.GetLabels() {
		b = append(b, 0xff) // never in valid UTF-8
		b = append(b, l...)
	}
	return b
}

// sweep drops what is stale. Rows without a rhythm of their own, such as error
// counts, stay until the node's process changes.
func (s *sampleTable) sweep(k tick) {
	s.swept = k.at
	kept := slices.DeleteFunc(s.list, func(x Sample) bool { return x.stale(k) })
	if len(kept) == len(s.list) {
		return
	}
	s.list = kept
	clear(s.at)
	for i, x := range kept {
		m := telemetry.Sample_builder{Id: uint32(x.ID), Uuid: x.UUID, Labels: x.Labels}.Build()
		s.key = appendKey(s.key[:0], m)
		s.at[string(s.key)] = i
	}
}

func (x Sample) stale(k tick) bool {
	return x.Row.Rate != telemetry.OnDemand && time.Duration(k.at-x.at)*time.Millisecond > 3*Period(x.Row.Rate, k.period)
}

// Samples yields the kept samples of the node, those of absent devices left
// out, in the order of their arrival.
func (j *Judge) Samples() iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		for _, x := range j.samples.list {
			if x.stale(j.now) || x.UUID != "" && !j.has(x.UUID) {
				continue
			}
			if !yield(x) {
				return
			}
		}
	}
}

func (j *Judge) has(uuid string) bool {
	return slices.ContainsFunc(j.tracks, func(t *track) bool {
		return t.uuid == uuid && t.state != telemetry.GPUState_GPU_STATE_ABSENT
	})
}
