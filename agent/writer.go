package agent

import "github.com/evenkeel-gpu/evenkeel/telemetry"

// Writer is what the agent may do to devices. Every call reads or writes the
// device itself; nothing is cached.
type Writer interface {
	// PowerLimits reads the limits of a device back from the driver. An unknown
	// uuid is an error.
	PowerLimits(uuid string) (telemetry.PowerLimits, error)
	// SetPowerLimit sets the limit in watts. The driver refuses what is outside
	// the device's range.
	SetPowerLimit(uuid string, watts float64) error
}
