package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/evenkeel-gpu/evenkeel/sim"
)

// Scenario reads a scenario: a file, or the name of one that comes with the
// program.
func Scenario(name string) (*sim.Scenario, error) {
	data, err := os.ReadFile(name)
	if err == nil {
		s, err := sim.ParseScenario(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return s, nil
	}
	s, byName := sim.LoadScenario(name)
	if byName != nil {
		return nil, fmt.Errorf("scenario %q is neither a file (%w) nor one of %v", name, err, sim.ScenarioNames())
	}
	return s, nil
}

// ServeSim shows one node of a scenario to the NVML stand-in until ctx ends.
func ServeSim(ctx context.Context, scenario, node, shm string, log *slog.Logger) error {
	s, err := Scenario(scenario)
	if err != nil {
		return err
	}
	return sim.Serve(ctx, sim.ServeConfig{Scenario: s, Node: node, Path: shm, Log: log})
}
