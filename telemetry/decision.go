package telemetry

import (
	"slices"
	"time"
)

// ActKind is a rung of the ladder.
type ActKind string

// The ladder, cheapest first. Gentle acts are steer and cap.
const (
	ActSteer       ActKind = "steer"
	ActCap         ActKind = "cap"
	ActPause       ActKind = "pause"
	ActMigrate     ActKind = "migrate"
	ActPreempt     ActKind = "preempt"
	ActShare       ActKind = "share"
	ActRepartition ActKind = "repartition"
	ActDrain       ActKind = "drain"
)

// Ladder is every act in order of cost.
var Ladder = []ActKind{ActSteer, ActCap, ActPause, ActMigrate, ActPreempt, ActShare, ActRepartition, ActDrain}

// Class says whether an act disturbs the workload.
type Class string

// Classes of acts.
const (
	Gentle     Class = "gentle"
	Disruptive Class = "disruptive"
)

// ClassOf returns the class of an act.
func ClassOf(a ActKind) Class {
	if a == ActSteer || a == ActCap {
		return Gentle
	}
	return Disruptive
}

// Mode says how far a policy may go.
type Mode string

// Modes, from watching to acting.
const (
	Observe   Mode = "observe"
	Recommend Mode = "recommend"
	Approve   Mode = "approve"
	Enforce   Mode = "enforce"
)

// Outcome is where a decision stands.
type Outcome string

// Outcomes. Everything before Verified is still on its way.
const (
	OutcomeRecommended Outcome = "recommended"
	OutcomeAwaiting    Outcome = "awaiting_approval"
	OutcomeIntended    Outcome = "intended"
	OutcomeActing      Outcome = "acting"
	OutcomeActed       Outcome = "acted"
	OutcomeVerified    Outcome = "verified"
	OutcomeIneffective Outcome = "ineffective"
	OutcomeUndone      Outcome = "undone"
	OutcomeEscalated   Outcome = "escalated" // a firmer act took its place
	OutcomeEased       Outcome = "eased"     // a milder act took its place
	OutcomeRefused     Outcome = "refused"
	OutcomeFailed      Outcome = "failed"
	OutcomeExpired     Outcome = "expired"
	OutcomeRejected    Outcome = "rejected"
)

// Outcomes is every outcome, for pre-created series.
var Outcomes = []Outcome{OutcomeRecommended, OutcomeAwaiting, OutcomeIntended, OutcomeActing, OutcomeActed, OutcomeVerified, OutcomeIneffective, OutcomeUndone, OutcomeEscalated, OutcomeEased, OutcomeRefused, OutcomeFailed, OutcomeExpired, OutcomeRejected}

// Open says whether a decision that has not ended holds something in this state.
func (o Outcome) Open() bool {
	switch o {
	case OutcomeIntended, OutcomeActing, OutcomeActed, OutcomeVerified, OutcomeIneffective:
		return true
	}
	return false
}

// Coverage is how much of the fleet a view could see.
type Coverage struct {
	Expected int     `json:"expected"`
	Fresh    int     `json:"fresh"`
	Ratio    float64 `json:"ratio"`
}

// Evidence is one value a decision stands on.
type Evidence struct {
	Signal  string  `json:"signal"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit,omitempty"`
	AgeMS   int64   `json:"age_ms"`
	Quality string  `json:"quality"`
	Note    string  `json:"note,omitempty"`
}

// Violation is a signal beyond its mark.
type Violation struct {
	Target Target  `json:"target"`
	Signal string  `json:"signal"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Mark   float64 `json:"mark"`
	Aim    float64 `json:"aim"`
	Seen   int     `json:"seen"` // samples beyond the mark …
	Of     int     `json:"of"`   // … of the last so many
	// Needed is 0 where an act is eased: Seen then counts samples clear of the aim.
	Needed  int     `json:"needed"`
	Agrees  string  `json:"agrees,omitempty"` // the second value that agrees, if one does
	Where   string  `json:"where,omitempty"`  // model, index, rack, row: for a person
	Slope   float64 `json:"slope_per_second,omitempty"`
	Reaches float64 `json:"seconds_to_limit,omitempty"`
	// Evidence lists the values with age and quality.
	Evidence []Evidence `json:"evidence,omitempty"`
}

// Candidate is a workload that causes a violation, with its share in it.
type Candidate struct {
	Workload WorkloadRef `json:"workload"`
	Owner    string      `json:"owner,omitempty"`
	Name     string      `json:"name,omitempty"` // of its command
	Priority int         `json:"priority"`
	Share    float64     `json:"share"`
	Note     string      `json:"note,omitempty"`
}

// Effect is a change of a signal, predicted or observed.
type Effect struct {
	Signal string    `json:"signal"`
	Unit   string    `json:"unit,omitempty"`
	Before float64   `json:"before"`
	After  float64   `json:"after"`
	At     time.Time `json:"at,omitzero"`
	Within Duration  `json:"within,omitempty"`
	Note   string    `json:"note,omitempty"`
}

// Change is how far the signal moves.
func (e Effect) Change() float64 { return e.After - e.Before }

// RefusalReason is why an act is not taken; a label value, so the list is
// closed.
type RefusalReason string

// Reasons for which the engine does not act.
const (
	RefusalStale        RefusalReason = "stale"
	RefusalSuspect      RefusalReason = "suspect"
	RefusalRestarted    RefusalReason = "source_restarted"
	RefusalUnconfirmed  RefusalReason = "unconfirmed"
	RefusalInFlight     RefusalReason = "in_flight"
	RefusalSettling     RefusalReason = "settling"
	RefusalBudget       RefusalReason = "budget"
	RefusalMode         RefusalReason = "mode"
	RefusalPaused       RefusalReason = "paused"
	RefusalBreaker      RefusalReason = "breaker"
	RefusalNotLeader    RefusalReason = "not_leader"
	RefusalAtLimit      RefusalReason = "at_limit"
	RefusalNotEnough    RefusalReason = "not_enough"
	RefusalUnknown      RefusalReason = "unknown_value"
	RefusalCoverage     RefusalReason = "coverage"
	RefusalNoActuator   RefusalReason = "no_actuator"
	RefusalUnsupported  RefusalReason = "unsupported"
	RefusalOptOut       RefusalReason = "opt_out"
	RefusalPDB          RefusalReason = "pdb"
	RefusalPriority     RefusalReason = "priority"
	RefusalMinRunTime   RefusalReason = "min_run_time"
	RefusalDowntime     RefusalReason = "downtime"
	RefusalGang         RefusalReason = "gang"
	RefusalNoPlace      RefusalReason = "no_place"
	RefusalNotWorth     RefusalReason = "not_worth"
	RefusalRepeat       RefusalReason = "repeat"
	RefusalMoves        RefusalReason = "moves"
	RefusalUnmovable    RefusalReason = "unmovable"
	RefusalHeldByOther  RefusalReason = "held_by_other"
	RefusalChangedSince RefusalReason = "changed_since"
	RefusalJournal      RefusalReason = "journal"
)

// RefusalReasons is every reason, for pre-created series.
var RefusalReasons = []RefusalReason{RefusalStale, RefusalSuspect, RefusalRestarted, RefusalUnconfirmed, RefusalInFlight, RefusalSettling, RefusalBudget, RefusalMode, RefusalPaused, RefusalBreaker, RefusalNotLeader, RefusalAtLimit, RefusalNotEnough, RefusalUnknown, RefusalCoverage, RefusalNoActuator, RefusalUnsupported, RefusalOptOut, RefusalPDB, RefusalPriority, RefusalMinRunTime, RefusalDowntime, RefusalGang, RefusalNoPlace, RefusalNotWorth, RefusalRepeat, RefusalMoves, RefusalUnmovable, RefusalHeldByOther, RefusalChangedSince, RefusalJournal}

// Refusal is a typed "no" with the numbers it rests on.
type Refusal struct {
	Reason RefusalReason `json:"reason"`
	Target Target        `json:"target"`
	Act    ActKind       `json:"act,omitempty"`
	// Have and Need are the two numbers compared, in Unit.
	Have  *float64  `json:"have,omitempty"`
	Need  *float64  `json:"need,omitempty"`
	Unit  string    `json:"unit,omitempty"`
	Until time.Time `json:"until,omitzero"`
	Text  string    `json:"text"`
}

// Alternative is an act that was weighed.
type Alternative struct {
	Act      ActKind   `json:"act"`
	Summary  string    `json:"summary"`
	Gain     float64   `json:"gain_gpu_seconds"`
	Cost     float64   `json:"cost_gpu_seconds"`
	Risk     float64   `json:"risk_gpu_seconds"`
	Net      float64   `json:"net_gpu_seconds"`
	Chosen   bool      `json:"chosen,omitempty"`
	Refusals []Refusal `json:"refusals,omitempty"`
}

// Act is one rung on one workload or GPU.
type Act struct {
	ID      string   `json:"id"`
	Kind    ActKind  `json:"kind"`
	Class   Class    `json:"class"`
	Target  Target   `json:"target"`
	Summary string   `json:"summary"`
	Steps   []Step   `json:"steps"`
	Lease   Duration `json:"lease,omitempty"`
	// GPUs are all that an act on a workload holds, the target's among them.
	GPUs []string `json:"gpus,omitempty"`
}

// StepRecord is a step with what became of it.
type StepRecord struct {
	Step    Step     `json:"step"`
	OrderID string   `json:"order_id,omitempty"`
	Receipt *Receipt `json:"receipt,omitempty"`
}

// Approval is a person's word on a decision.
type Approval struct {
	Decision string    `json:"decision"`
	By       string    `json:"by"`
	At       time.Time `json:"at"`
	Expires  time.Time `json:"expires,omitzero"`
	Verdict  string    `json:"verdict"` // approve, reject, undo
}

// Decision is the record of one decision from what was seen to whether it
// helped. One type prints itself for log, API, page and command line.
type Decision struct {
	ID       string  `json:"id"`
	Policy   string  `json:"policy"`
	Revision string  `json:"policy_revision,omitempty"`
	Mode     Mode    `json:"mode"`
	Kind     ActKind `json:"act"`
	Class    Class   `json:"class"`
	Target   Target  `json:"target"`
	Outcome  Outcome `json:"outcome"`
	Why      string  `json:"why"` // one line

	Time      time.Time `json:"time"`
	ViewTime  time.Time `json:"view_time"`
	Coverage  Coverage  `json:"coverage"`
	FirstSeen time.Time `json:"first_seen,omitzero"`
	LastSeen  time.Time `json:"last_seen,omitzero"`
	Epoch     Epoch     `json:"epoch"`

	Violations   []Violation           `json:"violations,omitempty"`
	Candidates   []Candidate           `json:"candidates,omitempty"`
	Alternatives []Alternative         `json:"alternatives,omitempty"`
	Refusals     []Refusal             `json:"refusals,omitempty"`
	RefusalCount map[RefusalReason]int `json:"refusal_counts,omitempty"`

	Act       *Act         `json:"chosen,omitempty"`
	Predicted *Effect      `json:"predicted,omitempty"`
	Steps     []StepRecord `json:"steps,omitempty"`
	Observed  *Effect      `json:"observed,omitempty"`
	VerifyBy  time.Time    `json:"verify_by,omitzero"`
	Ended     time.Time    `json:"ended,omitzero"`
	Ending    string       `json:"ending,omitempty"` // one line on how it ended
	Approval  *Approval    `json:"approval,omitempty"`
}

// Open says whether the decision still holds something that may have to be
// renewed, verified or undone.
func (d *Decision) Open() bool { return d.Ended.IsZero() && d.Outcome.Open() }

// Holds says whether the act of a decision is one on a GPU, or on a workload
// that has it.
func (d *Decision) Holds(uuid string) bool {
	return uuid != "" && (d.Target.UUID == uuid || d.Act != nil && slices.Contains(d.Act.GPUs, uuid))
}

// MaxDetailedRefusals bounds the refusals kept in one record.
const MaxDetailedRefusals = 50

// Topic is a part of the journal.
type Topic string

// Journal topics.
const (
	TopicIntent   Topic = "intent"
	TopicOutcome  Topic = "outcome"
	TopicApproval Topic = "approval"
	TopicMode     Topic = "mode"
	TopicBreaker  Topic = "breaker"
	TopicSnapshot Topic = "snapshot"
)

// Topics is every topic.
var Topics = []Topic{TopicIntent, TopicOutcome, TopicApproval, TopicMode, TopicBreaker, TopicSnapshot}

// Record is one journal entry. Exactly the field of its topic is set; an
// outcome carries the decision as it then stands.
type Record struct {
	ID       string       `json:"id"` // message id, for deduplication
	Topic    Topic        `json:"topic"`
	Time     time.Time    `json:"time"`
	Epoch    Epoch        `json:"epoch"`
	Decision *Decision    `json:"decision,omitempty"`
	Approval *Approval    `json:"approval,omitempty"`
	Mode     *ModeChange  `json:"mode,omitempty"`
	Breaker  *BreakerTrip `json:"breaker,omitempty"`
	// Refused is set on an outcome that records a change of the set of
	// refusals of a pass that changed nothing.
	Refused  *RefusalSet `json:"refused,omitempty"`
	Snapshot []byte      `json:"snapshot,omitempty"`
}

// ModeChange is a person's change of how far the rebalancer may go.
type ModeChange struct {
	Policy string `json:"policy,omitempty"` // empty: all
	Class  Class  `json:"class,omitempty"`  // empty: both
	Mode   Mode   `json:"mode,omitempty"`
	Paused *bool  `json:"paused,omitempty"`
	All    bool   `json:"all,omitempty"`
	By     string `json:"by"`
}

// BreakerTrip is the breaker opening or, by a person, closing.
type BreakerTrip struct {
	Open   bool    `json:"open"`
	Domain string  `json:"domain,omitempty"`
	Reason string  `json:"reason"`
	Have   float64 `json:"have"`
	Limit  float64 `json:"limit"`
	By     string  `json:"by,omitempty"`
}

// RefusalSet is why a pass that saw something changed nothing.
type RefusalSet struct {
	Counts  map[RefusalReason]int `json:"counts"`
	Details []Refusal             `json:"details,omitempty"`
}
