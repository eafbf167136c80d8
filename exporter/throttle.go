package exporter

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// throttle ties a reason to its series and, where the driver counts the time
// itself, to the field with the nanoseconds. In the order of
// telemetry.ThrottleReasons, which is the order of the bits.
var throttle = [...]struct {
	active, seconds telemetry.ID
	field           FieldID // 0: integrated here
}{
	{telemetry.GPUThrottleActiveSWPower, telemetry.GPUThrottleSecondsSWPower, FieldThrottlePowerNs},
	{telemetry.GPUThrottleActiveSWThermal, telemetry.GPUThrottleSecondsSWThermal, FieldThrottleSWThermalNs},
	{telemetry.GPUThrottleActiveHWThermal, telemetry.GPUThrottleSecondsHWThermal, FieldThrottleHWThermalNs},
	{telemetry.GPUThrottleActiveHWSlowdown, telemetry.GPUThrottleSecondsHWSlowdown, 0},
	{telemetry.GPUThrottleActivePowerBrake, telemetry.GPUThrottleSecondsPowerBrake, FieldThrottlePowerBrakeNs},
	{telemetry.GPUThrottleActiveSyncBoost, telemetry.GPUThrottleSecondsSyncBoost, FieldThrottleSyncBoostNs},
	{telemetry.GPUThrottleActiveIdle, telemetry.GPUThrottleSecondsIdle, 0},
	{telemetry.GPUThrottleActiveOther, telemetry.GPUThrottleSecondsOther, 0},
}

var throttleFields = []FieldID{
	FieldThrottlePowerNs, FieldThrottleSWThermalNs, FieldThrottleHWThermalNs,
	FieldThrottlePowerBrakeNs, FieldThrottleSyncBoostNs,
}

func readThrottle(r *reading) error {
	var reasons Reasons
	bitsErr := r.do(callThrottle, func() (err error) {
		reasons, err = r.dev.ThrottleReasons()
		return err
	})
	var failures []error
	for i := range throttle {
		if bitsErr != nil {
			if err := r.absent(bitsErr, throttle[i].active); err != nil && i == 0 {
				failures = append(failures, err)
			}
			continue
		}
		r.set(throttle[i].active, float64(reasons>>i&1))
	}
	for i := range throttle {
		t := &throttle[i]
		if err := readThrottleTime(r, t.seconds, t.field, float64(reasons>>i&1), bitsErr); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// readThrottleTime takes the driver's own time where it counts it, else adds
// the measured interval while the reason holds.
func readThrottleTime(r *reading, id telemetry.ID, field FieldID, active float64, bitsErr error) error {
	if field != 0 {
		if _, err := r.field(field); !isUnsupported(err) {
			return r.count(id, field, 1e-9)
		}
	}
	if bitsErr != nil {
		return r.absent(bitsErr, id)
	}
	r.add(id, active*r.interval())
	return nil
}
