package rebalancer_test

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A cap from before the millionth record is deepened after it: the newer one is
// in force, though its id comes first in the order of letters.
func TestTheNewestActAcrossAMillion(t *testing.T) {
	s := newScene(t)
	hold := func(id string, watts float64) {
		found := defaultW
		step := telemetry.Step{ID: id + ".1", Decision: id, Kind: telemetry.StepPowerCap, Backend: "node", Target: target, NotBefore: s.w.now,
			Params: telemetry.Params{PowerLimitWatts: &watts, FoundWatts: &found}, Lease: telemetry.Duration(10 * time.Minute)}
		d := &telemetry.Decision{ID: id, Policy: "thermal", Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: target, Outcome: telemetry.OutcomeVerified, Time: s.w.now,
			Predicted: &telemetry.Effect{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius"}, Act: &telemetry.Act{ID: id, Kind: telemetry.ActCap},
			Steps: []telemetry.StepRecord{{Step: step, Receipt: &telemetry.Receipt{StepID: step.ID, Result: telemetry.Done, Node: "n00", Target: target}}}}
		s.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: d})
	}
	hold("d-999999", 500)
	hold("d-1000000", 400)
	s.plan()
	for _, e := range s.plan().Entries {
		if e.Decision != nil && e.Decision.Outcome == telemetry.OutcomeEscalated && e.Decision.ID != "d-999999" {
			t.Errorf("%s is ended: %s", e.Decision.ID, e.Decision.Ending)
		}
	}
}
