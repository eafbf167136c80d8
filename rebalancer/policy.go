package rebalancer

import (
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Policy watches one signal. It is pure: it proposes, and only the engine
// confirms, guards and acts.
type Policy interface {
	Spec() PolicySpec
	// Detect returns what the policy has an opinion on, in the order of the
	// View: targets beyond a mark, and every target that the Scene tracks.
	Detect(*Scene) []Sighting
	// Propose sizes one rung of the ladder for a confirmed sighting. Refusals
	// without a usable proposal say why the rung cannot be taken.
	Propose(*Scene, Sighting, telemetry.ActKind) (Proposal, []telemetry.Refusal)
	// Review reads the signal of a held act and predicts it without the act.
	Review(*Scene, Held) Review
}

// Scene is what a policy sees: a View, and what the journal adds to it.
type Scene struct {
	Now    time.Time
	View   *cluster.View
	memory *Memory
	// Open and standing decisions, in the order of their ids: by each GPU that
	// they hold, and those on workloads.
	byGPU  map[string][]*telemetry.Decision
	onWork []*telemetry.Decision
}

func newScene(now time.Time, v *cluster.View, m *Memory) *Scene {
	s := &Scene{Now: now, View: v, memory: m, byGPU: map[string][]*telemetry.Decision{}}
	for _, d := range m.open() {
		for _, uuid := range heldGPUs(d) {
			s.byGPU[uuid] = append(s.byGPU[uuid], d)
		}
		if d.Target.Workload != "" {
			s.onWork = append(s.onWork, d)
		}
	}
	return s
}

// heldGPUs are the GPUs that the act of a decision holds: its target, or all
// that the workload has which it is done to.
func heldGPUs(d *telemetry.Decision) []string {
	switch {
	case d.Act != nil && len(d.Act.GPUs) > 0:
		return d.Act.GPUs
	case d.Target.UUID != "":
		return []string{d.Target.UUID}
	}
	return nil
}

// Tracks says whether the policy must be asked about a GPU although it may be
// within its marks: samples are being counted, or a decision is open.
func (s *Scene) Tracks(policy, uuid string) bool {
	if _, ok := s.memory.filters[filterKey{policy, uuid, false}]; ok {
		return true
	}
	return slices.ContainsFunc(s.byGPU[uuid], func(d *telemetry.Decision) bool { return d.Policy == policy })
}

// LimitW is the power limit in force: the newer of the device's slow reading
// and the last receipt, which is ahead of the reading for up to 15 s.
func (s *Scene) LimitW(g *cluster.GPU) cluster.Opt {
	past, ok := s.memory.GPUs[g.UUID]
	if !ok || past.LimitW == 0 {
		return g.LimitW
	}
	if r, read := g.Reading(telemetry.GPUPowerLimitWatts); read && r.At.After(past.LimitAt) && g.LimitW.OK {
		return g.LimitW
	}
	return cluster.Some(past.LimitW)
}

// LearnedR is the temperature per watt that an earlier cap of this GPU showed.
func (s *Scene) LearnedR(uuid string) cluster.Opt {
	if r := s.memory.GPUs[uuid].LearnedR; r > 0 {
		return cluster.Some(r)
	}
	return cluster.Opt{}
}

// Held returns the newest act in force on a GPU, if there is one.
func (s *Scene) Held(uuid string) (Held, bool) {
	for _, d := range slices.Backward(s.byGPU[uuid]) {
		if h, ok := s.memory.held(d); ok {
			return h, true
		}
	}
	return Held{}, false
}

// Sighting is a target that a policy has looked at.
type Sighting struct {
	Node *cluster.Node
	GPU  *cluster.GPU
	// Violation is the sighting as it will stand in the record; the engine
	// fills in the sample counts.
	Violation telemetry.Violation
	// Readings are the values that the judgement rests on, the signal first.
	// The engine refuses to act unless each of them is fresh.
	Readings []cluster.Reading
	// Missing names a value without which there is no judgement.
	Missing string
	// Beyond counts this sample as beyond the mark.
	Beyond bool
	// Sure is set when a second, independent value agrees: one sample is enough.
	Sure bool
	// Severity orders sightings, the worst highest.
	Severity float64
	// Victim is the workload that Propose is asked about, for a rung that is an
	// act on one.
	Victim *Victim
}

// Proposal is a sized act. Steps come without ids, epoch and deadline.
type Proposal struct {
	Summary string
	Steps   []telemetry.Step
	Effect  telemetry.Effect
	// Gain, Cost and Risk are in useful GPU-seconds.
	Gain, Cost, Risk float64
	// Safety acts are taken even at a net cost: they keep hardware within its
	// limits.
	Safety bool
	// GPUs are what an act on a workload holds; the engine fills them in.
	GPUs []string
}

// Held is an act whose effect is in force.
type Held struct {
	Decision *telemetry.Decision
	// Step is the step that made the effect; its lease runs from From.
	Step telemetry.Step
	From time.Time
}

// Review is the state of a held act's signal.
type Review struct {
	// Refusal says why the signal cannot be judged now; the rest is then empty.
	Refusal *telemetry.Refusal
	Value   float64
	Unit    string
	// Reading is the sample it was read from.
	Reading cluster.Reading
	// Helped says whether the value is where the act should have brought it.
	Helped bool
	// Restored is the signal predicted with the act undone; Enough says that it
	// would stay clear of the aim by the margin.
	Restored float64
	Enough   bool
	// Ease is a milder act that would do as well, where the whole cannot be
	// given back; nil if there is none worth an act.
	Ease *Eased
}

// Eased is a milder act in the place of one that is held.
type Eased struct {
	Sighting Sighting
	Proposal Proposal
}
