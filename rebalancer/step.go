package rebalancer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Planner is the pure part of the engine.
type Planner struct {
	Policies  []Policy
	Actuators []Actuator
	Breaker   BreakerLimits
	// Expiry is how long a step may wait for its backend to begin it.
	Expiry time.Duration
}

// Plan is what a pass wants written and done, in this order.
type Plan struct {
	Time     time.Time
	ViewTime time.Time
	Coverage telemetry.Coverage
	Entries  []Entry
	// Refused is why the rest of what was seen is left as it is.
	Refused telemetry.RefusalSet
}

// Entry is one journal record and, with Do, the step that it is the intent of.
type Entry struct {
	Topic    telemetry.Topic
	Decision *telemetry.Decision
	Breaker  *telemetry.BreakerTrip
	Refused  *telemetry.RefusalSet
	Do       *telemetry.Step
}

// pass is one run of Step.
type pass struct {
	*Planner
	now      time.Time
	view     *cluster.View
	mem      *Memory
	scene    *Scene
	coverage telemetry.Coverage
	entries  []Entry
	refused  refused
	breaker  BreakerState
	spent    map[string]*spending // by policy
	planned  map[string]bool      // GPUs with an act in this plan
	written  map[string]*telemetry.Decision
	undone   []PastUndo
	// disrupting are the GPUs that this plan disturbs.
	disrupting int
}

// Step makes the plan for a View. It is pure: the same View and Memory give
// the same plan. The Memory that it returns differs only in what is not
// journalled; the caller folds the plan's records into it as they are written.
func (pl *Planner) Step(now time.Time, v *cluster.View, m Memory) (Plan, Memory) {
	m.filters, m.seen = maps.Clone(m.filters), maps.Clone(m.seen)
	p := &pass{
		Planner: pl, now: now, view: v, mem: &m, scene: newScene(now, v, &m), coverage: v.Coverage(now),
		spent: map[string]*spending{}, planned: map[string]bool{}, written: map[string]*telemetry.Decision{},
	}
	p.trip()     // an open breaker holds from this pass on
	p.followUp() // what is held comes first: it frees or keeps budget
	p.decide()
	p.explainRefusals()
	return Plan{Time: now, ViewTime: v.Time, Coverage: p.coverage, Entries: p.entries, Refused: p.refused.set()}, m
}

// add puts an entry into the plan. A follower writes nothing.
func (p *pass) add(e Entry) {
	if !p.mem.Leading {
		return
	}
	p.entries = append(p.entries, e)
	if e.Decision != nil {
		p.written[e.Decision.ID] = e.Decision
	}
}

// nextID numbers a decision by the sequence that its record will have, so it
// is the same for everyone who plans on this journal, and never used twice.
func (p *pass) nextID() string {
	return fmt.Sprintf("d-%06d", p.mem.Seq+1+uint64(len(p.entries)))
}

// explainRefusals asks for a record when nothing is done and the reasons for
// it are not those last written.
func (p *pass) explainRefusals() {
	set := p.refused.set()
	if len(p.entries) > 0 || slices.Equal(lastingKeys(set), p.mem.Refused) {
		return
	}
	p.add(Entry{Topic: telemetry.TopicOutcome, Refused: &set})
}

// stepID is the next step id of a decision. Records of renewals are replaced
// and steps that were not ordered taken back, so it counts on from the highest
// that was ever written: an agent knows a step by its id. A journal that was
// lost and begun anew counts from one again; the time tells its steps from those
// of the one before.
func (p *pass) stepID(d *telemetry.Decision) string {
	return fmt.Sprintf("%s.%d-%s", d.ID, max(lastStep(d), p.mem.LastStep[d.ID])+1, strconv.FormatInt(p.now.UnixMilli(), 36))
}

// lastStep is the highest number of the steps of a decision.
func lastStep(d *telemetry.Decision) int {
	highest := 0
	for _, s := range d.Steps {
		var n int
		if _, err := fmt.Sscanf(strings.TrimPrefix(s.Step.ID, d.ID), ".%d", &n); err == nil {
			highest = max(highest, n)
		}
	}
	return highest
}

// withStep is a copy of a decision with one more step on its way.
func (p *pass) withStep(d *telemetry.Decision, s telemetry.Step) (*telemetry.Decision, *telemetry.Step) {
	next := *d
	s.ID, s.Decision, s.Epoch = p.stepID(d), d.ID, p.mem.Epoch
	if s.NotBefore.IsZero() {
		s.NotBefore = p.now
	}
	s.Deadline = s.NotBefore.Add(p.Expiry + RunTime(s))
	next.Steps = append(slices.Clone(d.Steps), telemetry.StepRecord{Step: s, OrderID: s.ID})
	return &next, &s
}

func (p *pass) policy(name string) Policy {
	i := slices.IndexFunc(p.Policies, func(pol Policy) bool { return pol.Spec().Type == name })
	if i < 0 {
		return nil
	}
	return p.Policies[i]
}

// actuator finds the hand for a backend.
func (pl *Planner) actuator(backend string) Actuator {
	i := slices.IndexFunc(pl.Actuators, func(a Actuator) bool { return a.Name() == backend })
	if i < 0 {
		return nil
	}
	return pl.Actuators[i]
}
