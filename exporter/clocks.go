package exporter

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func readClocks(r *reading) error {
	return errors.Join(
		readClock(r, callClockSM, ClockSM, telemetry.GPUClockHertzSM),
		readClock(r, callClockMemory, ClockMemory, telemetry.GPUClockHertzMemory))
}

func readSlowClocks(r *reading) error {
	return errors.Join(
		readClock(r, callClockGraphics, ClockGraphics, telemetry.GPUClockHertzGraphics),
		readClock(r, callClockVideo, ClockVideo, telemetry.GPUClockHertzVideo))
}

func readClock(r *reading, call callID, domain Domain, id telemetry.ID) error {
	var hertz float64
	err := r.do(call, func() (err error) {
		hertz, err = r.dev.Clock(domain)
		return err
	})
	if err != nil {
		return r.absent(err, id)
	}
	r.set(id, hertz)
	return nil
}
