package collector

import (
	"encoding/binary"
	"math"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Field numbers of observation.proto; a test decodes what is written here.
const (
	fieldGPUs    = 14 // Observation.gpus
	fieldValues  = 5  // GPUObservation.values
	fieldID      = 1  // Value.id, v, age_ms, quality
	fieldV       = 2
	fieldAge     = 3
	fieldQuality = 4

	wireVarint = 0
	wireDouble = 1
	wireBytes  = 2
)

// encoder writes observations. The values, 500 small messages for a node of 8
// GPUs, are most of the collector's work if the library writes them one by one;
// so the library writes everything else, and these are put beside it, as fields
// may come in any order.
type encoder struct {
	out, gpu, value []byte
	// wrap is an observation of nothing but one GPU, the only way to have the
	// library write a GPU.
	wrap telemetry.Observation
	one  []*telemetry.GPUObservation
}

// encode returns the encoded observation, in a buffer that the next call uses
// again. It takes the observation's lists out while it works.
func (e *encoder) encode(o *telemetry.Observation) ([]byte, error) {
	gpus := o.GetGpus()
	o.SetGpus(nil)
	out, err := telemetry.AppendObservation(e.out[:0], o)
	o.SetGpus(gpus)
	if err != nil {
		return nil, err
	}
	for _, g := range gpus {
		gpu, err := e.encodeGPU(g)
		if err != nil {
			return nil, err
		}
		out = binary.AppendUvarint(out, fieldGPUs<<3|wireBytes)
		out = binary.AppendUvarint(out, uint64(len(gpu)))
		out = append(out, gpu...)
	}
	e.out = out
	return out, nil
}

func (e *encoder) encodeGPU(g *telemetry.GPUObservation) ([]byte, error) {
	if e.one == nil {
		e.one = make([]*telemetry.GPUObservation, 1)
		e.wrap.SetGpus(e.one)
	}
	e.one[0] = g
	values := g.GetValues()
	g.SetValues(nil)
	b, err := telemetry.AppendObservation(e.gpu[:0], &e.wrap)
	g.SetValues(values)
	if err != nil {
		return nil, err
	}
	_, n := binary.Uvarint(b[1:]) // the tag is one byte, then comes the length
	for _, v := range values {
		e.value = appendValue(e.value[:0], v)
		b = append(b, fieldValues<<3|wireBytes, byte(len(e.value))) // far below 128 bytes
		b = append(b, e.value...)
	}
	e.gpu = b
	return b[1+n:], nil
}

// appendValue leaves zeros out, as proto3 does.
func appendValue(b []byte, v *telemetry.Value) []byte {
	if id := v.GetId(); id != 0 {
		b = binary.AppendUvarint(append(b, fieldID<<3|wireVarint), uint64(id))
	}
	if bits := math.Float64bits(v.GetV()); bits != 0 {
		b = binary.LittleEndian.AppendUint64(append(b, fieldV<<3|wireDouble), bits)
	}
	if age := v.GetAgeMs(); age != 0 {
		b = binary.AppendUvarint(append(b, fieldAge<<3|wireVarint), uint64(age))
	}
	if q := v.GetQuality(); q != 0 {
		b = binary.AppendUvarint(append(b, fieldQuality<<3|wireVarint), uint64(q))
	}
	return b
}
