package process

import "slices"

// Family is a workload followed over time: what once belonged to it still does,
// though its root has ended. It can be written down and read back.
type Family struct {
	Root ID     `json:"root"`
	UID  uint32 `json:"uid"`
	// Known are the processes that have belonged to it, as far as they still
	// tell others apart.
	Known []ID `json:"known"`

	led    map[int]bool // groups and sessions that were its own at the last Update
	vacant bool         // nobody was there then
}

// Follow begins to follow the workload under a root.
func Follow(root Info) *Family {
	return &Family{Root: root.ID, UID: root.UID, Known: []ID{root.ID}}
}

// Update returns who belongs to the workload now and lives, in the order of
// their birth, and the living descendants that do not belong: of another user,
// of another workload, not ours. Rules are asked anew each time.
//
// A table is not taken in an instant, and one that starts another process and
// ends meanwhile may hide it: a workload has ended when two tables show nobody.
func (f *Family) Update(t Table, r Rules) (members, strangers []Info) {
	k := &kin{j: judge(t, r), known: map[int]ID{}, shared: map[int]bool{}, led: f.led}
	for _, id := range f.Known {
		if id.Start >= k.known[id.PID].Start {
			k.known[id.PID] = id
		}
	}
	for _, p := range t {
		if k.isKnown(p) {
			k.shared[p.Group], k.shared[p.Session] = true, true
		}
	}
	belongs := make(map[int]bool)
	for _, p := range t {
		if p.UID == f.UID && (k.isKnown(p) || k.climbs(p)) && (p.Dead() || k.j.isOurs(p)) {
			belongs[p.PID] = true
			if !p.Dead() {
				members = append(members, p)
			}
		}
	}
	for _, p := range t {
		if !belongs[p.PID] && !p.Dead() && t.descendsFromAny(p, belongs) {
			strangers = append(strangers, p)
		}
	}
	slices.SortFunc(members, byBirth)
	slices.SortFunc(strangers, byBirth)
	f.remember(t, k, belongs)
	return members, strangers
}

// kin is what Update knows of a family in one table.
type kin struct {
	j      *judged
	known  map[int]ID
	shared map[int]bool // groups and sessions of known processes that are there
	led    map[int]bool
}

func (k *kin) isKnown(p Info) bool {
	id, ok := k.known[p.PID]
	return ok && id.Start == p.Start
}

// climbs says whether a process climbs to a known one, or is an orphan in a
// group or session that a known one led.
func (k *kin) climbs(p Info) (yes bool) {
	k.j.climb(p, func(q Info) bool {
		yes = k.isKnown(q) || k.j.t.orphan(q) && (k.leads(q.Group, q) || k.leads(q.Session, q))
		return yes
	})
	return yes
}

// leads says whether a process is in a group or session that a known one led.
// The kernel gives its number to nobody while somebody is in it: so it is still
// the same if its leader is there, if a known process is in it, or if it was at
// the last look.
func (k *kin) leads(g int, p Info) bool {
	id, ok := k.known[g]
	if !ok || g == p.PID {
		return false
	}
	if q, there := k.j.t[g]; there {
		return q.Start == id.Start && !isHost(q, p)
	}
	return k.shared[g] || k.led[g]
}

// remember keeps what the next Update needs and forgets the rest.
func (f *Family) remember(t Table, k *kin, belongs map[int]bool) {
	led := map[int]bool{}
	known := []ID{f.Root}
	for pid := range belongs {
		p := t[pid]
		known = append(known, p.ID)
		for _, g := range []int{p.Group, p.Session} {
			if leader, there := t[g]; there && belongs[g] && !isHost(leader, p) || k.leads(g, p) {
				led[g] = true
			}
		}
	}
	if len(belongs) == 0 && !f.vacant {
		led = k.led
	}
	f.vacant = len(belongs) == 0
	for g, id := range k.known { // ended, but their groups or sessions go on
		if led[g] && !belongs[g] {
			known = append(known, id)
		}
	}
	slices.SortFunc(known, func(a, b ID) int { return byBirth(Info{ID: a}, Info{ID: b}) })
	f.Known, f.led = slices.Compact(known), led
}

func (t Table) descendsFromAny(p Info, of map[int]bool) bool {
	for range len(t) {
		if of[p.Parent] {
			return true
		}
		up, ok := t[p.Parent]
		if !ok {
			return false
		}
		p = up
	}
	return false
}
