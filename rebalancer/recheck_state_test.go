package rebalancer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What people and the breaker have said since the intent counts too: between
// the two may lie a notice, or the end of a process.
func TestChangedSinceByPeople(t *testing.T) {
	yes := true
	no := false
	cases := []struct {
		name   string
		change func(*scene)
		want   string // empty: still wanted
	}{
		{"gentle acts go on in a pause", func(s *scene) {
			s.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &yes, By: "ann"}})
		}, ""},
		{"all paused", func(s *scene) {
			s.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &yes, All: true, By: "ann"}})
		}, "paused"},
		{"paused and resumed", func(s *scene) {
			s.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &yes, All: true, By: "ann"}})
			s.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &no, By: "ann"}})
		}, ""},
		{"mode changed", func(s *scene) {
			s.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Mode: telemetry.Approve, By: "ann"}})
		}, "mode approve"},
		{"started again with another mode", func(s *scene) {
			s.planner.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Recommend })
		}, "mode recommend"},
		{"the breaker does not stop gentle acts", func(s *scene) {
			s.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{Open: true, Reason: "test"}})
		}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			entry := s.plan().Entries[0]
			s.write(telemetry.Record{Topic: entry.Topic, Decision: entry.Decision})
			c.change(s)
			r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, entry.Decision, *entry.Do)
			if c.want == "" && r != nil || c.want != "" && (r == nil || !strings.Contains(r.Text, c.want)) {
				t.Errorf("%v, want %q", r, c.want)
			}
		})
	}
}

// A person who pauses everything stops what was announced.
func TestPauseStopsWhatWasAnnounced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Notice = telemetry.Duration(20 * time.Second) })
		})
		l.run(5 * time.Second)
		w.device("GPU-00-0").r = 0.1
		l.until(time.Minute, "intended", func() bool { return l.outcome() == telemetry.OutcomeIntended })
		if err := l.ask(rebalancer.VerbPause, rebalancer.Request{By: "ann", All: true}, nil); err != nil {
			t.Fatal(err)
		}
		l.run(time.Minute)
		if n := w.device("GPU-00-0").sets; n != 0 {
			t.Errorf("%d limits set while all acts are paused", n)
		}
		if got := l.outcome(); got != telemetry.OutcomeRefused {
			t.Errorf("the announced act is %s", got)
		}
	})
}

// An approved act stays approved on its way.
func TestAnApprovedActIsStillWanted(t *testing.T) {
	s := newScene(t)
	s.policies = enforcing(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Approve })
	entry := s.plan().Entries[0]
	s.write(telemetry.Record{Topic: entry.Topic, Decision: entry.Decision})
	s.write(telemetry.Record{Topic: telemetry.TopicApproval, Approval: &telemetry.Approval{Decision: entry.Decision.ID, By: "ann", At: s.w.now, Verdict: rebalancer.VerdictApprove}})
	entry = s.plan().Entries[0]
	if entry.Do == nil {
		t.Fatal("nothing is done though it was approved")
	}
	s.write(telemetry.Record{Topic: entry.Topic, Decision: entry.Decision})
	if r := s.planner.ChangedSince(s.w.now, s.view(), &s.mem, entry.Decision, *entry.Do); r != nil {
		t.Error(r)
	}
}

// The milder cap is planned on one View and asked again on the next, as in any
// fleet in which Views come faster than the journal writes.
func TestAnEasedCapIsStillWanted(t *testing.T) {
	b, d := capped(t)
	cap := d.limit
	b.w.inlet["n00"] = 23
	b.deaf = true
	for range 600 {
		b.run(time.Second)
		for _, e := range b.last.Entries {
			if e.Do == nil || e.Do.Kind != telemetry.StepPowerCap {
				if e.Do != nil {
					r, err := b.w.Do(t.Context(), *e.Do)
					if err != nil {
						t.Fatal(err)
					}
					b.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: rebalancer.WithReceipt(b.mem.Decisions[e.Do.Decision], r, b.w.now)})
				}
				continue
			}
			if *e.Do.Params.PowerLimitWatts <= cap {
				t.Fatalf("not eased: %v", e.Decision)
			}
			b.w.advance(time.Second)
			if r := b.planner.ChangedSince(b.w.now, b.w.view(), &b.mem, e.Decision, *e.Do); r != nil {
				t.Error(r)
			}
			b.w.device(d.uuid).temp = 83 // hot again
			if r := b.planner.ChangedSince(b.w.now, b.w.view(), &b.mem, e.Decision, *e.Do); r == nil {
				t.Error("a cap is eased on a device that is hot again")
			}
			return
		}
	}
	t.Fatal("never eased")
}
