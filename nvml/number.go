//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Sentinels of the tools above the library that have been seen in its values:
// the largest signed numbers, less a small reason code.
const (
	sentinel32 = math.MaxInt32 - 15
	sentinel64 = math.MaxInt64 - 15
)

// number decodes a value of the library's union, and says whether it is one.
// Some fields are signed whatever their type says.
func number(kind nvml.ValueType, raw [8]byte, signed bool) (float64, bool) {
	u := binary.NativeEndian.Uint64(raw[:])
	u32 := binary.NativeEndian.Uint32(raw[:])
	switch kind {
	case nvml.VALUE_TYPE_DOUBLE:
		return finite(math.Float64frombits(u))
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		if u32 == blank32 || u32 >= sentinel32 && u32 <= math.MaxInt32 {
			return 0, false
		}
		if signed {
			return float64(int32(u32)), true
		}
		return float64(u32), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(u), u != blank64 && (u < sentinel64 || u > math.MaxInt64)
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(u)), int64(u) < sentinel64
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(u32)), int32(u32) < sentinel32
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		v := binary.NativeEndian.Uint16(raw[:])
		return float64(v), v != math.MaxUint16
	}
	return 0, false
}
