package rebalancer_test

import (
	"fmt"
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// audit reads the journal as it is written and holds it, and what the agents
// did, to what must always be so. It shares no code with the engine and keeps
// a state of its own.
type audit struct {
	s        *simulated
	last     map[string]*telemetry.Decision
	acted    map[string]time.Time // end of the last attempt at an act, by GPU
	undone   map[string]time.Time // start of the last undo, by cooling domain
	undoOf   map[string]string    // and of which decision
	said     map[string]time.Time // until when a person does not want acts, by GPU
	steps    map[string]string    // what a step id stands for
	intents  map[string]bool
	due      map[string]time.Time // when the effect of a decision must have been looked at
	paused   bool
	breaker  bool
	revision uint64
	led      time.Time // since when somebody leads without a break
	acts     int
}

func newAudit(s *simulated) *audit {
	return &audit{s: s, last: map[string]*telemetry.Decision{}, acted: map[string]time.Time{}, undone: map[string]time.Time{}, undoOf: map[string]string{},
		said: map[string]time.Time{}, steps: map[string]string{}, intents: map[string]bool{}, due: map[string]time.Time{}}
}

// record takes in one record.
func (a *audit) record(r telemetry.Record) {
	if r.Epoch.Revision < a.revision {
		a.s.fail("one leader", "epoch %d writes after %d", r.Epoch.Revision, a.revision)
	}
	a.revision = r.Epoch.Revision
	switch {
	case r.Decision != nil:
		a.decision(r)
	case r.Mode != nil && r.Mode.Paused != nil:
		a.paused = *r.Mode.Paused && r.Mode.All
	case r.Breaker != nil:
		if a.breaker && r.Breaker.Open || !r.Breaker.Open && r.Breaker.By == "" {
			a.s.fail("breaker", "%+v though open is %v", r.Breaker, a.breaker)
		}
		a.breaker = r.Breaker.Open
	case r.Approval != nil && a.last[r.Approval.Decision] != nil:
		a.said[a.last[r.Approval.Decision].Target.UUID] = r.Approval.At.Add(10 * time.Minute)
	}
}

func (a *audit) decision(r telemetry.Record) {
	d, before := r.Decision, a.last[r.Decision.ID]
	switch {
	case before != nil && !before.Ended.IsZero() && (d.Outcome != telemetry.OutcomeActed || before.Outcome != telemetry.OutcomeRefused && before.Outcome != telemetry.OutcomeExpired):
		a.s.fail("one end", "%s was %s and is written again as %s", d.ID, before.Outcome, d.Outcome)
	case before != nil && (before.Target != d.Target || !before.Time.Equal(d.Time)):
		a.s.fail("ids", "%s stands for two decisions", d.ID)
	case before == nil && r.Topic != telemetry.TopicIntent:
		a.s.fail("intent first", "%s begins as %s", d.ID, d.Outcome)
	}
	for _, s := range d.Steps {
		a.step(r, before, s)
	}
	if d.Outcome == telemetry.OutcomeActed && (before == nil || before.Outcome != d.Outcome) {
		a.due[d.ID] = r.Time.Add(time.Duration(d.Predicted.Within) + time.Minute)
	}
	a.last[d.ID] = d
	a.budget(d)
}

// step looks at a step of a decision that is new, or has ended.
func (a *audit) step(r telemetry.Record, before *telemetry.Decision, s telemetry.StepRecord) {
	what := fmt.Sprintf("%s %s %v", s.Step.Kind, s.Step.Target, s.Step.NotBefore)
	if known, ok := a.steps[s.Step.ID]; ok && known != what {
		a.s.fail("ids", "step %s is %s and %s", s.Step.ID, known, what)
	}
	a.steps[s.Step.ID] = what
	found := false
	if before != nil {
		for _, b := range before.Steps {
			if b.Step.ID == s.Step.ID {
				found = true
				if b.Receipt == nil && s.Receipt != nil && s.Step.Kind != telemetry.StepRenew {
					a.acted[s.Step.Target.UUID] = r.Time
				}
			}
		}
	}
	if !found && a.intents[s.Step.ID] && s.Receipt != nil { // taken up again on late word
		found, a.acted[s.Step.Target.UUID] = true, r.Time
	}
	if found {
		return
	}
	if r.Topic != telemetry.TopicIntent {
		a.s.fail("intent first", "step %s comes with a record of topic %s", s.Step.ID, r.Topic)
	}
	a.intents[s.Step.ID] = true
	switch s.Step.Kind {
	case telemetry.StepPowerCap:
		a.acts++
		a.newCap(r, s.Step)
	case telemetry.StepUndo:
		a.newUndo(r, s.Step)
	}
}

// newCap is everything a cap must not be intended against.
func (a *audit) newCap(r telemetry.Record, s telemetry.Step) {
	uuid, d, spec := s.Target.UUID, r.Decision, a.s.spec
	if t := a.s.planned[uuid]; !t.good {
		a.s.fail("value", "%s is capped, but %s", uuid, t.why)
	}
	if since, ok := a.acted[uuid]; ok && r.Time.Sub(since) < time.Duration(spec.Settle) {
		a.s.fail("settle", "%s is capped %s after the last act", uuid, r.Time.Sub(since))
	}
	if a.paused {
		a.s.fail("pause", "%s is capped while all acts are paused", uuid)
	}
	if r.Time.Before(a.said[uuid]) {
		a.s.fail("people", "%s is capped though a person said no", uuid)
	}
	if uuid == "GPU-0-0" {
		a.s.fail("opt-out", "the work on it has opted out of caps")
	}
	for id, other := range a.last {
		if id == d.ID || other.Target.UUID != uuid || !other.Ended.IsZero() {
			continue
		}
		if other.Outcome == telemetry.OutcomeIntended || other.Outcome == telemetry.OutcomeActed || pending(other) != nil {
			a.s.fail("in flight", "%s is capped while %s is %s", uuid, id, other.Outcome)
		}
	}
	watts := *s.Params.PowerLimitWatts
	if watts < minW || watts < spec.Floor*defaultW {
		a.s.fail("range", "%s is capped at %v W, below the floor of %v W", uuid, watts, spec.Floor*defaultW)
	}
	if s.Params.FoundWatts == nil || watts > *s.Params.FoundWatts {
		a.s.fail("range", "%s is capped at %v W, above what was found (%v)", uuid, watts, s.Params.FoundWatts)
	}
	if d.Predicted == nil || s.Lease <= 0 || s.Deadline.IsZero() {
		a.s.fail("range", "%s is capped without a prediction, a lease or a deadline", uuid)
	}
}

func (a *audit) newUndo(r telemetry.Record, s telemetry.Step) {
	n := a.s.world.node(s.Target.Node)
	domain := "row " + n.row
	if n.cooling != "" {
		domain = "cooling " + n.cooling
	}
	if since, ok := a.undone[domain]; ok && r.Time.Sub(since) < 5*time.Second {
		a.s.fail("undo spacing", "%s in %s begins %s after that of %s", s.ID, domain, r.Time.Sub(since), a.undoOf[domain])
	}
	a.undone[domain], a.undoOf[domain] = r.Time, s.ID
}

// budget counts the GPUs under decisions against what the policy allows.
func (a *audit) budget(newest *telemetry.Decision) {
	b := a.s.spec.Budget
	scope := func(node string) string {
		switch b.Per {
		case rebalancer.PerNode:
			return node
		case rebalancer.PerRow:
			return a.s.world.node(node).row
		}
		return ""
	}
	total, under := 0, map[string]bool{}
	in := scope(newest.Target.Node)
	for _, n := range a.s.world.nodes {
		if scope(n.name) == in {
			total += 3
		}
	}
	for _, d := range a.last {
		if d.Ended.IsZero() && scope(d.Target.Node) == in {
			under[d.Target.UUID] = true
		}
	}
	limit := int(math.Ceil(b.Percent / 100 * float64(total)))
	if b.Max > 0 {
		limit = min(limit, b.Max)
	}
	if len(under) > limit {
		a.s.fail("budget", "%d GPUs of %q are under acts, %d may be: %v", len(under), in, limit, under)
	}
}

// ordered is asked when a process sends a step for the first time.
func (a *audit) ordered(p *process, s telemetry.Step) {
	if !a.intents[s.ID] {
		a.s.fail("intent first", "%s is ordered without an intent", s.ID)
	}
	if t := a.s.world.shown[s.Target.UUID]; s.Kind == telemetry.StepPowerCap && !t.good {
		a.s.fail("value", "%s is ordered by %s, but %s", s.ID, p.name, t.why)
	}
}

// effect is asked when an agent sets a limit.
func (a *audit) effect(s telemetry.Step) {
	if a.s.world.effects[s.ID] > 1 {
		a.s.fail("at most once", "%s is carried out %d times", s.ID, a.s.world.effects[s.ID])
	}
	if !a.intents[s.ID] {
		a.s.fail("intent first", "%s is carried out without an intent", s.ID)
	}
}

// look is the check after every pass.
func (a *audit) look(now time.Time) {
	for _, g := range a.s.world.gpus {
		if g.limit > g.original {
			a.s.fail("found", "%s is at %v W; %v W were found", g.uuid, g.limit, g.original)
		}
	}
	for _, ag := range a.s.world.agents {
		for uuid, h := range ag.holds {
			if d := a.last[h.decision]; d != nil && a.s.heard[h.step] && (d.Outcome == telemetry.OutcomeRefused || d.Outcome == telemetry.OutcomeFailed || d.Outcome == telemetry.OutcomeExpired) && now.Sub(d.Ended) > 20*time.Second {
				a.s.fail("orphan", "%s is held by %s, which is %s since %s (%s)", uuid, h.step, d.Outcome, now.Sub(d.Ended), d.Ending)
			}
		}
	}
	if a.led.IsZero() || now.Sub(a.led) < 10*time.Second {
		return // nobody has had the time
	}
	for id, d := range a.last {
		if !d.Ended.IsZero() {
			continue
		}
		due := now.Add(time.Hour)
		if s := pending(d); s != nil {
			due = s.Deadline.Add(time.Duration(a.s.spec.Lease) + 30*time.Second)
		} else if d.Outcome == telemetry.OutcomeActed {
			due = a.due[id]
		}
		if now.After(due.Add(10 * time.Second)) {
			a.s.fail("deadline", "%s is still %s, %s after it should have ended", id, d.Outcome, now.Sub(due))
		}
	}
}

// end is the check when all is well again and every lease has run out.
func (a *audit) end() {
	for id, d := range a.last {
		if d.Ended.IsZero() {
			a.s.fail("ends", "%s on %s never ends: %s", id, d.Target, d.Outcome)
		}
	}
	for _, g := range a.s.world.gpus {
		if g.limit != g.original {
			a.s.fail("ends", "%s keeps its limit of %v W; %v W were found", g.uuid, g.limit, g.original)
		}
	}
}

// over says that nothing is under an act and nothing on its way.
func (a *audit) over() bool {
	for _, d := range a.last {
		if d.Ended.IsZero() {
			return false
		}
	}
	for _, g := range a.s.world.gpus {
		if g.limit != g.original {
			return false
		}
	}
	return len(a.s.world.post) == 0
}
