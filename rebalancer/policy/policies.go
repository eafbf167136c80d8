package policy

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// DefaultsYAML is the policy file of a fresh install, as a person reads it.
//
//go:embed defaults.yaml
var DefaultsYAML []byte

// Defaults are the policies of a fresh install; the same as DefaultsYAML.
func Defaults() []rebalancer.PolicySpec {
	return []rebalancer.PolicySpec{{
		Type: TypeThermal, Mode: telemetry.Recommend, Priority: 100, Signal: signalHeadroom, Act: 5, Aim: 8,
		Filter: rebalancer.Filter{N: 3, M: 5}, Ladder: []telemetry.ActKind{telemetry.ActSteer, telemetry.ActCap},
		Budget: rebalancer.Budget{Percent: 50, Max: 2000, Per: rebalancer.PerFleet},
		Settle: telemetry.Duration(30 * time.Second), Grace: telemetry.Duration(30 * time.Second), Lease: telemetry.Duration(10 * time.Minute),
		Margin: 2, Predict: telemetry.Duration(20 * time.Second), MaxCut: 0.4, Floor: 0.5,
	}}
}

// New makes the policies of the given specs, in their order. Two of one type
// are an error: each would undo what the other does.
func New(specs []rebalancer.PolicySpec) ([]rebalancer.Policy, error) {
	var out []rebalancer.Policy
	seen := map[string]bool{}
	for _, s := range specs {
		if seen[s.Type] {
			return nil, fmt.Errorf("policy %q is there twice", s.Type)
		}
		seen[s.Type] = true
		switch s.Type {
		case TypeThermal:
			t, err := NewThermal(s)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		default:
			return nil, fmt.Errorf("policy type %q: want %s", s.Type, TypeThermal)
		}
	}
	return out, nil
}
