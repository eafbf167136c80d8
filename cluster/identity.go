package cluster

import (
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// rivalFrames of another machine under the same name are one too many; a
	// machine that is going down sends a few when its successor is there.
	rivalFrames = 3
	// rivalAfter is how long an earlier process may still be heard without being
	// alive, and doubtFor how long a doubt stays after the last sign of it.
	rivalAfter = 10 * time.Second
	doubtFor   = time.Minute
)

// rival is another machine that speaks by the same name.
type rival struct {
	boot   string
	seq    uint64
	frames int
	heard  time.Time
}

// contradict takes a frame that was refused as one of an earlier process. If it
// comes from another machine, is news, and keeps coming, then two machines go by
// one name, and nobody knows whose values are whose.
func (s *source) contradict(now time.Time, f *telemetry.Frame) {
	r := &s.rival
	boot := f.GetBootId()
	if boot == "" || boot == s.boot || now.Sub(s.since) < rivalAfter {
		return
	}
	if boot != r.boot || now.Sub(r.heard) > doubtFor {
		*r = rival{boot: clip(boot)}
	}
	if f.GetSequence() <= r.seq {
		return // seen before: late, not alive
	}
	r.seq, r.heard = f.GetSequence(), now
	r.frames++
}

// doubt says why the node may not be who it says.
func (s *source) doubt(now time.Time) string {
	if s.rival.frames < rivalFrames || now.Sub(s.rival.heard) > doubtFor {
		return ""
	}
	return "another machine speaks by this name: boot " + s.rival.boot
}

// placed follows where in the machine a device is. One that was moved has other
// air around it, so what was learned of that is forgotten.
func (t *track) placed(pci string) {
	if t.pci != "" && pci != "" && t.pci != pci {
		t.fit, t.sensor = thermal{}, sensor{}
		t.trend.reset()
	}
}

// checkPlaces looks, when devices have been described anew, for two that claim
// one place, and for absent ones whose place another has taken.
func (j *Judge) checkPlaces() {
	for _, t := range j.tracks {
		t.doubt, t.replacedBy = "", ""
		if t.pci == "" {
			continue
		}
		for _, x := range j.tracks {
			switch {
			case x == t || x.pci != t.pci || x.state != telemetry.GPUState_GPU_STATE_OK:
			case t.state == telemetry.GPUState_GPU_STATE_OK:
				t.doubt = "device " + x.uuid + " claims the same place, " + t.pci
				t.suspectAll()
			default:
				t.replacedBy = x.uuid
			}
		}
	}
}

// suspectAll takes the trust from every value that is there.
func (t *track) suspectAll() {
	for i := range t.slots {
		if t.slots[i].trusted() {
			t.slots[i].q = uint8(telemetry.Quality_QUALITY_SUSPECT) + 1
		}
	}
}

// absence says why a device that was there is missing.
func (t *track) absence() string {
	if t.replacedBy != "" {
		return "the device was there and " + t.replacedBy + " is in its place"
	}
	return "the device was there and is missing"
}

// claimReason says who else claims a device. Two names of one machine are told
// apart from two machines.
func claimReason(n *Node, others []*Node) string {
	names := make([]string, len(others))
	same := n.BootID != ""
	for i, o := range others {
		names[i] = o.Name
		same = same && o.BootID == n.BootID
	}
	reason := "also claimed by " + strings.Join(names, ", ")
	if same {
		reason += ", the same machine by its boot id"
	}
	return reason
}
