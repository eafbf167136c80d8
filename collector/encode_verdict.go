package collector

import (
	"encoding/binary"
	"math"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// appendVerdicts writes what was judged of a device. Field numbers within a
// verdict are those of observation.proto.
func (e *encoder) appendVerdicts(b []byte, g *telemetry.GPUObservation) []byte {
	if p := g.GetPower(); p != nil {
		x := e.part[:0]
		x = appendOptional(x, 1, p.HasMinW(), p.GetMinW())
		x = appendOptional(x, 2, p.HasDefaultW(), p.GetDefaultW())
		x = appendOptional(x, 3, p.HasLimitW(), p.GetLimitW())
		x = appendOptional(x, 4, p.HasMaxW(), p.GetMaxW())
		b = e.appendField(b, 11, x)
	}
	if i := g.GetIdle(); i != nil {
		x := appendInt(e.part[:0], 1, uint64(i.GetSinceUnixNano()))
		x = appendText(x, 2, i.GetCause())
		x = appendTexts(x, 3, i.GetEvidence())
		b = e.appendField(b, 12, x)
	}
	if c := g.GetContention(); c != nil {
		x := appendText(e.part[:0], 1, c.GetKind())
		x = appendNumber(x, 2, c.GetRatio())
		x = appendTexts(x, 3, c.GetWith())
		x = appendTexts(x, 4, c.GetEvidence())
		x = appendInt(x, 5, uint64(c.GetSinceUnixNano()))
		b = e.appendField(b, 13, x)
	}
	if f := g.GetFabric(); f != nil {
		x := appendText(e.part[:0], 1, f.GetState())
		x = appendInt(x, 2, uint64(f.GetLinksUp()))
		x = appendInt(x, 3, uint64(f.GetLinksExpected()))
		x = appendOptional(x, 4, f.HasSaturationRatio(), f.GetSaturationRatio())
		x = appendOptional(x, 5, f.HasErrorsPerSecond(), f.GetErrorsPerSecond())
		x = appendText(x, 6, f.GetDomain())
		x = appendInt(x, 7, uint64(f.GetSinceUnixNano()))
		x = appendTexts(x, 8, f.GetEvidence())
		b = e.appendField(b, 14, x)
	}
	if h := g.GetHealth(); h != nil {
		x := appendText(e.part[:0], 1, h.GetClass())
		x = appendNumber(x, 2, h.GetScore())
		x = appendText(x, 3, h.GetReason())
		x = appendInt(x, 4, uint64(h.GetSinceUnixNano()))
		x = appendTexts(x, 5, h.GetEvidence())
		b = e.appendField(b, 15, x)
	}
	return b
}

// appendField writes a message that was built in e.part, and keeps its room.
func (e *encoder) appendField(b []byte, field uint64, x []byte) []byte {
	e.part = x
	b = binary.AppendUvarint(b, field<<3|wireBytes)
	b = binary.AppendUvarint(b, uint64(len(x)))
	return append(b, x...)
}

// Zeros and empty texts are left out, as proto3 does, but for values whose
// presence means something.

func appendInt(b []byte, field uint64, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, field<<3|wireVarint), v)
}

func appendNumber(b []byte, field uint64, v float64) []byte {
	return appendOptional(b, field, math.Float64bits(v) != 0, v)
}

func appendOptional(b []byte, field uint64, there bool, v float64) []byte {
	if !there {
		return b
	}
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, field<<3|wireDouble), math.Float64bits(v))
}

func appendText(b []byte, field uint64, s string) []byte {
	if s == "" {
		return b
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, field<<3|wireBytes), uint64(len(s)))
	return append(b, s...)
}

func appendTexts(b []byte, field uint64, list []string) []byte {
	for _, s := range list {
		b = binary.AppendUvarint(binary.AppendUvarint(b, field<<3|wireBytes), uint64(len(s)))
		b = append(b, s...)
	}
	return b
}
