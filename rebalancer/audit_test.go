package rebalancer_test

import (
	"fmt"
	"math"
	"slices"
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
	// ended is what was done to workloads, by reference; disturbed when how many
	// GPUs were.
	ended     map[telemetry.WorkloadRef]string
	disturbed []disturbance
	endings   int
	closed    time.Time // of the breaker, by a person
}

type disturbance struct {
	decision string
	at       time.Time
	gpus     int
}

func newAudit(s *simulated) *audit {
	return &audit{s: s, last: map[string]*telemetry.Decision{}, acted: map[string]time.Time{}, undone: map[string]time.Time{}, undoOf: map[string]string{},
		said: map[string]time.Time{}, steps: map[string]string{}, intents: map[string]bool{}, due: map[string]time.Time{}, ended: map[telemetry.WorkloadRef]string{}}
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
		if !a.breaker {
			a.closed = r.Time
		}
	case r.Approval != nil && a.last[r.Approval.Decision] != nil:
		a.said[a.last[r.Approval.Decision].Target.UUID] = r.Approval.At.Add(10 * time.Minute)
	}
}

func (a *audit) decision(r telemetry.Record) {
	d, before := r.Decision, a.last[r.Decision.ID]
	switch {
	case before != nil && !before.Ended.IsZero() && d.Kind == telemetry.ActPreempt && (before.Outcome == telemetry.OutcomeRefused || before.Outcome == telemetry.OutcomeExpired):
		// Late word of an ending, whatever it says.
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
	if d.Kind == telemetry.ActPreempt && d.Outcome == telemetry.OutcomeRefused {
		a.withdrawn(d)
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
					a.came(r, s)
				}
			}
		}
	}
	if !found && a.intents[s.Step.ID] && s.Receipt != nil { // taken up again on late word
		found = true
		a.came(r, s)
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
	case telemetry.StepPreempt:
		a.endings++
		a.newEnding(r, s.Step)
	}
}

// came takes in the end of an act. One that was refused has left its workload
// and the GPUs as they were.
func (a *audit) came(r telemetry.Record, s telemetry.StepRecord) {
	if s.Step.Kind != telemetry.StepPreempt {
		a.acted[s.Step.Target.UUID] = r.Time
		return
	}
	if s.Receipt.Result == telemetry.Refused {
		a.withdrawn(r.Decision)
		return
	}
	if s.Receipt.Result != telemetry.Unknown {
		a.ended[s.Step.Target.Workload] = s.Step.ID
	}
	for _, uuid := range heldBy(r.Decision) {
		a.acted[uuid] = r.Time
	}
}

// withdrawn forgets what an ending that was not begun would have disturbed.
func (a *audit) withdrawn(d *telemetry.Decision) {
	a.disturbed = slices.DeleteFunc(a.disturbed, func(x disturbance) bool { return x.decision == d.ID })
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
	a.alone(d, uuid)
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

// alone wants no other act on its way to a GPU, be it on the GPU or on a
// workload that has it.
func (a *audit) alone(d *telemetry.Decision, uuid string) {
	for id, other := range a.last {
		if id == d.ID || !other.Ended.IsZero() || !slices.Contains(heldBy(other), uuid) {
			continue
		}
		if other.Outcome == telemetry.OutcomeIntended || other.Outcome == telemetry.OutcomeActed || pending(other) != nil {
			a.s.fail("in flight", "%s: %s of %s while %s of %s is %s", uuid, d.Kind, d.ID, other.Kind, id, other.Outcome)
		}
	}
}

// heldBy are the GPUs that a decision holds.
func heldBy(d *telemetry.Decision) []string {
	if d.Act != nil && len(d.Act.GPUs) > 0 {
		return d.Act.GPUs
	}
	return []string{d.Target.UUID}
}

// newEnding is everything that a process must not be ended against.
func (a *audit) newEnding(r telemetry.Record, s telemetry.Step) {
	d, spec := r.Decision, a.s.spec
	ref := s.Target.Workload
	w := a.s.work[ref]
	if w == nil || !w.ours {
		a.s.fail("protected", "%s is to be ended, which is nobody's or another's: %+v", ref, w)
		return
	}
	if slices.Contains(w.job.OptOut, "preempt") || slices.Contains(w.job.OptOut, "all") {
		a.s.fail("protected", "%s has opted out", ref)
	}
	if least := time.Duration(w.job.MinRunTime); least > 0 && w.age < least {
		a.s.fail("protected", "%s has run for %s of the %s it is promised", ref, w.age, least)
	}
	if w.job.LocalData {
		a.s.fail("protected", "%s has its data here alone", ref)
	}
	if lowest := w.lowest[s.Target.UUID]; w.job.Priority > lowest {
		a.s.fail("protected", "%s of priority %d is ended, and one of %d stays", ref, w.job.Priority, lowest)
	}
	if w.job.Gang != "" || slices.ContainsFunc(w.nodes, func(n string) bool { return n != s.Target.Node }) {
		a.s.fail("whole", "%s of gang %q is on %v, its end is ordered from %s", ref, w.job.Gang, w.nodes, s.Target.Node)
	}
	if got, want := slices.Sorted(slices.Values(d.Act.GPUs)), slices.Sorted(slices.Values(w.gpus)); !slices.Equal(got, slices.Compact(want)) {
		a.s.fail("whole", "%s has %v, its end holds %v", ref, want, got)
	}
	if before := a.ended[ref]; before != "" {
		a.s.fail("twice", "%s is ended by %s, and was by %s", ref, s.ID, before)
	}
	for _, uuid := range d.Act.GPUs {
		a.alone(d, uuid)
	}
	for id, other := range a.last {
		if id != d.ID && other.Target.Workload == ref && other.Ended.IsZero() {
			a.s.fail("in flight", "%s is ended by %s while %s is %s", ref, d.ID, id, other.Outcome)
		}
	}
	a.capWouldDo(s)
	if t := a.s.planned[s.Target.UUID]; !t.good || t.headroom > spec.Act {
		a.s.fail("value", "%s is ended for %s at %v °C, %s", ref, s.Target.UUID, t.headroom, t.why)
	}
	if since, ok := a.acted[s.Target.UUID]; ok && r.Time.Sub(since) < time.Duration(spec.Settle) {
		a.s.fail("settle", "%s is ended %s after the last act on %s", ref, r.Time.Sub(since), s.Target.UUID)
	}
	if a.paused {
		a.s.fail("pause", "%s is ended while all acts are paused", ref)
	}
	if a.breaker {
		a.s.fail("breaker", "%s is ended though the breaker is open", ref)
	}
	if s.Lease != 0 || s.Params.Grace <= 0 || s.Params.Message == "" || s.Deadline.Sub(s.NotBefore) < expiry+time.Duration(s.Params.Grace) {
		a.s.fail("range", "%s: %+v", ref, s)
	}
	a.wave(r, s)
}

// capWouldDo wants the limit to be as low as it goes, or the device to draw no
// more than that.
func (a *audit) capWouldDo(s telemetry.Step) {
	g := a.s.world.gpu(s.Target.UUID)
	least := max(minW, a.s.spec.Floor*defaultW) + 1
	if g.limit > least && g.limitShown > least && a.s.world.draws(g) > least+1 && a.s.world.now.Sub(g.limitAt) > time.Second {
		a.s.fail("cap first", "%s: %s is at %v W and draws %v, a cap could go to %v", s.ID, g.uuid, g.limit, a.s.world.draws(g), least-1)
	}
}

// wave counts what was disturbed within ten minutes.
func (a *audit) wave(r telemetry.Record, s telemetry.Step) {
	from := r.Time.Add(-10 * time.Minute)
	n := 0
	for _, x := range a.disturbed {
		if !x.at.Before(from) && !x.at.Before(a.closed) {
			n += x.gpus
		}
	}
	gpus := len(r.Decision.Act.GPUs)
	fleet := 0
	for _, n := range a.s.world.nodes {
		here := 0
		for _, g := range a.s.world.gpus {
			if g.node == n.name {
				here++
			}
		}
		fleet += max(here, 3)
	}
	if most := int(math.Ceil(a.s.breaker.Disrupted * float64(fleet))); n > 0 && n+gpus > most {
		a.s.fail("wave", "%s disturbs %d GPUs on top of %d, at most %d may be", s.ID, gpus, n, most)
	}
	a.disturbed = append(a.disturbed, disturbance{r.Decision.ID, r.Time, gpus})
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
	if d := r.Decision; d.Approval == nil || d.Approval.Verdict != rebalancer.VerdictUndo {
		a.alone(d, s.Target.UUID)
	}
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
			for _, uuid := range heldBy(d) {
				under[uuid] = true
			}
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
	act := s.Kind == telemetry.StepPowerCap || s.Kind == telemetry.StepPreempt
	if t := a.s.world.shown[s.Target.UUID]; act && !t.good {
		a.s.fail("value", "%s is ordered by %s, but %s", s.ID, p.name, t.why)
	}
	if w := a.s.world.shownWork[s.Target.Workload]; s.Kind == telemetry.StepPreempt && (w == nil || !w.ours) {
		a.s.fail("protected", "%s is ordered by %s, but %s is nobody's or another's by now", s.ID, p.name, s.Target.Workload)
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
	if p := a.s.world.processOf(s.Target.Workload); s.Kind == telemetry.StepPreempt && p.told > 1 {
		a.s.fail("twice", "%s is told to end for the second time, by %s", s.Target.Workload, s.ID)
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
		if s := pending(d); s != nil && s.Kind == telemetry.StepPreempt {
			due = s.NotBefore.Add(expiry + time.Duration(s.Params.Grace) + 90*time.Second)
		} else if s != nil {
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
	for _, ag := range a.s.world.agents {
		for id := range ag.endings {
			a.s.fail("ends", "%s is still being carried out", id)
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
