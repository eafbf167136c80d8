package exporter

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// fieldPowerLimit is the limit in force, in milliwatts. It is in the batch of
// every round so that a new limit shows in the tick after it was set, and not
// with the next slow part.
const fieldPowerLimit FieldID = 190

func readPower(r *reading) error {
	var watts float64
	err := r.do(callPower, func() (err error) {
		watts, err = r.dev.Power()
		return err
	})
	if err != nil {
		err = r.absent(err, telemetry.GPUPowerWatts)
	} else {
		r.set(telemetry.GPUPowerWatts, watts)
	}
	return errors.Join(err, readEnergy(r), watchLimit(r))
}

func readEnergy(r *reading) error {
	return r.count(telemetry.GPUEnergyJoules, FieldEnergyMillijoules, 1e-3)
}

// watchLimit reads all limits at once when the one in force has changed.
func watchLimit(r *reading) error {
	mw, err := r.field(fieldPowerLimit)
	if err != nil {
		return nil //nolint:nilerr // the slow part reads the limit whatever becomes of this
	}
	if r.mem.limit == mw {
		return nil
	}
	changed := r.mem.limit != 0
	r.mem.limit = mw
	if !changed || r.due.slow {
		return nil
	}
	if err := readPowerLimits(r); err != nil {
		return err
	}
	r.mem.slow.rounds++ // there is a new slow part to send
	return nil
}

func readPowerLimits(r *reading) error {
	var current, def, low, high float64
	err := r.do(callPowerLimits, func() (err error) {
		current, def, low, high, err = r.dev.PowerLimits()
		return err
	})
	if err != nil {
		return r.absent(err, telemetry.GPUPowerLimitWatts, telemetry.GPUPowerLimitDefaultWatts,
			telemetry.GPUPowerLimitMinWatts, telemetry.GPUPowerLimitMaxWatts)
	}
	// A source marks the one it does not know with NaN.
	for _, x := range [...]struct {
		id telemetry.ID
		w  float64
	}{
		{telemetry.GPUPowerLimitWatts, current},
		{telemetry.GPUPowerLimitDefaultWatts, def},
		{telemetry.GPUPowerLimitMinWatts, low},
		{telemetry.GPUPowerLimitMaxWatts, high},
	} {
		r.stated(x.id, x.w)
	}
	return nil
}
