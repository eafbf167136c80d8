package collector

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Field numbers of observation.proto; a test decodes what is written here.
const (
	fieldGPUs   = 14 // Observation.gpus
	fieldValues = 5  // GPUObservation.values
	fieldID     = 1  // Value.id, v, age_ms, quality
	fieldV      = 2
	fieldAge    = 3
	fieldQual   = 4

	wireVarint = 0
	wireDouble = 1
	wireBytes  = 2
)

// encoder writes observations. A node of 8 GPUs has 500 messages in one, and
// the library, which sizes each before it writes it, would be most of the
// collector's work. So the library writes the node's own fields, and the devices
// are put beside them, as fields may come in any order.
type encoder struct {
	out, gpu, part []byte
	// rest is what of a device the library writes: lists that most have none of.
	rest telemetry.GPUObservation
}

// encode returns the encoded observation, in a buffer that the next call uses
// again. It takes the message's list of devices out while it works.
func (e *encoder) encode(x *cluster.Judged) ([]byte, error) {
	o := x.Message
	gpus := o.GetGpus()
	o.SetGpus(nil)
	out, err := telemetry.AppendObservation(e.out[:0], o)
	o.SetGpus(gpus)
	if err != nil {
		return nil, err
	}
	for i, g := range gpus {
		if e.gpu, err = e.appendGPU(e.gpu[:0], g, x.Values(i)); err != nil {
			return nil, err
		}
		out = binary.AppendUvarint(out, fieldGPUs<<3|wireBytes)
		out = binary.AppendUvarint(out, uint64(len(e.gpu)))
		out = append(out, e.gpu...)
	}
	e.out = out
	return out, nil
}

// appendGPU writes the fields of a device.
func (e *encoder) appendGPU(b []byte, g *telemetry.GPUObservation, values []cluster.Value) ([]byte, error) {
	b = appendText(b, 1, g.GetUuid())
	b = appendText(b, 2, g.GetPci())
	b = appendText(b, 3, g.GetModel())
	b = appendInt(b, 4, uint64(g.GetState()))
	for i := range values {
		b = appendValue(b, &values[i])
	}
	b = appendOptional(b, 6, g.HasHeadroomC(), g.GetHeadroomC())
	b = appendOptional(b, 7, g.HasSlopeCPerS(), g.GetSlopeCPerS())
	b = appendOptional(b, 8, g.HasSecondsToSlowdown(), g.GetSecondsToSlowdown())
	b = appendOptional(b, 9, g.HasRCPerW(), g.GetRCPerW())
	b = appendOptional(b, 10, g.HasTauS(), g.GetTauS())
	b = e.appendVerdicts(b, g)
	b = appendInt(b, 18, uint64(g.GetIndex()))
	b = appendText(b, 19, g.GetArch())
	b = appendText(b, 20, g.GetDriver())
	b = appendInt(b, 22, g.GetGeneration())
	b = appendOptional(b, 23, g.HasBaseC(), g.GetBaseC())
	if len(g.GetMig()) == 0 && len(g.GetMembers()) == 0 && !g.HasHung() {
		return b, nil
	}
	e.rest.SetMig(g.GetMig())
	e.rest.SetMembers(g.GetMembers())
	e.rest.SetHung(g.GetHung())
	return telemetry.AppendGPUObservation(b, &e.rest)
}

// maxValue is what a value takes at most: two bytes before it, and its tags,
// numbers of three, eight, five and two bytes.
const maxValue = 2 + 4 + 3 + 8 + 5 + 2

// appendValue leaves zeros out, as proto3 does. It writes into room made once:
// half of the encoder's time is spent here.
func appendValue(b []byte, v *cluster.Value) []byte {
	b = slices.Grow(b, maxValue)
	x := b[len(b):][:maxValue]
	n := 2
	if v.ID != 0 {
		x[n] = fieldID<<3 | wireVarint
		n += 1 + binary.PutUvarint(x[n+1:], uint64(v.ID))
	}
	if bits := math.Float64bits(v.V); bits != 0 {
		x[n] = fieldV<<3 | wireDouble
		binary.LittleEndian.PutUint64(x[n+1:], bits)
		n += 9
	}
	if v.AgeMs != 0 {
		x[n] = fieldAge<<3 | wireVarint
		n += 1 + binary.PutUvarint(x[n+1:], uint64(v.AgeMs))
	}
	if v.Quality != 0 {
		x[n] = fieldQual<<3 | wireVarint
		n += 1 + binary.PutUvarint(x[n+1:], uint64(v.Quality))
	}
	x[0], x[1] = fieldValues<<3|wireBytes, byte(n-2)
	return b[:len(b)+n]
}
