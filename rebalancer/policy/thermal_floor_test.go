package policy_test

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The floor is a share of the default limit. Where that is not known it is one
// of the limit found: not known is not the same as none.
func TestTheFloorHoldsWithoutAKnownDefault(t *testing.T) {
	for _, limit := range []float64{700, unknown} {
		d := h100()
		d.default_, d.headroom, d.r, d.power = limit, -20, 0.05, 400
		s, g := d.scene(t)
		n, _ := s.View.Node("n1")
		p, _ := thermal(t).Propose(s, rebalancer.Sighting{Node: n, GPU: g, Violation: telemetry.Violation{Target: telemetry.Target{UUID: g.UUID}}}, telemetry.ActCap)
		if len(p.Steps) != 1 {
			t.Fatalf("default %v: %+v", limit, p)
		}
		if watts := *p.Steps[0].Params.PowerLimitWatts; watts != 350 {
			t.Errorf("default %v: cap at %v W, want the floor of 350", limit, watts)
		}
	}
}

// Somebody has raised the limit above what was found before the first cap. The
// next cap goes back to that, not to a limit that it lies above itself.
func TestWhatIsFoundMayHaveBeenRaised(t *testing.T) {
	first, before := 357.0, 498.5
	for _, c := range []struct{ limit, found float64 }{{357, 498.5}, {450, 498.5}, {600, 600}} {
		d := h100()
		d.limit, d.power = c.limit, c.limit
		s, g := d.scene(t)
		dec := &telemetry.Decision{ID: "d-000001", Policy: "thermal", Outcome: telemetry.OutcomeVerified, Target: telemetry.Target{Node: "n1", UUID: "GPU-1", Generation: 1}}
		step := telemetry.Step{ID: "d-000001.1", Kind: telemetry.StepPowerCap, Lease: telemetry.Duration(time.Hour), Params: telemetry.Params{PowerLimitWatts: &first, FoundWatts: &before}}
		dec.Steps = []telemetry.StepRecord{{Step: step, Receipt: &telemetry.Receipt{StepID: step.ID, Result: telemetry.Done}}}
		s = sceneOf(t, s.View, rebalancer.Memory{Decisions: map[string]*telemetry.Decision{dec.ID: dec}, Leases: map[string]time.Time{dec.ID: now}})
		n, _ := s.View.Node("n1")
		p, refusals := thermal(t).Propose(s, rebalancer.Sighting{Node: n, GPU: g, Violation: telemetry.Violation{Target: telemetry.Target{UUID: g.UUID}}}, telemetry.ActCap)
		if len(p.Steps) == 0 {
			if c.limit != 357 {
				t.Errorf("limit %v: %v", c.limit, refusals)
			}
			continue
		}
		params := p.Steps[0].Params
		if *params.FoundWatts != c.found || *params.PowerLimitWatts > *params.FoundWatts {
			t.Errorf("limit %v: cap at %v, found %v; want %v", c.limit, *params.PowerLimitWatts, *params.FoundWatts, c.found)
		}
	}
}
