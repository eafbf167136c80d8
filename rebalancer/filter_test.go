package rebalancer_test

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// sample is one look of the filter: a sample and what came of the pass.
type sample struct {
	after    time.Duration // since the last one
	headroom float64
	acts     bool
}

func TestFilterCountsSamples(t *testing.T) {
	sec := time.Second
	cases := []struct {
		name    string
		n, m    int
		samples []sample
	}{
		{"three in a row", 3, 5, []sample{{sec, 4, false}, {sec, 4, false}, {sec, 4, true}}},
		{"three of five", 3, 5, []sample{{sec, 4, false}, {sec, 9, false}, {sec, 4, false}, {sec, 9, false}, {sec, 4, true}}},
		{"three of six are not", 3, 5, []sample{{sec, 4, false}, {sec, 9, false}, {sec, 9, false}, {sec, 4, false}, {sec, 9, false}, {sec, 4, false}}},
		{"a spike is not", 3, 5, []sample{{sec, 4, false}, {sec, 4, false}, {sec, 9, false}, {sec, 9, false}, {sec, 9, false}, {sec, 9, false}, {sec, 4, false}}},
		{"one of one", 1, 1, []sample{{sec, 9, false}, {sec, 4, true}}},
		{"the same sample again counts once", 3, 5, []sample{{sec, 4, false}, {0, 4, false}, {0, 4, false}, {0, 4, false}, {sec, 4, false}, {0, 4, false}, {sec, 4, true}}},
		{"a sample whose time moved a little is the same", 3, 5, []sample{{sec, 4, false}, {sec / 10, 4, false}, {sec / 10, 4, false}, {sec, 4, false}, {sec, 4, true}}},
		{"a lost frame costs one sample", 3, 5, []sample{{sec, 4, false}, {2 * sec, 4, false}, {2 * sec, 4, true}}},
		{"after a gap it starts over", 3, 5, []sample{{sec, 4, false}, {sec, 4, false}, {4 * sec, 4, false}, {sec, 4, false}, {sec, 4, true}}},
		{"exactly at the mark is beyond", 1, 1, []sample{{sec, 5, true}}},
		{"just within is not", 1, 1, []sample{{sec, 5.1, false}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.policies = enforcing(func(p *rebalancer.PolicySpec) { p.Filter = rebalancer.Filter{N: c.n, M: c.m} })
			for i, sample := range c.samples {
				s.w.now = s.w.now.Add(sample.after)
				s.gpu.HeadroomC = cluster.Some(sample.headroom)
				for id := range s.readings {
					s.read(id, s.readings[id].V)
				}
				s.read(telemetry.GPUThermalHeadroomCelsius, sample.headroom)
				s.read(telemetry.GPUThrottleActiveSWThermal, 0)
				if got := len(steps(s.plan())) == 1; got != sample.acts {
					t.Fatalf("sample %d: acts %v, want %v", i+1, got, sample.acts)
				}
			}
		})
	}
}

// A restart of the source makes the samples before it another run's.
func TestFilterStartsOverWithTheSource(t *testing.T) {
	s := newScene(t)
	look := func() bool {
		s.w.now = s.w.now.Add(time.Second)
		for id := range s.readings {
			s.read(id, s.readings[id].V)
		}
		s.read(telemetry.GPUThrottleActiveSWThermal, 0)
		return len(steps(s.plan())) == 1
	}
	first, second := look(), look()
	if first || second {
		t.Fatal("acts before three samples")
	}
	s.node.Incarnation = 2
	first, second = look(), look()
	if first || second {
		t.Fatal("acts on samples of two incarnations")
	}
	if !look() {
		t.Error("does not act on three samples of one incarnation")
	}
}

// A value in doubt neither counts nor takes a count away.
func TestFilterSkipsWhatIsInDoubt(t *testing.T) {
	s := newScene(t)
	look := func(q telemetry.Quality) bool {
		s.w.now = s.w.now.Add(time.Second)
		for id := range s.readings {
			s.read(id, s.readings[id].V)
		}
		s.read(telemetry.GPUThrottleActiveSWThermal, 0)
		s.spoil(telemetry.GPUThermalHeadroomCelsius, func(r *cluster.Reading) { r.Quality = q })
		return len(steps(s.plan())) == 1
	}
	ok, suspect := telemetry.Quality_QUALITY_OK, telemetry.Quality_QUALITY_SUSPECT
	for i, q := range []telemetry.Quality{ok, suspect, ok, suspect} {
		if look(q) {
			t.Fatalf("acts at sample %d", i+1)
		}
	}
	if !look(ok) {
		t.Error("does not act on the third good sample")
	}
}
