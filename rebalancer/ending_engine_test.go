package rebalancer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// newEndingLive is an engine over a world with a GPU too hot for caps.
func newEndingLive(t *testing.T, change ...func(*rebalancer.Config)) (*live, *device, *tree) {
	t.Helper()
	w, d, tree := tooHot(2)
	l := newLive(t, w, append([]func(*rebalancer.Config){func(c *rebalancer.Config) { c.Policies = preempting() }}, change...)...)
	return l, d, tree
}

// endings are the preemptions in the journal, as last written.
func (l *live) endings() []*telemetry.Decision {
	last := map[string]*telemetry.Decision{}
	var ids []string
	for _, r := range l.journal.all() {
		if d := r.Decision; d != nil && d.Kind == telemetry.ActPreempt {
			if last[d.ID] == nil {
				ids = append(ids, d.ID)
			}
			last[d.ID] = d
		}
	}
	out := make([]*telemetry.Decision, len(ids))
	for i, id := range ids {
		out[i] = last[id]
	}
	return out
}

// isEnding says that a record is one of a preemption in a state.
func isEnding(r telemetry.Record, o telemetry.Outcome) bool {
	return r.Decision != nil && r.Decision.Kind == telemetry.ActPreempt && r.Decision.Outcome == o
}

// A step that takes minutes is asked for until it has ended, and nothing of it
// waits for anything else.
func TestEngineWaitsForMinutes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, d, tree := newEndingLive(t, func(c *rebalancer.Config) {
			c.Policies = preempting(func(p *rebalancer.PolicySpec) { p.Grace = telemetry.Duration(8 * time.Minute) })
		})
		tree.deaf = true
		l.until(4*time.Minute, "told", func() bool { return len(tree.signals) == 1 })
		other := l.w.device("GPU-00-1")
		other.r, other.load = 0.1, 650
		l.until(2*time.Minute, "the other GPU capped meanwhile", func() bool { return other.limit < defaultW })
		l.run(5 * time.Minute)
		if e := l.endings(); len(e) != 1 || e[0].Outcome != telemetry.OutcomeIntended || len(tree.signals) != 1 {
			t.Fatalf("%v, %d signals", e, len(tree.signals))
		}
		if age := l.metric("evenkeel_act_age_seconds", "act", "preempt"); age < 300 {
			t.Errorf("its age is %v s", age)
		}
		l.until(5*time.Minute, "verified", func() bool { return l.endings()[0].Outcome == telemetry.OutcomeVerified })
		for _, o := range []telemetry.Outcome{telemetry.OutcomeIntended, telemetry.OutcomeActed, telemetry.OutcomeVerified} {
			if got := l.metric("evenkeel_decisions_total", "policy", "thermal", "act", "preempt", "outcome", string(o)); got != 1 {
				t.Errorf("evenkeel_decisions_total{act=preempt, outcome=%q} = %v", o, got)
			}
		}
		if !tree.over || d.headroom() < 5 || len(tree.signals) != 1 {
			t.Errorf("over %v, headroom %v, %d signals", tree.over, d.headroom(), len(tree.signals))
		}
		checkIntentsFirst(t, l.journal.all())
	})
}

// dyingEnding tells a process to end and dies before anybody hears of it.
type dyingEnding struct {
	*world
	die func()
}

func (d *dyingEnding) Do(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	r, err := d.world.Do(ctx, s)
	if s.Kind != telemetry.StepPreempt {
		return r, err
	}
	d.die()
	return telemetry.Receipt{}, context.Canceled
}

// The engine dies at each point between seeing and knowing, and is back at once
// or after a long time, with the cause still there or gone. A process is told
// once at most, and each decision comes to its end.
func TestCrashAtEveryPointOfAnEnding(t *testing.T) {
	died := errors.New("process died here")
	hook := func(before bool, o telemetry.Outcome) func(*live, func()) {
		return func(l *live, die func()) {
			f := func(r telemetry.Record) error {
				if isEnding(r, o) {
					die()
					return died
				}
				return nil
			}
			if before {
				l.journal.hook(f, nil, nil)
			} else {
				l.journal.hook(nil, f, nil)
			}
		}
	}
	points := []struct {
		name string
		arm  func(l *live, die func())
		// ordered: its agent has had the order when the process dies.
		ordered bool
	}{
		{"before the intent is written", hook(true, telemetry.OutcomeIntended), false},
		{"after the intent, before the order", hook(false, telemetry.OutcomeIntended), false},
		{"while the order is carried out", func(l *live, die func()) {
			l.config.Actuators = []rebalancer.Actuator{&dyingEnding{world: l.w, die: die}}
		}, true},
		{"in the grace", nil, true},
		{"before the outcome is written", hook(true, telemetry.OutcomeActed), true},
		{"after the outcome is written", hook(false, telemetry.OutcomeActed), true},
		{"before its effect is written", hook(true, telemetry.OutcomeVerified), true},
		{"after its effect is written", hook(false, telemetry.OutcomeVerified), true},
	}
	for _, gap := range []time.Duration{3 * time.Second, 20 * time.Minute} {
		for _, cleared := range []bool{false, true} {
			for _, p := range points {
				t.Run(fmt.Sprintf("%s, cause gone %v, back after %s", p.name, cleared, gap), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						l, d, tree := newEndingLive(t)
						l.end()
						tree.deaf = true // it takes its whole grace
						var dead atomic.Bool
						die := func() {
							if dead.CompareAndSwap(false, true) {
								l.stop()
							}
						}
						if p.arm != nil {
							p.arm(l, die)
						}
						l.begin()
						if p.arm == nil {
							l.until(4*time.Minute, "told", func() bool { return len(tree.signals) == 1 })
							l.run(5 * time.Second)
							die()
						}
						l.until(6*time.Minute, "death", dead.Load)
						l.end()
						l.journal.hook(nil, nil, nil)
						l.config.Actuators = []rebalancer.Actuator{l.w}
						if cleared {
							d.r, d.temp = 0.02, 50
						}
						l.run(gap)
						l.begin()
						l.run(15 * time.Minute)
						endedRight(t, l, tree, cleared && !p.ordered)
					})
				})
			}
		}
	}
}

func endedRight(t *testing.T, l *live, tree *tree, spared bool) {
	t.Helper()
	want := 1
	if spared {
		want = 0
	}
	if len(tree.signals) != want {
		t.Errorf("told by %v, want %d times", tree.signals, want)
	}
	checkIntentsFirst(t, l.journal.all())
	for _, e := range l.endings() {
		if e.Ended.IsZero() {
			t.Errorf("%s is left %s", e.ID, e.Outcome)
		}
		helped := e.Outcome == telemetry.OutcomeVerified
		if told := slices.Contains(tree.signals, e.Act.Steps[0].ID); told != helped {
			t.Errorf("%s is %s (%s); told by it: %v", e.ID, e.Outcome, e.Ending, told)
		}
	}
	m := l.journal.fold(t)
	for _, d := range m.Decisions {
		if d.Kind == telemetry.ActPreempt {
			t.Errorf("%s is open", d)
		}
	}
}

// The agent is away, or answers nothing, for a while or for good.
func TestEndingWithoutAnAgent(t *testing.T) {
	cases := []struct {
		name string
		// arm is called when the process is about to be told, later some time on.
		arm, later func(l *live)
		after      time.Duration
		outcome    telemetry.Outcome
		ending     string
		signals    int
	}{
		{"away for ten seconds", func(l *live) { l.w.down["n00"] = true }, func(l *live) { l.w.down["n00"] = false }, 10 * time.Second, telemetry.OutcomeVerified, "it helped", 1},
		{"away until it has expired", func(l *live) { l.w.down["n00"] = true }, func(l *live) { l.w.down["n00"] = false }, 40 * time.Second, telemetry.OutcomeRefused, "had not seen it when it expired", 0},
		{"mute for good", func(l *live) { l.w.mute = true }, func(*live) {}, time.Second, telemetry.OutcomeExpired, "no answer from its backend before it expired", 0},
		{"mute until its end is over", func(l *live) { l.w.lost = true }, func(l *live) { l.w.lost = false }, 80 * time.Second, telemetry.OutcomeVerified, "it helped", 1},
		{"mute for longer than that", func(l *live) { l.w.lost = true }, func(l *live) { l.w.lost = false }, 5 * time.Minute, telemetry.OutcomeExpired, "no answer from its backend", 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l, _, tree := newEndingLive(t)
				l.until(90*time.Second, "capped", func() bool { return len(l.journal.all()) > 2 })
				var armed atomic.Bool
				l.journal.hook(nil, func(r telemetry.Record) error {
					if isEnding(r, telemetry.OutcomeIntended) && armed.CompareAndSwap(false, true) {
						l.w.mu.Lock()
						c.arm(l)
						l.w.mu.Unlock()
					}
					return nil
				}, nil)
				l.until(4*time.Minute, "intended", armed.Load)
				l.run(c.after)
				l.w.mu.Lock()
				c.later(l)
				l.w.mu.Unlock()
				l.until(8*time.Minute, "its end", func() bool { e := l.endings(); return !e[0].Ended.IsZero() })
				e := l.endings()[0]
				if e.Outcome != c.outcome || !strings.Contains(e.Ending, c.ending) || len(tree.signals) != c.signals {
					t.Errorf("%s: %s; told %d times; want %s, %q, %d", e.Outcome, e.Ending, len(tree.signals), c.outcome, c.ending, c.signals)
				}
				if deadline := e.Act.Steps[0].Deadline.Add(time.Minute); c.outcome == telemetry.OutcomeExpired && e.Ended.After(deadline) {
					t.Errorf("ended %s after its deadline", e.Ended.Sub(deadline))
				}
			})
		})
	}
}

// Late word of an ending takes its decision up again, whatever it says.
func TestLateWordOfAnEnding(t *testing.T) {
	for _, c := range []struct {
		result  telemetry.Result
		outcome telemetry.Outcome
	}{{telemetry.Done, telemetry.OutcomeVerified}, {telemetry.Failed, telemetry.OutcomeFailed}, {telemetry.Refused, telemetry.OutcomeRefused}} {
		bubble(t, func(t *testing.T) {
			l, _, tree := newEndingLive(t)
			l.until(4*time.Minute, "intended", func() bool { return len(l.endings()) == 1 })
			l.w.lost = true
			l.until(6*time.Minute, "given up", func() bool { return !l.endings()[0].Ended.IsZero() })
			e := l.endings()[0]
			if e.Outcome != telemetry.OutcomeExpired {
				t.Fatalf("%s: %s", e.Outcome, e.Ending)
			}
			l.w.lost = false
			step := e.Act.Steps[0]
			l.engine.Receipt(telemetry.Receipt{StepID: step.ID, Kind: telemetry.StepPreempt, Target: step.Target, Result: c.result, Why: telemetry.RefuseNotOurs, Detail: "late", Node: "n00", Spontaneous: true, Ended: l.w.now})
			l.run(2 * time.Minute)
			if e = l.endings()[0]; e.Outcome != c.outcome || e.Ended.IsZero() || len(l.endings()) != 1 {
				t.Errorf("%s: %s: %s, %d endings", c.result, e.Outcome, e.Ending, len(l.endings()))
			}
			if m := l.journal.fold(t); len(m.Moves) != 1 || m.Moves[0].Result != c.result {
				t.Errorf("%s: remembered %+v", c.result, m.Moves)
			}
			if n := len(tree.signals); n > 1 {
				t.Errorf("told %d times", n)
			}
		})
	}
}

// A notice gives people the time to say no; what is no longer wanted at its end
// is not done.
func TestNoticeOfAnEnding(t *testing.T) {
	for _, c := range []struct {
		name    string
		during  func(*live, *device)
		signals int
	}{
		{"nothing happens", func(*live, *device) {}, 1},
		{"disruptive acts are paused", func(l *live, _ *device) {
			if err := l.ask("pause", rebalancer.Request{By: "ada"}, nil); err != nil {
				l.t.Fatal(err)
			}
		}, 0},
		{"it cools down", func(_ *live, d *device) { d.r, d.temp = 0.02, 40 }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l, d, tree := newEndingLive(t, func(cfg *rebalancer.Config) {
					cfg.Policies = preempting(func(p *rebalancer.PolicySpec) { p.Notice = telemetry.Duration(20 * time.Second) })
				})
				l.until(5*time.Minute, "intended", func() bool { return len(l.endings()) == 1 })
				l.run(5 * time.Second)
				if len(tree.signals) != 0 {
					t.Fatal("told within the notice")
				}
				c.during(l, d)
				l.run(30 * time.Second)
				if len(tree.signals) != c.signals {
					t.Errorf("told %d times, want %d", len(tree.signals), c.signals)
				}
				if e := l.endings()[0]; c.signals == 0 && (e.Outcome != telemetry.OutcomeRefused || !strings.HasPrefix(e.Ending, "not ordered: ")) {
					t.Errorf("%s: %s", e.Outcome, e.Ending)
				}
			})
		})
	}
}

// The leader is put to sleep past its lease in the grace of an ending. The next
// one brings it to its end; the old one, when it wakes up, does nothing.
func TestEndingOutlivesItsLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, _, tree := newEndingLive(t)
		tree.deaf = true
		l.until(4*time.Minute, "told", func() bool { return len(tree.signals) == 1 })
		l.lease.take(true)
		l.run(5 * time.Second)
		second := &live{t: t, w: l.w, journal: l.journal, lease: &lease{revision: 7}, config: l.config}
		second.config.Holder, second.config.Lease = "second", second.lease
		second.begin()
		t.Cleanup(second.end)
		for range 150 {
			l.run(time.Second)
			second.engine.Update(l.w.view())
		}
		if e := l.endings(); len(e) != 1 || e[0].Outcome != telemetry.OutcomeVerified || len(tree.signals) != 1 {
			t.Fatalf("%v, told %d times", e, len(tree.signals))
		}
		wrote := len(l.journal.all())
		l.lease.take(false) // under an epoch below the second one's
		l.run(30 * time.Second)
		for _, r := range l.journal.all()[wrote:] {
			if r.Epoch.Revision < 8 {
				t.Errorf("the old leader wrote under epoch %d", r.Epoch.Revision)
			}
		}
	})
}

// A leader dies after the intent. The next one finds that the agent has not seen
// the step, and that it is no longer wanted. It may still be on its way, so its
// GPUs stay held until it can no longer be begun; what came of it is then true.
func TestUnseenAndUnwantedIsGivenUpOnceItHasExpired(t *testing.T) {
	for _, arrives := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			l, d, tree := newEndingLive(t)
			died := errors.New("process died here")
			var dead atomic.Bool // the hook sets it while the wait asks
			l.journal.hook(nil, func(r telemetry.Record) error {
				if isEnding(r, telemetry.OutcomeIntended) && dead.CompareAndSwap(false, true) {
					l.stop()
					return died
				}
				return nil
			}, nil)
			l.until(4*time.Minute, "death", dead.Load)
			l.end()
			l.journal.hook(nil, nil, nil)
			step := l.endings()[0].Act.Steps[0]
			d.r, d.temp = 0.02, 40
			l.run(2 * time.Second)
			l.begin()
			l.run(10 * time.Second)
			if e := l.endings()[0]; !e.Ended.IsZero() || len(tree.signals) != 0 {
				t.Fatalf("%s: %s, %d signals, though it may be on its way", e.Outcome, e.Ending, len(tree.signals))
			}
			want, signals := telemetry.OutcomeRefused, 0
			if arrives { // the order of the dead leader, after all
				if _, err := l.w.Do(t.Context(), step); err != nil {
					t.Fatal(err)
				}
				want, signals = telemetry.OutcomeVerified, 1
			}
			l.run(2 * time.Minute)
			if e := l.endings(); len(e) != 1 || e[0].Outcome != want || e[0].Ended.IsZero() || len(tree.signals) != signals {
				t.Errorf("arrives %v: %s: %s, %d signals", arrives, e[0].Outcome, e[0].Ending, len(tree.signals))
			}
		})
	}
}
