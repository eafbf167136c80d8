package cluster

import (
	"slices"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// holders are the members of a device: who holds it.
type holders struct {
	list []*telemetry.Member
	// past is the last list that was not empty, also of the process before.
	past []*telemetry.Member
	// shared are those of them that share something; see sharing.
	shared []*telemetry.Member
	at     int64 // when they were last told, ms
	told   bool
	// byLink says that they come with the link part: then a slow part without
	// any says nothing, and otherwise a link part does not.
	byLink bool
	// failing says that the device does not tell its processes.
	failing bool
}

// take folds the members of a frame. A list that is there is news; an empty one
// is, only in the part that carries them.
func (h *holders) take(list []*telemetry.Member, k *tick, n *names, refused *refusals) {
	if len(list) > maxMembers {
		refused.count(RefusedMember)
		list = list[:maxMembers]
	}
	list, whole := n.admit(list, h.past, refused)
	h.failing = h.failing || !whole // that the rest is empty would be no word of the node
	switch {
	case len(list) > 0:
		h.list, h.past, h.shared = list, list, nil
		if len(list) > 1 {
			h.shared = h.sharing()
		}
		if k.linkPart != k.slowPart {
			h.byLink = k.linkPart
		}
	case k.slowPart && (k.linkPart || !h.byLink), k.linkPart && h.byLink:
		h.list, h.shared = nil, nil
	default:
		return
	}
	h.at, h.told = k.ms, true
}

// maxMembers is far above what can share a device.
const maxMembers = 256

// known says whether the list is what is true now. That it is empty takes the
// word of the node's reader.
func (h *holders) known(k *tick) bool {
	keep := k.keep[classSlow]
	if !h.told || k.ms-h.at > keep {
		return false
	}
	return len(h.list) > 0 || k.processes && !h.failing
}

// Readers by whose word an empty list of members is one: the node's finding out
// whose processes they are, and a device's telling which there are.
const (
	membersReader   = "members"
	processesReader = "processes"
)

// heardReader takes the node's word on finding out who holds its devices:
// without it an empty list may mean that nobody looked.
func (j *Judge) heardReader(x *telemetry.Sample, k *tick) {
	if x.GetLabels()[0] == membersReader {
		j.readAt, k.processes = 0, x.GetValue() == 1
		if k.processes {
			j.readAt = k.ms
		}
	}
}

// heardFailing takes it on one device. Those that fail are named in each slow
// part.
func (j *Judge) heardFailing(x *Sample, k *tick) {
	if t := j.find(x.UUID); t != nil && x.Labels[0] == processesReader {
		t.members.failing = true
	}
}

// sharing lists the members that share the whole device, or the MIG instance
// that most of them share; nil if nobody shares anything. Members of one
// workload, as far as the node can tell, are one.
func (h *holders) sharing() []*telemetry.Member {
	var best []*telemetry.Member
	for i, m := range h.list {
		if len(best) > 0 && sameInstance(m, best[0]) {
			continue
		}
		var group []*telemetry.Member
		for _, x := range h.list[i:] {
			if sameInstance(m, x) && !slices.ContainsFunc(group, func(y *telemetry.Member) bool { return sameWork(x, y) }) {
				group = append(group, x)
			}
		}
		if len(group) > max(len(best), 1) {
			best = group
		}
	}
	return best
}

func sameInstance(a, b *telemetry.Member) bool {
	return a.HasGi() == b.HasGi() && a.GetGi() == b.GetGi()
}

func sameWork(a, b *telemetry.Member) bool {
	return a.GetId() == b.GetId() || a.GetWorkload() != "" && a.GetWorkload() == b.GetWorkload()
}
