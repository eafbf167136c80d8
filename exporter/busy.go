package exporter

import (
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// maxSampleGap is the longest time that one driver sample speaks for. The
// driver's windows are up to a second; beyond that the time was not measured
// and is not claimed as busy.
const maxSampleGap = 2 * time.Second

// silentSamples is how long the driver may have no new sample before the clock
// that stamps them is thought to have been set back.
const silentSamples = 10 * time.Second

type busyState struct {
	last   uint64    // stamp of the newest sample taken
	lastAt time.Time // when it was taken
}

// readBusy integrates the driver's own samples, so that load between two ticks
// counts; without them, the utilisation of the tick over the measured time.
func readBusy(r *reading) error {
	b := &r.mem.busy
	if b.last != 0 && r.at.Sub(b.lastAt) > max(silentSamples, 3*r.period) {
		b.last = 0
	}
	r.samples = r.samples[:0]
	err := r.do(callSamples, func() (err error) {
		r.samples, err = r.dev.BusySamples(b.last, r.samples)
		return err
	})
	switch {
	case err == nil:
		seconds, last, bad := integrate(r.samples, b.last)
		if last != b.last {
			b.last, b.lastAt = last, r.at
		}
		r.mem.invalid[slotOf[telemetry.GPUBusySeconds]][whyRange] += bad
		r.add(telemetry.GPUBusySeconds, seconds)
		return nil
	case !isUnsupported(err):
		return r.absent(err, telemetry.GPUBusySeconds)
	case math.IsNaN(r.util):
		return r.absent(err, telemetry.GPUBusySeconds)
	}
	r.add(telemetry.GPUBusySeconds, r.util*r.interval())
	return nil
}

// integrate sums busy time over samples newer than since, each standing for
// the time from the one before. With since 0 it only finds where to begin:
// what the driver buffered before is not ours. It also returns how many
// samples were no ratio.
func integrate(samples []Sample, since uint64) (seconds float64, last uint64, bad uint32) {
	last = since
	for _, s := range samples {
		if s.Micros <= last {
			continue // seen before, or out of order
		}
		if !(s.Value >= 0 && s.Value <= 1) {
			bad++
			continue // the next good sample speaks for this one's time
		}
		if last != 0 && since != 0 {
			gap := min(time.Duration(s.Micros-last)*time.Microsecond, maxSampleGap)
			seconds += s.Value * gap.Seconds()
		}
		last = s.Micros
	}
	return seconds, last, bad
}
