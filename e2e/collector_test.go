package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// collectorDeaths is how often the only collector is killed.
const collectorDeaths = 6

// TestCollectorIsKilled kills the only collector at moments of chance while a
// Prometheus scrapes it: it comes back knowing the decisions, no GPU is counted
// twice, no counter falls, no node is said to be down, and the gap is that of
// its lease.
func TestCollectorIsKilled(t *testing.T) {
	t.Parallel()
	r := newCrashRig(t, quick(event{gpu: 0, at: 2 * time.Second, lasts: 2 * time.Minute, factor: hot}))
	r.run("rebalancer")
	r.run("agent")
	began := time.Now()
	prom := r.scrape(time.Second, r.addr["collector"])
	r.eventually(60*time.Second, "one is capped", func() error { return r.holds(1) })
	known := r.decisions()[0].ID
	collector := r.running("collector")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for i := range collectorDeaths {
		// Also while it waits for the lease of its last life, or has not heard a
		// whole tick yet.
		time.Sleep(time.Duration(chance.IntN(3000)) * time.Millisecond)
		collector.kill()
		collector = r.start("collector", "evenkeel", "collector", "-c", r.cfg["collector"])
		if i%2 == 0 {
			continue
		}
		r.eventually(30*time.Second, "it speaks again", func() error { return r.standing("collector", speaks) })
		r.eventually(30*time.Second, "it knows the decisions", func() error {
			ds, err := list[telemetry.Decision](r.stack, "decisions")
			if err == nil && !slices.ContainsFunc(ds, func(d telemetry.Decision) bool { return d.ID == known }) {
				err = fmt.Errorf("%s is none of %d", known, len(ds))
			}
			return err
		})
	}
	r.eventually(30*time.Second, "Prometheus has every GPU again", func() error { return prom.is("count(gpu_power_watts)", 8) })

	prom.countedOnce(began, 8)
	prom.neverFall("gpu_energy_joules_total", 1)
	prom.neverFall("gpu_throttle_seconds_total", 1)
	if down, err := prom.over("evenkeel_node_up == 0", began, time.Now(), 200*time.Millisecond); err != nil || len(down) > 0 {
		t.Errorf("a node was said to be down: %v, %v", down, err)
	}
	// A life without a take-over from another is not kept from its scrapers.
	gap := prom.gap("count(gpu_power_watts)", began)
	t.Logf("FIGURE longest gap at a Prometheus that scrapes each second, over %d kills of the only collector, some before it spoke: %.1f s", collectorDeaths, gap.Seconds())
	if gap > 40*time.Second {
		t.Errorf("the fleet was away for %s", gap)
	}
	if err := r.sound(); err != nil {
		t.Error(err)
	}
}

// running is the process of a role that was started last.
func (s *stack) running(role string) *proc {
	s.t.Helper()
	p, ok := s.procs[role]
	if !ok {
		s.t.Fatal(errors.New("no " + role))
	}
	return p
}

// gap is the longest time without a value of an expression that had one before.
func (p *prometheus) gap(expr string, from time.Time) (longest time.Duration) {
	p.Helper()
	got, err := p.over(expr, from, time.Now(), 200*time.Millisecond)
	if err != nil || len(got) != 1 {
		p.Fatalf("%s: %d series, %v", expr, len(got), err)
	}
	for i := 1; i < len(got[0].Values); i++ {
		longest = max(longest, got[0].Values[i].at.Sub(got[0].Values[i-1].at))
	}
	return longest
}
