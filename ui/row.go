package ui

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// rowColumns names the places of a Row on the wire.
var rowColumns = []string{
	"gpu", "state", "fresh", "last_seen", "headroom_celsius", "temperature_core_celsius", "temperature_memory_celsius",
	"power_watts", "power_limit_watts", "utilization_ratio", "sm_clock_hertz", "throttle", "capped", "seconds_to_slowdown",
}

// rowStates are the device states in the order of their numbers in a Row.
var rowStates = []string{string(cluster.GPUUnknown), string(cluster.GPUOK), string(cluster.GPUHung), string(cluster.GPULost), string(cluster.GPUAbsent)}

// Row is a device's changing values, rounded to what the page shows, so that
// equal rows need not be sent again. It travels as an array.
type Row struct {
	gpu      int
	state    int
	fresh    bool
	lastSeen cluster.Opt // unix seconds; only while not fresh
	headroom cluster.Opt
	core     cluster.Opt
	memory   cluster.Opt
	power    cluster.Opt
	limit    cluster.Opt
	busy     cluster.Opt
	clock    cluster.Opt
	throttle int // bits in the order of telemetry.ThrottleReasons
	capped   bool
	reaches  cluster.Opt
}

func rowOf(i int, n *cluster.Node, g *cluster.GPU, now time.Time) Row {
	at, fresh := sampled(n, g, now)
	r := Row{
		gpu: i, state: max(0, slices.Index(rowStates, string(g.State))), fresh: fresh,
		headroom: round(g.HeadroomC, 0.1),
		core:     round(g.Value(telemetry.GPUTemperatureCelsiusCore), 0.1),
		memory:   round(g.Value(telemetry.GPUTemperatureCelsiusMemory), 0.1),
		power:    round(g.Value(telemetry.GPUPowerWatts), 1),
		limit:    round(limitOf(g), 1),
		busy:     round(g.Value(telemetry.GPUUtilizationRatio), 0.01),
		clock:    round(g.Value(telemetry.GPUClockHertzSM), 5e6),
		capped:   capped(g),
	}
	if g.SecondsToSlowdown.OK && g.SecondsToSlowdown.V < 600 {
		r.reaches = round(g.SecondsToSlowdown, 5)
	}
	for bit := range telemetry.ThrottleReasons {
		if v := g.Value(telemetry.GPUThrottleActiveSWPower + telemetry.ID(bit)); v.OK && v.V != 0 {
			r.throttle |= 1 << bit
		}
	}
	if !fresh && !at.IsZero() {
		r.lastSeen = cluster.Some(float64(at.Unix()))
	}
	return r
}

func round(o cluster.Opt, unit float64) cluster.Opt {
	if !o.OK {
		return cluster.Opt{}
	}
	// Dividing by the inverse keeps 0.1 steps from printing as 0.30000000000000004.
	if unit < 1 {
		inverse := math.Round(1 / unit)
		return cluster.Some(math.Round(o.V*inverse) / inverse)
	}
	return cluster.Some(math.Round(o.V/unit) * unit)
}

// MarshalJSON writes the row in the order of rowColumns, null for unknown.
func (r Row) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 80)
	b = append(b, '[')
	b = strconv.AppendInt(b, int64(r.gpu), 10)
	b = strconv.AppendInt(append(b, ','), int64(r.state), 10)
	b = appendBool(append(b, ','), r.fresh)
	for _, o := range []cluster.Opt{r.lastSeen, r.headroom, r.core, r.memory, r.power, r.limit, r.busy, r.clock} {
		b = appendOpt(append(b, ','), o)
	}
	b = strconv.AppendInt(append(b, ','), int64(r.throttle), 10)
	b = appendBool(append(b, ','), r.capped)
	b = appendOpt(append(b, ','), r.reaches)
	return append(b, ']'), nil
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, '1')
	}
	return append(b, '0')
}

func appendOpt(b []byte, o cluster.Opt) []byte {
	if !o.OK || math.IsNaN(o.V) || math.IsInf(o.V, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, o.V, 'f', -1, 64)
}
