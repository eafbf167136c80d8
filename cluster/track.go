package cluster

import (
	"time"
	"unicode/utf8"

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
	known      bool // generation is one of this process
	members    holders
	hungCall   string
	lastCall   string // the last call that hung
	hungMS     uint64
	doubt      string // why its identity is in doubt
	replacedBy string // the device that is where it was

	state     telemetry.GPUState
	throttled bool
	inFrame   bool
	lastFrame uint32 // of the last frame with the device, like slot.at
	slots     [maxSlots]slot
	told      [2]uint64 // bit per slot that this process has had a value for
	trend     trend
	fit       thermal
	sensor    sensor
	links     linkTable
	migs      []migUse

	busy, replays, corrected, uncorrected meter
	nvlink, pcie                          [2]meter

	health     health
	xids       *xids
	fabric     fabric
	idle       idleness
	contention contention
}

// tick is what all devices of one frame have in common.
type tick struct {
	at uint32 // sample time, like slot.at
	// ms is the same and does not wrap. It does not leap with the viewer's clock,
	// and is never zero.
	ms      int64
	seconds float64
	period  time.Duration
	suspect bool   // the node's clock is at fault, or the node's identity
	doubt   string // why its identity is
	lived   uint32 // of the sending process
	// processes says that an empty list of members means that there are none.
	processes bool
	// linkPart and slowPart say that what these parts do not list is not there.
	linkPart, slowPart bool
	// stale is the age from which a value of a class is stale, gone the one from
	// which it is no longer told, keep that for verdicts, which are made once a
	// second however fast the node ticks; all in milliseconds.
	stale, gone [classes]uint32
	keep        [classes]int64
}

// ages fills in what follows from the period.
func (k *tick) ages() {
	for c, r := range ratesOf {
		k.stale[c] = uint32(3 * Period(r, k.period) / time.Millisecond)
		k.gone[c] = uint32(forgotten * Period(r, k.period) / time.Millisecond)
		k.keep[c] = int64(3 * Period(r, max(k.period, observed)) / time.Millisecond)
	}
}

// when is the time of a slot in seconds.
func (k *tick) when(s slot) float64 { return k.seconds - float64(k.at-s.at)/1000 }

// maxText bounds a description; longer text is cut, between two characters, as
// half of one cannot be sent on.
const maxText = 128

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// take folds a device's part of a frame.
func (t *track) take(g *telemetry.GPU, k *tick, n *names, refused *refusals) {
	t.inFrame, t.lastFrame = true, k.at
	t.describe(g, n, refused)
	newParts := g.GetGeneration() != t.generation
	if newParts && t.known {
		t.renewed()
	}
	t.generation, t.known = g.GetGeneration(), true
	var marks [maxSlots]uint8
	qs := g.GetQualities()
	for i, id := range g.GetQualityIds() {
		if i < len(qs) && id < uint32(len(slotOf)) && slotOf[id] != 0 {
			marks[slotOf[id]-1] = uint8(qs[i])
		}
	}
	ages := [classes]uint32{g.GetFastAgeMs(), g.GetLinkAgeMs(), g.GetSlowAgeMs()}
	for i := range wiredSeries {
		// Most values come with a slower part: those that do not come now are passed
		// by without a look at what is known of them.
		v, ok := g.Value(wiredSeries[i].id)
		if ok || marks[i] != 0 {
			t.value(v, ok, i, telemetry.Quality(marks[i]), ages, k, newParts, refused)
		}
	}
	t.hungCall, t.hungMS = "", 0
	if h := g.GetHung(); h != nil {
		n.word(&t.lastCall, h.GetCall(), refused)
		t.hungCall, t.hungMS = t.lastCall, h.GetForMs()
	}
	t.state = t.judgeState(g, k)
	t.members.take(g.GetMembers(), k, n, refused)
	t.takeFabric(g, k)
}

func (t *track) describe(g *telemetry.GPU, n *names, refused *refusals) {
	d := g.GetDescription()
	if d == nil {
		return
	}
	if t.described && t.index != d.GetIndex() && !n.take() {
		refused.count(RefusedName)
		return
	}
	t.described, t.index = true, d.GetIndex()
	t.placed(d.GetPci())
	n.word(&t.pci, d.GetPci(), refused)
	n.word(&t.model, d.GetModel(), refused)
	n.word(&t.arch, d.GetArch(), refused)
	n.word(&t.driver, d.GetDriver(), refused)
}

// value folds one value, or the mark of one that is not there: range, quality,
// plausible change.
func (t *track) value(v float64, ok bool, i int, mark telemetry.Quality, ages [classes]uint32, k *tick, newParts bool, refused *refusals) {
	w, s := &wiredSeries[i], &t.slots[i]
	if mark == telemetry.Quality_QUALITY_UNSUPPORTED {
		*s = slot{at: k.at, q: uint8(mark) + 1}
		return
	}
	if !ok {
		if mark == telemetry.Quality_QUALITY_ERROR && s.q != 0 && !s.unsupported() {
			s.q = uint8(mark) + 1 // the last value, with its age, is no longer to be used
		}
		return
	}
	if !w.inRange(v) || mark == telemetry.Quality_QUALITY_OUT_OF_RANGE {
		refused.count(RefusedOutOfRange)
		return
	}
	q := mark
	if q > telemetry.Quality_QUALITY_UNSUPPORTED || q < 0 {
		q = telemetry.Quality_QUALITY_SUSPECT
	}
	age := ages[w.class]
	if q == telemetry.Quality_QUALITY_OK && (k.suspect || t.doubt != "" || age > k.lived || t.sensor.fault != sensorFine && t.sensor.doubtValue(w.id) ||
		s.q != 0 && !s.unsupported() && !plausible(w, *s, v, k, newParts)) {
		q = telemetry.Quality_QUALITY_SUSPECT
	}
	t.told[i>>6] |= 1 << (i & 63)
	*s = slot{v: v, at: k.at - min(age, maxAge), q: uint8(q) + 1}
}

// maxAge bounds the age that a node may claim, far above every stale limit.
const maxAge = uint32(24 * time.Hour / time.Millisecond)

func (t *track) judgeState(g *telemetry.GPU, k *tick) telemetry.GPUState {
	switch {
	case g.GetLost():
		return telemetry.GPUState_GPU_STATE_LOST
	case g.HasHung():
		return telemetry.GPUState_GPU_STATE_HUNG
	case g.HasUp() && g.GetUp() == 0:
		return telemetry.GPUState_GPU_STATE_UNKNOWN
	}
	for i := range wiredSeries {
		if s := t.slots[i]; wiredSeries[i].class == classFast && s.usable() && !k.isStale(classFast, s.at) {
			return telemetry.GPUState_GPU_STATE_OK
		}
	}
	return telemetry.GPUState_GPU_STATE_UNKNOWN
}

func (k *tick) isStale(c class, at uint32) bool { return k.at-at > k.stale[c] }

// current is a value that may be shown: there, usable and not stale.
func (t *track) current(id telemetry.ID, k *tick) (float64, slot, bool) {
	i := slotOf[id] - 1
	s := &t.slots[i]
	if !s.usable() || k.isStale(wiredSeries[i].class, s.at) {
		return 0, slot{}, false
	}
	return s.v, *s, true
}

// headroom is the node's own figure, else the distance of the core to the
// absolute slowdown threshold.
func (t *track) headroom(k *tick) (slot, bool) {
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
func (t *track) learn(k *tick, d *decays) {
	if t.state != telemetry.GPUState_GPU_STATE_OK {
		t.trend.reset()
		return
	}
	temp, ts, hasT := t.current(telemetry.GPUTemperatureCelsiusCore, k)
	power, ps, hasP := t.current(telemetry.GPUPowerWatts, k)
	if h, ok := t.headroom(k); ok && h.trusted() {
		t.trend.add(h.at, h.v)
	} else if !ok && hasT && ts.trusted() {
		t.trend.add(ts.at, -temp)
	}
	if hasT && hasP && ts.trusted() && ps.trusted() && ts.at == ps.at {
		t.fit.take(d, k.when(ts), temp, power, k.period.Seconds())
	}
}
