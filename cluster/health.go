package cluster

import (
	"cmp"
	"math"
	"math/bits"
	"strconv"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Health classes. From the worst: lost, hung and absent devices cannot be used;
// one that needs draining is to be emptied for a reboot or for hands, one that
// needs a reset only for that; a degraded one works badly, one on watch works.
const (
	HealthOK          = "ok"
	HealthWatch       = "watch"
	HealthDegraded    = "degraded"
	HealthResetNeeded = "reset_needed"
	HealthDrainNeeded = "drain_needed"
	HealthHung        = "hung"
	HealthLost        = "lost"
	HealthAbsent      = "absent"
	HealthUnknown     = "unknown"
	HealthDoubtful    = "doubtful"
)

// finding is one thing that can be wrong with a device that answers. The worst
// come first, and the first that is there gives the class.
type finding uint8

const (
	findRemapFailed finding = iota
	findXidReboot
	findXidAgain
	findRecoveryDrain
	findRecoveryReset
	findXidReset
	findRemapPending
	findUncorrected
	findXidHands
	findXidRepeats
	findLinksDown
	findNotReady
	findLinkErrors
	findThrottled
	findCorrectedStorm
	findSensor
	findXidSupport
	findUncorrectedBefore
	findCorrected
	findLinkNoise
	findNarrow
	findReplays
	findXidBefore
	findXidNoted
	findXidApp
	findings
)

// until is what ends a finding.
type until uint8

const (
	// untilClear: the signal said for hold seconds that it is over. A signal that
	// says nothing ends nothing.
	untilClear until = iota
	// untilReset: the device's parts were made anew, the machine was started, or
	// the driver has said for hold seconds that nothing is called for.
	untilReset
	// untilBoot: the machine was started.
	untilBoot
	// untilOver: hold seconds have passed since it last happened.
	untilOver
)

// ailments describes the findings.
var ailments = [findings]struct {
	class string
	score float64
	until until
	hold  uint32 // seconds
}{
	findRemapFailed:       {HealthDrainNeeded, 0.05, untilClear, 60},
	findXidReboot:         {HealthDrainNeeded, 0.05, untilBoot, 0},
	findXidAgain:          {HealthDrainNeeded, 0.05, untilBoot, 0},
	findRecoveryDrain:     {HealthDrainNeeded, 0.1, untilClear, 30},
	findRecoveryReset:     {HealthResetNeeded, 0.2, untilClear, 30},
	findXidReset:          {HealthResetNeeded, 0.2, untilReset, 60},
	findRemapPending:      {HealthResetNeeded, 0.25, untilClear, 30},
	findUncorrected:       {HealthDegraded, 0.3, untilOver, 600},
	findXidHands:          {HealthDegraded, 0.3, untilBoot, 0},
	findXidRepeats:        {HealthDegraded, 0.4, untilOver, xidDay},
	findLinksDown:         {HealthDegraded, 0.4, untilClear, 30},
	findNotReady:          {HealthDegraded, 0.4, untilClear, 30},
	findLinkErrors:        {HealthDegraded, 0.45, untilClear, 300},
	findThrottled:         {HealthDegraded, 0.5, untilClear, 30},
	findCorrectedStorm:    {HealthDegraded, 0.5, untilClear, 60},
	findSensor:            {HealthWatch, 0.6, untilClear, 60},
	findXidSupport:        {HealthWatch, 0.6, untilBoot, 0},
	findUncorrectedBefore: {HealthWatch, 0.7, untilClear, 60},
	findCorrected:         {HealthWatch, 0.7, untilClear, 300},
	findLinkNoise:         {HealthWatch, 0.7, untilClear, 300},
	findNarrow:            {HealthWatch, 0.7, untilClear, 60},
	findReplays:           {HealthWatch, 0.7, untilClear, 60},
	findXidBefore:         {HealthWatch, 0.7, untilReset, 60},
	findXidNoted:          {HealthWatch, 0.8, untilOver, 3600},
	findXidApp:            {HealthWatch, 0.9, untilOver, 600},
}

const (
	// Corrected ECC errors per second: a few are the memory's daily life, a storm
	// of them makes driver calls block.
	correctedHigh, correctedNoticed = 1000.0, 1.0
	replaysHigh                     = 1.0 // PCIe packets sent again, per second
	// maxEvidence bounds the findings that are told, the worst first.
	maxEvidence = 4
	// notReadyAfter is how long a device may take to join the fabric.
	notReadyAfter = 300_000 // ms
)

// illness is when a finding was last true and since when its signal says that it
// no longer is, in seconds, and its number.
type illness struct {
	seen, clear uint32
	v           float32
}

// health is what was found on a device. It outlives a restart of the node's
// process, which mends nothing, and not one of the machine, unless a fault is
// read again.
type health struct {
	active uint32 // bit per finding
	found  *[findings]illness
	// What is told, and what it was made of.
	class    string
	score    float64
	reason   string
	evidence []string
	since    int64 // ms
	said     bool
	toldOf   uint32
	stateOf  telemetry.GPUState
	doubtOf  string
	numbers  uint64 // that the words were made of
	// uncorrected is where the count of uncorrected errors stood when the parts
	// were last made anew: the node's counters never fall.
	uncorrected float64
}

// second is the sample time in seconds, never zero.
func (k *tick) second() uint32 { return uint32(k.ms / 1000) }

func (t *track) raise(f finding, v float32, k *tick) {
	if t.health.found == nil {
		t.health.found = new([findings]illness)
	}
	t.health.active |= 1 << f
	t.health.found[f] = illness{seen: k.second(), v: v}
}

// report takes what a signal says now of a finding.
func (t *track) report(f finding, known, bad bool, v float64, k *tick) {
	if known && bad {
		t.raise(f, float32(v), k)
		return
	}
	if t.health.active>>f&1 == 0 {
		return
	}
	switch i := &t.health.found[f]; {
	case !known:
		i.clear = 0
	case i.clear == 0:
		i.clear = k.second()
	case k.second()-i.clear >= ailments[f].hold:
		t.health.active &^= 1 << f
	}
}

// watchHealth looks for what is wrong, once a second and when a slower part has
// come; throttling is looked for with every frame.
func (t *track) watchHealth(k *tick) {
	if t.state != telemetry.GPUState_GPU_STATE_OK {
		return // nothing is known, and so nothing is over
	}
	t.watchMemory(k)
	t.watchRecovery(k)
	t.watchLinks(k)
	t.watchPCIe(k)
	t.report(findSensor, t.sensor.judged, t.sensor.bad(), float64(t.sensor.fault), k)
	t.expire(k)
}

func (t *track) watchMemory(k *tick) {
	v, s := t.signal(telemetry.GPURowRemapFailed, k)
	t.report(findRemapFailed, s == senseOK, v != 0, v, k)
	v, s = t.signal(telemetry.GPURowRemapPending, k)
	t.report(findRemapPending, s == senseOK, v != 0, v, k)
	keep := k.keep[classSlow]
	v, ok := t.corrected.rate(k.ms, keep)
	t.report(findCorrectedStorm, ok, v >= correctedHigh, v, k)
	t.report(findCorrected, ok, v >= correctedNoticed, v, k)
	if v, ok := t.uncorrected.rate(k.ms, keep); ok && v > 0 {
		t.raise(findUncorrected, float32(v), k)
	}
	v, s = t.signal(telemetry.GPUECCErrorsUncorrectedVolatile, k)
	v -= t.health.uncorrected
	t.report(findUncorrectedBefore, s == senseOK, v > 0, v, k)
}

// watchRecovery takes the driver's own word on what a device needs.
func (t *track) watchRecovery(k *tick) {
	v, s := t.signal(telemetry.GPURecoveryAction, k)
	reset := v == recoverReset || v == recoverBusReset
	t.report(findRecoveryDrain, s == senseOK, v != 0 && !reset, v, k)
	t.report(findRecoveryReset, s == senseOK, reset, v, k)
	if s != senseOK || v != 0 {
		return
	}
	for f := range findings {
		if ailments[f].until == untilReset && t.health.active>>f&1 == 1 && k.second()-t.health.found[f].seen >= ailments[f].hold {
			t.health.active &^= 1 << f
			if f == findXidReset {
				t.raise(findXidNoted, t.health.found[f].v, k)
			}
		}
	}
}

func (t *track) watchLinks(k *tick) {
	b := &t.fabric
	up, _ := t.linksUp(k)
	known := b.state != "" && b.state != FabricUnknown
	t.report(findLinksDown, known && b.state != FabricNotReady, b.state == FabricDegraded, float64(up), k)
	t.report(findNotReady, known, b.state == FabricNotReady && k.ms-b.since >= notReadyAfter, 1, k)
	errs, ok := t.linkErrorsAll(k)
	crc, _ := t.linkErrors(errorsCRC, k)
	replays, _ := t.linkErrors(errorsReplay, k)
	t.report(findLinkErrors, ok, t.linkTrouble(k), errs, k)
	t.report(findLinkNoise, ok, crc >= crcNoticed || replays >= replaysNoticed, errs, k)
}

// watchPCIe looks at the width, which no power saving lowers, and at packets
// sent again.
func (t *track) watchPCIe(k *tick) {
	width, sw := t.signal(telemetry.GPUPCIeLinkWidth, k)
	most, sm := t.signal(telemetry.GPUPCIeLinkWidthMax, k)
	t.report(findNarrow, sw == senseOK && sm == senseOK, width > 0 && width < most, width, k)
	replays, ok := t.replays.rate(k.ms, k.keep[classSlow])
	t.report(findReplays, ok, replays >= replaysHigh, replays, k)
}

// expire ends what is over by the passing of time.
func (t *track) expire(k *tick) {
	for left := t.health.active; left != 0; left &= left - 1 {
		f := finding(bits.TrailingZeros32(left))
		if a := &ailments[f]; a.until == untilOver && k.second()-t.health.found[f].seen >= a.hold {
			t.health.active &^= 1 << f
		}
	}
}

// watchThrottle looks for heat or a fault that takes speed away.
func (t *track) watchThrottle(k *tick) {
	known := false
	for i, id := range hotReasons {
		v, _, ok := t.current(id, k)
		known = known || ok
		if ok && v != 0 {
			t.raise(findThrottled, float32(i), k)
			return
		}
	}
	t.report(findThrottled, known, false, 0, k)
}

// renewed is a device whose parts were made anew: a reset, a driver load.
func (t *track) renewed() {
	if t.health.active>>findXidReset&1 == 1 {
		t.xidsOf().cleared = true
	}
	for f := range findings {
		if ailments[f].until == untilReset || f == findUncorrected {
			t.health.active &^= 1 << f
		}
	}
	t.health.uncorrected = t.slots[slotOf[telemetry.GPUECCErrorsUncorrectedVolatile]-1].v
}

// rebooted forgets what a start of the machine mends; what it does not mend is
// read again.
func (t *track) rebooted() {
	if t.health.active>>findXidReset&1 == 1 {
		t.xidsOf().cleared = true
	}
	t.health = health{class: t.health.class, since: t.health.since}
}

// judgeHealth makes the verdict, and says whether its class changed.
func (t *track) judgeHealth(k *tick) (changed bool) {
	h := &t.health
	if t.state == telemetry.GPUState_GPU_STATE_OK {
		t.watchThrottle(k)
	}
	doubt := cmp.Or(k.doubt, t.doubt)
	class, numbers := t.class(doubt), h.sum()
	changed = class != h.class
	if changed {
		h.class, h.since = class, k.ms
	}
	if h.said && !changed && h.toldOf == h.active && h.stateOf == t.state && h.doubtOf == doubt && h.numbers == numbers {
		return false
	}
	h.said, h.toldOf, h.stateOf, h.doubtOf, h.numbers = true, h.active, t.state, doubt, numbers
	h.score, h.reason, h.evidence = t.healthWords(class)
	return changed
}

// sum stands for the numbers of what was found, each to about a tenth: with
// another sum the words are no longer right.
func (h *health) sum() (out uint64) {
	for left := h.active; left != 0; left &= left - 1 {
		out = (out ^ uint64(math.Float32bits(h.found[bits.TrailingZeros32(left)].v)>>20)) * fnvPrime
	}
	return out
}

func (t *track) class(doubt string) string {
	switch t.state {
	case telemetry.GPUState_GPU_STATE_LOST:
		return HealthLost
	case telemetry.GPUState_GPU_STATE_HUNG:
		return HealthHung
	case telemetry.GPUState_GPU_STATE_ABSENT:
		return HealthAbsent
	case telemetry.GPUState_GPU_STATE_UNKNOWN:
		return HealthUnknown
	}
	switch {
	case doubt != "":
		return HealthDoubtful
	case t.health.active != 0:
		return ailments[bits.TrailingZeros32(t.health.active)].class
	}
	return HealthOK
}

// healthWords are score, reason and evidence of a class.
func (t *track) healthWords(class string) (score float64, reason string, evidence []string) {
	h := &t.health
	for left := h.active; left != 0; left &= left - 1 {
		f := finding(bits.TrailingZeros32(left))
		if len(evidence) < maxEvidence {
			evidence = append(evidence, t.findingWords(f, h.found[f].v))
		}
	}
	switch class {
	case HealthLost:
		return 0, "the driver lost the device", evidence
	case HealthHung:
		return 0, "driver call " + t.hungCall + " has not returned", evidence
	case HealthAbsent:
		return 0, t.absence(), evidence
	case HealthUnknown:
		return 0, "the device does not answer", evidence
	case HealthDoubtful:
		return 0, h.doubtOf, evidence
	case HealthOK:
		return 1, "", nil
	}
	return ailments[bits.TrailingZeros32(h.active)].score, evidence[0], evidence[1:]
}

func (t *track) findingWords(f finding, v float32) string {
	n := float64(v)
	switch f {
	case findRemapFailed:
		return "a memory row could not be remapped"
	case findRemapPending:
		return "a row remap waits for a reset"
	case findXidReboot:
		return xidWord(v) + " calls for a reboot of the node"
	case findXidAgain:
		return xidWord(v) + " again, within a day of a reset"
	case findXidReset:
		return xidWord(v) + " calls for a reset"
	case findXidHands:
		return xidWord(v) + " calls for hands"
	case findXidSupport:
		return xidWord(v) + ": what to do a human must find out"
	case findXidRepeats:
		return xidWord(v) + " from different work: the device is suspect"
	case findXidBefore:
		return xidWord(v) + " was counted before this process looked"
	case findXidNoted:
		return xidWord(v)
	case findXidApp:
		return xidWord(v) + ", of an application"
	case findRecoveryDrain, findRecoveryReset:
		return "the driver asks for " + recoveryWord(int(v))
	case findUncorrected:
		return figure(n) + " uncorrected ECC errors/s within the last 10 min"
	case findUncorrectedBefore:
		return strconv.Itoa(int(n)) + " uncorrected ECC errors since the driver was loaded"
	case findCorrectedStorm, findCorrected:
		return figure(n) + " corrected ECC errors/s"
	case findLinksDown:
		return "NVLinks are down, " + strconv.Itoa(int(n)) + " are up"
	case findNotReady:
		return "the driver has not joined the NVLink fabric"
	case findLinkErrors, findLinkNoise:
		return figure(n) + " NVLink errors/s"
	case findThrottled:
		return throttleReason[hotReasons[int(n)]-telemetry.GPUThrottleActiveSWPower]
	case findSensor:
		return sensorFault(n).String()
	case findNarrow:
		return "PCIe has " + strconv.Itoa(int(n)) + " lanes, less than it could"
	}
	return figure(n) + " PCIe packets/s are sent again"
}

func xidWord(v float32) string {
	if v == 0 {
		return "an Xid without a number"
	}
	return "Xid " + strconv.Itoa(int(v))
}

// What a driver asks for that a reset of the device alone answers.
const (
	recoverReset    = 1
	recoverBusReset = 6
)

func recoveryWord(action int) string {
	switch action {
	case recoverReset:
		return "a reset"
	case 2, 7:
		return "a reboot of the node"
	case 3:
		return "peer traffic to be drained"
	case 4:
		return "a drain and a reset"
	case 5:
		return "recovery of its IMEX domain"
	case recoverBusReset:
		return "a reset of its bus"
	}
	return "recovery action " + strconv.Itoa(action)
}

// Reasons that take speed away because of heat or a fault; sw_power is the
// power limit at work and no fault.
var hotReasons = [...]telemetry.ID{telemetry.GPUThrottleActiveHWThermal, telemetry.GPUThrottleActiveHWSlowdown, telemetry.GPUThrottleActivePowerBrake}

var throttleReason = func() []string {
	out := make([]string, len(telemetry.ThrottleReasons))
	for i, r := range telemetry.ThrottleReasons {
		out[i] = "throttled: " + r
	}
	return out
}()

// hot says whether any reason of heat, hardware or software, holds clocks down.
func (t *track) hot(k *tick) bool { return t.hotWord(k) != "" }

// hotWord names that reason.
func (t *track) hotWord(k *tick) string {
	for _, id := range hotReasons {
		if v, _, ok := t.current(id, k); ok && v != 0 {
			return throttleReason[id-telemetry.GPUThrottleActiveSWPower]
		}
	}
	if v, _, ok := t.current(telemetry.GPUThrottleActiveSWThermal, k); ok && v != 0 {
		return throttleReason[telemetry.GPUThrottleActiveSWThermal-telemetry.GPUThrottleActiveSWPower]
	}
	return ""
}

func (j *Judge) observeHealth(t *track, g *telemetry.GPUObservation) {
	h := g.GetHealth()
	if h == nil {
		h = new(telemetry.Health)
		g.SetHealth(h)
	}
	v := &t.health
	h.SetClass(v.class)
	h.SetScore(v.score)
	h.SetReason(v.reason)
	h.SetSinceUnixNano(j.unix(v.since))
	h.SetEvidence(v.evidence)
}
