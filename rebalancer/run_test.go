package rebalancer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// lease gives the leadership to whoever holds it, unless the test takes it.
type lease struct {
	mu       sync.Mutex
	revision uint64
	taken    bool
	fails    error
}

const leaseTTL = 9 * time.Second

func (l *lease) Hold(ctx context.Context, _ string, changed func(rebalancer.Leadership)) error {
	l.mu.Lock()
	l.revision++
	epoch := telemetry.Epoch{Incarnation: "test", Revision: l.revision}
	l.mu.Unlock()
	t := time.NewTicker(leaseTTL / 3)
	defer t.Stop()
	for {
		l.mu.Lock()
		held, fails := !l.taken, l.fails
		l.mu.Unlock()
		if fails != nil {
			return fails
		}
		changed(rebalancer.Leadership{Held: held, Epoch: epoch, Until: time.Now().Add(leaseTTL)})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

func (l *lease) take(taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = taken
	if !taken {
		l.revision++
	}
}

// live is a world with an engine in a synctest bubble.
type live struct {
	t       *testing.T
	w       *world
	journal *journal
	lease   *lease
	reg     *prometheus.Registry
	engine  *rebalancer.Engine
	config  rebalancer.Config
	stop    context.CancelFunc
	ended   chan error
}

func newLive(t *testing.T, w *world, change ...func(*rebalancer.Config)) *live {
	t.Helper()
	w.now = time.Now()
	w.since = w.now.Add(-time.Hour)
	l := &live{t: t, w: w, journal: &journal{}, lease: &lease{}}
	policies := enforcing()
	l.config = rebalancer.Config{Holder: "test", Policies: policies, Actuators: []rebalancer.Actuator{w}, Journal: l.journal, Lease: l.lease, Log: quiet(), Now: time.Now}
	for _, f := range change {
		f(&l.config)
	}
	l.begin()
	t.Cleanup(l.end)
	return l
}

// begin starts a new process on the same journal.
func (l *live) begin() {
	l.t.Helper()
	l.config.Metrics, l.reg = metricsOf(l.config.Policies)
	e, err := rebalancer.New(l.config)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l.engine, l.stop, l.ended = e, stop, make(chan error, 1)
	go func() { l.ended <- e.Run(ctx) }()
	time.Sleep(time.Second / 2) // Views come between the engine's own ticks
	synctest.Wait()
}

// end stops the process, wherever it is.
func (l *live) end() {
	if l.stop != nil {
		l.stop()
		<-l.ended
		l.stop = nil
	}
}

// run lets time pass, with a View a second.
func (l *live) run(d time.Duration) {
	l.settle()
	defer l.settle()
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		l.w.advance(time.Since(l.w.now))
		if l.stop != nil {
			l.engine.Update(l.w.view())
		}
		synctest.Wait()
	}
}

// settle waits for the engine, and orders what the test reads and writes of the
// world against what the agents do.
func (l *live) settle() {
	synctest.Wait()
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
}

func (l *live) until(limit time.Duration, what string, done func() bool) {
	l.t.Helper()
	for range int(limit / time.Second) {
		if done() {
			return
		}
		l.run(time.Second)
	}
	if !done() {
		l.t.Fatalf("not within %s: %s\n%v", limit, what, l.journal.fold(l.t).Decisions)
	}
}

func (l *live) ask(verb string, q rebalancer.Request, into any) error {
	l.t.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		l.t.Fatal(err)
	}
	l.settle()
	reply, err := l.engine.Control(verb, body)
	l.settle()
	if err == nil && into != nil {
		if err := json.Unmarshal(reply, into); err != nil {
			l.t.Fatal(err)
		}
	}
	return err
}

// metric is the value of one series.
func (l *live) metric(name string, labels ...string) float64 {
	l.t.Helper()
	families, err := l.reg.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && has(m, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	l.t.Fatalf("no series %s%v", name, labels)
	return 0
}

func has(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}

func (l *live) outcome() telemetry.Outcome {
	m := l.journal.fold(l.t)
	for _, d := range m.Decisions {
		return d.Outcome
	}
	for _, d := range m.Closed {
		return d.Outcome
	}
	return ""
}

// bubble runs a test with its own time.
func bubble(t *testing.T, f func(*testing.T)) { t.Helper(); synctest.Test(t, f) }

func TestEngineFromHeatToUndone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 2)
		l := newLive(t, w)
		l.run(10 * time.Second)
		w.device("GPU-00-1").r = 0.1 // its cooler clogs
		l.until(30*time.Second, "acted", func() bool { return l.outcome() == telemetry.OutcomeActed })
		if w.device("GPU-00-1").limit == defaultW || w.device("GPU-00-0").limit != defaultW {
			t.Errorf("limits %v and %v, want the second one cut", w.device("GPU-00-0").limit, w.device("GPU-00-1").limit)
		}
		l.until(2*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		w.device("GPU-00-1").r = 0.06
		l.until(5*time.Minute, "undone", func() bool { return l.outcome() == telemetry.OutcomeUndone })
		if got := w.device("GPU-00-1").limit; got != defaultW {
			t.Errorf("limit is %v after the undo", got)
		}
		checkIntentsFirst(t, l.journal.all())
		for _, o := range []telemetry.Outcome{telemetry.OutcomeIntended, telemetry.OutcomeActed, telemetry.OutcomeVerified, telemetry.OutcomeUndone} {
			if got := l.metric("evenkeel_decisions_total", "policy", "thermal", "act", "cap", "outcome", string(o)); got != 1 {
				t.Errorf("evenkeel_decisions_total{outcome=%q} = %v, want 1", o, got)
			}
		}
		if got := l.metric("evenkeel_effect", "kind", "observed"); got <= 0 {
			t.Errorf("observed effect %v, want headroom gained", got)
		}
		if got := l.metric("evenkeel_leader"); got != 1 {
			t.Errorf("evenkeel_leader = %v", got)
		}
		if got := l.metric("evenkeel_last_pass_timestamp_seconds"); got < float64(time.Now().Unix()-2) {
			t.Errorf("last pass at %v", got)
		}
	})
}

// checkIntentsFirst wants an intent in the journal before any receipt.
func checkIntentsFirst(t *testing.T, records []telemetry.Record) {
	t.Helper()
	intended := map[string]bool{}
	for i, r := range records {
		if r.Decision == nil {
			continue
		}
		for _, s := range r.Decision.Steps {
			if r.Topic == telemetry.TopicIntent {
				intended[s.Step.ID] = true
			}
			if s.Receipt != nil && !intended[s.Step.ID] {
				t.Errorf("record %d has a receipt of %s, which no record intended", i+1, s.Step.ID)
			}
		}
	}
}

// The engine dies at each point between seeing and knowing. Whatever the
// point, the next one ends it right and nothing is done twice.
func TestCrashAtEveryPoint(t *testing.T) {
	died := errors.New("process died here")
	points := []struct {
		name string
		// arm makes the process die; die ends it.
		arm func(l *live, die func())
	}{
		{"before the intent is written", func(l *live, die func()) {
			l.journal.before = func(r telemetry.Record) error {
				if r.Topic == telemetry.TopicIntent {
					die()
					return died
				}
				return nil
			}
		}},
		{"after the intent, before the order", func(l *live, die func()) {
			l.journal.after = func(r telemetry.Record) error {
				if r.Topic == telemetry.TopicIntent {
					die()
					return died
				}
				return nil
			}
		}},
		{"while the order is carried out", func(l *live, die func()) {
			l.config.Actuators = []rebalancer.Actuator{&dying{world: l.w, die: die}}
		}},
		{"before the outcome is written", func(l *live, die func()) {
			l.journal.before = func(r telemetry.Record) error {
				if r.Topic == telemetry.TopicOutcome {
					die()
					return died
				}
				return nil
			}
		}},
		{"after the outcome is written", func(l *live, die func()) {
			l.journal.after = func(r telemetry.Record) error {
				if r.Topic == telemetry.TopicOutcome {
					die()
					return died
				}
				return nil
			}
		}},
	}
	for _, cleared := range []bool{false, true} {
		for _, p := range points {
			t.Run(fmt.Sprintf("%s, cause gone %v", p.name, cleared), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(1, 1)
					l := newLive(t, w)
					l.end()
					dead := false
					p.arm(l, func() {
						if !dead {
							dead = true
							l.stop()
						}
					})
					l.begin()
					d := w.device("GPU-00-0")
					d.r = 0.1
					l.until(time.Minute, "death", func() bool { return dead })
					l.end()
					l.journal.before, l.journal.after, l.config.Actuators = nil, nil, []rebalancer.Actuator{w}
					if cleared {
						d.r, d.temp = 0.06, 70
					}
					l.run(3 * time.Second)
					l.begin()
					l.run(4 * time.Minute)
					endsRight(t, l, d, cleared)
				})
			})
		}
	}
}

func endsRight(t *testing.T, l *live, d *device, cleared bool) {
	t.Helper()
	for id, n := range l.w.calls {
		if n > 1 {
			t.Errorf("step %s was done %d times", id, n)
		}
	}
	checkIntentsFirst(t, l.journal.all())
	m := l.journal.fold(t)
	for _, open := range m.Decisions {
		if open.Outcome != telemetry.OutcomeVerified {
			t.Errorf("%s is left %s", open.ID, open.Outcome)
		}
	}
	if cleared && d.limit != defaultW {
		t.Errorf("the limit is still %v though the cause is gone", d.limit)
	}
	if !cleared && (d.limit == defaultW || d.headroom() < 5 || len(m.Decisions) != 1) {
		t.Errorf("limit %v, headroom %.1f, %d open decisions: want one cap that holds", d.limit, d.headroom(), len(m.Decisions))
	}
	if d.sets > 2 {
		t.Errorf("the limit was set %d times", d.sets)
	}
}

// dying does the first order and dies before anybody hears of it.
type dying struct {
	*world
	die func()
}

func (d *dying) Do(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	_, _ = d.world.Do(ctx, s)
	d.die()
	return telemetry.Receipt{}, context.Canceled
}

func TestFollowerOnlyLooks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.lease.take(true)
		l.run(10 * time.Second)
		w.device("GPU-00-0").r = 0.1
		l.run(time.Minute)
		if n := len(l.journal.all()); n != 0 || w.device("GPU-00-0").sets != 0 {
			t.Fatalf("a follower wrote %d records and set the limit %d times", n, w.device("GPU-00-0").sets)
		}
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(x.Text, "does not lead") || x.Refused.Counts[telemetry.RefusalNotLeader] != 1 {
			t.Errorf("explanation does not say why:\n%s", x.Text)
		}
		if err := l.ask("pause", rebalancer.Request{By: "ada"}, nil); err == nil || !strings.Contains(err.Error(), "does not lead") {
			t.Errorf("pause on a follower: %v", err)
		}
		if l.metric("evenkeel_leader") != 0 || l.metric("evenkeel_refusals_total", "reason", "not_leader") != 1 {
			t.Errorf("metrics: leader %v, not_leader %v", l.metric("evenkeel_leader"), l.metric("evenkeel_refusals_total", "reason", "not_leader"))
		}
		l.lease.take(false)
		l.until(30*time.Second, "acted as leader", func() bool { return w.device("GPU-00-0").sets == 1 })
	})
}

// Another leader has written: the plan is dropped, the journal read, and the
// act follows on what is there.
func TestConflictDropsThePlan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		paused := true
		if _, err := l.journal.Append(t.Context(), 0, telemetry.Record{ID: "other", Topic: telemetry.TopicMode, Time: time.Now(), Mode: &telemetry.ModeChange{Paused: &paused, All: true, By: "other"}}); err != nil {
			t.Fatal(err)
		}
		w.device("GPU-00-0").r = 0.1
		l.run(time.Minute)
		if w.device("GPU-00-0").sets != 0 {
			t.Error("acted although the journal says that all acts are paused")
		}
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil || !strings.Contains(x.Text, "all acts are paused") {
			t.Errorf("%v\n%s", err, x.Text)
		}
	})
}

func TestNothingIsDoneWithoutAJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		l.journal.hook(func(telemetry.Record) error { return errors.New("disk full") }, nil, nil)
		w.device("GPU-00-0").r = 0.1
		l.run(30 * time.Second)
		if w.device("GPU-00-0").sets != 0 {
			t.Fatal("acted without a record")
		}
		if got := l.metric("evenkeel_refusals_total", "reason", "journal"); got == 0 {
			t.Error("no refusal is counted")
		}
		l.journal.hook(nil, nil, errors.New("no stream"))
		l.run(10 * time.Second)
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil || x.Refused.Counts[telemetry.RefusalJournal] == 0 {
			t.Errorf("%v\n%s", err, x.Text)
		}
		l.journal.hook(nil, nil, nil)
		l.until(10*time.Second, "acted once it can be written", func() bool { return w.device("GPU-00-0").sets == 1 })
	})
}

// A View that comes while the intent is written shows that the cause has gone.
func TestChangedSinceThePlan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		d := w.device("GPU-00-0")
		l.journal.hook(nil, func(r telemetry.Record) error {
			if r.Topic == telemetry.TopicIntent {
				w.mu.Lock()
				d.r, d.temp, d.slope = 0.06, 60, 0
				w.mu.Unlock()
				l.engine.Update(w.view())
			}
			return nil
		}, nil)
		d.r = 0.1
		l.until(time.Minute, "refused", func() bool { return l.outcome() == telemetry.OutcomeRefused })
		if d.sets != 0 {
			t.Error("acted on what was no longer so")
		}
		m := l.journal.fold(t)
		closed := m.Closed[0]
		if n := len(closed.Refusals); n != 1 || closed.Refusals[0].Reason != telemetry.RefusalChangedSince || len(closed.Steps) != 0 {
			t.Errorf("refusals %v, steps %v", closed.Refusals, closed.Steps)
		}
		if got := l.metric("evenkeel_refusals_total", "reason", "changed_since"); got != 1 {
			t.Errorf("changed_since counted %v times", got)
		}
	})
}

// An agent that does not answer holds nobody up, and its order ends in time.
func TestAgentAbsent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 1)
		w.down["n00"] = true
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.device("GPU-00-0").r, w.device("GPU-01-0").r = 0.1, 0.1
		l.until(30*time.Second, "the other node acted", func() bool { return w.device("GPU-01-0").sets == 1 })
		l.until(2*time.Minute, "expired", func() bool {
			m := l.journal.fold(t)
			return len(m.Closed) > 0 && m.Closed[0].Outcome == telemetry.OutcomeExpired
		})
		m := l.journal.fold(t)
		if g := m.GPUs["GPU-00-0"]; g.Failures != 1 {
			t.Errorf("%d failures kept, want 1", g.Failures)
		}
		w.mu.Lock()
		w.down["n00"] = false
		w.mu.Unlock()
		l.until(3*time.Minute, "acted when the agent is back", func() bool { return w.device("GPU-00-0").sets == 1 })
	})
}

func TestLateAndSpontaneousReceipts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		w.device("GPU-00-0").r = 0.1
		l.until(2*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		var d *telemetry.Decision
		m := l.journal.fold(t)
		for _, d = range m.Decisions {
		}
		step := d.Steps[0].Step
		l.engine.Receipt(telemetry.Receipt{StepID: step.ID, Result: telemetry.Done}) // heard before
		l.engine.Receipt(telemetry.Receipt{StepID: step.ID, Kind: telemetry.StepUndo, Result: telemetry.Done, Spontaneous: true, Node: "n99", Detail: "forged"})
		l.engine.Receipt(telemetry.Receipt{StepID: "d-999999.1", Result: telemetry.Done, Spontaneous: true})
		l.run(time.Second)
		if l.outcome() != telemetry.OutcomeVerified {
			t.Fatalf("outcome %s after receipts that say nothing new", l.outcome())
		}
		l.engine.Receipt(telemetry.Receipt{StepID: step.ID, Kind: telemetry.StepUndo, Result: telemetry.Done, Spontaneous: true, Detail: "lease ended"})
		l.run(time.Second)
		if l.outcome() != telemetry.OutcomeUndone {
			t.Errorf("outcome %s after the agent undid it", l.outcome())
		}
		m = l.journal.fold(t)
		if len(m.Closed) != 1 || m.Closed[0].Ending != "undone by its owner: lease ended" {
			t.Errorf("closed: %v", m.Closed)
		}
	})
}

func TestLeaderStopsWithAThirdOfTheLeaseLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		short := &stalling{}
		l := newLive(t, w, func(c *rebalancer.Config) { c.Lease = short })
		l.run(5 * time.Second)
		if l.metric("evenkeel_leader") != 1 {
			t.Fatal("not leading after 5 s of a lease of 9 s")
		}
		w.device("GPU-00-0").temp = 89
		l.run(2 * time.Second)
		sets := w.device("GPU-00-0").sets
		w.device("GPU-00-0").temp = 89.9
		l.run(10 * time.Second)
		if l.metric("evenkeel_leader") != 0 || w.device("GPU-00-0").sets != sets {
			t.Errorf("leader %v, limit set %d times after the lease was not renewed", l.metric("evenkeel_leader"), w.device("GPU-00-0").sets)
		}
	})
}

// stalling grants one lease and is never heard of again.
type stalling struct{}

func (*stalling) Hold(ctx context.Context, _ string, changed func(rebalancer.Leadership)) error {
	changed(rebalancer.Leadership{Held: true, Epoch: epoch, Until: time.Now().Add(leaseTTL)})
	<-ctx.Done()
	return ctx.Err()
}

func TestRunEndsWithItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLive(t, newWorld(1, 1))
		l.lease.mu.Lock()
		l.lease.fails = errors.New("no bucket")
		l.lease.mu.Unlock()
		time.Sleep(leaseTTL)
		if err := <-l.ended; err == nil || !strings.Contains(err.Error(), "no bucket") {
			t.Errorf("Run ended with %v", err)
		}
		l.stop()
		l.stop = nil
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	m, _ := metricsOf(nil)
	good := rebalancer.Config{Holder: "a", Journal: &journal{}, Lease: &lease{}, Metrics: m, Log: quiet(), Now: time.Now}
	for name, break_ := range map[string]func(*rebalancer.Config){
		"holder":  func(c *rebalancer.Config) { c.Holder = "" },
		"journal": func(c *rebalancer.Config) { c.Journal = nil },
		"lease":   func(c *rebalancer.Config) { c.Lease = nil },
		"metrics": func(c *rebalancer.Config) { c.Metrics = nil },
		"log":     func(c *rebalancer.Config) { c.Log = nil },
		"clock":   func(c *rebalancer.Config) { c.Now = nil },
		"twins": func(c *rebalancer.Config) {
			c.Actuators = []rebalancer.Actuator{newWorld(1, 1), newWorld(1, 1)}
		},
	} {
		c := good
		break_(&c)
		if _, err := rebalancer.New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := rebalancer.New(good); err != nil {
		t.Error(err)
	}
}
