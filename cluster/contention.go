package cluster

import (
	"slices"
	"strconv"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Kinds of contention.
const (
	// ContentionNeighbour: members of different work share the device, and it is
	// never free.
	ContentionNeighbour = "noisy_neighbour"
	// ContentionNVLink: the device's links are full.
	ContentionNVLink = "nvlink"
	// ContentionNetwork: ports of the node are full, and more than one piece of
	// work is on the node.
	ContentionNetwork = "network"
)

const (
	// A device whose kernels never leave it idle has nothing left for another
	// member, however little of it each of them uses.
	neighbourHigh, neighbourLow = 0.95, 0.85
	neighbourTimes              = 20 // seconds in excess
	// maxWith bounds the members that are named.
	maxWith = 16
)

// contention follows whether members crowd each other, and holds the verdict; most
// devices have none.
type contention struct {
	crowded sustained
	util    float32 // smoothed
	verdict *contended
}

// contended is what slows the work on a device.
type contended struct {
	kind  string
	ratio float64
	since int64
	with  []string
	words
}

// watchContention judges it, once a second.
func (t *track) watchContention(k *tick, h *host, crowd int) {
	c := &t.contention
	if len(t.members.shared) > 1 {
		t.watchCrowd(k)
	} else {
		*c = contention{verdict: c.verdict}
	}
	kind := t.contended(k, h, crowd)
	if kind == "" {
		c.verdict = nil
		return
	}
	v := c.verdict
	changed := v == nil || v.kind != kind
	if changed {
		v = &contended{kind: kind, since: k.ms}
		c.verdict = v
	}
	switch kind {
	case ContentionNeighbour:
		v.ratio = float64(c.util)
	case ContentionNVLink:
		v.ratio = t.fabric.smooth
	case ContentionNetwork:
		v.ratio = h.verdicts[verdictNetwork].value
	}
	if v.ripe(changed, k.ms) && v.due(changed, k.ms, quantum(v.ratio*50), int32(len(t.members.list)), int32(len(t.members.shared)), h.verdicts[verdictNetwork].edition) {
		v.with = memberIDs(t.members.shared)
		if kind == ContentionNVLink {
			v.with = memberIDs(t.members.list)
		}
		v.say(t.contentionWords(kind, k, h)...)
	}
}

// watchCrowd follows how much members that share something leave of it.
func (t *track) watchCrowd(k *tick) {
	c := &t.contention
	util, ok := t.compute(k)
	if !ok || !t.members.known(k) {
		c.util, c.crowded = 0, sustained{}
		return
	}
	c.util += (float32(util) - c.util) / 5
	c.crowded.see(util >= neighbourHigh, util < neighbourLow, neighbourTimes)
}

// compute is how busy the multiprocessors are, of a MIG device its busiest
// shared instance.
func (t *track) compute(k *tick) (float64, bool) {
	if len(t.members.shared) > 0 && t.members.shared[0].HasGi() {
		return t.migActiveOf(t.members.shared[0].GetGi(), k)
	}
	v, s := t.signal(telemetry.GPUUtilizationRatio, k)
	return v, s == senseOK
}

func (t *track) contended(k *tick, h *host, crowd int) string {
	switch {
	case t.state != telemetry.GPUState_GPU_STATE_OK:
		return ""
	case t.contention.crowded.on:
		return ContentionNeighbour
	case t.fabric.full.on:
		return ContentionNVLink
	case crowd > 1 && len(t.members.list) > 0 && h.holds(verdictNetwork, k):
		return ContentionNetwork
	}
	return ""
}

func (t *track) contentionWords(kind string, k *tick, h *host) []string {
	switch kind {
	case ContentionNVLink:
		links, _ := t.linksUp(k)
		tx, _ := t.nvlink[0].rate(k.ms, k.keep[classFast])
		rx, _ := t.nvlink[1].rate(k.ms, k.keep[classFast])
		return []string{"NVLink sends " + perSecond(tx) + " and receives " + perSecond(rx) + " over " + strconv.Itoa(links) + " links of " + perSecond(linkSpeed(t.arch)) + " each"}
	case ContentionNetwork:
		return []string{h.verdicts[verdictNetwork].evidence, "more than one piece of work on the node shares its ports"}
	}
	list := []string{strconv.Itoa(len(t.members.shared)) + " members share the device", "never free: " + percent(float64(t.contention.util)) + " of the time some kernel runs"}
	if sm, s := t.signal(telemetry.GPUSMActiveRatio, k); s == senseOK {
		text := "SM active " + percent(sm)
		if tensor, s := t.signal(telemetry.GPUTensorActiveRatio, k); s == senseOK {
			text += ", tensor " + percent(tensor)
		}
		if sm < 0.5 {
			text += ": they take turns rather than fill it"
		}
		list = append(list, text)
	}
	return list
}

// memberIDs are the names of members, in order, the first of them if there are
// very many.
func memberIDs(list []*telemetry.Member) []string {
	out := make([]string, 0, len(list))
	for _, m := range list {
		out = append(out, m.GetId())
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxWith)]
}

// crowd counts the pieces of work on a node, as far as the node can tell them
// apart; it stops where that no longer matters.
func (j *Judge) crowd() int {
	var first *telemetry.Member
	for _, t := range j.tracks {
		for _, m := range t.members.list {
			switch {
			case first == nil:
				first = m
			case !sameWork(first, m):
				return 2
			}
		}
	}
	if first == nil {
		return 0
	}
	return 1
}

// migUse is the activity of a MIG instance.
type migUse struct {
	gi     string
	active float64
	at     int64
}

// maxMIG is how many instances a device can have, and some.
const maxMIG = 16

func (t *track) heardMIG(gi string, active float64, k *tick) {
	i := slices.IndexFunc(t.migs, func(m migUse) bool { return m.gi == gi })
	if i < 0 {
		if len(t.migs) >= maxMIG {
			t.migs = slices.Delete(t.migs, 0, 1)
		}
		t.migs = append(t.migs, migUse{gi: gi})
		i = len(t.migs) - 1
	}
	t.migs[i].active, t.migs[i].at = active, k.ms
}

// migActive is the activity of the busiest instance that tells of itself now.
func (t *track) migActive(k *tick) (v float64, ok bool) {
	for _, m := range t.migs {
		if k.ms-m.at <= k.keep[classFast] {
			v, ok = max(v, m.active), true
		}
	}
	return v, ok
}

func (t *track) migActiveOf(gi uint32, k *tick) (float64, bool) {
	name := strconv.Itoa(int(gi))
	for _, m := range t.migs {
		if m.gi == name && k.ms-m.at <= k.keep[classFast] {
			return m.active, true
		}
	}
	return 0, false
}

func (j *Judge) observeContention(t *track, g *telemetry.GPUObservation) {
	c := t.contention.verdict
	if c == nil || t.state != telemetry.GPUState_GPU_STATE_OK {
		if g.HasContention() {
			g.ClearContention()
		}
		return
	}
	x := g.GetContention()
	if x == nil {
		x = new(telemetry.Contention)
		g.SetContention(x)
	}
	x.SetKind(c.kind)
	x.SetRatio(c.ratio)
	x.SetWith(c.with)
	x.SetEvidence(c.list)
	x.SetSinceUnixNano(j.unix(c.since))
}
