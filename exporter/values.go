package exporter

import (
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// maxSlots bounds the series of one GPU that travel as numbers in its message.
const maxSlots = 96

// slots lists these series; slotOf finds the place of an id, -1 for ids that
// are not among them.
var slots, slotOf = numberSlots()

type slot struct {
	id  telemetry.ID
	row *telemetry.Row
}

func numberSlots() ([]slot, [maxGPUID]int8) {
	var list []slot
	var index [maxGPUID]int8
	for i := range index {
		index[i] = -1
	}
	for i := range telemetry.Catalog {
		row := &telemetry.Catalog[i]
		if row.Per != telemetry.PerGPU || row.Wire.Kind == telemetry.NoWire {
			continue
		}
		for _, s := range row.Series {
			if len(list) == maxSlots {
				panic("exporter: more GPU series in the catalogue than maxSlots")
			}
			index[s.ID] = int8(len(list))
			list = append(list, slot{s.ID, row})
		}
	}
	return list, index
}

// maxGPUID is the end of the catalogue's range of GPU ids.
const maxGPUID = 200

// mark is the state of one slot.
type mark uint8

const (
	absent mark = iota
	present
	suspect // present, and not to be acted on
	outOfRange
	failed
	unsupported
)

func (m mark) quality() telemetry.Quality {
	switch m {
	case suspect:
		return telemetry.Quality_QUALITY_SUSPECT
	case outOfRange:
		return telemetry.Quality_QUALITY_OUT_OF_RANGE
	case failed:
		return telemetry.Quality_QUALITY_ERROR
	case unsupported:
		return telemetry.Quality_QUALITY_UNSUPPORTED
	}
	return telemetry.Quality_QUALITY_OK
}

// values holds one part of what was read of a GPU: fast, link or slow.
type values struct {
	v    [maxSlots]float64
	mark [maxSlots]mark
}

// part is a slower part of what was read of a GPU.
type part struct {
	values
	at     time.Time // start of the last round that read it
	rounds uint64    // grows when there is a new one to send
}

func (p *part) done(at time.Time) {
	p.at = at
	p.rounds++
}

func (v *values) get(slot int) (float64, bool) {
	return v.v[slot], v.mark[slot] == present || v.mark[slot] == suspect
}

// why is a reason for which a value is dropped at the source.
type why uint8

const (
	whyRange why = iota
	whyDecreased
	whys
)

var whyNames = [whys]string{"out_of_range", "decreased"}

// counter keeps a series from falling while the process lives: the driver's
// own counters begin anew when it is loaded again or the device is reset.
type counter struct {
	base, last float64 // the series is base + last
	generation uint64
	known      bool
	raw        bool // last is the driver's number
	falling    bool
}

func (c *counter) value() float64 { return c.base + c.last }

// observe takes the driver's number, which begins anew at wrap if that is not 0.
// A fall that the wrap explains, by less than half its range, is none. Another is
// believed at once after a new start of the driver, else only when the next
// number confirms it: one wrong reading must not add the whole count a second
// time.
func (c *counter) observe(raw, wrap float64, generation uint64) bool {
	switch {
	case !c.known:
	case !c.raw:
		c.base = c.value() - raw
	case raw < c.last && c.generation == generation && raw+wrap-c.last > 0 && raw+wrap-c.last < wrap/2:
		c.base += wrap
	case raw < c.last:
		if c.generation == generation && !c.falling {
			c.falling = true
			return false
		}
		c.base += c.last
	}
	c.last, c.generation = raw, generation
	c.known, c.raw, c.falling = true, true, false
	return true
}

// add is for series that are integrated here.
func (c *counter) add(delta float64) {
	if delta > 0 && !math.IsInf(delta, 0) {
		c.base += delta
	}
	c.known = true
}
