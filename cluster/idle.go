package cluster

import (
	"strconv"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Causes of idleness.
const (
	// IdleUnknown: without a since it is not known whether the device is used;
	// with one it is not used and nothing tells why.
	IdleUnknown = "unknown"
	// IdleNoProcess: nobody holds the device.
	IdleNoProcess = "no_process"
	// IdleFinishedHolding: a process holds memory and has done nothing for long,
	// though nothing on the host keeps it from working.
	IdleFinishedHolding = "finished_holding"
	// IdleWaitingData, IdleWaitingNetwork, IdleCPUStarved: the host keeps it.
	IdleWaitingData    = "waiting_data"
	IdleWaitingNetwork = "waiting_network"
	IdleCPUStarved     = "cpu_starved"
	// IdleThrottled: heat or a fault holds the device's clocks down.
	IdleThrottled = "throttled"
)

const (
	// quietAfter is the quiet from which a device counts as idle: less is a pause
	// between two batches.
	quietAfter = 10_000 // ms
	// finishedAfter is the quiet without any sign of waiting from which a holder
	// counts as finished.
	finishedAfter = 300_000 // ms
	// unheld is memory that is in use on a device nobody holds: less than the
	// smallest context.
	unheld = 100 << 20
	// busyWithin is how much of a gap in the signals may have been busy for the
	// quiet before it to go on.
	busyWithin = 0.01
)

// idleness follows for how long a device has not been used, and why.
type idleness struct {
	since int64 // start of the quiet, ms; 0 if it is used
	last  int64 // when it was last seen quiet
	// calm is since when nothing on the host could have kept a holder from
	// working; 0 if something does, or may.
	calm  int64
	busy  float64 // the counter of busy seconds when last seen quiet
	hasB  bool
	cause string
	// blind is set while it is not known whether the device is used.
	blind bool
	words
}

// watchUse judges use, once a second.
func (t *track) watchUse(k *tick, host *host) {
	u := t.look(k)
	d := &t.idle
	switch {
	case u.active:
		*d = idleness{}
		return
	case u.missing != 0:
		d.calm = 0
		d.sayBlind(u, k)
		return
	case d.since == 0 || !t.bridged(k):
		d.since, d.calm = k.ms, 0
	}
	busy, _, ok := t.current(telemetry.GPUBusySeconds, k)
	d.last, d.busy, d.hasB = k.ms, busy, ok
	if k.ms-d.since < quietAfter {
		d.cause, d.blind = "", false
		return
	}
	t.sayIdle(u, t.idleCause(k, host), k, host)
}

// bridged says that the quiet has gone on since the device was last seen so:
// either that was just now, or the counter of busy time, which misses nothing,
// shows that it was not used meanwhile.
func (t *track) bridged(k *tick) bool {
	d := &t.idle
	gap := k.ms - d.last
	if gap <= k.keep[classFast] {
		return true
	}
	busy, s, ok := t.current(telemetry.GPUBusySeconds, k)
	return ok && s.trusted() && d.hasB && busy >= d.busy && busy-d.busy <= busyWithin*float64(gap)/1000
}

// idleCause names why a quiet device is quiet. A host that may be the reason and
// does not tell leaves the cause unknown: work that waits must not be taken for
// work that is done.
func (t *track) idleCause(k *tick, h *host) string {
	used, s := t.signal(telemetry.GPUMemoryUsedBytes, k)
	if len(t.members.list) == 0 {
		if s == senseOK && used <= unheld {
			return IdleNoProcess
		}
		return IdleUnknown
	}
	cause := ""
	switch {
	case t.hot(k):
		cause = IdleThrottled
	case h.holds(verdictStorage, k):
		cause = IdleWaitingData
	case h.holds(verdictNetwork, k), h.holds(verdictNetworkDown, k), h.holds(verdictNetworkErrors, k):
		cause = IdleWaitingNetwork
	case h.holds(verdictCPU, k):
		cause = IdleCPUStarved
	}
	d := &t.idle
	switch {
	case cause != "":
		d.calm = 0
		return cause
	case !h.known(verdictStorage, k) || !h.known(verdictCPU, k):
		d.calm = 0
		return IdleUnknown
	case d.calm == 0:
		d.calm = k.ms
	}
	if k.ms-d.calm >= finishedAfter {
		return IdleFinishedHolding
	}
	return IdleUnknown
}

// sayBlind tells that use is not known, and which signals are missing.
func (d *idleness) sayBlind(u use, k *tick) {
	changed := !d.blind
	d.cause, d.blind = IdleUnknown, true
	if !d.ripe(changed, k.ms) || !d.due(changed, k.ms, int32(u.missing)) {
		return
	}
	var list []string
	for _, m := range missingWords {
		if u.missing&m.bit != 0 {
			list = append(list, m.text)
		}
	}
	d.say(list...)
}

var missingWords = [...]struct {
	bit  uint8
	text string
}{
	{missingDevice, "the device does not answer"},
	{missingCompute, "activity of its multiprocessors is not known"},
	{missingMemory, "traffic of its memory is not known"},
	{missingNVLink, "traffic of its NVLinks is not known"},
	{missingProcesses, "its processes are not known"},
}

// sayIdle tells why the device is not used, and what that rests on.
func (t *track) sayIdle(u use, cause string, k *tick, h *host) {
	d := &t.idle
	changed := d.cause != cause || d.blind
	d.cause, d.blind = cause, false
	if !d.ripe(changed, k.ms) {
		return
	}
	used, s := t.signal(telemetry.GPUMemoryUsedBytes, k)
	if s != senseOK {
		used = notSeen
	}
	excuse, edition := h.excuse(cause, k)
	if d.calm != 0 {
		edition = -1
	}
	if !d.due(changed, k.ms, quantum(u.util*100), quantum(u.sm*100), quantum(u.memory*100), quantum(u.nvlink/1e5),
		int32(len(t.members.list)), quantum(used*10/gib), edition) {
		return
	}
	list := []string{t.useWords(u)}
	switch n := len(t.members.list); {
	case n == 0 && used > unheld:
		list = append(list, gibibytes(used)+" are in use by no process that the driver lists")
	case n == 0:
		list = append(list, "no process holds it")
	case n == 1:
		list = append(list, "1 process holds "+memoryWords(used))
	default:
		list = append(list, strconv.Itoa(n)+" processes hold "+memoryWords(used))
	}
	if more := t.causeWords(cause, k, h, excuse); more != "" {
		list = append(list, more)
	}
	d.say(list...)
}

func memoryWords(used float64) string {
	if used < 0 {
		return "it"
	}
	return gibibytes(used)
}

func (t *track) useWords(u use) string {
	out := ""
	add := func(what string, v float64) {
		if v < 0 {
			return
		}
		if out != "" {
			out += ", "
		}
		out += what + " " + percent(v)
	}
	add("utilization", u.util)
	add("SM active", u.sm)
	add("memory traffic", u.memory)
	if u.nvlink > 0 {
		out += ", NVLink " + perSecond(u.nvlink)
	}
	return out
}

func (t *track) causeWords(cause string, k *tick, h *host, excuse string) string {
	switch cause {
	case IdleThrottled:
		return t.hotWord(k)
	case IdleFinishedHolding:
		return "nothing on the host has kept it from working for " + strconv.Itoa(finishedAfter/60_000) + " min"
	case IdleUnknown:
		switch {
		case len(t.members.list) == 0:
			return ""
		case !h.known(verdictStorage, k):
			return "whether it waits for storage is not known"
		case !h.known(verdictCPU, k):
			return "whether it waits for the CPU is not known"
		}
		return "quiet for less than " + strconv.Itoa(finishedAfter/60_000) + " min since anything could have kept it"
	}
	return excuse
}

// observeIdle writes the verdict: nothing for a device in use.
func (j *Judge) observeIdle(t *track, g *telemetry.GPUObservation) {
	d := &t.idle
	silent := t.state != telemetry.GPUState_GPU_STATE_OK
	if d.cause == "" || silent && !d.blind || t.state == telemetry.GPUState_GPU_STATE_ABSENT {
		if g.HasIdle() {
			g.ClearIdle()
		}
		return
	}
	x := g.GetIdle()
	if x == nil {
		x = new(telemetry.Idle)
		g.SetIdle(x)
	}
	since := int64(0)
	if !d.blind {
		since = j.unix(d.since)
	}
	x.SetSinceUnixNano(since)
	x.SetCause(d.cause)
	x.SetEvidence(d.list)
}
