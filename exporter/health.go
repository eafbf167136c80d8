package exporter

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// readHealth reads the driver's own verdicts: what it asks to be done about the
// device, and how far that is with its fabric.
func readHealth(r *reading) error {
	return errors.Join(r.gauge(telemetry.GPURecoveryAction, FieldRecoveryAction), readFabric(r))
}

func readFabric(r *reading) error {
	dev, ok := r.dev.(FabricTeller)
	if !ok {
		return nil
	}
	if telemetry.RowOf(telemetry.GPUFabricState).Archs&r.mem.arch == 0 {
		return nil
	}
	var state int
	err := r.do(callFabric, func() (err error) {
		state, err = dev.FabricState()
		return err
	})
	if err != nil {
		return r.absent(err, telemetry.GPUFabricState)
	}
	r.set(telemetry.GPUFabricState, float64(state))
	return nil
}
