package cluster

import "github.com/evenkeel-gpu/evenkeel/telemetry"

// slot is one value of a device as last read. Times are milliseconds since the
// judge's first frame and wrap after 49 days, far beyond any value's life.
type slot struct {
	v  float64
	at uint32
	// q is zero for no value, else the quality plus one.
	q uint8
}

func (s slot) quality() telemetry.Quality { return telemetry.Quality(s.q - 1) }

// usable values may be shown; only QUALITY_OK may drive an act.
func (s slot) usable() bool {
	return s.q == uint8(telemetry.Quality_QUALITY_OK)+1 || s.q == uint8(telemetry.Quality_QUALITY_SUSPECT)+1
}

// unsupported is a mark that the device does not have the value.
func (s slot) unsupported() bool { return s.q == uint8(telemetry.Quality_QUALITY_UNSUPPORTED)+1 }

func (s slot) trusted() bool { return s.q == uint8(telemetry.Quality_QUALITY_OK)+1 }

// wired is a series that travels in the GPU message.
type wired struct {
	id      telemetry.ID
	class   class
	row     *telemetry.Row
	counter bool
	celsius bool
	// The row's bounds, beside what else is looked at for each value.
	min, max float64
}

// inRange is the row's InRange: NaN never is.
func (w *wired) inRange(v float64) bool { return v >= w.min && v <= w.max }

// wiredSeries lists them in the order of their ids, and slotOf finds one.
var wiredSeries, slotOf = func() ([]wired, [1000]uint8) {
	var list []wired
	var at [1000]uint8
	for id := range telemetry.ID(len(at)) {
		row := telemetry.RowOf(id)
		if row == nil || row.Per != telemetry.PerGPU || row.Wire.Kind == telemetry.NoWire {
			continue
		}
		rate := telemetry.RateOf(id)
		list = append(list, wired{id, classOf(rate), row, row.Type == telemetry.Counter, row.Unit == "celsius" && rate == telemetry.Fast, row.Min, row.Max})
		at[id] = uint8(len(list)) // one more than the place, so that zero is none
	}
	return list, at
}()

// class is a rate class as an index.
type class uint8

const (
	classFast class = iota
	classLink
	classSlow
	classes
)

func classOf(r telemetry.Rate) class {
	switch r {
	case telemetry.Link:
		return classLink
	case telemetry.Slow:
		return classSlow
	}
	return classFast
}

var ratesOf = [classes]telemetry.Rate{telemetry.Fast, telemetry.Link, telemetry.Slow}

// maxSlots is the room for values of a device; a test compares it with the
// catalogue.
const maxSlots = 80

// finite is false for infinities and for what is not a number.
func finite(v float64) bool { return v-v == 0 }
