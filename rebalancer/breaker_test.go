package rebalancer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestBreakerTrips(t *testing.T) {
	past := func(n int, class telemetry.Class, failed bool, at time.Time) []rebalancer.PastAct {
		var out []rebalancer.PastAct
		for range n {
			out = append(out, rebalancer.PastAct{At: at, Class: class, Failed: failed, GPUs: 1})
		}
		return out
	}
	now := start.Add(-time.Minute)
	cases := []struct {
		name   string
		acts   []rebalancer.PastAct
		closed time.Time
		want   string
	}{
		{"nothing", nil, time.Time{}, ""},
		{"four of four failed are too few to judge", past(4, telemetry.Gentle, true, now), time.Time{}, ""},
		{"one of five failed is within", append(past(4, telemetry.Gentle, false, now), past(1, telemetry.Gentle, true, now)...), time.Time{}, ""},
		{"two of six failed", append(past(4, telemetry.Gentle, false, now), past(2, telemetry.Gentle, true, now)...), time.Time{}, "2 of 6 acts failed within 10m0s"},
		{"old failures", past(9, telemetry.Gentle, true, start.Add(-11*time.Minute)), time.Time{}, ""},
		{"failures from before it was closed", past(9, telemetry.Gentle, true, now), start.Add(-30 * time.Second), ""},
		{"five of 100 disrupted is within", past(5, telemetry.Disruptive, false, now), time.Time{}, ""},
		{"six of 100 disrupted", past(6, telemetry.Disruptive, false, now), time.Time{}, "6 of 100 GPUs disrupted within 10m0s"},
		{"gentle acts disrupt nobody", past(60, telemetry.Gentle, false, now), time.Time{}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.gpu.HeadroomC = cluster.Some(40)
			s.node.Expected = 100
			s.mem.Acts, s.mem.Breaker.Since = c.acts, c.closed
			var trips []telemetry.BreakerTrip
			for _, e := range s.plan().Entries {
				if e.Breaker != nil {
					trips = append(trips, *e.Breaker)
				}
			}
			if c.want == "" && len(trips) == 0 {
				return
			}
			if len(trips) != 1 || trips[0].Reason != c.want || !trips[0].Open || trips[0].Have <= trips[0].Limit {
				t.Errorf("trips %+v, want %q", trips, c.want)
			}
		})
	}
}

// A start, when nothing is seen yet, is not a loss of coverage; a loss that
// lasts is; a short one is not.
func TestBreakerOnLostCoverage(t *testing.T) {
	w := newWorld(5, 2)
	b := newBench(t, w)
	blind := func(nodes int, d time.Duration) {
		for range int(d / time.Second) {
			w.advance(time.Second)
			v := w.view()
			i := 0
			for n := range v.Nodes() {
				if i < nodes {
					n.State = cluster.NodeGone
				}
				i++
			}
			b.pass(v)
		}
	}
	blind(5, time.Minute)
	if b.mem.Breaker.Open {
		t.Fatal("opened before anything was ever seen")
	}
	b.run(5 * time.Second)
	blind(1, time.Minute)
	if b.mem.Breaker.Open {
		t.Fatal("opened at 80 %")
	}
	blind(2, 8*time.Second)
	b.run(time.Second)
	blind(2, 8*time.Second)
	if b.mem.Breaker.Open {
		t.Fatal("opened for a short loss")
	}
	blind(2, 4*time.Second)
	if !b.mem.Breaker.Open || !strings.Contains(b.mem.Breaker.Reason, "6 of 10 GPUs") {
		t.Fatalf("breaker %+v after a lasting loss", b.mem.Breaker)
	}
	n := len(b.journal.all())
	b.run(time.Minute)
	b.mem = b.journal.fold(t)
	if !b.mem.Breaker.Open {
		t.Error("closed by itself, or by a restart")
	}
	if got := len(b.journal.all()); got != n {
		t.Errorf("written %d more times", got-n)
	}
	b.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{By: "ada", Reason: "nodes are back"}})
	if b.mem.Breaker.Open {
		t.Error("open after a person closed it")
	}
}

// The pass in which the breaker opens already obeys it.
func TestBreakerHoldsFromThePassOn(t *testing.T) {
	s := newScene(t)
	s.disruptive(10, 1)
	for range 6 {
		s.mem.Acts = append(s.mem.Acts, rebalancer.PastAct{At: start, Failed: true, Class: telemetry.Gentle, GPUs: 1})
	}
	p := s.plan()
	if len(steps(p)) != 0 || p.Refused.Counts[telemetry.RefusalBreaker] != 1 {
		t.Errorf("steps %v, refused %v", steps(p), p.Refused.Counts)
	}
}

// Refusals by agents open the breaker.
func TestBreakerCountsRefusedActs(t *testing.T) {
	b := hotFleet(t, 4, 4, rebalancer.Budget{Percent: 100, Per: rebalancer.PerFleet})
	b.w.refuse = telemetry.RefuseNotAllowed
	b.until(3*time.Minute, "open", func() bool { return b.mem.Breaker.Open })
	if !strings.Contains(b.mem.Breaker.Reason, "acts failed") {
		t.Errorf("reason %q", b.mem.Breaker.Reason)
	}
}
