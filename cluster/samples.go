package cluster

import (
	"iter"
	"slices"

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
	meter  meter // of a node's counter
	wasUp  bool  // a port that has been up
}

// sampleTable keeps the last value of each labelled series.
type sampleTable struct {
	at   map[string]int
	list []Sample
	key  []byte
	// before are the series of the process before, which are no new names.
	before map[string]int
	// swept is when stale ones were last dropped.
	swept uint32
	// told is set once a frame with a slow part has been folded: a series that
	// appears after it is new, and not only new to this judge.
	told bool
}

func (s *sampleTable) clear() {
	if len(s.at) > 0 {
		s.before = s.at
	}
	s.at, s.list, s.told = nil, nil, false
}

// take folds the samples of a frame.
func (s *sampleTable) take(f *telemetry.Frame, j *Judge, k *tick) {
	for _, x := range f.GetSamples() {
		row, ok := allowedSample(x)
		if !ok || row.Per != telemetry.PerNode && !j.knows(x.GetUuid()) {
			j.refused.count(RefusedSample)
			continue
		}
		i, known := s.place(x, row, &j.names)
		if i < 0 {
			j.refused.count(RefusedName)
			continue
		}
		j.heardSample(&s.list[i], known, x, k)
		s.list[i].V, s.list[i].at = x.GetValue(), k.at
	}
	if len(s.list) > 0 && k.at-s.swept > 5000 {
		s.sweep(k)
	}
	s.told = s.told || k.slowPart
}

// place finds the series of a sample, or makes it; -1 if there is no room.
func (s *sampleTable) place(x *telemetry.Sample, row *telemetry.Row, n *names) (at int, known bool) {
	s.key = appendKey(s.key[:0], telemetry.ID(x.GetId()), x.GetUuid(), x.GetLabels())
	i, known := s.at[string(s.key)]
	if known {
		if old := &s.list[i]; stateLabel(old.ID) && !slices.Equal(old.Labels, x.GetLabels()) {
			if !n.take() {
				return -1, false
			}
			old.Labels = slices.Clone(x.GetLabels())
		}
		return i, true
	}
	if _, named := s.before[string(s.key)]; len(s.list) >= telemetry.MaxSamples || !named && !n.take() {
		return -1, false
	}
	if s.at == nil {
		s.at = map[string]int{}
	}
	i = len(s.list)
	s.at[string(s.key)] = i
	s.list = append(s.list, Sample{Row: row, ID: telemetry.ID(x.GetId()), UUID: x.GetUuid(), Labels: slices.Clone(x.GetLabels())})
	return i, false
}

// heardSample hands a sample to the verdicts that rest on it, before its series
// takes the new value.
func (j *Judge) heardSample(x *Sample, known bool, now *telemetry.Sample, k *tick) {
	switch x.ID {
	case telemetry.GPUXidErrors:
		j.heardXid(x, known, now.GetValue(), k)
	case telemetry.InstanceMIGSMActiveRatio:
		if t := j.find(x.UUID); t != nil {
			t.heardMIG(x.Labels[0], now.GetValue(), k)
		}
	case telemetry.NodeReaderSuccess:
		j.heardReader(now, k)
	case telemetry.GPUReaderFailing:
		j.heardFailing(x, k)
	default:
		if x.Row.Per != telemetry.PerNode {
			return
		}
		j.host.fresh = true
		if x.Row.Type == telemetry.Counter {
			x.meter.take(now.GetValue(), k.ms, k.keep[classSlow])
		}
	}
}

// speedOf is the speed of the port that a series counts the bytes of.
func (s *sampleTable) speedOf(x *Sample) *Sample {
	s.key = appendKey(s.key[:0], telemetry.NodeFabricSpeed, "", x.Labels[:2])
	if i, ok := s.at[string(s.key)]; ok {
		return &s.list[i]
	}
	return nil
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

func (j *Judge) knows(uuid string) bool { return j.find(uuid) != nil }

func (j *Judge) find(uuid string) *track {
	for _, t := range j.tracks {
		if t.uuid == uuid {
			return t
		}
	}
	return nil
}

// stateLabel says that a series' label is the state of its one series and not
// the name of one of many: with a new label it takes the old one's place.
func stateLabel(id telemetry.ID) bool { return id == telemetry.NodeDriverUp }

func appendKey(b []byte, id telemetry.ID, uuid string, labels []string) []byte {
	b = append(b, byte(id), byte(id>>8))
	b = append(b, uuid...)
	if stateLabel(id) {
		return b
	}
	for _, l := range labels {
		b = append(b, 0xff) // never in valid UTF-8
		b = append(b, l...)
	}
	return b
}

// sweep drops what is stale. Rows without a rhythm of their own, such as error
// counts, stay until the node's process changes.
func (s *sampleTable) sweep(k *tick) {
	s.swept = k.at
	kept := slices.DeleteFunc(s.list, func(x Sample) bool { return x.stale(k) })
	if len(kept) == len(s.list) {
		return
	}
	s.list = kept
	clear(s.at)
	for i, x := range kept {
		s.key = appendKey(s.key[:0], x.ID, x.UUID, x.Labels)
		s.at[string(s.key)] = i
	}
}

func (x *Sample) stale(k *tick) bool {
	return x.Row.Rate != telemetry.OnDemand && k.isStale(classOf(x.Row.Rate), x.at)
}

// Samples yields the kept samples of the node, those of absent devices left
// out, in the order of their arrival.
func (j *Judge) Samples() iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		for i := range j.samples.list {
			x := &j.samples.list[i]
			if x.stale(&j.now) || x.UUID != "" && !j.has(x.UUID) {
				continue
			}
			if !yield(*x) {
				return
			}
		}
	}
}

func (j *Judge) has(uuid string) bool {
	t := j.find(uuid)
	return t != nil && t.state != telemetry.GPUState_GPU_STATE_ABSENT
}
