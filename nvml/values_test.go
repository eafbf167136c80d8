//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// Every code that the library's header defines has a fault.
func TestEveryCodeHasAFault(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/nvml/nvml.h"))
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^ +NVML_ERROR_(\w+) += (\d+),?`).FindAllStringSubmatch(string(header), -1)
	if len(codes) < 30 {
		t.Fatalf("only %d codes in the header", len(codes))
	}
	for _, c := range codes {
		n, _ := strconv.Atoi(c[2])
		if _, ok := faults[nvml.Return(n)]; !ok {
			t.Errorf("code %d (%s) has no fault", n, c[1])
		}
	}
	if err := check("f", nvml.SUCCESS); err != nil {
		t.Error(err)
	}
	if f := exporter.FaultOf(check("f", 12345)); f != exporter.OtherFault {
		t.Errorf("a code of a later driver: %s", f)
	}
	if err := check("f", nvml.ERROR_GPU_IS_LOST); exporter.FaultOf(err) != exporter.Lost || !strings.Contains(err.Error(), "15") {
		t.Errorf("lost: %v", err)
	}
}

func raw(v any) (b [8]byte) {
	out, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		panic(err)
	}
	copy(b[:], out)
	return b
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   nvml.ValueType
		v      any
		signed bool
		want   float64
		ok     bool
	}{
		{"double", nvml.VALUE_TYPE_DOUBLE, 1.5, false, 1.5, true},
		{"double, not a number", nvml.VALUE_TYPE_DOUBLE, math.NaN(), false, 0, false},
		{"double, infinite", nvml.VALUE_TYPE_DOUBLE, math.Inf(1), false, 0, false},
		{"double, blank", nvml.VALUE_TYPE_DOUBLE, 140737488355328.0, false, 0, false},
		{"unsigned", nvml.VALUE_TYPE_UNSIGNED_INT, uint32(7), false, 7, true},
		{"unsigned, blank", nvml.VALUE_TYPE_UNSIGNED_INT, uint32(0xFFFFFFFF), false, 0, false},
		{"unsigned, the other blank", nvml.VALUE_TYPE_UNSIGNED_INT, uint32(0x7FFFFFF0), false, 0, false},
		{"a large unsigned number", nvml.VALUE_TYPE_UNSIGNED_INT, uint32(4e9), false, 4e9, true},
		{"a negative number in an unsigned word", nvml.VALUE_TYPE_UNSIGNED_INT, uint32(0xFFFFFFFE), true, -2, true},
		{"unsigned long", nvml.VALUE_TYPE_UNSIGNED_LONG, uint64(1 << 40), false, 1 << 40, true},
		{"unsigned long, blank", nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, uint64(math.MaxUint64), false, 0, false},
		{"unsigned long, the other blank", nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, uint64(9223372036854775794), false, 0, false},
		{"signed", nvml.VALUE_TYPE_SIGNED_INT, int32(-2), false, -2, true},
		{"signed, minus one is a number", nvml.VALUE_TYPE_SIGNED_INT, int32(-1), false, -1, true},
		{"signed, blank", nvml.VALUE_TYPE_SIGNED_INT, int32(0x7FFFFFF1), false, 0, false},
		{"signed long", nvml.VALUE_TYPE_SIGNED_LONG_LONG, int64(-5), false, -5, true},
		{"signed long, blank", nvml.VALUE_TYPE_SIGNED_LONG_LONG, int64(9223372036854775792), false, 0, false},
		{"short", nvml.VALUE_TYPE_UNSIGNED_SHORT, uint16(9), false, 9, true},
		{"short, blank", nvml.VALUE_TYPE_UNSIGNED_SHORT, uint16(0xFFFF), false, 0, false},
		{"a type of a later driver", nvml.ValueType(77), uint64(1), false, 0, false},
	} {
		got, ok := number(c.kind, raw(c.v), c.signed)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %g, %v; want %g, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestReasons(t *testing.T) {
	// telemetry.ThrottleReasons: sw_power, sw_thermal, hw_thermal, hw_slowdown,
	// power_brake, sync_boost, idle, other.
	for bits, want := range map[uint64]exporter.Reasons{
		0:           0,
		0x1:         1 << 6,
		0x4:         1 << 0,
		0x8:         1 << 3,
		0x10:        1 << 5,
		0x20:        1 << 1,
		0x40:        1 << 2,
		0x80:        1 << 4,
		0x2:         1 << 7, // clocks set by a user
		0x200:       1 << 7, // board limit
		1 << 40:     1 << 7, // of a later driver
		0x4 | 0x28:  1<<0 | 1<<1 | 1<<3,
		0x40 | 0x48: 1<<2 | 1<<3,
	} {
		if got := reasonsOf(bits); got != want {
			t.Errorf("%#x: %b, want %b", bits, got, want)
		}
	}
}

func TestElement(t *testing.T) {
	field := func(id exporter.FieldID, code nvml.Return, kind nvml.ValueType, v any) *nvml.FieldValue {
		return &nvml.FieldValue{FieldId: uint32(id), NvmlReturn: uint32(code), ValueType: uint32(kind), Value: raw(v)}
	}
	for _, c := range []struct {
		name  string
		f     *nvml.FieldValue
		want  float64
		fault exporter.Fault
	}{
		{"good", field(83, nvml.SUCCESS, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, uint64(5)), 5, ""},
		{"negative T.Limit in an unsigned word", field(exporter.FieldTLimitSlowdown, nvml.SUCCESS, nvml.VALUE_TYPE_UNSIGNED_INT, uint32(0xFFFFFFFD)), -3, ""},
		{"unknown to an older driver", field(9999, nvml.ERROR_INVALID_ARGUMENT, 0, uint64(0)), 0, exporter.Unsupported},
		{"not on this device", field(82, nvml.ERROR_NOT_SUPPORTED, 0, uint64(0)), 0, exporter.Unsupported},
		{"lost", field(82, nvml.ERROR_GPU_IS_LOST, 0, uint64(0)), 0, exporter.Lost},
		{"blank", field(82, nvml.SUCCESS, nvml.VALUE_TYPE_UNSIGNED_INT, uint32(0xFFFFFFFF)), 0, exporter.Unsupported},
	} {
		v, err := element(c.f)
		if v != c.want || exporter.FaultOf(err) != c.fault {
			t.Errorf("%s: %g, %v; want %g, %q", c.name, v, err, c.want, c.fault)
		}
	}
}
