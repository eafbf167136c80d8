package policy_test

import (
	"testing"

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
