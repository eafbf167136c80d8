package cluster

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// State folds observations, inventory and receipts, and gives Views. It is
// safe for concurrent use. It has no clock: every call brings the time.
type State struct {
	viewing sync.Mutex // held while a View is made, and before mu
	mu      sync.Mutex
	records map[string]*record
	sorted  []*record // by name; nil if it has to be made again
	sources map[string]*told
	places  map[string]*place // by node name
	alias   map[string]string // other name → place
	plan    []telemetry.InventoryWorkload
	planOf  []string        // source of each
	listed  map[string]bool // references and members of the plan

	// share says which names are heard here; nil for all.
	share func(name string) bool

	view *View
	// spare is the memory of a node that no View has seen, for the next fold.
	spare *block
	// regroup is set if GPUs came, went or moved; rejoin if workloads did.
	regroup, rejoin bool
	conflicts       int
}

// record is what is known of one node.
type record struct {
	name  string
	node  *Node  // the newest, unique to this record until it is in a View
	block *block // the node's memory; nil if it is a copy
	heard time.Time
	seq   uint64
	caps  map[string]capped
	// from is when the node was heard after a silence, spans since when its
	// workloads hold devices.
	from  time.Time
	spans map[telemetry.WorkloadRef]span
	// dirty: not in the last View. shared: in a View, so to be copied.
	dirty, shared bool
}

// capped is a power limit that a receipt told of.
type capped struct {
	watts float64
	at    time.Time
}

// ForgetAfter is how long a node that is gone and in no inventory is kept.
const ForgetAfter = 24 * time.Hour

// NewState returns an empty state.
func NewState() *State {
	return &State{
		records: map[string]*record{}, sources: map[string]*told{},
		places: map[string]*place{}, alias: map[string]string{}, regroup: true, rejoin: true,
	}
}

// Observe folds an observation that arrived at now. One that is older than what
// is known is refused with a *telemetry.DropError.
func (s *State) Observe(now time.Time, o *telemetry.Observation) error {
	return s.observe(now, o, nil)
}

// ObserveJudged is Observe for an observation as the judge of the same process
// leaves it.
func (s *State) ObserveJudged(now time.Time, x *Judged) error { return s.observe(now, x.Message, x) }

// observe folds an observation whose values are in its message, or in judged.
func (s *State) observe(now time.Time, o *telemetry.Observation, judged *Judged) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := o.GetNode()
	if name == "" || o.GetIncarnation() == 0 {
		return refuse(telemetry.DropMalformed, "observation without node or incarnation")
	}
	s.known(name)
	r := s.record(name)
	old := r.node
	if old != nil && old.Incarnation != 0 {
		gone := now.Sub(r.heard) > GoneAfter(old.Period)
		switch {
		case o.GetIncarnation() < old.Incarnation && !gone:
			return refuse(telemetry.DropReordered, "observation of an earlier process of the node")
		case o.GetIncarnation() == old.Incarnation && o.GetSequence() == r.seq:
			return refuse(telemetry.DropDuplicate, "observation seen before")
		case o.GetIncarnation() == old.Incarnation && o.GetSequence() < r.seq:
			return refuse(telemetry.DropReordered, "observation older than the last one")
		}
	}
	b := s.spare
	if b == nil {
		b = new(block)
	}
	s.spare = nil
	n := b.fold(now, o, judged, old)
	s.place(n)
	r.applyCaps(n)
	s.markDoubtful(n)
	if old == nil || old.State != NodeUp || !sameDevices(old, n) {
		s.regroup = true
	}
	s.told(now, r, n)
	n.summarize()
	if !r.shared {
		s.spare = r.block
	}
	r.node, r.block, r.heard, r.seq, r.dirty, r.shared = n, b, now, o.GetSequence(), true, false
	return nil
}

func (s *State) record(name string) *record {
	r, ok := s.records[name]
	if !ok {
		r = &record{name: name}
		s.records[name] = r
		s.sorted = nil
		s.regroup = true
	}
	return r
}

// sameDevices says whether indexes into the GPUs stay right, and who is present.
func sameDevices(a, b *Node) bool {
	return slices.EqualFunc(a.GPUs, b.GPUs, func(x, y *GPU) bool {
		return x.UUID == y.UUID && (x.State == GPUAbsent) == (y.State == GPUAbsent)
	})
}

// Receipt folds what became of a step. A limit that a device was read back with
// holds until a newer reading of the device says otherwise.
func (s *State) Receipt(now time.Time, r telemetry.Receipt) {
	watts, ok := r.After["power_limit_watts"]
	if r.Result != telemetry.Done || r.DryRun || !ok || !finite(watts) || watts < 0 || r.Target.UUID == "" {
		return
	}
	name := r.Target.Node
	if name == "" {
		name = r.Node
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.records[name]
	if !ok || rec.node == nil {
		return
	}
	if !slices.ContainsFunc(rec.node.GPUs, func(g *GPU) bool { return g.UUID == r.Target.UUID }) {
		return
	}
	if rec.caps == nil {
		rec.caps = map[string]capped{}
	}
	rec.caps[r.Target.UUID] = capped{watts, now}
	rec.own()
	rec.applyCaps(rec.node)
}

// own makes the node safe to change: a copy if a View has it.
func (r *record) own() {
	if r.shared {
		r.node, r.block, r.shared = r.node.clone(), nil, false
	}
	r.node.cover = cover{}
	r.dirty = true
}

func (n *Node) clone() *Node {
	c := *n
	c.cover = cover{}
	c.GPUs = make([]*GPU, len(n.GPUs))
	for i, g := range n.GPUs {
		c.GPUs[i] = g.clone()
	}
	return &c
}

func (g *GPU) clone() *GPU {
	c := *g
	c.readings = slices.Clone(g.readings)
	return &c
}

func (r *record) applyCaps(n *Node) {
	for uuid, c := range r.caps {
		i := slices.IndexFunc(n.GPUs, func(g *GPU) bool { return g.UUID == uuid })
		if i < 0 {
			delete(r.caps, uuid)
			continue
		}
		g := n.GPUs[i]
		if read, ok := g.Reading(telemetry.GPUPowerLimitWatts); ok && read.At.After(c.at) {
			delete(r.caps, uuid)
			continue
		}
		g.LimitW = Some(c.watts)
		g.set(telemetry.GPUPowerLimitWatts, c.watts, c.at)
	}
}

// set puts a reading in, keeping the quality of the one it replaces.
func (g *GPU) set(id telemetry.ID, v float64, at time.Time) {
	i, ok := g.find(id)
	if !ok {
		if len(g.readings) == 0 {
			g.base = at
		}
		g.readings = slices.Insert(g.readings, i, reading{id: uint16(id), q: uint8(telemetry.Quality_QUALITY_OK)})
	}
	r := &g.readings[i]
	if telemetry.Quality(r.q) != telemetry.Quality_QUALITY_SUSPECT {
		r.q = uint8(telemetry.Quality_QUALITY_OK)
	}
	r.v, r.off = v, offset(at.Sub(g.base))
}

// Conflicts is the number of UUIDs that more than one live node claims.
func (s *State) Conflicts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflicts
}

// View is the fleet at now. Nodes that did not change since the last View are
// the same objects in both.
func (s *State) View(now time.Time) *View {
	s.viewing.Lock()
	defer s.viewing.Unlock()
	v, last, changed := s.snapshot(now)
	if last != nil {
		v.rejoin(last, changed)
	}
	return v
}

// snapshot is a View of the nodes, and all that must be done while nothing may be
// folded. If workloads did not come, go or move, it leaves them to be taken from
// the last View, but for those of the nodes that changed.
func (s *State) snapshot(now time.Time) (v, last *View, changed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age(now)
	if s.sorted == nil {
		s.sorted = make([]*record, 0, len(s.records))
		for _, r := range s.records {
			s.sorted = append(s.sorted, r)
		}
		slices.SortFunc(s.sorted, func(a, b *record) int { return strings.Compare(a.name, b.name) })
	}
	v = &View{Time: now, nodes: make([]*Node, len(s.sorted))}
	for i, r := range s.sorted {
		v.nodes[i] = r.node
	}
	if s.regroup || s.view == nil {
		s.regroupInto(v)
	} else {
		v.fleet = s.view.fleet
	}
	if s.rejoin || s.view == nil {
		s.joinInto(v)
	} else {
		last = s.view
	}
	for _, r := range s.sorted {
		if r.dirty && last != nil {
			changed = append(changed, r.name)
		}
		r.dirty, r.shared = false, true
	}
	s.view = v
	return v, last, changed
}

// age marks nodes that fell silent, and forgets them in the end.
func (s *State) age(now time.Time) {
	for name, r := range s.records {
		if r.heard.IsZero() {
			continue
		}
		silent := now.Sub(r.heard)
		if r.node.State == NodeUp && silent > GoneAfter(r.node.Period) {
			r.own()
			r.node.State, r.node.Host = NodeGone, nil
			for _, g := range r.node.GPUs {
				g.silence("the node is not heard")
			}
			s.regroup = true
		}
		if silent <= ForgetAfter {
			continue
		}
		if _, listed := s.placeOf(name); !listed {
			delete(s.records, name)
			s.sorted, s.regroup, s.rejoin = nil, true, true
		}
	}
}

// regroupInto indexes the nodes anew and marks devices whose identity is
// doubtful.
func (s *State) regroupInto(v *View) {
	s.regroup, s.rejoin = false, true
	v.fleet = indexFleet(v.nodes)
	s.conflicts = len(v.fleet.claims)
	for _, names := range v.fleet.claims {
		for _, name := range names {
			r := s.records[name]
			r.own()
			markDoubtful(r.node, v)
			v.nodes[v.fleet.nodes[name]] = r.node
		}
	}
}

// markDoubtful is for a node that is not in a View yet: conflicts are found
// when a View is made, and hold until they are found gone.
func (s *State) markDoubtful(n *Node) {
	if s.view != nil && len(s.view.fleet.claims) > 0 {
		markDoubtful(n, s.view)
	}
}

func markDoubtful(n *Node, v *View) {
	for _, g := range n.GPUs {
		names := v.fleet.claims[g.UUID]
		if len(names) == 0 || !present(n, g) || g.DoubtfulIdentity {
			continue
		}
		var others []*Node
		for _, name := range names {
			if o, ok := v.Node(name); ok && name != n.Name {
				others = append(others, o)
			}
		}
		g.DoubtfulIdentity = true
		g.Health, g.HealthScore, g.HealthReason, g.HealthSince = HealthDoubtful, 0, claimReason(n, others), time.Time{}
		for i := range g.readings {
			if telemetry.Quality(g.readings[i].q) == telemetry.Quality_QUALITY_OK {
				g.readings[i].q = uint8(telemetry.Quality_QUALITY_SUSPECT)
			}
		}
	}
}
