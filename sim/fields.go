package sim

import (
	"math"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// Fields beyond those that the exporter names, by NVML's numbers.
const (
	fieldPowerAverage      exporter.FieldID = 185
	fieldPowerInstant      exporter.FieldID = 186
	fieldPowerMin          exporter.FieldID = 187
	fieldPowerMax          exporter.FieldID = 188
	fieldPowerDefault      exporter.FieldID = 189
	fieldPowerCurrent      exporter.FieldID = 190
	fieldEnergyAgain       exporter.FieldID = 191
	fieldPowerRequested    exporter.FieldID = 192
	fieldThermalViolations exporter.FieldID = 75
)

// Fields reads a batch in one call. What one field lacks is said there.
func (d *device) Fields(fields []exporter.Field) error {
	const name = "nvmlDeviceGetFieldValues"
	return d.call(name, func(r *Reading) error {
		for i := range fields {
			f := &fields[i]
			value, ok := r.field(f.ID, f.Scope)
			f.Value, f.Err = value, nil
			if !ok || r.Blank {
				f.Value, f.Err = 0, unsupported(name)
			}
		}
		return nil
	})
}

// field is the value of one field in the driver's units, and whether this
// product has it.
func (r *Reading) field(id exporter.FieldID, scope uint32) (float64, bool) {
	m := r.Model
	switch id {
	case exporter.FieldMemoryTemperature:
		return float64(r.MemoryC), r.HasMemorySensor()
	case exporter.FieldEnergyMillijoules, fieldEnergyAgain:
		return math.Floor(r.EnergyJ * 1000), true
	case exporter.FieldThrottlePowerNs:
		return r.PowerThrottledS * 1e9, true
	case exporter.FieldThrottleSWThermalNs, fieldThermalViolations:
		return r.SoftThermalThrottledS * 1e9, true
	case exporter.FieldThrottleHWThermalNs:
		return r.HardThermalThrottledS * 1e9, true
	case exporter.FieldThrottleSyncBoostNs, exporter.FieldThrottlePowerBrakeNs:
		return 0, true
	case exporter.FieldNVLinkCount:
		return float64(m.NVLinks), m.NVLinks > 0
	case exporter.FieldNVLinkTxKiB, exporter.FieldNVLinkRxKiB:
		bytes, ok := r.nvlinkBytes(scope, true)
		return math.Floor(bytes / 1024), ok && m.Architecture < Blackwell
	case exporter.FieldNVLink5TxBytes, exporter.FieldNVLink5RxBytes:
		bytes, ok := r.nvlinkBytes(scope, false)
		return bytes, ok && m.Architecture >= Blackwell
	case exporter.FieldPCIeTxBytes:
		return float64(r.PCIeTxBytes), true
	case exporter.FieldPCIeRxBytes:
		return float64(r.PCIeRxBytes), true
	}
	if value, ok, known := r.soundField(id, scope); known {
		return value, ok
	}
	if value, ok, known := r.thermalField(id); known {
		return value, ok
	}
	return r.powerField(id, scope)
}

// nvlinkBytes is the traffic of one link, or of all where the field can sum.
func (r *Reading) nvlinkBytes(scope uint32, sums bool) (float64, bool) {
	links := uint32(r.Model.NVLinks)
	switch {
	case links == 0:
		return 0, false
	case scope == exporter.AllLinks:
		return float64(r.NVLinkBytes), sums
	}
	return float64(r.NVLinkBytes / uint64(links)), scope < links
}

// soundField serves what tells of wear and errors: these devices have none.
func (r *Reading) soundField(id exporter.FieldID, scope uint32) (value float64, ok, known bool) {
	m := r.Model
	link := scope < uint32(m.NVLinks)
	switch id {
	case exporter.FieldECCCorrectedVolatile, exporter.FieldECCUncorrectedVolatile, exporter.FieldECCCorrectedAggregate,
		exporter.FieldECCUncorrectedAggregate, exporter.FieldPCIeReplays:
		return 0, true, true
	case exporter.FieldRemapCorrectable, exporter.FieldRemapUncorrectable, exporter.FieldRemapPending, exporter.FieldRemapFailed,
		exporter.FieldRecoveryAction:
		return 0, m.Architecture >= Ampere, true
	case exporter.FieldNVLinkReplays, exporter.FieldNVLinkRecoveries, exporter.FieldNVLinkCRCErrors:
		return 0, link && m.Architecture < Blackwell, true
	case exporter.FieldNVLink5RxErrors, exporter.FieldNVLink5Recoveries:
		return 0, link && m.Architecture >= Blackwell, true
	case exporter.FieldNVLinkState:
		return 1, link, true
	}
	return 0, false, false
}

func (r *Reading) thermalField(id exporter.FieldID) (value float64, ok, known bool) {
	m := r.Model
	switch id {
	case exporter.FieldTLimitShutdown:
		return m.GPUMaxC - m.ShutdownC, m.ThermalMargin, true
	case exporter.FieldTLimitSlowdown:
		return m.GPUMaxC - m.SlowdownC, m.ThermalMargin, true
	case exporter.FieldTLimitMemoryMax:
		return 0, m.ThermalMargin && r.HasMemorySensor(), true
	case exporter.FieldTLimitGPUMax:
		return 0, m.ThermalMargin, true
	}
	return 0, false, false
}

// powerField serves the GPU's own scope only: no product here is a module.
func (r *Reading) powerField(id exporter.FieldID, scope uint32) (float64, bool) {
	if scope != 0 {
		return 0, false
	}
	m := r.Model
	switch id {
	case fieldPowerAverage:
		return math.Round(r.AverageW * 1000), m.AveragePower
	case fieldPowerInstant:
		return math.Round(r.PowerW * 1000), true
	case fieldPowerMin:
		return m.MinLimit * 1000, true
	case fieldPowerMax:
		return m.MaxLimit * 1000, true
	case fieldPowerDefault:
		return m.DefaultLimit * 1000, true
	case fieldPowerCurrent, fieldPowerRequested:
		return math.Round(r.LimitW * 1000), true
	}
	return 0, false
}
