package cluster

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// track is what a judge knows of one device.
type track struct {
	uuid       string
	pci        string
	model      string
	arch       string
	driver     string
	index      uint32
	described  bool
	generation uint64
	members    []*telemetry.Member
	hungCall   string
	hungMS     uint64

	state     telemetry.GPUState
	throttled bool
	class     string
	inFrame   bool
	lastFrame uint32 // of the last frame with the device, like slot.at
	slots     [maxSlots]slot
	trend     trend
	fit       thermal
	links     linkTable
}

// tick is what all devices of one frame have in common.
type tick struct {
	at      uint32 // sample time, like slot.at
	seconds float64
	period  time.Duration
	suspect bool // the node's clock is at fault
	// slowPart says that what the slow part does not list is not there.
	slowPart bool
}

// when is the time of a slot in seconds.
func (k tick) when(s slot) float64 { return k.seconds - float64(k.at-s.at)/1000 }

// maxText bounds a description; longer text is cut.
const maxText = 128

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

// take folds a device's part of a frame.
func (t *track) take(g *telemetry.GPU, k tick, refused *refusals) {
	t.inFrame, t.lastFrame = true, k.at
	t.describe(g)
	newParts := g.GetGeneration() != t.generation
	t.generation = g.GetGeneration()
	var marks [maxSlots]uint8
	qs := g.GetQualities()
	for i, id := range g.GetQualityIds() {
		if i < len(qs) && id < uint32(len(slotOf)) && slotOf[id] != 0 {
			marks[slotOf[id]-1] = uint8(qs[i])
		}
	}
	ages := [...]uint32{g.GetFastAgeMs(), g.GetLinkAgeMs(), g.GetSlowAgeMs()}
	for i := range wiredSeries {
		t.value(g, i, telemetry.Quality(marks[i]), ages, k, newParts, refused)
	}
	t.hungCall, t.hungMS = "", 0
	if h := g.GetHung(); h != nil {
		t.hungCall, t.hungMS = clip(h.GetCall()), h.GetForMs()
	}
	t.state = t.judgeState(g, k)
	if len(g.GetMembers()) > 0 || k.slowPart {
		t.members = g.GetMembers()
	}
}

func (t *track) describe(g *telemetry.GPU) {
	d := g.GetDescription()
	if d == nil {
		return
	}
	t.described, t.index = true, d.GetIndex()
	set := func(old *string, s string) {
		if *old != s {
			*old = clip(s)
		}
	}
	set(&t.pci, d.GetPci())
	set(&t.model, d.GetModel())
	set(&t.arch, d.GetArch())
	set(&t.driver, d.GetDriver())
}

// value folds one value: range, quality, plausible change.
func (t *track) value(g *telemetry.GPU, i int, mark telemetry.Quality, ages [3]uint32, k tick, newParts bool, refused *refusals) {
	w, s := &wiredSeries[i], &t.slots[i]
	if mark == telemetry.Quality_QUALITY_UNSUPPORTED {
		*s = slot{}
		return
	}
	v, ok := g.Value(w.id)
	if !ok {
		if mark == telemetry.Quality_QUALITY_ERROR && s.q != 0 {
			s.q = uint8(mark) + 1 // the last value, with its age, is no longer to be used
		}
		return
	}
	if !w.row.InRange(v) || mark == telemetry.Quality_QUALITY_OUT_OF_RANGE {
		refused.count(RefusedOutOfRange)
		return
	}
	q := mark
	if q > telemetry.Quality_QUALITY_UNSUPPORTED || q < 0 {
		q = telemetry.Quality_QUALITY_SUSPECT
	}
	if q == telemetry.Quality_QUALITY_OK && (k.suspect || s.q != 0 && !plausible(w, *s, v, k, newParts)) {
		q = telemetry.Quality_QUALITY_SUSPECT
	}
	age := ages[0]
	switch w.rate {
	case telemetry.Link:
		age = ages[1]
	case telemetry.Slow:
		age = ages[2]
	}
	*s = slot{v: v, at: k.at - min(age, maxAge), q: uint8(q) + 1}
}

// maxAge bounds the age that a node may claim, far above every stale limit.
const maxAge = uint32(24 * time.Hour / time.Millisecond)

// plausible refuses to trust a counter that fell while the device's parts
// stayed, and a temperature that jumped; the next sample confirms or denies.
func plausible(w *wired, last slot, v float64, k tick, newParts bool) bool {
	switch {
	case w.counter:
		return v >= last.v || newParts
	case w.celsius:
		since := float64(k.at-last.at) / 1000
		return since > 30 || max(v-last.v, last.v-v) <= 20+15*since
	}
	return true
}

func (t *track) judgeState(g *telemetry.GPU, k tick) telemetry.GPUState {
	switch {
	case g.GetLost():
		return telemetry.GPUState_GPU_STATE_LOST
	case g.HasHung():
		return telemetry.GPUState_GPU_STATE_HUNG
	case g.HasUp() && g.GetUp() == 0:
		return telemetry.GPUState_GPU_STATE_UNKNOWN
	}
	for i := range wiredSeries {
		if s := t.slots[i]; wiredSeries[i].rate == telemetry.Fast && s.usable() && !stale(wiredSeries[i].rate, s, k) {
			return telemetry.GPUState_GPU_STATE_OK
		}
	}
	return telemetry.GPUState_GPU_STATE_UNKNOWN
}

func stale(r telemetry.Rate, s slot, k tick) bool {
	return time.Duration(k.at-s.at)*time.Millisecond > 3*Period(r, k.period)
}

// current is a value that may be shown: there, usable and not stale.
func (t *track) current(id telemetry.ID, k tick) (float64, slot, bool) {
	i := slotOf[id] - 1
	s := t.slots[i]
	if !s.usable() || stale(wiredSeries[i].rate, s, k) {
		return 0, slot{}, false
	}
	return s.v, s, true
}

// headroom is the node's own figure, else the distance of the core to the
// absolute slowdown threshold.
func (t *track) headroom(k tick) (slot, bool) {
	if _, s, ok := t.current(telemetry.GPUThermalHeadroomCelsius, k); ok {
		return s, true
	}
	limit, ls, ok := t.current(telemetry.GPUSlowdownThresholdCelsius, k)
	temp, ts, ok2 := t.current(telemetry.GPUTemperatureCelsiusCore, k)
	if !ok || !ok2 {
		return slot{}, false
	}
	return slot{v: limit - temp, at: ts.at, q: max(ls.q, ts.q)}, true
}

// learn feeds trend and fit with a device that answers; a silent one starts
// them anew, since what happened meanwhile is not known.
func (t *track) learn(k tick, d *decays) {
	if t.state != telemetry.GPUState_GPU_STATE_OK {
		t.trend.reset()
		return
	}
	temp, ts, hasT := t.current(telemetry.GPUTemperatureCelsiusCore, k)
	power, ps, hasP := t.current(telemetry.GPUPowerWatts, k)
	if h, ok := t.headroom(k); ok && h.trusted() {
		t.trend.add(k.when(h), h.v)
	} else if !ok && hasT && ts.trusted() {
		t.trend.add(k.when(ts), -temp)
	}
	if hasT && hasP && ts.trusted() && ps.trusted() && ts.at == ps.at {
		t.fit.take(d, k.when(ts), temp, power, k.period.Seconds())
	}
}

// Reasons that take speed away because of heat or a fault; sw_power is the
// power limit at work and no fault.
var hotReasons = [...]telemetry.ID{telemetry.GPUThrottleActiveHWThermal, telemetry.GPUThrottleActiveHWSlowdown, telemetry.GPUThrottleActivePowerBrake}

// health is the class of the device and why.
func (t *track) health(k tick) (class string, score float64, reason string) {
	switch t.state {
	case telemetry.GPUState_GPU_STATE_LOST:
		return HealthLost, 0, "the driver lost the device"
	case telemetry.GPUState_GPU_STATE_HUNG:
		return HealthHung, 0, "driver call " + t.hungCall + " has not returned"
	case telemetry.GPUState_GPU_STATE_ABSENT:
		return HealthAbsent, 0, "the device was there and is missing"
	case telemetry.GPUState_GPU_STATE_UNKNOWN:
		return HealthUnknown, 0, "the device does not answer"
	}
	for _, id := range hotReasons {
		if v, _, ok := t.current(id, k); ok && v != 0 {
			return HealthDegraded, 0.5, throttleReason[id-telemetry.GPUThrottleActiveSWPower]
		}
	}
	return HealthOK, 1, ""
}

var throttleReason = func() []string {
	out := make([]string, len(telemetry.ThrottleReasons))
	for i, r := range telemetry.ThrottleReasons {
		out[i] = "throttled: " + r
	}
	return out
}()

// Health classes.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded"
	HealthHung     = "hung"
	HealthLost     = "lost"
	HealthAbsent   = "absent"
	HealthUnknown  = "unknown"
	HealthDoubtful = "doubtful"
)

// hot says whether any reason of heat, hardware or software, holds clocks down.
func (t *track) hot(k tick) bool {
	if v, _, ok := t.current(telemetry.GPUThrottleActiveSWThermal, k); ok && v != 0 {
		return true
	}
	for _, id := range hotReasons {
		if v, _, ok := t.current(id, k); ok && v != 0 {
			return true
		}
	}
	return false
}
