package app

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	comfortable = 2 // ticks before the heat
	filterTicks = 3 // samples beyond the mark that the default thermal policy wants
	// hotTicks bounds the wait for the acts: one on a GPU is not repeated
	// before its effect could show, 15 s at the least.
	hotTicks = filterTicks + 10
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

// heat lets every node speak once a second, comfortable first and then hot
// where the shape says so, until all acts are done.
func (l *line) heat() map[string]completing {
	l.Helper()
	var (
		mu   sync.Mutex
		out  = map[string]completing{}
		wg   sync.WaitGroup
		base = time.Now().Truncate(time.Second).Add(time.Second)
	)
	for i, n := range l.nodes {
		offset := time.Second * time.Duration(i) / time.Duration(len(l.nodes))
		if l.shape.burst {
			offset = 0
		}
		wg.Go(func() {
			for tick := range comfortable + hotTicks {
				if tick >= comfortable+filterTicks && l.seen.done(l.shape.acts()) {
					return
				}
				time.Sleep(time.Until(base.Add(time.Duration(tick)*time.Second + offset)))
				data, err := n.frame(time.Now(), i < l.shape.hot && tick >= comfortable)
				if err != nil {
					l.Errorf("frame of %s: %v", n.name, err)
					return
				}
				sent := time.Now()
				if err := n.conn.PublishFrame(n.name, data); err != nil {
					l.Errorf("frame of %s: %v", n.name, err)
					return
				}
				if tick == comfortable+filterTicks-1 {
					mu.Lock()
					out[n.name] = completing{n.seq, sent}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return out
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

// stages reads the sightings, and fails on what should not have been seen:
// every GPU that got hot has one act with one receipt, in order, not before
// the frame that completes the filter.
func (l *line) stages(frames map[string]completing) []stages {
	l.Helper()
	s := l.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.disorder {
		l.Error(text)
	}
	if len(s.receipts) != l.shape.acts() || len(s.intents) != l.shape.acts() {
		l.Errorf("%d GPUs have receipts and %d intents, want %d", len(s.receipts), len(s.intents), l.shape.acts())
	}
	var out []stages
	for _, n := range l.nodes[:l.shape.hot] {
		f := frames[n.name]
		for _, uuid := range n.devices.uuids {
			intent, receipts, outcome := s.intents[uuid], s.receipts[uuid], s.outcomes[uuid]
			if intent.decision == nil || len(receipts) != 1 || outcome.decision == nil {
				l.Errorf("%s: %d receipts, intent %v, outcome %v; want one of each", uuid, len(receipts), intent.decision != nil, outcome.decision != nil)
				continue
			}
			r := receipts[0]
			if r.receipt.Result != telemetry.Done || outcome.decision.Outcome != telemetry.OutcomeActed {
				l.Errorf("%s: receipt %s (%s), outcome %s", uuid, r.receipt.Result, r.receipt.Detail, outcome.decision.Outcome)
			}
			if intent.decision.Time.Before(f.sent) {
				l.Errorf("%s: decided %s before the frame that completes the filter", uuid, f.sent.Sub(intent.decision.Time))
			}
			if r.receipt.Started.Before(intent.written) {
				l.Errorf("%s: the agent began before the intent was written", uuid)
			}
			observed := s.observed[n.name][f.seq]
			out = append(out, stages{
				total: r.heard.Sub(f.sent), observation: observed.Sub(f.sent), plan: intent.decision.Time.Sub(observed), intent: intent.heard.Sub(intent.decision.Time),
				order: r.receipt.Started.Sub(intent.heard), agent: r.receipt.Ended.Sub(r.receipt.Started), receipt: r.heard.Sub(r.receipt.Ended), outcome: outcome.heard.Sub(r.heard),
			})
		}
	}
	return out
}

// TestLatencyLine checks counts and order on a small line: one act and one
// receipt per hot GPU, none elsewhere, intent first.
func TestLatencyLine(t *testing.T) {
	l := startLine(t, lineShape{nodes: 3, gpus: 2, hot: 2})
	got := l.stages(l.heat())
	if len(got) != l.shape.acts() {
		t.Errorf("%d acts, want %d", len(got), l.shape.acts())
	}
	for i, n := range l.nodes {
		want := 0
		if i < l.shape.hot {
			want = l.shape.gpus
		}
		if n.devices.capped() != want {
			t.Errorf("%s: %d GPUs are capped, want %d", n.name, n.devices.capped(), want)
		}
	}
	for _, g := range got {
		if g.total <= 0 || g.observation <= 0 {
			t.Errorf("a stage that takes no time was not seen: %+v", g)
		}
	}
}

// BenchmarkLatency10Nodes is the way from a frame to a receipt, 10 nodes with 8
// GPUs, all of which get hot. An operation is a fresh line and one such wave.
func BenchmarkLatency10Nodes(b *testing.B) {
	b.Run("spread", func(b *testing.B) { benchmarkLatency(b, lineShape{nodes: 10, gpus: 8, hot: 10}) })
	b.Run("burst", func(b *testing.B) { benchmarkLatency(b, lineShape{nodes: 10, gpus: 8, hot: 10, burst: true}) })
}

// BenchmarkLatency1000Nodes is the same in a fleet of 1,000 nodes that all
// send, of which 10 get hot.
func BenchmarkLatency1000Nodes(b *testing.B) {
	benchmarkLatency(b, lineShape{nodes: 1000, gpus: 8, hot: 10})
}

func benchmarkLatency(b *testing.B, shape lineShape) {
	var all []stages
	for b.Loop() {
		l := startLine(b, shape)
		all = append(all, l.stages(l.heat())...)
		l.end()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(all)), "acts")
	total := spread(all, func(s stages) time.Duration { return s.total })
	b.ReportMetric(ms(total[0]), "p50-ms")
	b.ReportMetric(ms(total[1]), "p99-ms")
	b.ReportMetric(ms(total[2]), "max-ms")
	b.Log(table(all))
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
	for _, row := range []struct {
		what string
		of   func(stages) time.Duration
	}{
		{"frame sent → receipt, all stored and synced", func(s stages) time.Duration { return s.total }},
		{"  frame sent → observation on the bus", func(s stages) time.Duration { return s.observation }},
		{"  → the pass that planned it", func(s stages) time.Duration { return s.plan }},
		{"  → intent in the journal", func(s stages) time.Duration { return s.intent }},
		{"  → order with the agent", func(s stages) time.Duration { return s.order }},
		{"  → cap set and read back", func(s stages) time.Duration { return s.agent }},
		{"  → receipt stored and heard", func(s stages) time.Duration { return s.receipt }},
		{"afterwards → outcome in the journal", func(s stages) time.Duration { return s.outcome }},
	} {
		d := spread(all, row.of)
		fmt.Fprintf(&t, "latency: %-46s %7.1f %7.1f %7.1f\n", row.what, ms(d[0]), ms(d[1]), ms(d[2]))
	}
	return t.String()
}
