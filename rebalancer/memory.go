package rebalancer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Bounds of what Memory keeps of the past.
const (
	keptClosed = 64
	// actsWindow is how far the breaker looks back.
	actsWindow = 10 * time.Minute
	// movesWindow is how far the moves of a workload are counted, maxMoves how
	// many are kept of a fleet.
	movesWindow = 24 * time.Hour
	maxMoves    = 4096
	// rejectedFor is how long a person's no, or undo, holds.
	rejectedFor = 10 * time.Minute
	// approvedFor is how long a person's yes holds.
	approvedFor = 10 * time.Minute
)

// Memory is what the engine knows besides the View. The exported part is a
// fold of the journal; the rest is rebuilt from samples and belongs to one
// process. The zero value is the memory of an empty journal.
type Memory struct {
	Seq         uint64 `json:"seq"`
	SnapshotSeq uint64 `json:"snapshot_seq"`
	// Fence is the highest epoch that has written. Whoever leads under a lower
	// one has lost the lease without having noticed.
	Fence telemetry.Epoch `json:"fence,omitzero"`
	// Decisions are those that still hold or wait for something; Closed the
	// last that ended, oldest first.
	Decisions map[string]*telemetry.Decision `json:"decisions,omitempty"`
	Closed    []*telemetry.Decision          `json:"closed,omitempty"`
	// Leases says from when the effect of a decision's act is leased.
	Leases map[string]time.Time `json:"leases,omitempty"`
	// LastStep is the highest step number that an open decision has used.
	LastStep map[string]int       `json:"last_step,omitempty"`
	GPUs     map[string]GPUMemory `json:"gpus,omitempty"`
	// Modes are people's changes, by "policy/class"; either part may be empty.
	Modes     map[string]telemetry.Mode `json:"modes,omitempty"`
	Paused    bool                      `json:"paused,omitempty"`
	PausedAll bool                      `json:"paused_all,omitempty"`
	Breaker   BreakerState              `json:"breaker,omitzero"`
	// Acts are the ends of acts and Undos the starts of undos, within the
	// breaker's window.
	Acts  []PastAct  `json:"acts,omitempty"`
	Undos []PastUndo `json:"undos,omitempty"`
	// Moves are what was done to workloads within a day.
	Moves []PastMove `json:"moves,omitempty"`
	// Refused is the set of refusals that was last journalled.
	Refused []string `json:"refused,omitempty"`

	// Leading and Epoch are the leadership as this process knows it.
	Leading bool            `json:"-"`
	Epoch   telemetry.Epoch `json:"-"`

	filters map[filterKey]filterState
	seen    map[string]time.Time // standing decisions
	covered coverage
}

// GPUMemory is what past acts left to know about a GPU.
type GPUMemory struct {
	// Acted is the end of the last attempt at an act; Failures counts the
	// attempts since the last that was done.
	Acted    time.Time `json:"acted,omitzero"`
	Failures int       `json:"failures,omitempty"`
	LimitW   float64   `json:"limit_watts,omitempty"`
	LimitAt  time.Time `json:"limit_at,omitzero"`
	LearnedR float64   `json:"learned_celsius_per_watt,omitempty"`
	// Rejected is until when a person does not want acts, and who.
	Rejected   time.Time `json:"rejected,omitzero"`
	RejectedBy string    `json:"rejected_by,omitempty"`
	// Spared is the same for acts that disturb alone.
	Spared   time.Time `json:"spared,omitzero"`
	SparedBy string    `json:"spared_by,omitempty"`
}

// BreakerState is the breaker as last journalled.
type BreakerState struct {
	telemetry.BreakerTrip
	Since time.Time `json:"since,omitzero"`
}

// PastAct is the end of an act.
type PastAct struct {
	At     time.Time       `json:"at"`
	Class  telemetry.Class `json:"class"`
	Failed bool            `json:"failed,omitempty"`
	GPUs   int             `json:"gpus"`
}

// PastMove is an act on a workload that was done, may have been, or was refused
// where it would be done.
type PastMove struct {
	At  time.Time             `json:"at"`
	Ref telemetry.WorkloadRef `json:"ref"`
	// Work names it across its restarts; empty if nothing does.
	Work   string                 `json:"work,omitempty"`
	Node   string                 `json:"node"`
	Step   string                 `json:"step"`
	Result telemetry.Result       `json:"result"`
	Why    telemetry.RefuseReason `json:"why,omitempty"`
}

// PastUndo is an undo on a node.
type PastUndo struct {
	At   time.Time `json:"at"`
	Node string    `json:"node"`
}

// coverage is since when coverage has been low, once it had been enough.
type coverage struct {
	Reached  bool
	LowSince time.Time
}

// Fold takes in the record with the given sequence.
func (m *Memory) Fold(seq uint64, r telemetry.Record) error {
	if r.Topic == telemetry.TopicSnapshot {
		if err := m.restore(seq, r.Snapshot); err != nil {
			return err
		}
		m.raise(r.Epoch)
		return nil
	}
	m.Seq = seq
	m.raise(r.Epoch)
	m.trim(r.Time)
	switch {
	case r.Decision != nil:
		m.foldDecision(r.Time, r.Decision)
	case r.Refused != nil:
		m.Refused = lastingKeys(*r.Refused)
	case r.Approval != nil:
		m.foldApproval(*r.Approval)
	case r.Mode != nil:
		m.foldMode(*r.Mode)
	case r.Breaker != nil:
		m.Breaker = BreakerState{*r.Breaker, r.Time}
	default:
		return fmt.Errorf("journal record %d (%s): topic %q without its content", seq, r.ID, r.Topic)
	}
	return nil
}

// raise lifts the fence. Epochs of another life of the lease do not compare;
// the newest record then says which one counts.
func (m *Memory) raise(e telemetry.Epoch) {
	if e.Incarnation != m.Fence.Incarnation || e.Revision > m.Fence.Revision {
		m.Fence = e
	}
}

// Fenced says that a later epoch than the given one has written.
func (m *Memory) Fenced(e telemetry.Epoch) bool {
	return m.Fence.Incarnation == e.Incarnation && m.Fence.Revision > e.Revision
}

func (m *Memory) foldDecision(at time.Time, d *telemetry.Decision) {
	before := m.Decisions[d.ID]
	for i := range d.Steps {
		if ended := d.Steps[i].Receipt; ended != nil && !receiptKnown(before, d.Steps[i].Step.ID) {
			m.foldReceipt(at, d, d.Steps[i].Step, ended)
		} else if d.Steps[i].Step.Kind == telemetry.StepUndo && ended == nil && !stepKnown(before, d.Steps[i].Step.ID) {
			m.Undos = append(m.Undos, PastUndo{at, d.Target.Node})
		}
	}
	if d.Outcome == telemetry.OutcomeVerified && (before == nil || before.Outcome != d.Outcome) {
		m.learn(d)
	}
	if d.Ended.IsZero() {
		if before == nil { // or taken up again
			m.Closed = slices.DeleteFunc(m.Closed, func(c *telemetry.Decision) bool { return c.ID == d.ID })
		}
		put(&m.Decisions, d.ID, d)
		if n := lastStep(d); n > m.LastStep[d.ID] {
			put(&m.LastStep, d.ID, n)
		}
		return
	}
	delete(m.Decisions, d.ID)
	delete(m.LastStep, d.ID)
	delete(m.Leases, d.ID)
	delete(m.seen, d.ID)
	m.Closed = append(slices.DeleteFunc(m.Closed, func(c *telemetry.Decision) bool { return c.ID == d.ID }), d)
	if len(m.Closed) > keptClosed {
		m.Closed = slices.Delete(m.Closed, 0, len(m.Closed)-keptClosed)
	}
}

func (m *Memory) foldReceipt(at time.Time, d *telemetry.Decision, s telemetry.Step, r *telemetry.Receipt) {
	done := r.Result == telemetry.Done
	if s.Kind == telemetry.StepRenew {
		if done {
			put(&m.Leases, d.ID, at)
		}
		return
	}
	m.Acts = append(m.Acts, PastAct{at, d.Class, !done, disturbing(d, r)})
	if !lasts(s.Kind) {
		m.foldMove(at, d, s, r)
		return
	}
	if s.Target.UUID == "" {
		return
	}
	g := m.GPUs[s.Target.UUID]
	g.Acted, g.Failures = at, g.Failures+1
	if !done {
		put(&m.GPUs, s.Target.UUID, g)
		return
	}
	g.Failures = 0
	watts := s.Params.PowerLimitWatts
	if s.Kind == telemetry.StepUndo {
		watts = s.Params.FoundWatts
	} else {
		put(&m.Leases, d.ID, at)
	}
	if read, ok := r.After["power_limit_watts"]; ok {
		watts = &read
	}
	if watts != nil {
		g.LimitW, g.LimitAt = *watts, at
	}
	put(&m.GPUs, s.Target.UUID, g)
}

// disturbing is how many GPUs an act has touched. One that was refused has
// touched none.
func disturbing(d *telemetry.Decision, r *telemetry.Receipt) int {
	if r.Result == telemetry.Refused {
		return 0
	}
	return max(len(heldGPUs(d)), 1)
}

// foldMove takes in how an act on a workload ended. If it was not refused all of
// its GPUs are left alone for a while. A late word takes the place of the first.
func (m *Memory) foldMove(at time.Time, d *telemetry.Decision, s telemetry.Step, r *telemetry.Receipt) {
	for _, uuid := range heldGPUs(d) {
		if g := m.GPUs[uuid]; r.Result != telemetry.Refused {
			g.Acted = at
			put(&m.GPUs, uuid, g)
		}
	}
	m.Moves = slices.DeleteFunc(m.Moves, func(p PastMove) bool { return p.Step == s.ID })
	m.Moves = append(m.Moves, PastMove{at, d.Target.Workload, movedWork(d), d.Target.Node, s.ID, r.Result, r.Why})
	m.Moves = slices.Delete(m.Moves, 0, max(len(m.Moves)-maxMoves, 0))
}

// learn keeps the temperature per watt that a verified cap showed. It stands
// in where the judge has no fit; a value outside what GPUs can have is the
// weather's doing, not the cap's, and is not kept.
func (m *Memory) learn(d *telemetry.Decision) {
	h, ok := m.held(d)
	if !ok || h.Step.Kind != telemetry.StepPowerCap || h.Step.Params.PowerLimitWatts == nil || d.Observed == nil {
		return
	}
	for _, e := range powerEvidence(d) {
		if e.Note != "" {
			continue // drawn before an earlier cap
		}
		if r := d.Observed.Change() / (e.Value - *h.Step.Params.PowerLimitWatts); r >= 0.02 && r <= 0.3 {
			g := m.GPUs[d.Target.UUID]
			g.LearnedR = r
			put(&m.GPUs, d.Target.UUID, g)
		}
	}
}

// PowerBefore is the power that the target of a decision draws without any of
// our acts: what it drew when the decision was made or, as the evidence notes,
// before an earlier act.
func PowerBefore(d *telemetry.Decision) (watts float64, ok bool) {
	for _, e := range powerEvidence(d) {
		watts, ok = max(watts, e.Value), true
	}
	return watts, ok
}

func powerEvidence(d *telemetry.Decision) []telemetry.Evidence {
	var out []telemetry.Evidence
	for _, v := range d.Violations {
		for _, e := range v.Evidence {
			if e.Signal == "gpu_power_watts" {
				out = append(out, e)
			}
		}
	}
	return out
}

func (m *Memory) foldApproval(a telemetry.Approval) {
	d := m.Decisions[a.Decision]
	if d == nil {
		return // it ended while the person was reading it
	}
	next := *d
	next.Approval = &a
	m.Decisions[d.ID] = &next
	if a.Verdict == VerdictUndo || a.Verdict == VerdictReject {
		m.reject(d, a)
	}
}

// reject remembers a person's no: to acts on the GPU or, if it was to one that
// disturbs, to those alone, on all GPUs that it would have held.
func (m *Memory) reject(d *telemetry.Decision, a telemetry.Approval) {
	for _, uuid := range heldGPUs(d) {
		g := m.GPUs[uuid]
		if d.Target.Workload != "" {
			g.Spared, g.SparedBy = a.At.Add(rejectedFor), a.By
		} else {
			g.Rejected, g.RejectedBy = a.At.Add(rejectedFor), a.By
		}
		put(&m.GPUs, uuid, g)
	}
}

func (m *Memory) foldMode(c telemetry.ModeChange) {
	if c.Paused != nil {
		m.Paused, m.PausedAll = *c.Paused, *c.Paused && c.All
	}
	if c.Mode != "" {
		put(&m.Modes, c.Policy+"/"+string(c.Class), c.Mode)
	}
}

// mode is how far a policy may go with acts of a class: the most specific
// change that a person made, else what the policy says.
func (m *Memory) mode(s PolicySpec, c telemetry.Class) telemetry.Mode {
	for _, key := range []string{s.Type + "/" + string(c), s.Type + "/", "/" + string(c), "/"} {
		if mode, ok := m.Modes[key]; ok {
			return mode
		}
	}
	return s.Mode
}

// trim forgets what is older than the windows, by the time of the record that
// comes in, so that a fold depends on the journal alone.
func (m *Memory) trim(now time.Time) {
	from := now.Add(-actsWindow)
	m.Acts = slices.DeleteFunc(m.Acts, func(a PastAct) bool { return a.At.Before(from) })
	m.Undos = slices.DeleteFunc(m.Undos, func(u PastUndo) bool { return u.At.Before(from) })
	m.Moves = slices.DeleteFunc(m.Moves, func(p PastMove) bool { return p.At.Before(now.Add(-movesWindow)) })
}

// open lists the open and standing decisions by id.
func (m *Memory) open() []*telemetry.Decision {
	out := slices.Collect(maps.Values(m.Decisions))
	slices.SortFunc(out, func(a, b *telemetry.Decision) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), strings.Compare(a.ID, b.ID)) // d-999999 is before d-1000000
	})
	return out
}

// Decision finds a decision that is open or ended lately. A standing one comes
// with the time at which it was last seen to hold.
func (m *Memory) Decision(id string) (*telemetry.Decision, bool) {
	if d, ok := m.Decisions[id]; ok {
		if at, ok := m.seen[id]; ok {
			seen := *d
			seen.LastSeen = at
			return &seen, true
		}
		return d, true
	}
	i := slices.IndexFunc(m.Closed, func(d *telemetry.Decision) bool { return d.ID == id })
	if i < 0 {
		return nil, false
	}
	return m.Closed[i], true
}

// held returns the act of a decision if its effect is in force.
func (m *Memory) held(d *telemetry.Decision) (Held, bool) {
	from, leased := m.Leases[d.ID]
	if !leased || !d.Ended.IsZero() {
		return Held{}, false
	}
	for _, s := range d.Steps {
		if s.Receipt != nil && s.Receipt.Result == telemetry.Done && s.Step.Kind != telemetry.StepRenew && s.Step.Kind != telemetry.StepUndo {
			return Held{d, s.Step, from}, true
		}
	}
	return Held{}, false
}

// Clone is a Memory that shares nothing that Fold or Step changes.
func (m *Memory) Clone() Memory {
	c := *m
	c.Decisions, c.Leases, c.LastStep, c.GPUs, c.Modes = maps.Clone(m.Decisions), maps.Clone(m.Leases), maps.Clone(m.LastStep), maps.Clone(m.GPUs), maps.Clone(m.Modes)
	c.filters, c.seen = maps.Clone(m.filters), maps.Clone(m.seen)
	c.Closed, c.Acts, c.Undos, c.Moves = slices.Clone(m.Closed), slices.Clone(m.Acts), slices.Clone(m.Undos), slices.Clone(m.Moves)
	return c
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// pendingStep is the step of a decision whose end is not known.
func pendingStep(d *telemetry.Decision) *telemetry.Step {
	for i := range d.Steps {
		if d.Steps[i].Receipt == nil {
			return &d.Steps[i].Step
		}
	}
	return nil
}

func stepKnown(d *telemetry.Decision, id string) bool {
	return d != nil && slices.ContainsFunc(d.Steps, func(s telemetry.StepRecord) bool { return s.Step.ID == id })
}

func receiptKnown(d *telemetry.Decision, id string) bool {
	return d != nil && slices.ContainsFunc(d.Steps, func(s telemetry.StepRecord) bool { return s.Step.ID == id && s.Receipt != nil })
}

// standing says that a decision waits for a person.
func standing(d *telemetry.Decision) bool {
	return d.Outcome == telemetry.OutcomeRecommended || d.Outcome == telemetry.OutcomeAwaiting
}

// inFlight says that the act of a decision is on its way: not yet known to be
// done, or not yet known to have helped.
func inFlight(d *telemetry.Decision) bool {
	switch d.Outcome {
	case telemetry.OutcomeIntended, telemetry.OutcomeActing, telemetry.OutcomeActed:
		return true
	}
	return d.Ended.IsZero() && pendingStep(d) != nil
}
