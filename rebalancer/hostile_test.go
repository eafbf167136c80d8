package rebalancer_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// hostile is a small fleet in which everything that can go wrong does: in the
// air, in the sensors, on the bus, in the agents. It knows what is true, so
// that what was done on a lie can be found.
type hostile struct {
	rng    *rand.Rand
	now    time.Time
	nodes  []*hostNode
	gpus   []*hostGPU
	agents map[string]*hostAgent
	post   []letter
	shown  map[string]truth // by uuid, of the last View
	jobs   []telemetry.InventoryWorkload
	// processes are all that ever were, shownWork what the last View shows of them.
	processes []*hostProcess
	shownWork map[telemetry.WorkloadRef]*shownWork
	pids      int
	// stubborn processes outlive KILL; endless endings have no end.
	stubborn, endless bool
	calm              bool // no more faults
	ledgers           bool // agents know what they have done; off plants a defect
	effects           map[string]int
	onEffect          func(s telemetry.Step)
	// heard is told of every receipt that reaches the rebalancers.
	heard func(telemetry.Receipt)
}

type hostNode struct {
	name, row, cooling     string
	inlet, usual           float64
	since                  time.Time
	incarnation            uint64
	silent, doubted, jumps time.Time // until when
	offset                 time.Duration
	frozen                 map[string]*cluster.GPU // as last shown
	seen                   time.Time
}

type hostGPU struct {
	uuid, node   string
	index        int
	generation   uint64
	load, limit  float64
	original     float64 // the limit that somebody else set last
	r, tau, temp float64
	slope        float64
	fit          bool // the judge has learned r and tau
	stuck, hung  time.Time
	stuckAt      float64
	clean        float64   // its resistance when its cooler is clean
	clogged      time.Time // until when it is not
	limitShown   float64
	limitAt      time.Time
}

// truth is what a View shows of a GPU and whether it may be believed.
type truth struct {
	good     bool
	why      string
	headroom float64
}

type hostAgent struct {
	node   string
	ledger map[string]telemetry.Receipt
	holds  map[string]*hostHold // by uuid
	gone   map[string]bool      // steps that hold nothing any more
	// endings are those of processes under way, by step.
	endings map[string]*hostEnding
	epoch   uint64
	down    time.Time
	undoAt  time.Time // of the last lease that ended
}

type hostHold struct {
	step       string
	decision   string
	set, found float64
	until      time.Time
	target     telemetry.Target
}

// letter is something on its way.
type letter struct {
	at      time.Time
	order   *telemetry.Step
	receipt *telemetry.Receipt
}

func newHostile(rng *rand.Rand) *hostile {
	h := &hostile{rng: rng, now: start, agents: map[string]*hostAgent{}, shown: map[string]truth{}, ledgers: true, effects: map[string]int{}}
	for n := range 3 {
		node := &hostNode{name: fmt.Sprintf("n%d", n), row: fmt.Sprintf("row%d", n/2), usual: 30, inlet: 30, since: start.Add(-time.Hour), incarnation: 1, frozen: map[string]*cluster.GPU{}}
		if n == 2 {
			node.cooling = "door"
		}
		h.nodes = append(h.nodes, node)
		h.agents[node.name] = &hostAgent{node: node.name, ledger: map[string]telemetry.Receipt{}, holds: map[string]*hostHold{}, gone: map[string]bool{}, endings: map[string]*hostEnding{}}
		for i := range 3 {
			g := &hostGPU{uuid: fmt.Sprintf("GPU-%d-%d", n, i), node: node.name, index: i, generation: 1, load: 500 + 50*float64(rng.IntN(4)), limit: defaultW, original: defaultW,
				r: 0.05 + 0.03*rng.Float64(), tau: 10 + 20*rng.Float64(), fit: rng.IntN(3) > 0, limitShown: defaultW, limitAt: start}
			g.clean = g.r
			if rng.IntN(3) == 0 { // somebody has capped it for good, and its cooler is clogged
				g.load, g.limit, g.original, g.limitShown = 100, agentFloorW, agentFloorW, agentFloorW
				g.r, g.clogged = 3*g.r, start.Add(time.Duration(rng.IntN(300))*time.Second)
			}
			g.temp = node.inlet + g.r*h.draws(g)
			h.gpus = append(h.gpus, g)
		}
	}
	h.jobs = []telemetry.InventoryWorkload{
		{Ref: "slurm:1", OptOut: []string{string(telemetry.ActCap)}, Members: []telemetry.WorkloadMember{{ID: "1.0", Node: "n0", GPUs: []string{"GPU-0-0"}}}},
		{Ref: "slurm:2", Members: []telemetry.WorkloadMember{{ID: "2.0", Node: "n1", GPUs: []string{"GPU-1-0", "GPU-1-1"}}}},
	}
	return h
}

func (g *hostGPU) headroom() float64 { return slowdownC - g.temp }

func (h *hostile) node(name string) *hostNode {
	return h.nodes[slices.IndexFunc(h.nodes, func(n *hostNode) bool { return n.name == name })]
}

func (h *hostile) gpu(uuid string) *hostGPU {
	return h.gpus[slices.IndexFunc(h.gpus, func(g *hostGPU) bool { return g.uuid == uuid })]
}

// chance is true once in n times, and never when the world has calmed down.
func (h *hostile) chance(n int) bool { return h.rng.IntN(n) == 0 && !h.calm }

func (h *hostile) soon(seconds int) time.Time {
	return h.now.Add(time.Duration(1+h.rng.IntN(seconds)) * time.Second)
}

// advance lets time pass, and things go wrong.
func (h *hostile) advance(dt time.Duration) {
	h.now = h.now.Add(dt)
	for _, g := range h.gpus {
		if h.now.After(g.clogged) {
			g.r = g.clean
		}
		steady := h.node(g.node).inlet + g.r*h.draws(g)
		g.slope = (steady - g.temp) / g.tau
		g.temp = steady + (g.temp-steady)*math.Exp(-dt.Seconds()/g.tau)
		if h.now.Sub(g.limitAt) >= 15*time.Second {
			g.limitShown, g.limitAt = g.limit, h.now
		}
	}
	h.lives()
	h.misfortune()
	h.deliver()
	for _, n := range h.nodes {
		h.agents[n.name].leases(h)
		h.agents[n.name].finish(h)
	}
}

// misfortune draws the faults of one step of time.
func (h *hostile) misfortune() {
	n := h.nodes[h.rng.IntN(len(h.nodes))]
	g := h.gpus[h.rng.IntN(len(h.gpus))]
	switch {
	case h.chance(12): // the air
		n.inlet = n.usual + float64(h.rng.IntN(26))
	case h.chance(40): // a node is not heard
		n.silent = h.soon(20)
	case h.chance(40): // its values are doubtful
		n.doubted = h.soon(15)
	case h.chance(25): // its source starts anew
		n.since, n.incarnation = h.now, n.incarnation+1
	case h.chance(40): // its clock goes back and is not yet measured
		n.jumps, n.offset = h.soon(8), -time.Duration(4+h.rng.IntN(20))*time.Second
	case h.chance(40): // a sensor sticks, which its judge sees
		g.stuck, g.stuckAt = h.soon(20), float64(h.rng.IntN(12))-2
	case h.chance(60): // a device does not answer
		g.hung = h.soon(15)
	case h.chance(30): // a cooler clogs
		g.r, g.clogged = g.clean*(2+2*h.rng.Float64()), h.soon(200)
	case h.chance(60): // the load changes
		g.load = 100 + 600*h.rng.Float64()
	case h.chance(30): // its agent is away
		h.agents[n.name].down = h.soon(40)
	case h.chance(150): // somebody else sets a limit
		g.limit = 250.5 + float64(h.rng.IntN(300)) // never one that we would set
		g.original = g.limit
	case h.chance(200): // a device is made anew
		g.generation++
	case h.chance(200): // two devices change places
		h.swap(g, h.gpus[h.rng.IntN(len(h.gpus))])
	}
}

func (h *hostile) swap(a, b *hostGPU) {
	a.node, b.node = b.node, a.node
	a.index, b.index = b.index, a.index
	for _, g := range []*hostGPU{a, b} { // a device that was unplugged has forgotten its limit
		g.limit, g.original = defaultW, defaultW
		g.generation++
	}
	for _, n := range h.nodes {
		n.since, n.incarnation = h.now, n.incarnation+1
	}
}

// recover ends all faults, cools the air, and lets nothing new go wrong.
func (h *hostile) recover() {
	h.calm = true
	for _, n := range h.nodes {
		n.inlet, n.silent, n.doubted, n.jumps = 18, time.Time{}, time.Time{}, time.Time{}
		h.agents[n.name].down = time.Time{}
	}
	for _, g := range h.gpus {
		// What is idle shows little of how it would heat, and what the judge has not
		// learned is held back with great caution.
		g.stuck, g.hung, g.load, g.fit, g.clogged = time.Time{}, time.Time{}, 600, true, time.Time{}
	}
	for _, p := range h.processes {
		if p.ends.IsZero() {
			p.ends = h.now.Add(time.Minute)
		}
	}
}

// view is what the judges show, and what of it is true.
func (h *hostile) view() *cluster.View {
	var nodes []*cluster.Node
	all := map[string]*cluster.GPU{}
	for _, n := range h.nodes {
		node := &cluster.Node{Name: n.name, BootID: bootID, State: cluster.NodeUp, Since: n.since, Period: time.Second, Incarnation: n.incarnation, Row: n.row, CoolingDomain: n.cooling, Expected: 3}
		silent := h.now.Before(n.silent)
		if !silent {
			n.seen = h.now
			n.frozen = map[string]*cluster.GPU{}
		}
		node.Seen, node.Heard = n.seen, n.seen
		if h.now.Sub(n.seen) > cluster.GoneAfter(time.Second) {
			node.State = cluster.NodeGone
		}
		for _, g := range h.gpus {
			if g.node != n.name {
				continue
			}
			shown := n.frozen[g.uuid]
			if shown == nil {
				shown = h.show(n, g)
				n.frozen[g.uuid] = shown
			}
			h.shown[g.uuid] = h.judge(node, shown)
			node.GPUs, all[g.uuid] = append(node.GPUs, shown), shown
		}
		slices.SortFunc(node.GPUs, func(a, b *cluster.GPU) int { return cmp.Compare(a.Index, b.Index) })
		nodes = append(nodes, node)
	}
	h.seeWork(nodes)
	var jobs []*cluster.Workload
	for _, j := range h.jobs {
		w := &cluster.Workload{InventoryWorkload: j}
		for _, m := range j.Members {
			for _, uuid := range m.GPUs {
				if !slices.Contains(w.GPUs, all[uuid]) {
					w.GPUs = append(w.GPUs, all[uuid])
				}
			}
		}
		jobs = append(jobs, w)
	}
	h.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return cluster.NewView(h.now, nodes, jobs)
}

// show is a device as its node's judge publishes it: quantised to a degree, at
// the node's own time, and wrong where its sensor is.
func (h *hostile) show(n *hostNode, g *hostGPU) *cluster.GPU {
	at, quality := h.now.Add(-time.Duration(h.rng.IntN(300))*time.Millisecond), telemetry.Quality_QUALITY_OK
	if h.now.Before(n.jumps) {
		at = at.Add(n.offset)
	}
	head, state := math.Floor(g.headroom()), cluster.GPUOK
	if h.now.Before(g.stuck) {
		head, quality = g.stuckAt, telemetry.Quality_QUALITY_SUSPECT
	}
	if h.now.Before(n.doubted) {
		quality = telemetry.Quality_QUALITY_SUSPECT
	}
	if h.now.Before(g.hung) {
		state = cluster.GPUHung
	}
	ok := func(id telemetry.ID, v float64) cluster.Reading {
		return cluster.Reading{ID: id, V: v, At: at, Quality: quality}
	}
	out := cluster.GPU{UUID: g.uuid, Node: n.name, Index: g.index, Model: "H100", State: state, Generation: g.generation, Members: h.membersOf(g),
		HeadroomC: cluster.Some(head), SlopeCPerS: cluster.Some(-math.Round(g.slope*10) / 10),
		LimitW: cluster.Some(g.limitShown), MinW: cluster.Some(minW), DefaultW: cluster.Some(defaultW), MaxW: cluster.Some(defaultW)}
	if g.fit {
		out.RCPerW, out.TauS = cluster.Some(g.r), cluster.Some(g.tau)
	}
	return cluster.NewGPU(out, ok(telemetry.GPUThermalHeadroomCelsius, head), ok(telemetry.GPUTemperatureCelsiusCore, slowdownC-head), ok(telemetry.GPUPowerWatts, math.Round(h.draws(g))),
		cluster.Reading{ID: telemetry.GPUPowerLimitWatts, V: g.limitShown, At: g.limitAt, Quality: telemetry.Quality_QUALITY_OK}, ok(telemetry.GPUThrottleActiveSWThermal, bit(head <= 0)))
}

// judge says whether what is shown may drive an act, by rules of its own.
func (h *hostile) judge(n *cluster.Node, g *cluster.GPU) truth {
	r, _ := g.Reading(telemetry.GPUThermalHeadroomCelsius)
	t := truth{headroom: g.HeadroomC.V}
	switch {
	case g.State != cluster.GPUOK:
		t.why = "the device is " + string(g.State)
	case n.State != cluster.NodeUp:
		t.why = "the node is " + string(n.State)
	case r.Quality != telemetry.Quality_QUALITY_OK:
		t.why = "the value is " + r.Quality.String()
	case r.At.Before(n.Since):
		t.why = "the value is older than its source"
	case h.now.Sub(r.At) > 3*time.Second:
		t.why = fmt.Sprintf("the value is %s old", h.now.Sub(r.At))
	default:
		t.good = true
	}
	return t
}

// The agents, as the contract has them: at most once by a ledger, floors of
// their own, undo by compare-and-set, leases that end.

const agentFloorW = 0.5 * defaultW

var errLost = errors.New("no answer")

// order carries a step to its agent and the answer back, if the bus lets it.
func (h *hostile) order(s telemetry.Step) (telemetry.Receipt, error) {
	a := h.agents[s.Target.Node]
	switch {
	case a == nil || h.now.Before(a.down) || h.chance(15): // nobody is there, or the order is lost
		return telemetry.Receipt{}, errLost
	case h.chance(15): // late: it arrives, but nobody waits for the answer any more
		h.post = append(h.post, letter{at: h.soon(12), order: &s})
		return telemetry.Receipt{}, errLost
	}
	r := h.handle(a, s)
	if h.chance(10) {
		return telemetry.Receipt{}, errLost
	}
	return r, nil
}

// ask is an order whose time is long over: it is answered from the ledger, and
// nothing is begun.
func (h *hostile) ask(s telemetry.Step) (telemetry.Receipt, error) {
	a := h.agents[s.Target.Node]
	if a == nil || h.now.Before(a.down) || h.chance(8) {
		return telemetry.Receipt{}, errLost
	}
	if r, known := a.ledger[s.ID]; known {
		return r, nil
	}
	return telemetry.Receipt{StepID: s.ID, Result: telemetry.Unknown}, nil
}

func (h *hostile) handle(a *hostAgent, s telemetry.Step) telemetry.Receipt {
	if r, known := a.ledger[s.ID]; known {
		return r
	}
	r := telemetry.Receipt{StepID: s.ID, Decision: s.Decision, Kind: s.Kind, Target: s.Target, Result: telemetry.Refused, Node: a.node, Started: h.now, Ended: h.now}
	switch {
	case h.now.After(rebalancer.BeginBy(s)):
		r.Why = telemetry.RefuseExpired
		return r
	case s.Epoch.Revision < a.epoch:
		r.Why = telemetry.RefuseEpoch
		return r
	}
	a.epoch = s.Epoch.Revision
	if s.Kind == telemetry.StepPreempt {
		h.endIt(a, s, &r)
	} else {
		h.carryOut(a, s, &r)
	}
	if h.ledgers || r.Result == telemetry.Pending && len(a.endings) > 0 {
		a.ledger[s.ID] = r
	}
	if r.Result != telemetry.Pending {
		h.publish(r)
	}
	return r
}

func (h *hostile) carryOut(a *hostAgent, s telemetry.Step, r *telemetry.Receipt) {
	g := h.gpu(s.Target.UUID)
	held := a.holds[g.uuid]
	switch mine := held != nil && held.step == s.Params.Of; {
	case g.node != a.node:
		r.Why = telemetry.RefuseNoTarget
	case g.generation != s.Target.Generation:
		r.Why = telemetry.RefuseGeneration
	case h.chance(12):
		r.Result, r.Detail = telemetry.Failed, "the driver did not answer"
	case s.Kind == telemetry.StepPowerCap:
		h.capIt(a, g, s, r)
	case !mine:
		r.Why = telemetry.RefuseNotOurs
	case g.limit != held.set:
		r.Why = telemetry.RefuseNotOurs
		delete(a.holds, g.uuid)
	case s.Kind == telemetry.StepRenew:
		held.until, r.Result = h.now.Add(time.Duration(s.Lease)), telemetry.Done
	case s.Kind == telemetry.StepUndo:
		h.set(g, held.found, s, r)
		delete(a.holds, g.uuid)
	}
}

func (h *hostile) capIt(a *hostAgent, g *hostGPU, s telemetry.Step, r *telemetry.Receipt) {
	watts, found := *s.Params.PowerLimitWatts, g.limit
	if held := a.holds[g.uuid]; held != nil && held.set == g.limit {
		found = held.found
	}
	if watts < agentFloorW || watts > found {
		r.Why = telemetry.RefuseLimit
		return
	}
	h.set(g, watts, s, r)
	a.holds[g.uuid] = &hostHold{s.ID, s.Decision, watts, found, h.now.Add(time.Duration(s.Lease)), s.Target}
}

func (h *hostile) set(g *hostGPU, watts float64, s telemetry.Step, r *telemetry.Receipt) {
	r.Result = telemetry.Done
	r.Before = map[string]float64{"power_limit_watts": g.limit}
	g.limit = watts
	r.After = map[string]float64{"power_limit_watts": watts}
	h.effects[s.ID]++
	if h.onEffect != nil {
		h.onEffect(s)
	}
}

// leases undoes what nobody renews, one device per 5 s.
func (a *hostAgent) leases(h *hostile) {
	for _, g := range h.gpus {
		held := a.holds[g.uuid]
		if held == nil || h.now.Before(held.until) || h.now.Sub(a.undoAt) < 5*time.Second {
			continue
		}
		a.undoAt = h.now
		delete(a.holds, g.uuid)
		r := telemetry.Receipt{StepID: held.step, Decision: held.decision, Kind: telemetry.StepUndo, Target: held.target, Result: telemetry.Refused, Why: telemetry.RefuseNotOurs, Node: a.node, Spontaneous: true, Ended: h.now}
		if g.node == a.node && g.limit == held.set {
			g.limit, r.Result, r.Why = held.found, telemetry.Done, ""
		}
		h.publish(r)
	}
}

// publish sends a receipt over the bus, which keeps it: at once, late, or twice.
func (h *hostile) publish(r telemetry.Receipt) {
	at := h.now
	if h.chance(4) {
		at = h.soon(30)
	}
	h.post = append(h.post, letter{at: at, receipt: &r})
	if h.chance(8) {
		h.post = append(h.post, letter{at: h.soon(60), receipt: &r})
	}
}

func (h *hostile) deliver() {
	due := slices.Clone(h.post)
	h.post = slices.DeleteFunc(h.post, func(l letter) bool { return !l.at.After(h.now) })
	for _, l := range due {
		switch {
		case l.at.After(h.now):
		case l.order != nil:
			if a := h.agents[l.order.Target.Node]; !h.now.Before(a.down) {
				h.handle(a, *l.order)
			}
		default:
			h.heard(*l.receipt)
		}
	}
}
