//go:build cgo && linux

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// device is one GPU. Its user makes one call at a time.
type device struct {
	l      *library
	handle nvml.Device
	id     exporter.Identity
	batch  []nvml.FieldValue
}

var (
	_ exporter.Device            = (*device)(nil)
	_ exporter.MemoryThresholder = (*device)(nil)
)

func (d *device) Identity() exporter.Identity { return d.id }

func (d *device) Utilization() (gpu, memory float64, err error) {
	if err := d.l.need(symUtilization); err != nil {
		return 0, 0, err
	}
	u, code := d.handle.GetUtilizationRates()
	if err := check(names[symUtilization], code); err != nil {
		return 0, 0, err
	}
	if u.Gpu == blank32 || u.Memory == blank32 {
		return 0, 0, blank(names[symUtilization])
	}
	return float64(u.Gpu) / 100, float64(u.Memory) / 100, nil
}

// BusySamples is two driver calls: the binding asks for the room needed first.
func (d *device) BusySamples(since uint64, to []exporter.Sample) ([]exporter.Sample, error) {
	if err := d.l.need(symSamples); err != nil {
		return to, err
	}
	kind, samples, code := d.handle.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, since)
	if code == nvml.ERROR_NOT_FOUND || code == nvml.ERROR_NO_DATA {
		d.l.calls.Add(1)
		return to, nil // nothing new
	}
	if err := check(names[symSamples], code); err != nil {
		return to, err
	}
	d.l.calls.Add(1)
	for i := range samples {
		if samples[i].TimeStamp == 0 {
			break // fewer were there than were asked for
		}
		v, ok := number(kind, samples[i].SampleValue, false)
		if !ok {
			continue
		}
		to = append(to, exporter.Sample{Micros: samples[i].TimeStamp, Value: v / 100})
	}
	return to, nil
}

// Memory prefers the version that does not count as used what the driver keeps
// for itself.
func (d *device) Memory() (used, total uint64, err error) {
	if d.l.need(symMemory2) == nil {
		m, code := d.handle.GetMemoryInfo_v2()
		if code != nvml.ERROR_ARGUMENT_VERSION_MISMATCH && code != nvml.ERROR_NOT_SUPPORTED {
			return memory(names[symMemory2], code, m.Used, m.Total)
		}
	}
	if err := d.l.need(symMemory); err != nil {
		return 0, 0, err
	}
	m, code := d.handle.GetMemoryInfo()
	return memory(names[symMemory], code, m.Used, m.Total)
}

// MemoryReserved is known to drivers that do not count it as used.
func (d *device) MemoryReserved() (uint64, error) {
	if err := d.l.need(symMemory2); err != nil {
		return 0, err
	}
	m, code := d.handle.GetMemoryInfo_v2()
	if code == nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		return 0, blank(names[symMemory2])
	}
	reserved, _, err := memory(names[symMemory2], code, m.Reserved, m.Total)
	return reserved, err
}

func memory(call string, code nvml.Return, used, total uint64) (uint64, uint64, error) {
	if err := check(call, code); err != nil {
		return 0, 0, err
	}
	if used == blank64 || total == blank64 {
		return 0, 0, blank(call)
	}
	return used, total, nil
}

func (d *device) Temperature() (float64, error) {
	if err := d.l.need(symTemperature); err != nil {
		return 0, err
	}
	t, code := d.handle.GetTemperature(nvml.TEMPERATURE_GPU)
	return unsigned(names[symTemperature], code, t, 1)
}

func (d *device) Margin() (float64, error) {
	if err := d.l.need(symMargin); err != nil {
		return 0, err
	}
	m, code := d.handle.GetMarginTemperature()
	if err := check(names[symMargin], code); err != nil {
		return 0, err
	}
	return float64(m.MarginTemperature), nil
}

func (d *device) SlowdownThreshold() (float64, error) {
	return d.threshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
}

// MemoryThreshold is the memory temperature above which the driver slows the
// device down.
func (d *device) MemoryThreshold() (float64, error) {
	return d.threshold(nvml.TEMPERATURE_THRESHOLD_MEM_MAX)
}

func (d *device) threshold(which nvml.TemperatureThresholds) (float64, error) {
	if err := d.l.need(symThreshold); err != nil {
		return 0, err
	}
	t, code := d.handle.GetTemperatureThreshold(which)
	c, err := unsigned(names[symThreshold], code, t, 1)
	if err == nil && c == 0 {
		return 0, blank(names[symThreshold]) // some drivers say 0 for none
	}
	return c, err
}

func (d *device) Power() (float64, error) {
	if err := d.l.need(symPower); err != nil {
		return 0, err
	}
	mw, code := d.handle.GetPowerUsage()
	return unsigned(names[symPower], code, mw, 1e-3)
}

// PowerLimits gives NaN for those that the device does not state, unless it
// states none.
func (d *device) PowerLimits() (current, def, low, high float64, err error) {
	return d.l.powerLimits(d.handle)
}

func (d *device) Clock(domain exporter.Domain) (float64, error) {
	if err := d.l.need(symClock); err != nil {
		return 0, err
	}
	clocks := [...]nvml.ClockType{
		exporter.ClockSM: nvml.CLOCK_SM, exporter.ClockMemory: nvml.CLOCK_MEM,
		exporter.ClockGraphics: nvml.CLOCK_GRAPHICS, exporter.ClockVideo: nvml.CLOCK_VIDEO,
	}
	if domain < 0 || int(domain) >= len(clocks) {
		return 0, blank(names[symClock])
	}
	mhz, code := d.handle.GetClockInfo(clocks[domain])
	return unsigned(names[symClock], code, mhz, 1e6)
}

// The library's reason bits, under the names that old and new drivers share.
const (
	bitIdle        = 0x1
	bitSWPower     = 0x4
	bitHWSlowdown  = 0x8
	bitSyncBoost   = 0x10
	bitSWThermal   = 0x20
	bitHWThermal   = 0x40
	bitPowerBrake  = 0x80
	bitsAccounted  = bitIdle | bitSWPower | bitHWSlowdown | bitSyncBoost | bitSWThermal | bitHWThermal | bitPowerBrake
	reasonOtherBit = 7
)

// reasonBits are the library's bits in the order of telemetry.ThrottleReasons.
var reasonBits = [...]uint64{bitSWPower, bitSWThermal, bitHWThermal, bitHWSlowdown, bitPowerBrake, bitSyncBoost, bitIdle}

func (d *device) ThrottleReasons() (exporter.Reasons, error) {
	var bits uint64
	var code nvml.Return
	call := symEventReasons
	if err := d.l.need(symEventReasons); err == nil {
		bits, code = d.handle.GetCurrentClocksEventReasons()
	} else if d.l.need(symThrottleReasons) == nil {
		call = symThrottleReasons
		bits, code = d.handle.GetCurrentClocksThrottleReasons()
	} else {
		return 0, err
	}
	if err := check(names[call], code); err != nil {
		return 0, err
	}
	if bits == blank64 {
		return 0, blank(names[call])
	}
	return reasonsOf(bits), nil
}

func reasonsOf(bits uint64) (r exporter.Reasons) {
	for i, bit := range reasonBits {
		if bits&bit != 0 {
			r |= 1 << i
		}
	}
	if bits&^bitsAccounted != 0 {
		r |= 1 << reasonOtherBit
	}
	return r
}

// Fields reads a batch in one call.
func (d *device) Fields(fields []exporter.Field) error {
	if len(fields) == 0 {
		return nil
	}
	if err := d.l.need(symFields); err != nil {
		return err
	}
	d.batch = d.batch[:0]
	for i := range fields {
		d.batch = append(d.batch, nvml.FieldValue{FieldId: uint32(fields[i].ID), ScopeId: fields[i].Scope})
	}
	if err := check(names[symFields], d.handle.GetFieldValues(d.batch)); err != nil {
		return err
	}
	for i := range fields {
		f := &fields[i]
		f.Value, f.Err = element(&d.batch[i])
		f.Word = nvml.ValueType(d.batch[i].ValueType) == nvml.VALUE_TYPE_UNSIGNED_INT
	}
	return nil
}

// element is one value of a batch.
func element(v *nvml.FieldValue) (float64, error) {
	switch code := nvml.Return(v.NvmlReturn); code {
	case nvml.SUCCESS:
	case nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_DATA:
		return 0, blank(names[symFields]) // how older drivers say that they do not know the field
	default:
		return 0, check(names[symFields], code)
	}
	id := exporter.FieldID(v.FieldId)
	signed := id >= exporter.FieldTLimitShutdown && id <= exporter.FieldTLimitGPUMax
	x, ok := number(nvml.ValueType(v.ValueType), v.Value, signed)
	if !ok {
		return 0, blank(names[symFields])
	}
	return x, nil
}

// unsigned is a reading in an unsigned word, times its unit.
func unsigned(call string, code nvml.Return, v uint32, unit float64) (float64, error) {
	if err := check(call, code); err != nil {
		return 0, err
	}
	if v == blank32 {
		return 0, blank(call)
	}
	return float64(v) * unit, nil
}

// finite refuses the numbers that stand for no number.
func finite(v float64) (float64, bool) {
	return v, !math.IsNaN(v) && !math.IsInf(v, 0) && v != blankDouble
}

// blankDouble is a floating-point sentinel seen in the wild.
const blankDouble = 140737488355328
