package rebalancer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// scene is one GPU that would be capped at once, for a test to change.
type scene struct {
	*bench
	node     cluster.Node
	gpu      cluster.GPU
	readings map[telemetry.ID]cluster.Reading
	work     []telemetry.InventoryWorkload
	more     []*cluster.Node
	// predicted is where an act is said to bring the headroom.
	predicted float64
	// also are GPUs that the first workload of work has besides.
	also []*cluster.GPU
	// second are the members of a second GPU of the node.
	second []cluster.Member
	// policies replace the enforcing defaults.
	policies []rebalancer.Policy
}

var target = telemetry.Target{Node: "n00", UUID: "GPU-00-0", Generation: 1}

func newScene(t testing.TB) *scene {
	s := &scene{bench: newBench(t, newWorld(1, 1)), readings: map[telemetry.ID]cluster.Reading{}}
	s.node = cluster.Node{Name: "n00", State: cluster.NodeUp, Since: start.Add(-time.Hour), Period: time.Second, Incarnation: 1, Row: "row0", Rack: "r1", Expected: 1}
	s.gpu = cluster.GPU{
		UUID: target.UUID, Node: "n00", Model: "H100", State: cluster.GPUOK, Generation: 1,
		HeadroomC: cluster.Some(3), RCPerW: cluster.Some(0.06), TauS: cluster.Some(20), SlopeCPerS: cluster.Some(0),
		LimitW: cluster.Some(defaultW), MinW: cluster.Some(minW), DefaultW: cluster.Some(defaultW), MaxW: cluster.Some(defaultW),
	}
	s.read(telemetry.GPUThermalHeadroomCelsius, 3)
	s.read(telemetry.GPUTemperatureCelsiusCore, 87)
	s.read(telemetry.GPUPowerWatts, 650)
	s.read(telemetry.GPUPowerLimitWatts, defaultW)
	s.read(telemetry.GPUThrottleActiveSWThermal, 1)
	return s
}

// read sets a fresh reading; a test may spoil it afterwards.
func (s *scene) read(id telemetry.ID, v float64) {
	s.readings[id] = cluster.Reading{ID: id, V: v, At: s.w.now.Add(-200 * time.Millisecond), Quality: telemetry.Quality_QUALITY_OK}
}

func (s *scene) spoil(id telemetry.ID, f func(*cluster.Reading)) {
	r := s.readings[id]
	f(&r)
	s.readings[id] = r
}

func (s *scene) view() *cluster.View {
	var readings []cluster.Reading
	for _, r := range s.readings {
		readings = append(readings, r)
	}
	g := cluster.NewGPU(s.gpu, readings...)
	n := s.node
	n.GPUs = []*cluster.GPU{g}
	if s.second != nil {
		n.GPUs = append(n.GPUs, cluster.NewGPU(cluster.GPU{UUID: "GPU-00-1", Node: n.Name, Index: 1, State: cluster.GPUOK, Generation: 1, Members: s.second}, readings...))
	}
	var jobs []*cluster.Workload
	for _, w := range s.work {
		jobs = append(jobs, &cluster.Workload{InventoryWorkload: w, GPUs: []*cluster.GPU{g}})
	}
	if len(jobs) > 0 {
		jobs[0].GPUs = append(jobs[0].GPUs, s.also...)
	}
	return cluster.NewView(s.w.now, append([]*cluster.Node{&n}, s.more...), jobs)
}

func (s *scene) plan() rebalancer.Plan {
	if s.policies != nil {
		s.planner.Policies = s.policies
	}
	p, m := s.planner.Step(s.w.now, s.view(), s.mem)
	s.mem = m
	return p
}

// pausing is a policy whose act is disruptive: it wants to pause the workload
// of every hot GPU. Gain and cost are the test's.
type pausing struct {
	rebalancer.Policy
	gain, cost float64
}

func (p pausing) Spec() rebalancer.PolicySpec {
	s := p.Policy.Spec()
	s.Ladder = []telemetry.ActKind{telemetry.ActPause}
	s.Filter = rebalancer.Filter{N: 1, M: 5}
	return s
}

func (p pausing) Propose(s *rebalancer.Scene, g rebalancer.Sighting, _ telemetry.ActKind) (rebalancer.Proposal, []telemetry.Refusal) {
	ref := s.View.WorkloadsOn(g.GPU.UUID)[0].Ref
	return rebalancer.Proposal{
		Summary: "pause " + string(ref), Gain: p.gain, Cost: p.cost,
		Steps:  []telemetry.Step{{Kind: telemetry.StepSuspend, Backend: "slurm-a", Target: telemetry.Target{Workload: ref}}},
		Effect: telemetry.Effect{Signal: g.Violation.Signal, Unit: "celsius", Before: 3, After: 20, Within: telemetry.Duration(time.Minute)},
	}, nil
}

// slurm is the world's hand under another name.
type slurm struct{ *world }

func (slurm) Name() string { return "slurm-a" }

func (s *scene) disruptive(gain, cost float64) {
	s.policies = []rebalancer.Policy{pausing{enforcing()[0], gain, cost}}
	s.planner.Actuators = append(s.planner.Actuators, slurm{s.w})
	s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7", Owner: "ada", Priority: 5}}
}

type picky struct{ *world }

func (picky) Can(_ *cluster.View, s telemetry.Step) []telemetry.Refusal {
	return []telemetry.Refusal{rebalancer.Refuse(telemetry.RefusalStale, s.Target, "its agent is silent")}
}

func number(v float64) *float64 { return &v }

// refusalCase is a refusal and the one thing that causes it.
type refusalCase struct {
	name   string
	change func(*scene)
	want   telemetry.RefusalReason
	text   string
	have   *float64
	need   *float64
	until  time.Time
	act    telemetry.ActKind
}

// Every refusal of an act on a GPU that the engine can give. Without the change
// the GPU is capped.
var refusals = []refusalCase{
	{name: "stale by age", want: telemetry.RefusalStale, text: "4 s old", have: number(4), need: number(3),
		change: func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.At = start.Add(-4 * time.Second) })
		}},
	{name: "stale by its mark", want: telemetry.RefusalStale, text: "node up",
		change: func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = telemetry.Quality_QUALITY_STALE })
		}},
	{name: "node gone", want: telemetry.RefusalStale, text: "node gone",
		change: func(s *scene) { s.node.State = cluster.NodeGone }},
	{name: "node unknown", want: telemetry.RefusalStale, text: "node unknown",
		change: func(s *scene) { s.node.State = cluster.NodeUnknown }},
	{name: "suspect", want: telemetry.RefusalSuspect, text: "marked suspect",
		change: func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = telemetry.Quality_QUALITY_SUSPECT })
		}},
	{name: "from before the restart", want: telemetry.RefusalRestarted, text: "its source started 0.1 s ago", have: number(0.2), need: number(0.1),
		change: func(s *scene) { s.node.Since = start.Add(-100 * time.Millisecond) }},
	{name: "an error is no value", want: telemetry.RefusalUnknown, text: "is not known",
		change: func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = telemetry.Quality_QUALITY_ERROR })
		}},
	{name: "out of range is no value", want: telemetry.RefusalUnknown, text: "is not known",
		change: func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = telemetry.Quality_QUALITY_OUT_OF_RANGE })
		}},
	{name: "hung device", want: telemetry.RefusalUnknown, text: "device is hung",
		change: func(s *scene) { s.gpu.State = cluster.GPUHung }},
	{name: "lost device", want: telemetry.RefusalUnknown, text: "device is lost",
		change: func(s *scene) { s.gpu.State = cluster.GPULost }},
	{name: "no headroom while throttling", want: telemetry.RefusalUnknown, text: "headroom, though it throttles",
		change: func(s *scene) { s.gpu.HeadroomC = cluster.Opt{} }},
	{name: "no sample of the headroom", want: telemetry.RefusalUnknown, text: "a sample of its headroom",
		change: func(s *scene) {
			delete(s.readings, telemetry.GPUThermalHeadroomCelsius)
			delete(s.readings, telemetry.GPUTemperatureCelsiusCore)
		}},
	{name: "limit not known", want: telemetry.RefusalUnknown, text: "power limit", act: telemetry.ActCap,
		change: func(s *scene) { s.gpu.LimitW = cluster.Opt{} }},
	{name: "least limit not known", want: telemetry.RefusalUnknown, text: "least limit", act: telemetry.ActCap,
		change: func(s *scene) { s.gpu.MinW = cluster.Opt{} }},
	{name: "first sample, nothing agrees", want: telemetry.RefusalUnconfirmed, text: "in 1 of the last 1 samples; 3 of 5", have: number(1), need: number(3),
		change: func(s *scene) { s.read(telemetry.GPUThrottleActiveSWThermal, 0) }},
	{name: "act on this GPU on its way", want: telemetry.RefusalInFlight, text: "d-000001 is on its way to this GPU (intended)",
		change: func(s *scene) { s.pending(target, telemetry.OutcomeIntended) }},
	{name: "act on this GPU not yet verified", want: telemetry.RefusalInFlight, text: "(acted)", until: start.Add(time.Minute),
		change: func(s *scene) { s.pending(target, telemetry.OutcomeActed) }},
	{name: "act on its workload on its way", want: telemetry.RefusalInFlight, text: "on its way to slurm:7",
		change: func(s *scene) {
			s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7"}}
			s.pending(telemetry.Target{Workload: "slurm:7"}, telemetry.OutcomeIntended)
		}},
	{name: "settling", want: telemetry.RefusalSettling, text: "last act 10 s ago, left alone for 30s", until: start.Add(20 * time.Second),
		change: func(s *scene) {
			s.mem.GPUs = map[string]rebalancer.GPUMemory{target.UUID: {Acted: start.Add(-10 * time.Second)}}
		}},
	{name: "settling twice as long after each failure", want: telemetry.RefusalSettling, text: "since 2 attempts in a row failed", until: start.Add(110 * time.Second),
		change: func(s *scene) {
			s.mem.GPUs = map[string]rebalancer.GPUMemory{target.UUID: {Acted: start.Add(-10 * time.Second), Failures: 2}}
		}},
	{name: "a person has said no", want: telemetry.RefusalMode, text: "ada has said no", until: start.Add(time.Minute),
		change: func(s *scene) {
			s.mem.GPUs = map[string]rebalancer.GPUMemory{target.UUID: {Rejected: start.Add(time.Minute), RejectedBy: "ada"}}
		}},
	{name: "mode observe", want: telemetry.RefusalMode, text: "mode observe for gentle acts", act: telemetry.ActCap,
		change: func(s *scene) {
			s.policies = enforcing(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Observe })
		}},
	{name: "mode observe by a person", want: telemetry.RefusalMode, text: "mode observe for gentle acts", act: telemetry.ActCap,
		change: func(s *scene) { s.mem.Modes = map[string]telemetry.Mode{"thermal/gentle": telemetry.Observe} }},
	{name: "opted out of caps", want: telemetry.RefusalOptOut, text: "slurm:7 has opted out of cap", act: telemetry.ActCap,
		change: func(s *scene) {
			s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7", OptOut: []string{"migrate", "cap"}}}
		}},
	{name: "opted out of everything", want: telemetry.RefusalOptOut, text: "opted out", act: telemetry.ActCap,
		change: func(s *scene) {
			s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7", OptOut: []string{"all"}}}
		}},
	{name: "all paused", want: telemetry.RefusalPaused, text: "gentle acts are paused", act: telemetry.ActCap,
		change: func(s *scene) { s.mem.Paused, s.mem.PausedAll = true, true }},
	{name: "disruptive paused", want: telemetry.RefusalPaused, text: "disruptive acts are paused", act: telemetry.ActPause,
		change: func(s *scene) { s.disruptive(10, 1); s.mem.Paused = true }},
	{name: "breaker open", want: telemetry.RefusalBreaker, text: "too many failed; a person must close it", have: number(0.5), need: number(0.2), act: telemetry.ActPause,
		change: func(s *scene) {
			s.disruptive(10, 1)
			s.mem.Breaker = rebalancer.BreakerState{BreakerTrip: telemetry.BreakerTrip{Open: true, Reason: "too many failed", Have: 0.5, Limit: 0.2}, Since: start}
		}},
	{name: "too little of the fleet is seen", want: telemetry.RefusalCoverage, text: "1 of 10 GPUs are seen fresh; disruptive acts need 80 %", have: number(0.1), need: number(0.8), act: telemetry.ActPause,
		change: func(s *scene) { s.disruptive(10, 1); s.node.Expected = 10 }},
	{name: "costs more than it gains", want: telemetry.RefusalNotWorth, text: "gains 5, costs 6", have: number(-1), need: number(0), act: telemetry.ActPause,
		change: func(s *scene) { s.disruptive(5, 6) }},
	{name: "budget used up", want: telemetry.RefusalBudget, text: "1 GPUs of the fleet are under acts of policy thermal, 1 are allowed", have: number(1), need: number(1), act: telemetry.ActCap,
		change: func(s *scene) {
			s.policies = enforcing(func(p *rebalancer.PolicySpec) { p.Budget.Max = 1 })
			s.node.Expected = 4
			s.pending(telemetry.Target{Node: "n00", UUID: "GPU-00-1"}, telemetry.OutcomeVerified)
		}},
	{name: "at the least limit", want: telemetry.RefusalAtLimit, text: "350 W already", have: number(350), need: number(350), act: telemetry.ActCap,
		change: func(s *scene) { s.gpu.LimitW = cluster.Some(leastCapW) }},
	{name: "below the floor by another's hand", want: telemetry.RefusalAtLimit, text: "200 W already", have: number(200), need: number(350), act: telemetry.ActCap,
		change: func(s *scene) { s.gpu.LimitW = cluster.Some(minW) }},
	{name: "a cap would cool nothing", want: telemetry.RefusalNotEnough, text: "it draws 150 W, so a limit of 350 W", have: number(3), need: number(8), act: telemetry.ActCap,
		change: func(s *scene) { s.read(telemetry.GPUPowerWatts, 150) }},
	{name: "no hand for the node", want: telemetry.RefusalNoActuator, text: `backend "node"`, act: telemetry.ActCap,
		change: func(s *scene) { s.planner.Actuators = nil }},
	{name: "the hand cannot", want: telemetry.RefusalStale, text: "its agent is silent", act: telemetry.ActCap,
		change: func(s *scene) { s.planner.Actuators = []rebalancer.Actuator{picky{s.w}} }},
	{name: "no hand for the workload's scheduler", want: telemetry.RefusalNoActuator, text: "backends of its workloads", act: telemetry.ActSteer,
		change: func(s *scene) {
			s.work = []telemetry.InventoryWorkload{{Ref: "k8s:a/Job/b", OptOut: []string{"cap"}}}
		}},
	{name: "nothing to steer", want: telemetry.RefusalUnsupported, text: "no workload is known there", act: telemetry.ActSteer,
		change: func(s *scene) { s.gpu.LimitW = cluster.Opt{} }},
	{name: "a bare process cannot be steered", want: telemetry.RefusalUnsupported, text: "without a scheduler", act: telemetry.ActSteer,
		change: func(s *scene) {
			s.work = []telemetry.InventoryWorkload{{Ref: "proc:n00/12@34"}}
			s.gpu.LimitW = cluster.Opt{}
		}},
	{name: "its scheduler cannot steer", want: telemetry.RefusalUnsupported, text: "no steer for this backend", act: telemetry.ActSteer,
		change: func(s *scene) {
			s.planner.Actuators = append(s.planner.Actuators, slurm{s.w})
			s.work = []telemetry.InventoryWorkload{{Ref: "slurm:7"}}
			s.gpu.LimitW = cluster.Opt{}
		}},
	{name: "not the leader", want: telemetry.RefusalNotLeader, text: "another rebalancer leads",
		change: func(s *scene) { s.mem.Leading = false }},
}

// pending puts a decision of the thermal policy into memory.
func (s *scene) pending(t telemetry.Target, o telemetry.Outcome) {
	id := "d-000001"
	d := &telemetry.Decision{ID: id, Policy: "thermal", Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: t, Outcome: o, Time: start,
		Act: &telemetry.Act{ID: id}, VerifyBy: start.Add(time.Minute), Predicted: &telemetry.Effect{}}
	step := telemetry.StepRecord{Step: telemetry.Step{ID: id + ".1", Decision: id, Kind: telemetry.StepPowerCap, Target: t, Deadline: start.Add(time.Hour), Lease: telemetry.Duration(time.Hour),
		Params: telemetry.Params{PowerLimitWatts: number(600), FoundWatts: number(700)}}}
	if o != telemetry.OutcomeIntended {
		step.Receipt = &telemetry.Receipt{StepID: step.Step.ID, Result: telemetry.Done}
	}
	d.Steps = []telemetry.StepRecord{step}
	if s.mem.Decisions == nil {
		s.mem.Decisions, s.mem.Leases = map[string]*telemetry.Decision{}, map[string]time.Time{}
	}
	s.mem.Decisions[id] = d
	if step.Receipt != nil {
		s.mem.Leases[id] = start
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			if got := steps(s.plan()); len(got) != 1 {
				t.Fatalf("without the change: %d steps, want the cap", len(got))
			}
			s = newScene(t)
			c.change(s)
			p := s.plan()
			for _, step := range steps(p) {
				if step.Target.UUID == target.UUID && step.Kind == telemetry.StepPowerCap {
					t.Fatalf("acts: %+v", step)
				}
			}
			i := slices.IndexFunc(p.Refused.Details, func(r telemetry.Refusal) bool { return r.Reason == c.want && strings.Contains(r.Text, c.text) })
			if i < 0 {
				t.Fatalf("no refusal %s with %q in %v", c.want, c.text, p.Refused.Details)
			}
			r := p.Refused.Details[i]
			if p.Refused.Counts[c.want] == 0 {
				t.Errorf("%s is not counted: %v", c.want, p.Refused.Counts)
			}
			if r.Target != target || r.Act != c.act {
				t.Errorf("target %v, act %q; want %v, %q", r.Target, r.Act, target, c.act)
			}
			if c.have != nil && (r.Have == nil || r.Need == nil || !near(*r.Have, *c.have) || !near(*r.Need, *c.need) || r.Unit == "" && c.want != telemetry.RefusalBreaker) {
				t.Errorf("numbers %v of %v %s; want %v of %v", deref(r.Have), deref(r.Need), r.Unit, *c.have, *c.need)
			}
			if !c.until.IsZero() && !r.Until.Equal(c.until) {
				t.Errorf("until %v, want %v", r.Until, c.until)
			}
		})
	}
}

func near(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }

func deref(v *float64) any {
	if v == nil {
		return nil
	}
	return *v
}

// Reasons that belong to acts of other policies, or that are tested where they
// arise: changed_since and journal in the engine's tests.
var elsewhere = []telemetry.RefusalReason{
	telemetry.RefusalChangedSince, telemetry.RefusalJournal, telemetry.RefusalNoPlace,
}

func TestEveryReasonIsTested(t *testing.T) {
	for _, reason := range telemetry.RefusalReasons {
		tested := slices.ContainsFunc(slices.Concat(refusals, workRefusals), func(c refusalCase) bool { return c.want == reason })
		if tested == slices.Contains(elsewhere, reason) {
			t.Errorf("%s: tested here %v, said to be elsewhere %v", reason, tested, !tested)
		}
	}
}

// A gentle act goes on where a disruptive one is stopped.
func TestGentleActsGoOn(t *testing.T) {
	for name, change := range map[string]func(*scene){
		"paused":       func(s *scene) { s.mem.Paused = true },
		"breaker open": func(s *scene) { s.mem.Breaker.Open = true },
		"low coverage": func(s *scene) { s.node.Expected = 100 },
	} {
		s := newScene(t)
		change(s)
		if got := steps(s.plan()); len(got) != 1 {
			t.Errorf("%s: %d steps, want the cap", name, len(got))
		}
	}
}

func TestDisruptiveActIsTakenWhenNothingStandsAgainstIt(t *testing.T) {
	s := newScene(t)
	s.disruptive(10, 1)
	p := s.plan()
	got := steps(p)
	if len(got) != 1 || got[0].Kind != telemetry.StepSuspend || got[0].Target.Workload != "slurm:7" {
		t.Fatalf("steps %v", got)
	}
	d := p.Entries[0].Decision
	if d.Class != telemetry.Disruptive || d.Act.Class != telemetry.Disruptive || d.Alternatives[0].Net != 9 {
		t.Errorf("class %s, alternatives %+v", d.Class, d.Alternatives)
	}
}

// All that stands against an act is said, not only the first of it.
func TestAllActGuardsSpeak(t *testing.T) {
	s := newScene(t)
	s.disruptive(5, 6)
	s.mem.Paused = true
	s.mem.Breaker.Open = true
	s.node.Expected = 100
	s.work[0].OptOut = []string{"pause"}
	want := []telemetry.RefusalReason{telemetry.RefusalPaused, telemetry.RefusalBreaker, telemetry.RefusalCoverage, telemetry.RefusalOptOut, telemetry.RefusalNotWorth}
	if got := reasonsOf(s.plan()); !slices.Equal(got, want) {
		t.Errorf("refused for %v, want %v", got, want)
	}
}

// A stale value within the marks is nobody's business.
func TestDoubtIsSilentWithinTheMarks(t *testing.T) {
	s := newScene(t)
	s.gpu.HeadroomC = cluster.Some(40)
	s.read(telemetry.GPUThermalHeadroomCelsius, 40)
	s.node.State = cluster.NodeGone
	if p := s.plan(); len(p.Entries) != 0 || len(p.Refused.Counts) != 0 {
		t.Errorf("entries %v, refusals %v", p.Entries, p.Refused)
	}
}

func TestModes(t *testing.T) {
	paused, resumed := true, false
	cases := []struct {
		name    string
		mode    telemetry.Mode
		changes []telemetry.ModeChange
		want    telemetry.Outcome
	}{
		{"recommend", telemetry.Recommend, nil, telemetry.OutcomeRecommended},
		{"approve", telemetry.Approve, nil, telemetry.OutcomeAwaiting},
		{"enforce", telemetry.Enforce, nil, telemetry.OutcomeIntended},
		{"a change for all", telemetry.Recommend, []telemetry.ModeChange{{Mode: telemetry.Enforce}}, telemetry.OutcomeIntended},
		{"a change for the class", telemetry.Recommend, []telemetry.ModeChange{{Class: telemetry.Gentle, Mode: telemetry.Enforce}}, telemetry.OutcomeIntended},
		{"a change for the other class", telemetry.Recommend, []telemetry.ModeChange{{Class: telemetry.Disruptive, Mode: telemetry.Enforce}}, telemetry.OutcomeRecommended},
		{"a change for the policy", telemetry.Recommend, []telemetry.ModeChange{{Policy: "thermal", Mode: telemetry.Enforce}}, telemetry.OutcomeIntended},
		{"a change for another policy", telemetry.Recommend, []telemetry.ModeChange{{Policy: "power", Mode: telemetry.Enforce}}, telemetry.OutcomeRecommended},
		{"the most specific change wins", telemetry.Observe, []telemetry.ModeChange{{Policy: "thermal", Class: telemetry.Gentle, Mode: telemetry.Approve}, {Mode: telemetry.Enforce}}, telemetry.OutcomeAwaiting},
		{"paused all, then resumed", telemetry.Enforce, []telemetry.ModeChange{{Paused: &paused, All: true}, {Paused: &resumed}}, telemetry.OutcomeIntended},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.policies = enforcing(func(p *rebalancer.PolicySpec) { p.Mode = c.mode })
			for _, m := range c.changes {
				s.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &m})
			}
			p := s.plan()
			if len(p.Entries) != 1 || p.Entries[0].Decision == nil {
				t.Fatalf("entries %+v, refused %v", p.Entries, p.Refused.Details)
			}
			e := p.Entries[0]
			if e.Decision.Outcome != c.want || (e.Do != nil) != (c.want == telemetry.OutcomeIntended) {
				t.Errorf("outcome %s, step %v; want %s", e.Decision.Outcome, e.Do, c.want)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	cases := []struct {
		name    string
		work    []telemetry.InventoryWorkload
		members []cluster.Member
		want    []telemetry.Candidate
	}{
		{"nothing known", nil, nil, nil},
		{"one workload", []telemetry.InventoryWorkload{{Ref: "slurm:1", Owner: "ada", Priority: 3}}, nil,
			[]telemetry.Candidate{{Workload: "slurm:1", Owner: "ada", Priority: 3, Share: 1}}},
		{"two share equally", []telemetry.InventoryWorkload{{Ref: "slurm:1"}, {Ref: "slurm:2"}}, nil,
			[]telemetry.Candidate{{Workload: "slurm:1", Share: 0.5}, {Workload: "slurm:2", Share: 0.5}}},
		{"as requested", []telemetry.InventoryWorkload{{Ref: "slurm:1", Requests: telemetry.Requests{Share: 0.75}}, {Ref: "slurm:2"}}, nil,
			[]telemetry.Candidate{{Workload: "slurm:1", Share: 0.75}, {Workload: "slurm:2", Share: 0.25}}},
		{"asked for more than there is", []telemetry.InventoryWorkload{{Ref: "slurm:1", Requests: telemetry.Requests{Share: 1.5}}, {Ref: "slurm:2"}}, nil,
			[]telemetry.Candidate{{Workload: "slurm:1", Share: 1.5}, {Workload: "slurm:2", Share: 0}}},
		{"unknown member alone", nil, []cluster.Member{{ID: "77", Kind: "unknown"}},
			[]telemetry.Candidate{{Workload: "unknown:77", Share: 1, Note: "no inventory knows this member; nothing is done to it"}}},
		{"unknown beside known", []telemetry.InventoryWorkload{{Ref: "slurm:1", Members: []telemetry.WorkloadMember{{ID: "1.0"}}}}, []cluster.Member{{ID: "1.0", Kind: "slurm"}, {ID: "77", Kind: "unknown"}},
			[]telemetry.Candidate{{Workload: "slurm:1", Share: 0.5}, {Workload: "unknown:77", Share: 0.5, Note: "no inventory knows this member; nothing is done to it"}}},
		{"a process that its node tells of", nil, []cluster.Member{holder(11)}, []telemetry.Candidate{{Workload: refOf(11), Owner: "ada", Name: "job11", Share: 1}}},
		{"a process of another node's reference", nil, []cluster.Member{holder(11), {ID: "9@9+b", Kind: cluster.KindProcess, Workload: "proc:n77/9@9"}},
			[]telemetry.Candidate{{Workload: refOf(11), Owner: "ada", Name: "job11", Share: 0.5}, {Workload: "unknown:9@9+b", Share: 0.5, Note: "no inventory knows this member; nothing is done to it"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.work, s.gpu.Members = c.work, c.members
			if got := s.plan().Entries[0].Decision.Candidates; !slices.Equal(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}
