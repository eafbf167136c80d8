package app

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// sightings is what was seen of each stage, with the time it was heard.
type sightings struct {
	mu       sync.Mutex
	observed map[string]map[uint64]time.Time // node → sequence
	intents  map[string]seenRecord           // by GPU, the first of each
	outcomes map[string]seenRecord
	receipts map[string][]seenReceipt
	disorder []string
}

type seenRecord struct {
	decision *telemetry.Decision
	written  time.Time // by the engine's clock, before it was sent
	heard    time.Time // from the stream, so it was stored and synced
}

type seenReceipt struct {
	receipt telemetry.Receipt
	heard   time.Time
}

func newSightings() *sightings {
	return &sightings{observed: map[string]map[uint64]time.Time{}, intents: map[string]seenRecord{}, outcomes: map[string]seenRecord{}, receipts: map[string][]seenReceipt{}}
}

func (s *sightings) observation(_ string, data []byte) {
	now := time.Now()
	var o telemetry.Observation
	if err := telemetry.DecodeObservation(data, &o); err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.observed[o.GetNode()] == nil {
		s.observed[o.GetNode()] = map[uint64]time.Time{}
	}
	s.observed[o.GetNode()][o.GetSequence()] = now
}

func (s *sightings) record(_ uint64, r telemetry.Record) {
	now := time.Now()
	if r.Decision == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	uuid, seen := r.Decision.Target.UUID, seenRecord{r.Decision, r.Time, now}
	_, intended := s.intents[uuid]
	switch _, ended := s.outcomes[uuid]; {
	case r.Topic == telemetry.TopicIntent && !intended:
		s.intents[uuid] = seen
	case r.Topic == telemetry.TopicOutcome && !intended:
		s.disorder = append(s.disorder, uuid+": an outcome before its intent")
	case r.Topic == telemetry.TopicOutcome && !ended:
		s.outcomes[uuid] = seen
	}
}

func (s *sightings) receipt(_ string, r telemetry.Receipt) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receipts[r.Target.UUID] = append(s.receipts[r.Target.UUID], seenReceipt{r, now})
}

// done says that every act has its receipt and its outcome.
func (s *sightings) done(acts int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.receipts) >= acts && len(s.outcomes) >= acts
}

// completing is the frame of a node that completes the filter.
type completing struct {
	seq  uint64
	sent time.Time // just before it was handed to the socket
}

// stages is where the time of one act went.
type stages struct {
	total       time.Duration // frame sent → receipt heard, stored and synced
	observation time.Duration // frame sent → observation on the bus
	plan        time.Duration // → the pass that planned the act
	intent      time.Duration // → its intent is stored and synced
	order       time.Duration // → the agent has the order
	agent       time.Duration // → the agent has written, read back and ended
	receipt     time.Duration // → its receipt is stored and synced
	outcome     time.Duration // → the outcome is stored and synced
}

// of puts together what was seen of one act, and says what should not have been
// seen: an act has one receipt, both say that it was done, and none is decided
// before the frame that completes the filter or begun before its intent.
func (s *sightings) of(node, uuid string, f completing) (stages, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	intent, receipts, outcome := s.intents[uuid], s.receipts[uuid], s.outcomes[uuid]
	if intent.decision == nil || len(receipts) != 1 || outcome.decision == nil {
		return stages{}, fmt.Errorf("%s: %d receipts, intent %v, outcome %v; want one of each", uuid, len(receipts), intent.decision != nil, outcome.decision != nil)
	}
	r := receipts[0]
	switch {
	case r.receipt.Result != telemetry.Done || outcome.decision.Outcome != telemetry.OutcomeActed:
		return stages{}, fmt.Errorf("%s: receipt %s (%s), outcome %s", uuid, r.receipt.Result, r.receipt.Detail, outcome.decision.Outcome)
	case intent.decision.Time.Before(f.sent):
		return stages{}, fmt.Errorf("%s: decided %s before the frame that completes the filter", uuid, f.sent.Sub(intent.decision.Time))
	case r.receipt.Started.Before(intent.written):
		return stages{}, fmt.Errorf("%s: the agent began before the intent was written", uuid)
	}
	observed := s.observed[node][f.seq]
	return stages{
		total: r.heard.Sub(f.sent), observation: observed.Sub(f.sent), plan: intent.decision.Time.Sub(observed), intent: intent.heard.Sub(intent.decision.Time),
		order: r.receipt.Started.Sub(intent.heard), agent: r.receipt.Ended.Sub(r.receipt.Started), receipt: r.heard.Sub(r.receipt.Ended), outcome: outcome.heard.Sub(r.heard),
	}, nil
}

// stageRows lists the stages as they are told, the whole first.
var stageRows = []struct {
	key, what string
	of        func(stages) time.Duration
}{
	{"total", "frame sent → receipt, all stored and synced", func(s stages) time.Duration { return s.total }},
	{"observation", "  frame sent → observation on the bus", func(s stages) time.Duration { return s.observation }},
	{"plan", "  → the pass that planned it", func(s stages) time.Duration { return s.plan }},
	{"intent", "  → intent in the journal", func(s stages) time.Duration { return s.intent }},
	{"order", "  → order with the agent", func(s stages) time.Duration { return s.order }},
	{"agent", "  → cap set and read back", func(s stages) time.Duration { return s.agent }},
	{"receipt", "  → receipt stored and heard", func(s stages) time.Duration { return s.receipt }},
	{"outcome", "afterwards → outcome in the journal", func(s stages) time.Duration { return s.outcome }},
}

// spread is p50, p99 and the most.
func spread(all []stages, of func(stages) time.Duration) (out [3]time.Duration) {
	d := make([]time.Duration, len(all))
	for i, s := range all {
		d[i] = of(s)
	}
	slices.Sort(d)
	if len(d) > 0 {
		out = [3]time.Duration{d[len(d)/2], d[(len(d)-1)*99/100], d[len(d)-1]}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func table(all []stages) string {
	var t strings.Builder
	fmt.Fprintf(&t, "latency of %d acts, ms:                           p50     p99     max\n", len(all))
	for _, row := range stageRows {
		d := spread(all, row.of)
		fmt.Fprintf(&t, "latency: %-46s %7.1f %7.1f %7.1f\n", row.what, ms(d[0]), ms(d[1]), ms(d[2]))
	}
	return t.String()
}
