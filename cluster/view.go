package cluster

import (
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// View is the fleet at one time. It never changes; unchanged nodes are shared
// between Views.
type View struct {
	// Time is when the View was taken, by the clock of whoever took it.
	Time time.Time
	// nodes are sorted by name, workloads by reference; the indexes point into
	// them and are shared by all Views with the same members.
	nodes     []*Node
	workloads []*Workload
	fleet     *fleetIndex
	loads     *loadIndex
}

// NodeState says whether a node is heard.
type NodeState string

// Node states. A node that inventory expects and nobody has heard is unknown.
const (
	NodeUp      NodeState = "up"
	NodeGone    NodeState = "gone"
	NodeUnknown NodeState = "unknown"
)

// Node is a node and its GPUs.
type Node struct {
	Name        string
	Cluster     string
	BootID      string
	Incarnation uint64
	State       NodeState
	// Seen is the node's sample time of the last observation, moved by the
	// measured skew onto the viewer's clock.
	Seen time.Time
	// Heard is when the last observation arrived.
	Heard time.Time
	// Since is when the present incarnation started, or was first seen if its
	// start is not known: values from before it do not count.
	Since             time.Time
	Period            time.Duration
	Skew              time.Duration
	ClockSynchronized bool
	DriverFault       string
	// Doubt says why the node may not be who it says; all its values are suspect
	// meanwhile.
	Doubt string
	// Expected is how many GPUs the node should have: those it reports, or those
	// that inventory knows if they are more. reported is its own count.
	Expected, reported int
	// Host is what is known of the host: a verdict that is not listed is not
	// known. InletC is the node's own sensor, AirC the median over its devices of
	// their temperature without power.
	Host         []HostVerdict
	InletC, AirC Opt
	// Place and marks, from inventory.
	Rack, Row, Feed string
	PowerDomain     string
	CoolingDomain   string
	NVLinkDomain    string
	NetworkDomain   string
	Unschedulable   bool
	Marks           map[string]string
	// Sources are the inventory sources that list the node.
	Sources []string
	// GPUs are sorted by index; devices without one come last.
	GPUs []*GPU
	// processes are the workloads that its members tell of, by reference.
	processes []process
	cover     cover
}

// GPUState says whether a device answers.
type GPUState string

// GPU states.
const (
	GPUUnknown GPUState = "unknown"
	GPUOK      GPUState = "ok"
	GPUHung    GPUState = "hung"
	GPULost    GPUState = "lost"
	GPUAbsent  GPUState = "absent"
)

// Opt is a number that may be unknown.
type Opt struct {
	V  float64
	OK bool
}

// Some is a known number.
func Some(v float64) Opt { return Opt{v, true} }

// Or is the number, or other if it is unknown.
func (o Opt) Or(other float64) float64 {
	if o.OK {
		return o.V
	}
	return other
}

// GPU is a device as last judged.
type GPU struct {
	UUID       string
	Node       string
	PCI        string
	Index      int
	Model      string
	Arch       string
	Driver     string
	State      GPUState
	HungCall   string
	HungFor    time.Duration
	Generation uint64

	// readings are sorted by id; their times are relative to base.
	readings []reading
	base     time.Time

	// DoubtfulIdentity is set while another node claims the same UUID; every
	// reading is then suspect.
	DoubtfulIdentity bool

	// Judged. Headroom is the distance to slowdown, Slope its change, positive
	// while the device cools. BaseC is the temperature at zero power: inlet and
	// neighbours as the thermal fit sees them.
	HeadroomC         Opt
	SlopeCPerS        Opt
	SecondsToSlowdown Opt
	RCPerW            Opt
	TauS              Opt
	BaseC             Opt

	LimitW, MinW, DefaultW, MaxW Opt

	// Health is the class, HealthReason the worst that was found and
	// HealthEvidence what else.
	Health         string
	HealthScore    float64
	HealthReason   string
	HealthSince    time.Time
	HealthEvidence []string
	// A device that is used has no IdleCause. With the cause unknown and no
	// IdleSince it is not known whether it is used.
	IdleSince    time.Time
	IdleCause    string
	IdleEvidence []string
	Contention   *Contention // nil if there is none
	Fabric       Fabric
	Members      []Member

	// listed: only inventory knows of it; the node has never told of it.
	listed bool
}

// HostVerdict is one statement on a host.
type HostVerdict struct {
	Name     string
	Holds    bool
	Value    Opt
	Evidence string
	Since    time.Time
}

// Contention is what slows the work on a device. It is never changed.
type Contention struct {
	Kind     string
	Ratio    float64
	With     []string
	Evidence []string
	Since    time.Time
}

// Fabric is a device's part in the NVLink fabric; its State is empty for a
// device without NVLink.
type Fabric struct {
	State           string
	LinksUp         int
	LinksExpected   int
	Saturation      Opt
	ErrorsPerSecond Opt
	Since           time.Time
	Evidence        []string
}

// HostHolds says whether a verdict on the host is known and holds, and on what
// it rests.
func (n *Node) HostHolds(name string) (holds, known bool, evidence string) {
	for i := range n.Host {
		if n.Host[i].Name == name {
			return n.Host[i].Holds, true, n.Host[i].Evidence
		}
	}
	return false, false, ""
}

// Member is a process, pod or job step on a GPU or a part of it. Workload,
// Owner and Name are known where the node itself can tell.
type Member struct {
	ID       string
	Kind     string
	UUID     string
	GI       *uint32
	Workload telemetry.WorkloadRef
	Owner    string
	Name     string
}

// Reading is one value with its time and quality.
type Reading struct {
	ID      telemetry.ID
	V       float64
	At      time.Time // on the viewer's clock
	Quality telemetry.Quality
}

// reading is a Reading as a GPU keeps it: without pointers, a third of the size.
type reading struct {
	v   float64
	off int32 // of base, in units of offUnit
	id  uint16
	q   uint8
}

// offUnit is how finely times of readings are kept; an offset reaches 59 hours.
const offUnit = 100 * time.Microsecond

func offset(d time.Duration) int32 {
	return int32(min(max(d/offUnit, math.MinInt32), math.MaxInt32))
}

func (g *GPU) reading(r reading) Reading {
	return Reading{ID: telemetry.ID(r.id), V: r.v, At: g.base.Add(time.Duration(r.off) * offUnit), Quality: telemetry.Quality(r.q)}
}

func (g *GPU) find(id telemetry.ID) (int, bool) {
	return slices.BinarySearchFunc(g.readings, id, func(r reading, id telemetry.ID) int { return int(r.id) - int(id) })
}

// Reading returns the value of an id, whatever its quality.
func (g *GPU) Reading(id telemetry.ID) (Reading, bool) {
	i, ok := g.find(id)
	if !ok {
		return Reading{}, false
	}
	return g.reading(g.readings[i]), true
}

// Readings yields all values in the order of their ids.
func (g *GPU) Readings() iter.Seq[Reading] {
	return func(yield func(Reading) bool) {
		for _, r := range g.readings {
			if !yield(g.reading(r)) {
				return
			}
		}
	}
}

// Value is the value of an id if it is there and of quality ok or suspect.
func (g *GPU) Value(id telemetry.ID) Opt {
	r, ok := g.Reading(id)
	if !ok || r.Quality != telemetry.Quality_QUALITY_OK && r.Quality != telemetry.Quality_QUALITY_SUSPECT {
		return Opt{}
	}
	return Some(r.V)
}

// Throttled lists the throttle reasons that are active, idle left out.
func (g *GPU) Throttled() []string {
	var out []string
	for i, reason := range telemetry.ThrottleReasons {
		if reason == "idle" {
			continue
		}
		if v := g.Value(telemetry.GPUThrottleActiveSWPower + telemetry.ID(i)); v.OK && v.V != 0 {
			out = append(out, reason)
		}
	}
	return out
}

// Workload is a workload with the GPUs it holds. An inventory lists it or, where
// the source is SourceNode, its node tells of it; Start is then a time before
// which it held none, zero if that is not known.
type Workload struct {
	telemetry.InventoryWorkload
	Source string
	GPUs   []*GPU
	// Name is the short name of its command, where its node tells.
	Name string
	// Seen is when its node told of it first.
	Seen time.Time
}

// Nodes yields the nodes in the order of their names.
func (v *View) Nodes() iter.Seq[*Node] { return slices.Values(v.nodes) }

// NodeCount is the number of nodes, the silent ones included.
func (v *View) NodeCount() int { return len(v.nodes) }

// Node returns a node by name.
func (v *View) Node(name string) (*Node, bool) {
	i, ok := v.fleet.nodes[name]
	if !ok {
		return nil, false
	}
	return v.nodes[i], true
}

// GPUs yields every GPU, by node name and index.
func (v *View) GPUs() iter.Seq2[*Node, *GPU] {
	return func(yield func(*Node, *GPU) bool) {
		for _, n := range v.nodes {
			for _, g := range n.GPUs {
				if !yield(n, g) {
					return
				}
			}
		}
	}
}

// GPU returns a GPU and its node by uuid. If several nodes claim it, the first
// that has it now is returned, and it is marked as doubtful.
func (v *View) GPU(uuid string) (*Node, *GPU, bool) {
	at, ok := v.fleet.gpus[uuid]
	if !ok {
		return nil, nil, false
	}
	n := v.nodes[at.node]
	return n, n.GPUs[at.gpu], true
}

// Workloads yields the workloads in the order of their references.
func (v *View) Workloads() iter.Seq[*Workload] {
	return func(yield func(*Workload) bool) {
		rest := v.workloads
		for _, n := range v.telling() {
			for i := range n.processes {
				p := &n.processes[i]
				if p.listed {
					continue
				}
				for len(rest) > 0 && rest[0].Ref < p.ref {
					if !yield(rest[0]) {
						return
					}
					rest = rest[1:]
				}
				if !yield(n.workload(p)) {
					return
				}
			}
		}
		for _, w := range rest {
			if !yield(w) {
				return
			}
		}
	}
}

// telling are the nodes that tell of workloads, in the order of the references
// to their processes.
func (v *View) telling() []*Node {
	var out []*Node
	for _, n := range v.nodes {
		if len(n.processes) > 0 {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *Node) int { return strings.Compare(a.Name+"/", b.Name+"/") })
	return out
}

// WorkloadCount is the number of workloads.
func (v *View) WorkloadCount() int {
	count := len(v.workloads)
	for _, n := range v.nodes {
		for i := range n.processes {
			count += boolToInt(!n.processes[i].listed)
		}
	}
	return count
}

// Workload returns a workload by reference.
func (v *View) Workload(ref telemetry.WorkloadRef) (*Workload, bool) {
	if i, ok := v.loads.refs[ref]; ok {
		return v.workloads[i], true
	}
	n, ok := v.Node(nodeOf(ref))
	if !ok {
		return nil, false
	}
	i, ok := n.findProcess(ref)
	if !ok || n.processes[i].listed {
		return nil, false
	}
	return n.workload(&n.processes[i]), true
}

// WorkloadsOn lists the workloads that hold a GPU, in the order of their
// references.
func (v *View) WorkloadsOn(uuid string) []*Workload {
	at := v.loads.onGPU[uuid]
	var out []*Workload
	for _, w := range at {
		out = append(out, v.workloads[w])
	}
	if on, ok := v.fleet.gpus[uuid]; ok {
		n := v.nodes[on.node]
		for i := range n.processes {
			if p := &n.processes[i]; !p.listed && slices.Contains(p.gpus, on.gpu) {
				out = append(out, n.workload(p))
			}
		}
	}
	if len(at) > 0 && len(out) > len(at) {
		slices.SortFunc(out, func(a, b *Workload) int { return strings.Compare(string(a.Ref), string(b.Ref)) })
	}
	return out
}

// Of is the part of a View that is one node and what runs on it.
func (v *View) Of(n *Node) *View {
	one := &View{Time: v.Time, nodes: []*Node{n}, fleet: indexFleet([]*Node{n})}
	for _, i := range v.loads.onNode[n.Name] {
		one.workloads = append(one.workloads, v.workloads[i])
	}
	one.loads = indexLoads(one.workloads)
	return one
}

// Period is how often values of a rate class come.
func Period(r telemetry.Rate, tick time.Duration) time.Duration {
	switch r {
	case telemetry.Link:
		return 5 * time.Second
	case telemetry.Slow:
		return 15 * time.Second
	}
	return tick
}

// observed is how often a node is told of in observations. A View knows of a
// faster tick no sooner than that.
const observed = time.Second

// StaleAfter is the age from which a value in a View counts as stale: three
// periods of its own rate class, as far as observations carry it. A row without
// a rhythm of its own follows the tick.
func StaleAfter(id telemetry.ID, tick time.Duration) time.Duration {
	return 3 * Period(telemetry.RateOf(id), max(tick, observed))
}

// GoneAfter is the silence from which a node counts as gone.
func GoneAfter(tick time.Duration) time.Duration { return max(3*tick, 10*time.Second) }

// Fresh says whether a reading may drive an act now: quality ok, not stale,
// not from before the source's last restart.
func (n *Node) Fresh(r Reading, now time.Time) bool {
	return n.State == NodeUp && r.Quality == telemetry.Quality_QUALITY_OK &&
		now.Sub(r.At) <= StaleAfter(r.ID, n.Period) && !r.At.Before(n.Since)
}

// Coverage counts the GPUs whose temperature is fresh against all expected.
func (v *View) Coverage(now time.Time) telemetry.Coverage {
	var c telemetry.Coverage
	for _, n := range v.nodes {
		c.Expected += max(n.Expected, len(n.GPUs))
		c.Fresh += n.fresh(now)
	}
	if c.Expected > 0 {
		c.Ratio = float64(c.Fresh) / float64(c.Expected)
	}
	return c
}

// cover is the part of a node's coverage that does not depend on the time: how
// many of its devices could be fresh, and the oldest of their temperatures. A
// pass looks at every node, and its devices lie far apart in memory.
type cover struct {
	known  bool
	count  int
	oldest time.Time
}

// summarize is for a node of which nothing will be changed.
func (n *Node) summarize() {
	n.cover = cover{known: true}
	for _, g := range n.GPUs {
		r, ok := g.Reading(telemetry.GPUTemperatureCelsiusCore)
		if !ok || g.State != GPUOK || !n.Fresh(r, r.At) {
			continue
		}
		if n.cover.count++; n.cover.count == 1 || r.At.Before(n.cover.oldest) {
			n.cover.oldest = r.At
		}
	}
}

// fresh counts the devices with a fresh temperature.
func (n *Node) fresh(now time.Time) int {
	if n.State != NodeUp {
		return 0
	}
	if c := &n.cover; c.known && (c.count == 0 || now.Sub(c.oldest) <= StaleAfter(telemetry.GPUTemperatureCelsiusCore, n.Period)) {
		return c.count
	}
	count := 0
	for _, g := range n.GPUs {
		if r, ok := g.Reading(telemetry.GPUTemperatureCelsiusCore); ok && g.State == GPUOK && n.Fresh(r, now) {
			count++
		}
	}
	return count
}

// NewView puts nodes and workloads in their canonical order and builds the
// index. The workloads are those of inventories; what else the nodes tell of is
// added. Callers hand over ownership; a node may be shared with other Views.
func NewView(now time.Time, nodes []*Node, workloads []*Workload) *View {
	listed := map[string]bool{}
	for _, w := range workloads {
		listed[string(w.Ref)] = true
		for _, m := range w.Members {
			listed[m.ID] = true
		}
	}
	for i, n := range nodes {
		if told := n.trees(listed); len(told) > 0 {
			c := *n
			c.processes, nodes[i] = told, &c
		}
	}
	slices.SortFunc(nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(workloads, func(a, b *Workload) int { return strings.Compare(string(a.Ref), string(b.Ref)) })
	return &View{Time: now, nodes: nodes, workloads: workloads, fleet: indexFleet(nodes), loads: indexLoads(workloads)}
}

// NewGPU is for tests and the simulator: a device with readings in any order.
func NewGPU(g GPU, readings ...Reading) *GPU {
	slices.SortFunc(readings, func(a, b Reading) int { return int(a.ID) - int(b.ID) })
	g.readings = make([]reading, len(readings))
	for i, r := range readings {
		if i == 0 {
			g.base = r.At
		}
		g.readings[i] = reading{v: r.V, off: offset(r.At.Sub(g.base)), id: uint16(r.ID), q: uint8(r.Quality)}
	}
	return &g
}
