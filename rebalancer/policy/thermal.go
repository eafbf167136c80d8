package policy

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TypeThermal names the thermal policy.
const TypeThermal = "thermal"

const signalHeadroom = "gpu_thermal_headroom_celsius"

// Where the judge has no fit yet, resistance is bounded from the side that
// errs towards a cool device: a watt less is taken to cool little, a watt more
// to heat much. Air-cooled and liquid-cooled data-centre GPUs lie between. The
// air that enters is never above warmestInlet (the widest class that data
// centres allow), so all that the core has above it is made by the power.
const (
	leastR       = 0.05 // °C/W, for the size of a cap
	mostR        = 0.12 // °C/W, for an undo
	warmestInlet = 45.0 // °C
	coolestInlet = 5.0  // °C, the other end
	// unknownTau is the time constant of a device that the judge has not
	// learned: what is rising is taken to go on rising that long.
	unknownTau = 25.0 // s
	// unknownFall bounds what such a rise may cost: air that warms up by more at
	// once is a failed room, and what a fast device shows would be taken for it.
	unknownFall = 10.0 // °C
)

const (
	// unknownWithin is when the effect of a cap is looked at if the time
	// constant is not known; else it is three time constants within bounds.
	unknownWithin          = 60 * time.Second
	minWithin, maxWithin   = 15 * time.Second, 2 * time.Minute
	slowedSpeed            = 0.5 // what hardware slowdown leaves of the speed
	smallestCutWatts       = 1
	smallestEase           = 0.05            // of the default limit: less is not worth an act
	easeAfter              = 2 * time.Minute // a cap that has just been set may soon be undone as a whole
	steadySlope            = 0.05            // °C/s: a device that moves more has not settled
	backendNode            = "node"
	throttleSW, throttleHW = telemetry.GPUThrottleActiveSWThermal, telemetry.GPUThrottleActiveHWThermal
)

// Thermal keeps GPUs clear of the temperature at which the hardware slows them
// down, by caps on their power.
type Thermal struct{ spec rebalancer.PolicySpec }

// NewThermal checks the spec and makes the policy.
func NewThermal(s rebalancer.PolicySpec) (*Thermal, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Signal != signalHeadroom {
		return nil, fmt.Errorf("policy %q: signal %q: want %s", s.Type, s.Signal, signalHeadroom)
	}
	if !(s.Act >= 0 && s.Act < s.Aim) {
		return nil, fmt.Errorf("policy %q: act %v, aim %v: headroom shrinks as a device heats, so 0 <= act < aim", s.Type, s.Act, s.Aim)
	}
	for _, a := range s.Ladder {
		if a != telemetry.ActSteer && a != telemetry.ActCap && a != telemetry.ActPreempt {
			return nil, fmt.Errorf("policy %q: ladder: %q is not an act of this policy, which has steer, cap and preempt", s.Type, a)
		}
	}
	if slices.Contains(s.Ladder, telemetry.ActPreempt) && !slices.Contains(s.Ladder, telemetry.ActCap) {
		return nil, fmt.Errorf("policy %q: ladder: preempt without cap; nothing is ended while less power would do, so want [cap, preempt]", s.Type)
	}
	return &Thermal{s}, nil
}

// Spec is what the policy was made from.
func (t *Thermal) Spec() rebalancer.PolicySpec { return t.spec }

// Detect looks at every GPU that is near its mark or tracked. A device whose
// headroom is not known is reported only while it throttles for heat: then
// something is wrong, and it must be said why nothing is done.
func (t *Thermal) Detect(s *rebalancer.Scene) []rebalancer.Sighting {
	near := t.spec.Act
	if t.spec.Predict > 0 {
		near = t.spec.Aim
	}
	var out []rebalancer.Sighting
	for n, g := range s.View.GPUs() {
		switch h := g.HeadroomC; {
		case h.OK && (h.V <= near || s.Tracks(t.spec.Type, g.UUID)):
			out = append(out, t.look(s, n, g))
		case !h.OK && hot(g):
			out = append(out, rebalancer.Sighting{Node: n, GPU: g, Missing: "its headroom, though it throttles for heat", Violation: t.violation(n, g)})
		}
	}
	return out
}

func hot(g *cluster.GPU) bool {
	return g.Value(throttleSW).Or(0) != 0 || g.Value(throttleHW).Or(0) != 0
}

func (t *Thermal) violation(n *cluster.Node, g *cluster.GPU) telemetry.Violation {
	where := fmt.Sprintf("%s, index %d", g.Model, g.Index)
	if n.Rack != "" {
		where += ", rack " + n.Rack
	}
	if n.Row != "" {
		where += ", row " + n.Row
	}
	return telemetry.Violation{
		Target: telemetry.Target{Node: n.Name, UUID: g.UUID, Generation: g.Generation},
		Signal: signalHeadroom, Unit: "celsius", Mark: t.spec.Act, Aim: t.spec.Aim, Where: where,
	}
}

func (t *Thermal) look(s *rebalancer.Scene, n *cluster.Node, g *cluster.GPU) rebalancer.Sighting {
	out := rebalancer.Sighting{Node: n, GPU: g, Violation: t.violation(n, g), Severity: -g.HeadroomC.V}
	r, ok := signal(g)
	if !ok {
		out.Missing = "a sample of its headroom or temperature"
		return out
	}
	out.Readings = []cluster.Reading{r}
	v := &out.Violation
	v.Value = g.HeadroomC.V
	if g.SlopeCPerS.OK {
		v.Slope = g.SlopeCPerS.V
		if v.Slope < 0 {
			v.Reaches = g.SecondsToSlowdown.Or(max(v.Value, 0) / -v.Slope)
		}
	}
	out.Beyond = v.Value <= t.spec.Act || t.predicted(v)
	if v.Value <= t.spec.Act {
		v.Agrees = agrees(n, g, s.Now)
		out.Sure = v.Agrees != ""
	}
	v.Evidence = evidence(s, n, g)
	return out
}

// predicted says that a device under its aim is on the way to slowdown.
func (t *Thermal) predicted(v *telemetry.Violation) bool {
	return t.spec.Predict > 0 && v.Value < t.spec.Aim && v.Reaches > 0 && v.Reaches <= time.Duration(t.spec.Predict).Seconds()
}

// signal is the sample that headroom rests on.
func signal(g *cluster.GPU) (cluster.Reading, bool) {
	if r, ok := g.Reading(telemetry.GPUThermalHeadroomCelsius); ok {
		return r, true
	}
	return g.Reading(telemetry.GPUTemperatureCelsiusCore)
}

// agrees names a second, independent value that says the same as a small
// headroom: a thermal throttle reason. The core temperature is none, since
// headroom is made from the same sensor.
func agrees(n *cluster.Node, g *cluster.GPU, now time.Time) string {
	for _, id := range []telemetry.ID{throttleSW, throttleHW} {
		if fresh(n, g, id, now).Or(0) != 0 {
			return "throttle reason " + telemetry.ThrottleReasons[id-telemetry.GPUThrottleActiveSWPower]
		}
	}
	return ""
}

func fresh(n *cluster.Node, g *cluster.GPU, id telemetry.ID, now time.Time) cluster.Opt {
	if r, ok := g.Reading(id); ok && n.Fresh(r, now) {
		return cluster.Some(r.V)
	}
	return cluster.Opt{}
}

var evidenceIDs = []telemetry.ID{
	telemetry.GPUThermalHeadroomCelsius, telemetry.GPUTemperatureCelsiusCore, telemetry.GPUTemperatureCelsiusMemory,
	telemetry.GPUPowerWatts, telemetry.GPUPowerLimitWatts, throttleSW, throttleHW, telemetry.GPUThrottleActiveHWSlowdown,
}

func evidence(s *rebalancer.Scene, n *cluster.Node, g *cluster.GPU) []telemetry.Evidence {
	var out []telemetry.Evidence
	for _, id := range evidenceIDs {
		r, ok := g.Reading(id)
		row, series, known := telemetry.Lookup(id)
		if !ok || !known {
			continue
		}
		e := telemetry.Evidence{Signal: row.Name, Value: r.V, Unit: row.Unit, AgeMS: s.Now.Sub(r.At).Milliseconds(), Quality: quality(r, n, s.Now)}
		if len(series.Values) > 0 {
			e.Signal += "{" + series.Values[0] + "}"
		}
		out = append(out, e)
	}
	if h, ok := s.Held(g.UUID); ok {
		if watts, ok := rebalancer.PowerBefore(h.Decision); ok {
			out = append(out, telemetry.Evidence{Signal: "gpu_power_watts", Value: watts, Unit: "watts", AgeMS: s.Now.Sub(h.Decision.Time).Milliseconds(),
				Quality: "ok", Note: "drawn before the act of " + h.Decision.ID})
		}
	}
	return out
}

func quality(r cluster.Reading, n *cluster.Node, now time.Time) string {
	switch {
	case n.Fresh(r, now):
		return "ok"
	case r.Quality == telemetry.Quality_QUALITY_SUSPECT:
		return "suspect"
	}
	return "stale"
}

// heat is the thermal state of a device as the policy reckons with it.
type heat struct {
	headroom float64 // now
	steady   float64 // where it ends if nothing is done
	power    float64 // drawn now, or the limit as its bound
	r        float64
	rKnown   bool
	tau      cluster.Opt
}

// reckon extrapolates the present rise: a first-order body that now changes by
// slope ends at headroom + slope·τ. It never counts on cooling to go on.
func reckon(s *rebalancer.Scene, n *cluster.Node, g *cluster.GPU, limit float64) heat {
	h := heat{headroom: g.HeadroomC.V, steady: g.HeadroomC.V, power: limit, tau: g.TauS}
	if fall := -g.SlopeCPerS.Or(0); g.TauS.OK {
		h.steady -= max(fall*g.TauS.V, 0)
	} else {
		h.steady -= min(max(fall*unknownTau, 0), unknownFall)
	}
	drawn := fresh(n, g, telemetry.GPUPowerWatts, s.Now)
	h.power = min(drawn.Or(limit), limit)
	least := leastResistance(drawn, fresh(n, g, telemetry.GPUTemperatureCelsiusCore, s.Now), g.SlopeCPerS)
	r := g.RCPerW
	if !r.OK || r.V <= 0 {
		// What a cap of ours showed holds the weather of that minute too.
		if r = s.LearnedR(g.UUID); r.OK {
			r.V = max(r.V, least)
		}
	}
	h.r, h.rKnown = r.Or(least), r.OK
	return h
}

// leastResistance is the least that fits what is seen. A device that cools is
// still warmer than its power makes it, and would seem to resist more.
func leastResistance(watts, core, slope cluster.Opt) float64 {
	if !watts.OK || !core.OK || watts.V <= 0 || slope.Or(0) > 0 {
		return leastR
	}
	return min(max((core.V-warmestInlet)/watts.V, leastR), mostR)
}

// Propose sizes a cap or, where caps can do no more, the end of a workload.
func (t *Thermal) Propose(s *rebalancer.Scene, g rebalancer.Sighting, rung telemetry.ActKind) (rebalancer.Proposal, []telemetry.Refusal) {
	target := g.Violation.Target
	if rung == telemetry.ActPreempt && g.Victim != nil {
		return t.preempt(s, g)
	}
	if rung != telemetry.ActCap {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.Refuse(telemetry.RefusalUnsupported, target, "policy %s has no %s for this backend", t.spec.Type, rung)}
	}
	limit := s.LimitW(g.GPU)
	if !limit.OK || !g.GPU.MinW.OK {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.Refuse(telemetry.RefusalUnknown, target, "its power limit or the least limit it accepts is not known")}
	}
	// The limit as found stands in for a default that is not known.
	least := max(g.GPU.MinW.V, t.spec.Floor*g.GPU.DefaultW.Or(found(s, target.UUID, limit.V)))
	if limit.V-least < smallestCutWatts {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.RefuseNumbers(telemetry.RefusalAtLimit, target, limit.V, least, "watts",
			"the limit is %s already, no less than %s is set (device minimum, or floor of the policy)", telemetry.Number(limit.V, "watts"), telemetry.Number(least, "watts"))}
	}
	return t.cap(s, g, reckon(s, g.Node, g.GPU, limit.V), limit.V, least)
}

// cap solves for the power at which the steady headroom is the aim,
//
//	P = P_now − (aim − steady)/R
//
// within the least limit and what one act may cut.
func (t *Thermal) cap(s *rebalancer.Scene, g rebalancer.Sighting, h heat, limit, least float64) (rebalancer.Proposal, []telemetry.Refusal) {
	target := g.Violation.Target
	floor := max(least, h.power-t.spec.MaxCut*g.GPU.DefaultW.Or(limit))
	watts := min(math.Floor(max(h.power-(t.spec.Aim-h.steady)/h.r, floor)), limit)
	watts = max(watts, math.Ceil(least))
	after := h.steady + h.r*max(h.power-watts, 0)
	short := rebalancer.RefuseNumbers(telemetry.RefusalNotEnough, target, after, t.spec.Aim, "celsius",
		"at %s headroom is predicted to be %s, not the aim of %s", telemetry.Number(watts, "watts"), telemetry.Number(after, "celsius"), telemetry.Number(t.spec.Aim, "celsius"))
	if h.power-watts < smallestCutWatts {
		short.Text = fmt.Sprintf("it draws %s, so a limit of %s, the least possible, cools nothing", telemetry.Number(h.power, "watts"), telemetry.Number(watts, "watts"))
		return rebalancer.Proposal{}, []telemetry.Refusal{short}
	}
	found := found(s, target.UUID, limit)
	p := rebalancer.Proposal{
		Summary: fmt.Sprintf("cap at %s (limit now %s, draws %s)", telemetry.Number(watts, "watts"), telemetry.Number(limit, "watts"), telemetry.Number(h.power, "watts")),
		Steps:   []telemetry.Step{{Kind: telemetry.StepPowerCap, Backend: backendNode, Target: target, Params: telemetry.Params{PowerLimitWatts: &watts, FoundWatts: &found}}},
		Effect:  telemetry.Effect{Signal: signalHeadroom, Unit: "celsius", Before: h.headroom, After: after, Within: telemetry.Duration(within(h.tau)), Note: h.note()},
		Safety:  true,
	}
	p.Gain, p.Cost = t.benefit(s, g.GPU, h, watts)
	if after < t.spec.Aim-1e-9 {
		return p, []telemetry.Refusal{short}
	}
	return p, nil
}

// found is the limit that an undo goes back to: the one before the first cap,
// unless somebody has raised it above that since.
func found(s *rebalancer.Scene, uuid string, limit float64) float64 {
	if held, ok := s.Held(uuid); ok && held.Step.Params.FoundWatts != nil {
		return max(*held.Step.Params.FoundWatts, limit)
	}
	return limit
}

func (h heat) note() string {
	if !h.rKnown {
		return fmt.Sprintf("resistance not learned yet, at least %.3f °C/W; %s without the act", h.r, telemetry.Number(h.steady, "celsius"))
	}
	return fmt.Sprintf("%.3f °C/W; %s without the act", h.r, telemetry.Number(h.steady, "celsius"))
}

// within is when an effect shows: 95 % of it after three time constants.
func within(tau cluster.Opt) time.Duration {
	if !tau.OK {
		return unknownWithin
	}
	d := time.Duration(3 * tau.V * float64(time.Second)).Round(time.Second)
	return min(max(d, minWithin), maxWithin)
}

// benefit is in useful GPU-seconds over one lease. Cost: every GPU of the
// gangs on the device goes at its pace, and clocks follow the cube root of
// power. Gain: the time those GPUs would spend slowed by the hardware, at half
// the speed, from when the present rise reaches slowdown; nothing if it never
// does. A cap for safety is taken whatever the sum is; it is shown.
func (t *Thermal) benefit(s *rebalancer.Scene, g *cluster.GPU, h heat, watts float64) (gain, cost float64) {
	gang := t.gang(s, g)
	cost = time.Duration(t.spec.Lease).Seconds() * (1 - math.Cbrt(watts/h.power)) * gang
	return t.slowed(g, h) * (1 - slowedSpeed) * gang, cost
}

// slowed is how many seconds of one lease the hardware would slow the device if
// nothing were done.
func (t *Thermal) slowed(g *cluster.GPU, h heat) float64 {
	horizon := time.Duration(t.spec.Lease).Seconds()
	until := horizon
	switch {
	case hot(g) || h.headroom <= 0:
		until = 0
	case h.steady < 0:
		until = min(horizon, h.tau.Or(unknownTau)*math.Log((h.headroom-h.steady)/-h.steady))
	}
	return horizon - until
}

// Review reads headroom and predicts it with the found limit back: the power
// drawn before the cap returns, and with it R times the difference.
func (t *Thermal) Review(s *rebalancer.Scene, h rebalancer.Held) rebalancer.Review {
	target := h.Decision.Target
	no := func(r telemetry.Refusal) rebalancer.Review { return rebalancer.Review{Refusal: &r} }
	n, g, ok := s.View.GPU(target.UUID)
	if !ok {
		return no(rebalancer.Refuse(telemetry.RefusalUnknown, target, "the GPU is not in view"))
	}
	var readings []cluster.Reading
	missing := "its headroom"
	if r, ok := signal(g); ok && g.HeadroomC.OK {
		readings, missing = []cluster.Reading{r}, ""
	}
	if r := rebalancer.Doubt(s.Now, n, g, target, readings, missing); r != nil {
		return no(*r)
	}
	out := rebalancer.Review{Value: g.HeadroomC.V, Unit: "celsius", Reading: readings[0], Helped: g.HeadroomC.V > t.spec.Act}
	found := h.Step.Params.FoundWatts
	r, ok := g.Reading(telemetry.GPUPowerWatts)
	if found == nil || !ok || !n.Fresh(r, s.Now) {
		return out // without power there is no prediction, so no undo
	}
	state := reckon(s, n, g, math.Inf(1))
	before := *found
	if drawn, ok := rebalancer.PowerBefore(h.Decision); ok {
		before = min(drawn, *found)
	}
	resistance := mostR
	if state.rKnown {
		resistance = state.r
	}
	if core := fresh(n, g, telemetry.GPUTemperatureCelsiusCore, s.Now); core.OK && r.V > 0 {
		// What was learned in bad weather would hold a cool device for ever.
		most := (core.V + state.headroom - state.steady - coolestInlet) / r.V
		resistance = min(resistance, max(most, leastR))
	}
	out.Restored = state.steady - resistance*max(before-r.V, 0)
	out.Enough = out.Restored >= t.spec.Aim+t.spec.Margin
	if !out.Enough {
		if s.Now.Sub(h.From) >= easeAfter && g.SlopeCPerS.OK && math.Abs(g.SlopeCPerS.V) <= steadySlope {
			out.Ease = t.ease(s, n, g, state, *found, resistance)
		}
	}
	return out
}

// ease sizes a higher cap for a device that is clear of its aim, though not so
// clear that all of its power could come back:
//
//	P = P_now + (steady − aim − margin)/R
//
// The resistance is the cautious one, so a device comes near its aim in steps
// and never past it, and a cap that was too deep is not held for as long as the
// heat lasts.
func (t *Thermal) ease(s *rebalancer.Scene, n *cluster.Node, g *cluster.GPU, h heat, found, resistance float64) *rebalancer.Eased {
	limit := s.LimitW(g)
	room := h.steady - t.spec.Aim - t.spec.Margin
	if !limit.OK || room <= 0 {
		return nil
	}
	watts := math.Floor(min(h.power+room/resistance, found))
	if watts-limit.V < smallestEase*g.DefaultW.Or(found) {
		return nil
	}
	after := h.steady - resistance*(watts-h.power)
	target := t.violation(n, g).Target
	gang := t.gang(s, g)
	return &rebalancer.Eased{Sighting: t.look(s, n, g), Proposal: rebalancer.Proposal{
		Summary: fmt.Sprintf("ease the cap to %s (limit now %s, draws %s)", telemetry.Number(watts, "watts"), telemetry.Number(limit.V, "watts"), telemetry.Number(h.power, "watts")),
		Steps:   []telemetry.Step{{Kind: telemetry.StepPowerCap, Backend: backendNode, Target: target, Params: telemetry.Params{PowerLimitWatts: &watts, FoundWatts: &found}}},
		Effect:  telemetry.Effect{Signal: signalHeadroom, Unit: "celsius", Before: h.headroom, After: after, Within: telemetry.Duration(within(h.tau)), Note: "at most " + fmt.Sprintf("%.3f °C/W", resistance)},
		Gain:    time.Duration(t.spec.Lease).Seconds() * (math.Cbrt(watts/max(h.power, 1)) - 1) * gang,
	}}
}

// gang is how many GPUs run at the pace of this one.
func (t *Thermal) gang(s *rebalancer.Scene, g *cluster.GPU) float64 {
	gpus := 0
	for _, w := range s.View.WorkloadsOn(g.UUID) {
		gpus += len(w.GPUs)
	}
	return float64(max(gpus, 1))
}
