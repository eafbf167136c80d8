package cluster

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What a node names becomes a series, and a series stays in a store long after
// the node has stopped to name it. So a node may name much at once, as at its
// start, and little in the long run: devices and their descriptions, labelled
// samples, members. What is beyond is refused and counted; values of what is
// named already are not concerned.
const (
	maxNames   = 4096
	nameRefill = time.Second
)

// names is how much more a node may name. It goes by the viewer's clock and
// outlives the node's process: a node that starts anew with each frame gains
// nothing.
type names struct {
	spent int
	at    time.Time // when spent last became less
}

// refill gives back what time has brought.
func (n *names) refill(now time.Time) {
	if n.at.IsZero() || now.Before(n.at) {
		n.at = now
	}
	back := int(now.Sub(n.at) / nameRefill)
	if n.spent = max(n.spent-back, 0); n.spent == 0 {
		n.at = now
		return
	}
	n.at = n.at.Add(time.Duration(back) * nameRefill)
}

// take says whether one more may be named.
func (n *names) take() bool {
	if n.spent >= maxNames {
		return false
	}
	n.spent++
	return true
}

// word is what a text becomes: its new value if the node may still name it.
func (n *names) word(old *string, s string, refused *refusals) {
	switch {
	case *old == s || len(s) > maxText && *old == clip(s):
	case n.take():
		*old = clip(s)
	default:
		refused.count(RefusedName)
	}
}

// maxMemberText bounds the texts of a member.
const maxMemberText = 256

// admit leaves out the members that a node may not name, and says whether any
// was. The list is that of the frame and is changed only then.
func (n *names) admit(list, before []*telemetry.Member, refused *refusals) (_ []*telemetry.Member, whole bool) {
	kept := list
	whole = true
	for i, m := range list {
		ok := len(m.GetId()) <= maxMemberText && len(m.GetWorkload()) <= maxMemberText && len(m.GetOwner()) <= maxMemberText && len(m.GetName()) <= maxMemberText
		if !ok {
			refused.count(RefusedMember)
		} else if !named(m, before, i) && !n.take() {
			refused.count(RefusedName)
			ok = false
		}
		switch {
		case ok && !whole:
			kept = append(kept, m)
		case !ok && whole:
			kept, whole = append([]*telemetry.Member(nil), list[:i]...), false
		}
	}
	return kept, whole
}

// named says whether a member is one of those before, most likely at its place.
func named(m *telemetry.Member, before []*telemetry.Member, hint int) bool {
	same := func(x *telemetry.Member) bool {
		return x.GetId() == m.GetId() && x.GetWorkload() == m.GetWorkload() && x.GetOwner() == m.GetOwner()
	}
	if hint < len(before) && same(before[hint]) {
		return true
	}
	for _, x := range before {
		if same(x) {
			return true
		}
	}
	return false
}
