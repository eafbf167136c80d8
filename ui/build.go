package ui

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// sampled says when a device's temperature was last read and whether that is
// fresh, by the rule that coverage is counted with.
func sampled(n *cluster.Node, g *cluster.GPU, now time.Time) (at time.Time, fresh bool) {
	r, ok := g.Reading(telemetry.GPUTemperatureCelsiusCore)
	if !ok {
		return time.Time{}, false
	}
	return r.At, g.State == cluster.GPUOK && n.Fresh(r, now)
}

func limitOf(g *cluster.GPU) cluster.Opt {
	if g.LimitW.OK {
		return g.LimitW
	}
	return g.Value(telemetry.GPUPowerLimitWatts)
}

// capped says that a device may draw less than it could by default, whoever
// lowered it. Drivers round limits, hence the half watt.
func capped(g *cluster.GPU) bool {
	limit, def := limitOf(g), g.DefaultW
	if !def.OK {
		def = g.Value(telemetry.GPUPowerLimitDefaultWatts)
	}
	return limit.OK && def.OK && limit.V < def.V-0.5
}

// slowed says that the device or its driver holds clocks down for heat.
func slowed(g *cluster.GPU) bool {
	for _, id := range []telemetry.ID{telemetry.GPUThrottleActiveSWThermal, telemetry.GPUThrottleActiveHWThermal, telemetry.GPUThrottleActiveHWSlowdown} {
		if v := g.Value(id); v.OK && v.V != 0 {
			return true
		}
	}
	return false
}

// pointer is the JSON form of a number that may be unknown.
func pointer(o cluster.Opt) *float64 {
	if !o.OK {
		return nil
	}
	return number(o.V)
}

// number is the JSON form of a number; JSON has none for those that are not.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// seconds is an age to the millisecond.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}

func age(at, now time.Time) *float64 {
	if at.IsZero() {
		return nil
	}
	v := seconds(max(0, now.Sub(at)))
	return &v
}

// holders maps a device to the open decisions that hold something on it.
func holders(decisions []*telemetry.Decision) map[string][]string {
	out := map[string][]string{}
	for _, d := range decisions {
		if !d.Open() {
			continue
		}
		held := []string{d.Target.UUID}
		if d.Act != nil && len(d.Act.GPUs) > 0 {
			held = d.Act.GPUs
		}
		for _, uuid := range held {
			if uuid != "" {
				out[uuid] = append(out[uuid], d.ID)
			}
		}
	}
	return out
}

func nodeJSON(n *cluster.Node, now time.Time) Node {
	out := Node{
		Name: n.Name, Cluster: n.Cluster, State: string(n.State), Rack: n.Rack, Row: n.Row, Feed: n.Feed,
		PowerDomain: n.PowerDomain, CoolingDomain: n.CoolingDomain, NVLinkDomain: n.NVLinkDomain, NetworkDomain: n.NetworkDomain,
		GPUs: len(n.GPUs), GPUsExpected: max(n.Expected, len(n.GPUs)), Seen: n.Seen, AgeSeconds: age(n.Seen, now),
		PeriodSeconds: seconds(n.Period), SkewSeconds: seconds(n.Skew), ClockSynchronized: n.ClockSynchronized,
		DriverFault: n.DriverFault, Doubt: n.Doubt, BootID: n.BootID, Incarnation: n.Incarnation, Since: n.Since, Heard: n.Heard,
		Inlet: pointer(n.InletC), Air: pointer(n.AirC), Host: hostJSON(n), Unschedulable: n.Unschedulable, Marks: n.Marks, Sources: n.Sources,
	}
	var least, power cluster.Opt
	for _, g := range n.GPUs {
		if _, fresh := sampled(n, g, now); !fresh {
			continue
		}
		out.GPUsFresh++
		if h := g.HeadroomC; h.OK && h.V < least.Or(math.Inf(1)) {
			least = h
		}
		if p := g.Value(telemetry.GPUPowerWatts); p.OK {
			power = cluster.Some(power.Or(0) + p.V)
		}
	}
	out.Hottest, out.PowerWatts = pointer(least), pointer(power)
	return out
}

func gpuJSON(v *cluster.View, n *cluster.Node, g *cluster.GPU, held []string, now time.Time) GPU {
	at, fresh := sampled(n, g, now)
	out := GPU{
		UUID: g.UUID, Node: g.Node, Index: g.Index, PCI: g.PCI, Model: g.Model, Arch: g.Arch, Driver: g.Driver,
		Row: n.Row, Rack: n.Rack, State: string(g.State), Fresh: fresh, SampledAt: at, AgeSeconds: age(at, now),
		Generation: g.Generation, DoubtfulIdentity: g.DoubtfulIdentity, Doubt: doubtOf(n, g), HungCall: g.HungCall, HungSeconds: seconds(g.HungFor),
		Headroom: pointer(g.HeadroomC), Slope: pointer(g.SlopeCPerS), SecondsToSlowdown: pointer(g.SecondsToSlowdown),
		Core: pointer(g.Value(telemetry.GPUTemperatureCelsiusCore)), Memory: pointer(g.Value(telemetry.GPUTemperatureCelsiusMemory)),
		Power: pointer(g.Value(telemetry.GPUPowerWatts)), Limit: pointer(limitOf(g)),
		LimitMin: pointer(g.MinW), LimitDefault: pointer(g.DefaultW), LimitMax: pointer(g.MaxW),
		Utilization: pointer(g.Value(telemetry.GPUUtilizationRatio)), Clock: pointer(g.Value(telemetry.GPUClockHertzSM)),
		MemoryUsed: pointer(g.Value(telemetry.GPUMemoryUsedBytes)), MemoryTotal: pointer(g.Value(telemetry.GPUMemoryTotalBytes)),
		Resistance: pointer(g.RCPerW), TimeConstant: pointer(g.TauS), Base: pointer(g.BaseC),
		Throttle: g.Throttled(), Capped: capped(g), HeldBy: held, Workloads: workloadNames(v, g.UUID), Verdicts: verdictsJSON(g),
	}
	if out.Throttle == nil {
		out.Throttle = []string{}
	}
	return out
}

func workloadNames(v *cluster.View, uuid string) []WorkloadName {
	held := v.WorkloadsOn(uuid)
	out := make([]WorkloadName, 0, len(held))
	for _, w := range held {
		out = append(out, WorkloadName{Ref: w.Ref, Owner: w.Owner})
	}
	return out
}

func readingsJSON(g *cluster.GPU, now time.Time) []Reading {
	out := []Reading{}
	for r := range g.Readings() {
		row, series, ok := telemetry.Lookup(r.ID)
		if !ok || math.IsNaN(r.V) || math.IsInf(r.V, 0) {
			continue
		}
		out = append(out, Reading{Metric: row.Name, Labels: labelsOf(row, series), Value: r.V, Unit: row.Unit, AgeSeconds: age(r.At, now), Quality: qualityName(r.Quality)})
	}
	return out
}

// labelsOf are a series' labels beside those of its device; nil for none.
func labelsOf(row *telemetry.Row, series *telemetry.Series) map[string]string {
	var out map[string]string
	for i, label := range row.Labels {
		if i < len(series.Values) {
			if out == nil {
				out = map[string]string{}
			}
			out[label] = series.Values[i]
		}
	}
	return out
}

func qualityName(q telemetry.Quality) string {
	return strings.ToLower(strings.TrimPrefix(q.String(), "QUALITY_"))
}

func workloadJSON(v *cluster.View, w *cluster.Workload, now time.Time) Workload {
	out := Workload{InventoryWorkload: w.InventoryWorkload, Name: w.Name, Source: w.Source, Seen: w.Seen, GPUs: []GPUName{}, Verdicts: workloadVerdicts(v, w, now)}
	for _, g := range w.GPUs {
		out.GPUs = append(out.GPUs, gpuName(g))
	}
	return out
}

func gpuName(g *cluster.GPU) GPUName {
	return GPUName{UUID: g.UUID, Node: g.Node, Index: g.Index, State: string(g.State), Headroom: pointer(g.HeadroomC)}
}

func summaryOf(v *cluster.View, o Options, decisions []*telemetry.Decision, now time.Time) *Summary {
	s := &Summary{ViewTime: v.Time, Nodes: v.NodeCount(), Coverage: v.Coverage(now), States: map[string]int{}, Past: "memory", Version: o.Version}
	if o.Past != nil {
		s.Past = "store"
	}
	if o.Alerts != nil {
		s.Alerts = countAlerts(o.Alerts.Alerts())
	}
	if o.Brakes != nil {
		s.brake(o.Brakes)
	}
	for _, state := range rowStates {
		s.States[state] = 0
	}
	for n := range v.Nodes() {
		if n.State == cluster.NodeUp {
			s.NodesUp++
		}
	}
	var hottest *cluster.GPU
	var power cluster.Opt
	for n, g := range v.GPUs() {
		s.GPUs++
		s.States[rowStates[max(0, slices.Index(rowStates, string(g.State)))]]++
		if _, fresh := sampled(n, g, now); !fresh {
			continue
		}
		if p := g.Value(telemetry.GPUPowerWatts); p.OK {
			power = cluster.Some(power.Or(0) + math.Round(p.V))
		}
		if capped(g) {
			s.Capped++
		}
		if slowed(g) {
			s.Slowed++
		}
		if g.HeadroomC.OK && (hottest == nil || g.HeadroomC.V < hottest.HeadroomC.V) {
			hottest = g
		}
	}
	s.Power = pointer(power)
	if hottest != nil {
		name := gpuName(hottest)
		s.Hottest = &name
	}
	s.Workloads = v.WorkloadCount()
	s.Decisions = len(decisions)
	for _, d := range decisions {
		if d.Open() {
			s.Open++
		}
	}
	return s
}

// brake adds what holds the rebalancer back.
func (s *Summary) brake(b Brakes) {
	for _, trip := range b.Breakers() {
		if trip.Open {
			s.Breakers = append(s.Breakers, OpenBreaker{trip.Domain, trip.Reason})
		}
	}
	for _, m := range b.Modes() {
		switch {
		case m.Paused == nil:
		case !*m.Paused:
			s.Paused, s.PausedBy = "", ""
		case m.All:
			s.Paused, s.PausedBy = "all", m.By
		default:
			s.Paused, s.PausedBy = string(telemetry.Disruptive), m.By
		}
	}
}

func decisionLine(d *telemetry.Decision) DecisionLine {
	return DecisionLine{
		ID: d.ID, Time: d.Time, Policy: d.Policy, Mode: d.Mode, Act: d.Kind, Class: d.Class,
		Target: d.Target, Outcome: d.Outcome, Why: d.Why, Ended: d.Ended,
	}
}
