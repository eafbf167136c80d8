package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Defaults of the hall where a scenario says nothing.
const (
	defaultSpread  = 0.02
	defaultPreheat = 0.004
)

// World is a simulated hall of GPU nodes. Time passes only by Step; the same
// scenario, seed and steps give the same world. All methods may be called from
// several goroutines.
type World struct {
	mu       sync.Mutex
	scenario *Scenario
	elapsed  time.Duration
	preheat  float64
	factors  stepFactors

	rows   []row
	nodes  []node
	gpus   []gpu
	ids    []identity // beside gpus: what never changes
	jobs   []job
	claims []held
	places map[string]int32 // node name to index in nodes

	timeline []action
	next     int
	raised   eventLog

	epoch    time.Time  // what the world calls its beginning
	faulted  *sync.Cond // on mu: a fault began or ended, a source was closed
	samplers []*sampler // nodes whose driver buffers somebody reads
	sampleIn time.Duration
}

type row struct {
	Row
	inletC float64
	powerW float64
}

type node struct {
	Node
	model *Model
	row   int32
	first int32
	count int32
}

// identity is what tells one GPU from another.
type identity struct {
	uuid   string
	serial string
	pciBus uint32
}

// New builds the world of a scenario, in equilibrium with the load it starts
// with. A seed of 0 takes the scenario's own.
func New(s *Scenario, seed uint64) (*World, error) {
	if seed == 0 {
		seed = s.Seed
	}
	w := &World{scenario: s, preheat: defaultPreheat, places: map[string]int32{}, epoch: time.Unix(0, 0)}
	w.faulted = sync.NewCond(&w.mu)
	if s.Physics.PreheatCPerW != nil {
		w.preheat = *s.Physics.PreheatCPerW
	}
	rowIndex := map[string]int32{}
	for i, r := range s.Rows {
		rowIndex[r.Name] = int32(i)
		w.rows = append(w.rows, row{Row: r, inletC: r.InletCelsius})
	}
	for i, n := range s.Nodes {
		model, ok := ModelByKey(n.Model)
		if !ok {
			return nil, fmt.Errorf("node %q: model %q is not known", n.Name, n.Model)
		}
		w.places[n.Name] = int32(i)
		w.nodes = append(w.nodes, node{
			Node: n, model: &model, row: rowIndex[n.Row],
			first: int32(len(w.gpus)), count: int32(n.GPUs),
		})
		for slot := range n.GPUs {
			w.addGPU(int32(i), slot, seed)
		}
	}
	if err := w.addJobs(); err != nil {
		return nil, err
	}
	w.timeline = timelineOf(s)
	w.settle()
	return w, nil
}

func (w *World) addGPU(nodeIndex int32, slot int, seed uint64) {
	n := &w.nodes[nodeIndex]
	name := fmt.Sprintf("%s/%s/%d", w.scenario.Cluster, n.Name, slot)
	spread := defaultSpread
	if v := w.scenario.Physics.ResistanceSpread; v != nil {
		spread = *v
	}
	tau := n.model.TimeConstant
	if v := w.scenario.Physics.TimeConstant; v > 0 {
		tau = time.Duration(v)
	}
	noise := newSplitmix(seed, name)
	w.gpus = append(w.gpus, gpu{
		model: n.model, node: nodeIndex, slot: int32(slot), job: -1,
		resistance: n.model.ResistanceCPerW * (1 + spread*noise.symmetric()),
		cooling:    1, tau: tau, noise: noise, limitW: n.model.DefaultLimit, softClock: 1,
	})
	w.ids = append(w.ids, newIdentity(name, slot))
}

// newIdentity derives a GPU's names from its place, so that they outlive the
// process as those of a real one do.
func newIdentity(place string, slot int) identity {
	s := newSplitmix(0, place)
	a, b := s.next(), s.next()
	return identity{
		uuid: fmt.Sprintf("GPU-%08x-%04x-4%03x-%04x-%012x",
			uint32(a>>32), uint16(a>>16), uint16(a)&0xfff, uint16(b>>48)&0x3fff|0x8000, b&0xffffffffffff),
		serial: fmt.Sprintf("%013d", s.next()%1e13),
		pciBus: uint32(0x11 + slot*0x0e),
	}
}

// settle puts every temperature where the present load leads in the end. Where
// that is above the highest operating temperature, slowdown lets it swing below
// from the first step on.
func (w *World) settle() {
	w.factors = stepFactors{}
	w.load()
	w.work()
	w.breathe()
	for i := range w.gpus {
		g := &w.gpus[i]
		g.coreC = min(g.targetC(), g.model.GPUMaxC)
		g.memoryC = g.memoryTargetC()
		g.averageW = g.powerW
		g.sense()
	}
}

// Step lets dt pass.
func (w *World) Step(dt time.Duration) {
	if dt <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.factors.dt != dt {
		w.factors = newStepFactors(dt)
		for i := range w.gpus {
			w.gpus[i].coreStep = approach(dt, w.gpus[i].tau)
		}
	}
	w.elapsed += dt
	w.fire()
	w.load()
	w.work()
	w.breathe()
	for i := range w.gpus {
		w.gpus[i].warm(w.factors)
	}
	if w.sampleIn -= dt; w.sampleIn <= 0 {
		w.sampleIn = samplePeriod
		w.sample()
	}
}

// load asks jobs and claims what they want of their GPUs and finds the clocks.
func (w *World) load() {
	for i := range w.jobs {
		w.jobs[i].plan(w.elapsed)
	}
	for i := range w.gpus {
		g := &w.gpus[i]
		g.claimed, g.crowd = 0, 1
		computeShare := 0.0
		if g.job < 0 {
			g.idle()
		} else {
			j := &w.jobs[g.job]
			computeShare = j.shape.ComputeShare
			g.wanderNow = g.noise.wander(g.wanderNow, activityNoise, w.factors)
			j.apply(g)
		}
		if g.claimShare > 0 {
			computeShare = g.carry(computeShare, w.factors)
		}
		g.setClock(computeShare)
	}
}

// work lets the jobs progress at the rate that their GPUs allow, and turns that
// into power, traffic and useful work.
func (w *World) work() {
	for i := range w.jobs {
		w.jobs[i].progress(w.gpus, w.factors.seconds)
	}
	for i := range w.gpus {
		g := &w.gpus[i]
		if g.job < 0 && g.claimed > 0 {
			g.rate = g.speed
		}
		g.draw(w.factors)
	}
}

// breathe gives every GPU the air it draws in: the row's, warmed by the row's
// own heat and by the GPU in front.
func (w *World) breathe() {
	for i := range w.rows {
		w.rows[i].powerW = 0
	}
	for i := range w.gpus {
		w.rows[w.nodes[w.gpus[i].node].row].powerW += w.gpus[i].powerW
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		r := &w.rows[n.row]
		air := r.inletC + r.RecirculationCPerKW*r.powerW/1000
		behind := n.count / 2
		for slot := range n.count {
			g := &w.gpus[n.first+slot]
			g.airC = air
			if front := slot - behind; front >= 0 && behind > 0 {
				g.airC += w.preheat * w.gpus[n.first+min(front, behind-1)].powerW
			}
		}
	}
}

// Begin says which moment the world's beginning was, for time stamps. Without
// it that is the beginning of 1970.
func (w *World) Begin(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch = at
}

// Elapsed is the time that has passed in the world.
func (w *World) Elapsed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.elapsed
}

// NodeNames lists the nodes in the scenario's order.
func (w *World) NodeNames() []string {
	names := make([]string, len(w.nodes))
	for i := range w.nodes {
		names[i] = w.nodes[i].Name
	}
	return names
}

// find returns the index of a node's GPU.
func (w *World) find(nodeName string, slot int) (int32, error) {
	n, known := w.places[nodeName]
	if !known {
		return 0, fmt.Errorf("node %q is not in the world", nodeName)
	}
	if slot < 0 || slot >= int(w.nodes[n].count) {
		return 0, fmt.Errorf("node %q has no GPU %d", nodeName, slot)
	}
	return w.nodes[n].first + int32(slot), nil
}

// SetPowerLimit holds a GPU to a power limit in watts. A limit outside the
// product's range is refused with ErrLimitRange.
func (w *World) SetPowerLimit(nodeName string, slot int, watts float64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, slot)
	if err != nil {
		return err
	}
	return w.gpus[i].setLimit(watts)
}

// JobNames lists the jobs in the scenario's order.
func (w *World) JobNames() []string {
	names := make([]string, len(w.jobs))
	for i := range w.jobs {
		names[i] = w.jobs[i].spec.Name
	}
	return names
}

func (w *World) addJobs() error {
	for i, spec := range w.scenario.Jobs {
		shape, ok := shapeByName(spec.Shape)
		if !ok {
			return fmt.Errorf("job %q: shape %q is not known", spec.Name, spec.Shape)
		}
		if spec.Activity != nil {
			shape.Activity = *spec.Activity
		}
		j := job{spec: spec, shape: shape}
		for _, text := range spec.GPUs {
			place, err := parsePlace(text)
			if err != nil {
				return fmt.Errorf("job %q: %w", spec.Name, err)
			}
			for slot := place.first; slot <= place.last; slot++ {
				g, err := w.find(place.node, slot)
				if err != nil {
					return fmt.Errorf("job %q: %w", spec.Name, err)
				}
				w.gpus[g].job = int32(i)
				j.members = append(j.members, g)
			}
		}
		slices.Sort(j.members)
		w.jobs = append(w.jobs, j)
	}
	return nil
}
