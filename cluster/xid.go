package cluster

import (
	"strconv"
	"strings"
)

// xidAction is what an Xid calls for.
type xidAction uint8

const (
	xidUnclear xidAction = iota
	xidIgnore
	xidApp
	xidReset
	xidReboot
	xidHands
	xidSupport
)

// actionOf reads the action label: NVIDIA's name of the immediate action, or the
// plain word for it.
func actionOf(label string, xid int) xidAction {
	for _, a := range xidActions {
		if strings.EqualFold(label, a.label) {
			return a.action
		}
	}
	if len(label) >= len("workflow") && strings.EqualFold(label[:len("workflow")], "workflow") {
		return workflowOf(xid)
	}
	return xidUnclear
}

var xidActions = [...]struct {
	label  string
	action xidAction
}{
	{"ignore", xidIgnore}, {"none", xidIgnore}, {"", xidUnclear},
	{"restart_app", xidApp}, {"app", xidApp},
	{"reset_gpu", xidReset}, {"reset", xidReset}, {"gpu_reset", xidReset}, {"drain_and_reset", xidReset},
	{"restart_bm", xidReboot}, {"restart_vm", xidReboot}, {"reboot", xidReboot}, {"node_reboot", xidReboot},
	{"check_mechanicals", xidHands}, {"contact_support", xidSupport},
	{"update_swfw", xidUnclear}, {"check_uvm", xidUnclear},
	{"xid_154", xidIgnore}, // the recovery action, which is read, is another
}

// workflowOf is for the codes whose action only a decoder could tell. Of what is
// not decoded the worse is taken, except where the code only accompanies others.
func workflowOf(xid int) xidAction {
	switch xid {
	case 13, 31:
		return xidApp
	case 45:
		return xidIgnore // cleaned up after another one
	}
	return xidReset
}

// Codes that say something of the device though nothing has to be done at once:
// a row was remapped, many corrected errors, and the like.
func noted(xid int) bool { return xid == 63 || xid == 92 || xid == 157 }

const (
	// xidDay is how long an Xid is remembered when another one comes.
	xidDay = 24 * 3600 // s
	// repeatsSuspect: this many application errors, each of another work, are
	// the device's doing.
	repeatsSuspect = 3
	// bornWithin is the age of a process in which all that it has counted is of
	// now.
	bornWithin = 60_000 // ms
)

// xids is what is remembered of a device's Xids.
type xids struct {
	appAt    uint32 // last application error, s
	appOf    uint64 // whose it was
	appTimes uint8  // in a row, each of other work than the one before
	resetAt  uint32 // last one that called for a reset, s; kept over the reset
	cleared  bool   // the device was reset since
}

func (t *track) xidsOf() *xids {
	if t.xids == nil {
		t.xids = new(xids)
	}
	return t.xids
}

// heardXid takes a count of Xids. Only what was counted since the last look has
// just happened. A series that is new to this judge may be old: what it counts
// is then told, and not acted on.
func (j *Judge) heardXid(x *Sample, known bool, v float64, k *tick) {
	t := j.find(x.UUID)
	if t == nil || known && v <= x.V || v <= 0 {
		return
	}
	xid, err := strconv.Atoi(x.Labels[0])
	if err != nil || xid < 0 || xid > 1<<20 {
		xid = 0
	}
	action := actionOf(x.Labels[1], xid)
	if !known && !j.samples.told && k.lived > bornWithin {
		if action > xidApp {
			t.raise(findXidBefore, float32(xid), k)
		}
		return
	}
	t.xid(xid, action, k)
}

func (t *track) xid(xid int, action xidAction, k *tick) {
	code, x := float32(xid), t.xidsOf()
	now := k.second()
	switch action {
	case xidIgnore:
		if noted(xid) {
			t.raise(findXidNoted, code, k)
		}
	case xidApp:
		of := t.members.fingerprint()
		if now-x.appAt > xidDay {
			x.appTimes = 0
		}
		if x.appTimes == 0 || of != x.appOf {
			x.appTimes = min(x.appTimes+1, repeatsSuspect)
		}
		x.appAt, x.appOf = now, of
		t.raise(findXidApp, code, k)
		if x.appTimes >= repeatsSuspect {
			t.raise(findXidRepeats, code, k)
		}
	case xidReset:
		t.raise(findXidReset, code, k)
		if x.cleared && now-x.resetAt <= xidDay {
			t.raise(findXidAgain, code, k)
		}
		x.resetAt, x.cleared = now, false
	case xidReboot:
		t.raise(findXidReboot, code, k)
	case xidHands:
		t.raise(findXidHands, code, k)
	case xidSupport:
		t.raise(findXidSupport, code, k)
	default:
		t.raise(findXidNoted, code, k)
	}
}

// fingerprint tells the work on a device from other work, in whatever order the
// members come.
func (h *holders) fingerprint() (sum uint64) {
	for _, m := range h.list {
		name := m.GetWorkload()
		if name == "" {
			name = m.GetId()
		}
		sum += fnv(name)
	}
	return sum
}
