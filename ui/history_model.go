package ui

import (
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
)

// History is the past of a GPU, a node or the fleet, oldest first.
type History struct {
	APIVersion string `json:"apiVersion"`
	UUID       string `json:"uuid,omitempty"`
	Node       string `json:"node,omitempty"`
	// From and To are what the items are of, Step how far apart they are; without
	// one they are the samples as they came.
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	Step   float64   `json:"step_seconds,omitempty"`
	Source string    `json:"source"` // memory, store, both
	// Note says what of the range that was asked for cannot be told, and why.
	Note  string    `json:"note,omitempty"`
	Items []Instant `json:"items"`
}

// Instant is one sample of a past, or what is told of a step up to its time:
// the least headroom and limit, the highest temperatures, the mean of the rest.
// Of several GPUs it is the least or highest, power and limits are summed.
type Instant struct {
	Time        time.Time `json:"time"`
	GPUs        *float64  `json:"gpus,omitempty"` // that were heard
	Coverage    *float64  `json:"coverage_ratio,omitempty"`
	Headroom    *float64  `json:"headroom_celsius,omitempty"`
	Core        *float64  `json:"temperature_core_celsius,omitempty"`
	Memory      *float64  `json:"temperature_memory_celsius,omitempty"`
	Power       *float64  `json:"power_watts,omitempty"`
	Limit       *float64  `json:"power_limit_watts,omitempty"`
	Utilization *float64  `json:"utilization_ratio,omitempty"`
	Clock       *float64  `json:"sm_clock_hertz,omitempty"`
}

// gather is how values of several times or devices become one.
type gather int

const (
	least gather = iota
	most
	mean
	sum
)

func (g gather) function() string { return [...]string{"min", "max", "avg", "sum"}[g] }

// field is one value of an Instant: where it is in a point of memory, how it is
// asked of the store, and how it is gathered over time and over devices.
type field struct {
	at      func(*Instant) **float64
	point   func(*Point) cluster.Opt
	series  string // name and labels beside those of the device
	labels  string
	time    gather
	devices gather
}

// heardBy is the field that every device has that is heard.
const heardBy = 1

var fields = []field{
	{func(i *Instant) **float64 { return &i.Headroom }, func(p *Point) cluster.Opt { return p.Headroom }, "gpu_thermal_headroom_celsius", "", least, least},
	{func(i *Instant) **float64 { return &i.Core }, func(p *Point) cluster.Opt { return p.Core }, "gpu_temperature_celsius", `sensor="core"`, most, most},
	{func(i *Instant) **float64 { return &i.Memory }, func(p *Point) cluster.Opt { return p.Memory }, "gpu_temperature_celsius", `sensor="memory"`, most, most},
	{func(i *Instant) **float64 { return &i.Power }, func(p *Point) cluster.Opt { return p.Power }, "gpu_power_watts", "", mean, sum},
	{func(i *Instant) **float64 { return &i.Limit }, func(p *Point) cluster.Opt { return p.Limit }, "gpu_power_limit_watts", "", least, sum},
	{func(i *Instant) **float64 { return &i.Utilization }, func(p *Point) cluster.Opt { return p.Utilization }, "gpu_utilization_ratio", "", mean, mean},
	{func(i *Instant) **float64 { return &i.Clock }, func(p *Point) cluster.Opt { return p.Clock }, "gpu_clock_hertz", `domain="sm"`, mean, mean},
}

// gathering makes one value of several.
type gathering struct {
	v float64
	n int
}

func (h *gathering) add(v float64, by gather) {
	switch {
	case h.n == 0:
		h.v = v
	case by == least:
		h.v = math.Min(h.v, v)
	case by == most:
		h.v = math.Max(h.v, v)
	default:
		h.v += v
	}
	h.n++
}

func (h *gathering) value(by gather) *float64 {
	if h.n == 0 {
		return nil
	}
	v := h.v
	if by == mean {
		v /= float64(h.n)
	}
	return &v
}

// instantOf is a point as it is.
func instantOf(p *Point) Instant {
	i := Instant{Time: p.At}
	for _, f := range fields {
		*f.at(&i) = pointer(f.point(p))
	}
	return i
}

// gathered folds the points of each device into steps that end at multiples of
// the step, the last one at to, and the devices into one.
func gathered(devices [][]Point, from, to time.Time, step time.Duration) []Instant {
	first := from.Truncate(step).Add(step)
	count := int(to.Sub(first)/step) + 2
	if count < 1 || !to.After(from) {
		return nil
	}
	place := func(at time.Time) int { return int((at.Sub(first) + step - 1) / step) }
	out := make([]Instant, count)
	heard := make([]int, count)
	for k, f := range fields {
		all := make([]gathering, count)
		for _, points := range devices {
			one := make([]gathering, count)
			for n := range points {
				p := &points[n]
				if !p.At.After(from) || p.At.After(to) {
					continue
				}
				if v := f.point(p); v.OK {
					one[place(p.At)].add(v.V, f.time)
				}
			}
			for i := range one {
				if v := one[i].value(f.time); v != nil {
					all[i].add(*v, f.devices)
					heard[i] += btoi(k == heardBy)
				}
			}
		}
		for i := range all {
			*f.at(&out[i]) = all[i].value(f.devices)
		}
	}
	var known []Instant
	for i := range out {
		if out[i] != (Instant{}) {
			if out[i].Time = first.Add(time.Duration(i) * step); out[i].Time.After(to) {
				out[i].Time = to // the last step is not over
			}
			if n := float64(heard[i]); len(devices) > 1 && n > 0 {
				out[i].GPUs = &n
			}
			known = append(known, out[i])
		}
	}
	return known
}
