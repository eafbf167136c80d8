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
	// History lists what is kept of a GPU's last ten minutes, oldest first;
	// nothing for a GPU that is not known. The caller does not change it.
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

// Past is what is kept of the fleet beyond the last ten minutes, as series that
// PromQL can ask for by the names of the metric catalogue.
type Past interface {
	// Range evaluates an expression at from, and each step later until to.
	Range(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]Series, error)
	// Every is how often samples are taken.
	Every() time.Duration
}

// Series is one series of a Range, oldest sample first.
type Series struct {
	Labels  map[string]string
	Samples []Sample
}

// Sample is one value of a series.
type Sample struct {
	At time.Time
	V  float64
}

// Streams counts the readers of the stream.
type Streams interface {
	// Open is told how many there are when that changes.
	Open(n int)
	// Ended is told of each that was not ended by its reader.
	Ended(why StreamEnded)
}

// StreamEnded is why a stream was ended or refused.
type StreamEnded string

// Why streams are ended or refused.
const (
	StreamSlow StreamEnded = "slow" // it fell behind
	StreamHung StreamEnded = "hung" // it took nothing
	StreamFull StreamEnded = "full" // all places were taken
)

// StreamEndings are all of them, for pre-created series.
var StreamEndings = []StreamEnded{StreamSlow, StreamHung, StreamFull}

// uncounted is for whoever does not count.
type uncounted struct{}

func (uncounted) Open(int)          {}
func (uncounted) Ended(StreamEnded) {}

// Alerts is what the rules say now.
type Alerts interface {
	// Alerts lists the alerts that are pending or firing. The caller does not
	// change them.
	Alerts() []RuleAlert
}

// RuleAlert is one alert of one rule.
type RuleAlert struct {
	Rule        string
	Firing      bool      // else pending: not for long enough yet
	Since       time.Time // when its expression began to hold
	FiredAt     time.Time // zero while pending
	Value       float64
	Labels      map[string]string // with those of the rule
	Annotations map[string]string // filled in
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
