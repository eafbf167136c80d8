package telemetry

import (
	"fmt"
	"time"
)

// StepKind is one backend call.
type StepKind string

// Step kinds. An agent takes those of the node; the others go to schedulers.
const (
	StepPowerCap    StepKind = "power_cap"
	StepClockLock   StepKind = "clock_lock"
	StepMIG         StepKind = "mig"
	StepMPSShare    StepKind = "mps_share"
	StepTimeSlice   StepKind = "time_slice"
	StepComputeMode StepKind = "compute_mode"
	StepSignal      StepKind = "signal"
	StepPreempt     StepKind = "preempt" // end a process tree: signal, grace, KILL, released at the device
	StepFreeze      StepKind = "freeze"
	StepThaw        StepKind = "thaw"
	StepCheckpoint  StepKind = "checkpoint"
	StepRelease     StepKind = "release"
	StepSteer       StepKind = "steer"
	StepSuspend     StepKind = "suspend"
	StepResume      StepKind = "resume"
	StepEvict       StepKind = "evict"
	StepRequeue     StepKind = "requeue"
	StepCordon      StepKind = "cordon"
	StepDrain       StepKind = "drain"
	StepNotify      StepKind = "notify"
	StepRenew       StepKind = "renew"
	StepUndo        StepKind = "undo"
)

// Target is the one thing a step acts on. A GPU is uuid, gi and generation; a
// process is pid, start and boot id; never a bare name that may be reused.
type Target struct {
	Node       string      `json:"node,omitempty"`
	UUID       string      `json:"uuid,omitempty"`
	GI         *uint32     `json:"gi,omitempty"`
	Generation uint64      `json:"generation,omitempty"`
	PID        int         `json:"pid,omitempty"`
	PIDStart   uint64      `json:"pid_start,omitempty"`
	BootID     string      `json:"boot_id,omitempty"`
	Workload   WorkloadRef `json:"workload,omitempty"`
	UID        string      `json:"uid,omitempty"`
}

// String names the target for a person.
func (t Target) String() string {
	switch {
	case t.PID != 0:
		return fmt.Sprintf("process %d on %s", t.PID, t.Node)
	case t.UUID != "" && t.GI != nil:
		return fmt.Sprintf("%s/gi%d on %s", t.UUID, *t.GI, t.Node)
	case t.UUID != "":
		return fmt.Sprintf("%s on %s", t.UUID, t.Node)
	case t.Workload != "":
		return string(t.Workload)
	}
	return t.Node
}

// Epoch fences leaders: a lower one than the highest seen is refused.
// Incarnation identifies the lease bucket's life, Revision the lease in it.
type Epoch struct {
	Incarnation string `json:"incarnation"`
	Revision    uint64 `json:"revision"`
}

// MIGPlacement is one instance at an explicit place.
type MIGPlacement struct {
	Profile string `json:"profile"`
	Start   uint32 `json:"start"`
	Size    uint32 `json:"size"`
}

// Params holds what a step kind needs; unused fields are absent.
type Params struct {
	PowerLimitWatts   *float64       `json:"power_limit_watts,omitempty"`
	ClockMinHertz     *float64       `json:"clock_min_hertz,omitempty"`
	ClockMaxHertz     *float64       `json:"clock_max_hertz,omitempty"`
	MIG               []MIGPlacement `json:"mig,omitempty"`
	MPSThreadsPercent *float64       `json:"mps_threads_percent,omitempty"`
	TimeSlice         string         `json:"time_slice,omitempty"`
	ComputeMode       string         `json:"compute_mode,omitempty"`
	Signal            string         `json:"signal,omitempty"`
	Grace             Duration       `json:"grace,omitempty"`
	Nodes             []string       `json:"nodes,omitempty"`
	ExcludeNodes      []string       `json:"exclude_nodes,omitempty"`
	NotBefore         time.Time      `json:"not_before,omitzero"`
	Message           string         `json:"message,omitempty"`
	// Of is the step that a renewal or an undo is about.
	Of string `json:"of,omitempty"`
	// FoundWatts is the limit before the act, so that undo can be compare-and-set.
	FoundWatts *float64 `json:"found_watts,omitempty"`
}

// Order is one step for one agent. It is signed as a whole.
type Order struct {
	ID        string    `json:"id"`
	Decision  string    `json:"decision"`
	Kind      StepKind  `json:"kind"`
	Target    Target    `json:"target"`
	Params    Params    `json:"params"`
	Epoch     Epoch     `json:"epoch"`
	DryRun    bool      `json:"dry_run,omitempty"`
	SentAt    time.Time `json:"sent_at"`
	NotBefore time.Time `json:"not_before,omitzero"`
	Expires   time.Time `json:"expires"`
	// Lease is how long the effect may last unless renewed.
	Lease Duration `json:"lease,omitempty"`
}

// AskedAt is the send time of an order that only asks what became of the one
// with its id: by no clock is it an order that may still be begun.
var AskedAt = time.Unix(1, 0)

// Asks says that the order begins nothing.
func (o *Order) Asks() bool { return o.SentAt.Equal(AskedAt) }

// Check refuses an order that no agent could carry out safely.
func (o *Order) Check() error {
	switch {
	case o.ID == "" || o.Decision == "":
		return fmt.Errorf("order without id or decision")
	case o.Target.Node == "":
		return fmt.Errorf("order %s: no target node", o.ID)
	case o.Epoch.Incarnation == "" || o.Epoch.Revision == 0:
		return fmt.Errorf("order %s: no epoch", o.ID)
	case o.SentAt.IsZero() || o.Expires.IsZero():
		return fmt.Errorf("order %s: no send time or no expiry", o.ID)
	case !o.Expires.After(o.SentAt):
		return fmt.Errorf("order %s: expires before it was sent", o.ID)
	case (o.Kind == StepRenew || o.Kind == StepUndo) && o.Params.Of == "":
		return fmt.Errorf("order %s: %s names no step", o.ID, o.Kind)
	}
	return nil
}

// Result is how a step ended.
type Result string

// Results of a step. Unknown is what a backend answers for a step that it has
// never seen.
const (
	Done    Result = "done"
	Refused Result = "refused"
	Failed  Result = "failed"
	Pending Result = "pending"
	Unknown Result = "unknown"
)

// RefuseReason is why an agent or a backend refuses a step; a label value, so
// the list is closed.
type RefuseReason string

// Reasons for which a step is refused where it would be carried out.
const (
	RefuseSignature   RefuseReason = "signature"
	RefuseMalformed   RefuseReason = "malformed"
	RefuseWrongNode   RefuseReason = "wrong_node"
	RefuseExpired     RefuseReason = "expired"
	RefuseNotYet      RefuseReason = "not_yet"
	RefuseEpoch       RefuseReason = "epoch"
	RefuseNotAllowed  RefuseReason = "not_allowed"
	RefuseLimit       RefuseReason = "limit"
	RefuseClock       RefuseReason = "clock"
	RefuseNoTarget    RefuseReason = "no_target"
	RefuseGeneration  RefuseReason = "generation"
	RefuseNotOurs     RefuseReason = "not_ours"
	RefuseUnknownStep RefuseReason = "unknown_step"
	RefuseUnsupported RefuseReason = "unsupported"
	RefuseBusy        RefuseReason = "busy"
)

// RefuseReasons is every reason, for pre-created series.
var RefuseReasons = []RefuseReason{RefuseSignature, RefuseMalformed, RefuseWrongNode, RefuseExpired, RefuseNotYet, RefuseEpoch, RefuseNotAllowed, RefuseLimit, RefuseClock, RefuseNoTarget, RefuseGeneration, RefuseNotOurs, RefuseUnknownStep, RefuseUnsupported, RefuseBusy}

// Receipt is what became of a step.
type Receipt struct {
	StepID   string       `json:"step_id"`
	Decision string       `json:"decision,omitempty"`
	Kind     StepKind     `json:"kind,omitempty"`
	Target   Target       `json:"target"`
	Result   Result       `json:"result"`
	Why      RefuseReason `json:"why,omitempty"`
	Detail   string       `json:"detail,omitempty"`
	// Undone is what was put back after a failure.
	Undone  string    `json:"undone,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Before and After are read back from the device, in base units.
	Before      map[string]float64 `json:"before,omitempty"`
	After       map[string]float64 `json:"after,omitempty"`
	LeaseUntil  time.Time          `json:"lease_until,omitzero"`
	Node        string             `json:"node,omitempty"`
	BootID      string             `json:"boot_id,omitempty"`
	Incarnation uint64             `json:"incarnation,omitempty"`
	// Spontaneous receipts tell what the agent did on its own: a lease that
	// ran out, an unfinished order found at start.
	Spontaneous bool `json:"spontaneous,omitempty"`
	DryRun      bool `json:"dry_run,omitempty"`
}

// Step is one call to one backend, as the engine hands it to an actuator.
type Step struct {
	ID        string    `json:"id"`
	Decision  string    `json:"decision"`
	Kind      StepKind  `json:"kind"`
	Backend   string    `json:"backend"` // node, k8s-NAME, slurm-NAME
	Target    Target    `json:"target"`
	Params    Params    `json:"params"`
	DryRun    bool      `json:"dry_run,omitempty"`
	Epoch     Epoch     `json:"epoch"`
	NotBefore time.Time `json:"not_before,omitzero"`
	Deadline  time.Time `json:"deadline,omitzero"`
	Lease     Duration  `json:"lease,omitempty"`
}

// PowerLimits are the power limits of a device, in watts.
type PowerLimits struct {
	Current, Default, Min, Max float64
}
