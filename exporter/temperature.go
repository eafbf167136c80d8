package exporter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// MemoryThresholder is a device that knows at which memory temperature, in
// celsius, the driver begins to slow it down. One driver call.
type MemoryThresholder interface {
	MemoryThreshold() (celsius float64, err error)
}

// thermalLimits are where a device slows down, as far as it says so. There are
// two models: newer drivers tell a margin to their own limit and at which
// margin the device slows down, older ones an absolute temperature.
type thermalLimits struct {
	offset, threshold, memory          float64
	hasOffset, hasThreshold, hasMemory bool
}

func readThermalLimits(r *reading) error {
	l := &r.mem.limits
	offset, offsetErr := r.field(FieldTLimitSlowdown)
	if offsetErr != nil {
		l.hasOffset = l.hasOffset && !isUnsupported(offsetErr)
		offsetErr = r.absent(offsetErr, telemetry.GPUSlowdownOffsetCelsius)
	} else if r.set(telemetry.GPUSlowdownOffsetCelsius, offset) {
		l.offset, l.hasOffset = offset, true
	}
	var threshold float64
	err := r.do(callThreshold, func() (err error) {
		threshold, err = r.dev.SlowdownThreshold()
		return err
	})
	if err != nil {
		l.hasThreshold = l.hasThreshold && !isUnsupported(err)
		err = r.absent(err, telemetry.GPUSlowdownThresholdCelsius)
	} else if r.set(telemetry.GPUSlowdownThresholdCelsius, threshold) {
		l.threshold, l.hasThreshold = threshold, true
	}
	return errors.Join(offsetErr, err, readMemoryThreshold(r))
}

func readMemoryThreshold(r *reading) error {
	dev, ok := r.dev.(MemoryThresholder)
	if !ok {
		return nil
	}
	l := &r.mem.limits
	var celsius float64
	err := r.do(callMemoryThreshold, func() (err error) {
		celsius, err = dev.MemoryThreshold()
		return err
	})
	switch row := telemetry.RowOf(telemetry.GPUTemperatureCelsiusMemory); {
	case isUnsupported(err):
		l.hasMemory = false
	case err != nil:
		return err
	case row.InRange(celsius) && celsius > 0:
		l.memory, l.hasMemory = celsius, true
	}
	return nil
}

func readTemperature(r *reading) error {
	var core float64
	err := r.do(callTemperature, func() (err error) {
		core, err = r.dev.Temperature()
		return err
	})
	if err != nil {
		err = r.absent(err, telemetry.GPUTemperatureCelsiusCore)
	} else if r.set(telemetry.GPUTemperatureCelsiusCore, core) {
		r.core = core
	}
	mem, memErr := r.field(FieldMemoryTemperature)
	if memErr != nil {
		memErr = r.absent(memErr, telemetry.GPUTemperatureCelsiusMemory)
	} else if r.set(telemetry.GPUTemperatureCelsiusMemory, mem) {
		r.memTemp = mem
	}
	return errors.Join(err, memErr)
}

// readHeadroom is the smaller of the core's and the memory's distance to
// slowdown. Without the core there is none; a memory that has a limit and no
// reading makes it suspect.
func readHeadroom(r *reading) error {
	const id = telemetry.GPUThermalHeadroomCelsius
	headroom, err := coreHeadroom(r)
	if err != nil {
		return r.absent(err, id)
	}
	m := present
	if l := &r.mem.limits; l.hasMemory {
		switch {
		case !math.IsNaN(r.memTemp):
			headroom = min(headroom, l.memory-r.memTemp)
		case !r.mem.lacks(FieldMemoryTemperature):
			m = suspect
		}
	}
	r.store(id, headroom, m)
	return nil
}

// coreHeadroom gives none without the core's temperature on either model: where
// a device blanks its values, margin and offset are -1, which they may also be.
func coreHeadroom(r *reading) (float64, error) {
	l := &r.mem.limits
	switch {
	case !l.hasOffset && !l.hasThreshold, math.IsNaN(r.core) && r.mem.noCall[callTemperature]:
		return 0, errUnsupported
	case math.IsNaN(r.core):
		return 0, errNoCore
	}
	if l.hasOffset {
		var margin float64
		err := r.do(callMargin, func() (err error) {
			margin, err = r.dev.Margin()
			return err
		})
		if err == nil {
			return margin - l.offset, nil
		}
		if !isUnsupported(err) {
			return 0, err
		}
	}
	if !l.hasThreshold {
		return 0, errUnsupported
	}
	return l.threshold - r.core, nil
}

// Headroom reads how far, in celsius, a device is from slowing down, by the
// same readers as a frame's value. It takes several driver calls and as long as
// they do. What is not known for certain is an error, never a number.
func Headroom(dev Device) (celsius float64, err error) {
	out, now := newSample(), time.Now()
	r := reading{
		dev: dev, at: now, period: DefaultPeriod, due: due{slow: true}, out: out,
		mem: &memory{results: make([]result, len(readers)), arch: archOf(dev.Identity().Arch)}, call: &callMark{epoch: now},
	}
	r.round(slices.DeleteFunc(slices.Clone(readers), func(rd reader) bool { return !slices.Contains(headroomReaders, rd.name) }))
	for i := range r.mem.results {
		err = errors.Join(err, r.mem.results[i].err)
	}
	slot := int(slotOf[telemetry.GPUThermalHeadroomCelsius])
	switch v, m := out.fast.v[slot], out.fast.mark[slot]; {
	case err != nil:
		return 0, fmt.Errorf("headroom: %w", err)
	case m == present:
		return v, nil
	case m == suspect:
		return 0, errNoMemory
	case m == outOfRange:
		return 0, errNonsense
	}
	return 0, fmt.Errorf("headroom: %w", errUnsupported)
}

// headroomReaders are those that headroom is made by, in their order in readers.
var headroomReaders = []string{"thermal_limits", "temperature", "headroom"}

var (
	errNoMemory = errors.New("headroom: the memory has a limit and no temperature")
	errNonsense = errors.New("headroom: what the driver says cannot be")
)

var errNoCore = errors.New("no headroom without a core temperature")
