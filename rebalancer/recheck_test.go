package rebalancer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The intent is written on one View; the question is put to another.
func TestChangedSinceForACap(t *testing.T) {
	cases := []struct {
		name   string
		change func(*scene)
		want   string // empty: still wanted
	}{
		{"nothing has changed", func(*scene) {}, ""},
		{"hotter", func(s *scene) { s.gpu.HeadroomC = cluster.Some(1) }, ""},
		{"within the mark, under the aim", func(s *scene) { s.gpu.HeadroomC = cluster.Some(7) }, ""},
		{"at the aim", func(s *scene) { s.gpu.HeadroomC = cluster.Some(8) }, "at the aim of 8 °C"},
		{"cool", func(s *scene) { s.gpu.HeadroomC = cluster.Some(30) }, "is 30 °C by now"},
		{"stale", func(s *scene) { s.node.State = cluster.NodeGone }, "node gone"},
		{"suspect", func(s *scene) {
			s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = telemetry.Quality_QUALITY_SUSPECT })
		}, "marked suspect"},
		{"source restarted", func(s *scene) { s.node.Since = start }, "its source started"},
		{"made anew", func(s *scene) { s.gpu.Generation = 2 }, "generation 2, not 1"},
		{"another GPU", func(s *scene) { s.gpu.UUID = "GPU-99" }, "no longer in view"},
		{"headroom gone", func(s *scene) {
			s.gpu.HeadroomC = cluster.Opt{}
			s.read(telemetry.GPUThrottleActiveSWThermal, 0)
		}, "no longer sees anything"},
		{"policy gone", func(s *scene) { s.planner.Policies = nil }, "no longer configured"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			p := s.plan()
			entry := p.Entries[0]
			s.write(telemetry.Record{Topic: entry.Topic, Decision: entry.Decision})
			c.change(s)
			r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, entry.Decision, *entry.Do)
			if c.want == "" && r != nil || c.want != "" && (r == nil || r.Reason != telemetry.RefusalChangedSince || r.Act != telemetry.ActCap || !strings.Contains(r.Text, c.want)) {
				t.Errorf("%v, want %q", r, c.want)
			}
		})
	}
}

func TestChangedSinceForWhatIsHeld(t *testing.T) {
	undo := telemetry.Step{ID: "d-000001.2", Decision: "d-000001", Kind: telemetry.StepUndo, Target: target}
	cases := []struct {
		name   string
		step   telemetry.StepKind
		change func(*scene, *telemetry.Decision)
		want   string
	}{
		{"renewal, whatever the heat", telemetry.StepRenew, func(*scene, *telemetry.Decision) {}, ""},
		{"renewal of what is out of sight", telemetry.StepRenew, func(s *scene, _ *telemetry.Decision) { s.gpu.UUID = "GPU-99" }, ""},
		{"undo of a hot one", telemetry.StepUndo, func(*scene, *telemetry.Decision) {}, "would now be"},
		{"undo of a cool one", telemetry.StepUndo, func(s *scene, _ *telemetry.Decision) { s.gpu.HeadroomC = cluster.Some(40) }, ""},
		{"undo of what cannot be seen", telemetry.StepUndo, func(s *scene, _ *telemetry.Decision) { s.node.State = cluster.NodeGone }, "node gone"},
		{"undo that a person wants", telemetry.StepUndo, func(_ *scene, d *telemetry.Decision) {
			d.Approval = &telemetry.Approval{Verdict: rebalancer.VerdictUndo}
		}, ""},
		{"undo without the policy", telemetry.StepUndo, func(s *scene, _ *telemetry.Decision) { s.planner.Policies = nil }, ""},
		{"undo of what is not in force", telemetry.StepUndo, func(s *scene, _ *telemetry.Decision) { s.mem.Leases = nil }, "nothing is in force"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.pending(target, telemetry.OutcomeVerified)
			d := s.mem.Decisions["d-000001"]
			step := undo
			step.Kind = c.step
			c.change(s, d)
			r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, d, step)
			if (r == nil) != (c.want == "") || r != nil && !strings.Contains(r.Text, c.want) {
				t.Errorf("%v, want %q", r, c.want)
			}
		})
	}
}

// The process dies around an undo. The next one carries it out once, or takes
// it back when the heat has returned.
func TestCrashAroundAnUndo(t *testing.T) {
	died := errors.New("process died here")
	isUndo := func(r telemetry.Record, receipt bool) bool {
		if r.Decision == nil || len(r.Decision.Steps) == 0 {
			return false
		}
		last := r.Decision.Steps[len(r.Decision.Steps)-1]
		return last.Step.Kind == telemetry.StepUndo && (last.Receipt != nil) == receipt
	}
	for _, receipt := range []bool{false, true} {
		for _, hotAgain := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				w := newWorld(1, 1)
				l := newLive(t, w)
				d := w.device("GPU-00-0")
				d.r = 0.1
				l.until(3*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
				dead := false
				die := func(r telemetry.Record) error {
					if !dead && isUndo(r, receipt) {
						dead = true
						l.stop()
						return died
					}
					return nil
				}
				if receipt {
					l.journal.hook(die, nil, nil)
				} else {
					l.journal.hook(nil, die, nil)
				}
				d.r = 0.06
				l.until(5*time.Minute, "death", func() bool { return dead })
				l.end()
				l.journal.hook(nil, nil, nil)
				if hotAgain {
					d.r, d.temp = 0.1, 83
				}
				l.run(2 * time.Second)
				l.begin()
				l.run(5 * time.Minute)
				for id, n := range w.calls {
					if n > 1 {
						t.Errorf("receipt %v, hot again %v: step %s done %d times", receipt, hotAgain, id, n)
					}
				}
				if hotAgain == (d.limit == defaultW) || hotAgain && d.headroom() < 5 {
					t.Errorf("receipt %v, hot again %v: limit %v, headroom %.1f", receipt, hotAgain, d.limit, d.headroom())
				}
				checkIntentsFirst(t, l.journal.all())
			})
		}
	}
}

// Nobody answers, not even what became of the order: it may have been done, so
// it counts as on its way until its lease is over.
func TestNobodyAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.mute = true
		w.device("GPU-00-0").r = 0.1
		l.until(time.Minute, "intended", func() bool { return l.outcome() == telemetry.OutcomeIntended })
		l.run(10 * time.Minute)
		if l.outcome() != telemetry.OutcomeIntended {
			t.Fatalf("%s though it may be in force", l.outcome())
		}
		if age := l.metric("evenkeel_act_age_seconds", "act", "cap"); age < 500 {
			t.Errorf("evenkeel_act_age_seconds = %v", age)
		}
		l.until(2*time.Minute, "expired", func() bool {
			m := l.journal.fold(t)
			return len(m.Closed) == 1 && m.Closed[0].Outcome == telemetry.OutcomeExpired
		})
	})
}

// A policy may give notice: the intent is on record, the act comes later.
func TestNoticeDelaysTheAct(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Notice = telemetry.Duration(20 * time.Second) })
		})
		l.run(5 * time.Second)
		w.device("GPU-00-0").r = 0.1
		l.until(time.Minute, "intended", func() bool { return l.outcome() == telemetry.OutcomeIntended })
		l.run(18 * time.Second)
		if w.device("GPU-00-0").sets != 0 {
			t.Fatal("acted before the notice was over")
		}
		l.until(4*time.Second, "acted", func() bool { return w.device("GPU-00-0").sets == 1 })
	})
}
