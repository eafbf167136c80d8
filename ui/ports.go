package ui

import (
	"context"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Fleet is the model of the fleet and what is kept of its past.
type Fleet interface {
	// View is the newest View, never nil. It is asked for at most once a second
	// by the stream and once by each request.
	View() *cluster.View
	// History lists what is kept of a GPU, oldest first; nothing for a GPU that
	// is not known. The caller does not change it.
	History(uuid string) []Point
	// Changes returns a channel that holds a token after the View or a decision
	// has changed, until ctx ends. Tokens coalesce: a sender never waits.
	Changes(ctx context.Context) <-chan struct{}
}

// Point is one sample of a GPU's past, in base units.
type Point struct {
	At          time.Time
	Headroom    cluster.Opt // celsius to slowdown
	Core        cluster.Opt // celsius
	Memory      cluster.Opt // celsius
	Power       cluster.Opt // watts
	Limit       cluster.Opt // watts
	Utilization cluster.Opt // ratio
	Clock       cluster.Opt // hertz, of the multiprocessors
}

// Decisions is the journal as folded: each decision as it stands now.
type Decisions interface {
	// Decisions lists them, newest first. Neither the list nor a decision in it
	// changes once it was returned: a changed decision is a new value.
	Decisions() []*telemetry.Decision
	// Decision returns one by id.
	Decision(id string) (*telemetry.Decision, bool)
}

// Brakes is what holds the rebalancer back as a whole.
type Brakes interface {
	// Breakers is the last word on each breaker.
	Breakers() []telemetry.BreakerTrip
	// Modes lists what people changed of how far it may go, oldest first.
	Modes() []telemetry.ModeChange
}

// Control asks the leader of the rebalancer. Verbs used here are explain, with
// an ExplainRequest for an ExplainAnswer, and plan, whose body and answer are passed on as they are.
type Control interface {
	// Control returns the leader's answer. No leader is an error that says so.
	Control(ctx context.Context, verb string, body []byte) ([]byte, error)
}

// ExplainRequest is the body of the control verb explain: why a workload was
// or was not acted on, or why nothing happens now.
type ExplainRequest struct {
	Workload telemetry.WorkloadRef `json:"workload,omitempty"`
	Nothing  bool                  `json:"nothing,omitempty"`
}

// ExplainAnswer is what the API uses of the leader's answer.
type ExplainAnswer struct {
	Text string `json:"text"`
}
