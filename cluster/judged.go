package cluster

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Judged is an observation whose values are not messages: a node of 8 GPUs has
// 400 of them, and to write and read them as messages would take the collector
// longer than to judge them.
type Judged struct {
	// Message is the observation without the values of devices.
	Message *telemetry.Observation
	values  []Value
	ends    []int // of each device's values
}

// Value is a telemetry.Value without the message.
type Value struct {
	V       float64
	AgeMs   uint32
	ID      uint16
	Quality uint8 // a telemetry.Quality
}

// NewJudged puts a message and the values of its devices together.
func NewJudged(m *telemetry.Observation, values ...[]Value) *Judged {
	x := &Judged{Message: m}
	for _, list := range values {
		x.values = append(x.values, list...)
		x.ends = append(x.ends, len(x.values))
	}
	return x
}

// Values are those of a device of the message, in the order of their ids.
func (x *Judged) Values(gpu int) []Value {
	from := 0
	if gpu > 0 {
		from = x.ends[gpu-1]
	}
	return x.values[from:x.ends[gpu]]
}

// JudgeInto is FrameInto for callers that need no messages of values. What x
// holds is valid until the next call with it.
func (j *Judge) JudgeInto(now time.Time, f *telemetry.Frame, x *Judged) (Verdict, error) {
	v, err := j.judge(now, f)
	if err == nil && v.Publish {
		if x.Message == nil {
			x.Message = new(telemetry.Observation)
		}
		j.observe(x, f, v.Age)
	}
	return v, err
}

// FrameInto is Frame for callers that bring the observation: its messages are
// used again, so nothing of it may be held over the next call.
func (j *Judge) FrameInto(now time.Time, f *telemetry.Frame, o *telemetry.Observation) (Verdict, error) {
	v, err := j.judge(now, f)
	if err != nil || !v.Publish {
		return v, err
	}
	j.judged.Message = o
	j.observe(&j.judged, f, v.Age)
	j.judged.Message = nil
	for i, g := range o.GetGpus() {
		setValues(g, j.judged.Values(i))
	}
	return v, nil
}

// setValues writes the messages of values, those that are there used again.
func setValues(g *telemetry.GPUObservation, values []Value) {
	if len(values) == 0 {
		if len(g.GetValues()) > 0 {
			g.SetValues(g.GetValues()[:0])
		}
		return
	}
	vs := room(g.GetValues())
	for i, x := range values {
		v := vs[i]
		v.SetId(uint32(x.ID))
		v.SetV(x.V)
		v.SetAgeMs(x.AgeMs)
		v.SetQuality(telemetry.Quality(x.Quality))
	}
	if len(g.GetValues()) != len(values) {
		g.SetValues(vs[:len(values)])
	}
}

// room returns messages for every series: those that are there, or a block in
// one allocation.
func room(vs []*telemetry.Value) []*telemetry.Value {
	if cap(vs) < len(wiredSeries) {
		block := make([]telemetry.Value, len(wiredSeries))
		vs = make([]*telemetry.Value, len(wiredSeries))
		for i := range block {
			vs[i] = &block[i]
		}
	}
	vs = vs[:len(wiredSeries)]
	for i := range vs {
		if vs[i] == nil {
			vs[i] = new(telemetry.Value)
		}
	}
	return vs
}
