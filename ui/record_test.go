package ui

import (
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// fullDecision is the record of a cap as the engine would write it.
func fullDecision(id string, d *device, now time.Time, found float64) *telemetry.Decision {
	target := telemetry.Target{Node: d.node, UUID: d.uuid, Generation: 1}
	ref := workloadRef(d.job)
	headroom := sampleSlowdown - d.core
	step := telemetry.Step{
		ID: id + "-1", Decision: id, Kind: telemetry.StepPowerCap, Backend: "node", Target: target, Params: telemetry.Params{PowerLimitWatts: &d.limit, FoundWatts: &found},
		Epoch: telemetry.Epoch{Incarnation: "k1", Revision: 7}, Deadline: now.Add(3 * time.Second), Lease: telemetry.Duration(10 * time.Minute),
	}
	limit := d.limit
	step.Params.PowerLimitWatts = &limit
	receipt := &telemetry.Receipt{
		StepID: step.ID, Decision: id, Kind: step.Kind, Target: target, Result: telemetry.Done, Started: now.Add(80 * time.Millisecond), Ended: now.Add(130 * time.Millisecond),
		Before: map[string]float64{"power_limit_watts": found}, After: map[string]float64{"power_limit_watts": d.limit}, LeaseUntil: now.Add(10 * time.Minute),
		Node: d.node, BootID: "b-" + d.node, Incarnation: 1,
	}
	summary := fmt.Sprintf("cap power at %.0f W, from %.0f W", d.limit, found)
	return &telemetry.Decision{
		ID: id, Policy: "thermal", Revision: "r3", Mode: telemetry.Enforce, Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: target, Outcome: telemetry.OutcomeActed,
		Why:  fmt.Sprintf("headroom %.1f °C, below the mark of %.0f °C; %s", headroom, sampleMark, summary),
		Time: now, ViewTime: now.Add(-40 * time.Millisecond), Coverage: telemetry.Coverage{Expected: 32, Fresh: 29, Ratio: 29.0 / 32},
		FirstSeen: now, LastSeen: now, Epoch: step.Epoch,
		Violations: []telemetry.Violation{{
			Target: target, Signal: "gpu_thermal_headroom_celsius", Value: headroom, Unit: "celsius", Mark: sampleMark, Aim: sampleAim, Seen: 1, Of: 1, Needed: 1, Agrees: "gpu_throttle_active{sw_thermal}",
			Where: fmt.Sprintf("H100, index %d, rack %s, row %s", d.index, d.rack, d.row), Slope: -0.31, Reaches: 15,
			Evidence: []telemetry.Evidence{
				{Signal: "gpu_thermal_headroom_celsius", Value: headroom, Unit: "celsius", AgeMS: 210, Quality: "ok"},
				{Signal: "gpu_temperature_celsius{memory}", Value: d.core + 3, Unit: "celsius", AgeMS: 210, Quality: "ok", Note: "second sensor"},
			},
		}},
		Candidates: []telemetry.Candidate{{Workload: ref, Owner: "vision", Priority: 50, Share: 1, Note: "the only process on the device"}},
		Alternatives: []telemetry.Alternative{
			{Act: telemetry.ActSteer, Summary: "steer new work away from row " + d.row, Gain: 0, Cost: 0, Net: 0, Refusals: []telemetry.Refusal{{
				Reason: telemetry.RefusalNotEnough, Target: target, Act: telemetry.ActSteer, Have: number(0), Need: number(4), Unit: "celsius", Text: "gains 0 °C within 60 s, 4 °C are needed",
			}}},
			{Act: telemetry.ActCap, Summary: summary, Gain: 210, Cost: 64, Risk: 3, Net: 143, Chosen: true},
			{Act: telemetry.ActMigrate, Summary: "move " + string(ref) + " to gpu-c01-02", Gain: 230, Cost: 1900, Risk: 40, Net: -1710, Refusals: []telemetry.Refusal{
				{Reason: telemetry.RefusalNotWorth, Target: target, Act: telemetry.ActMigrate, Have: number(-1710), Need: number(0), Unit: "seconds", Text: "costs 1,900 GPU-seconds, 230 are gained"},
				{Reason: telemetry.RefusalSettling, Target: telemetry.Target{Workload: ref}, Act: telemetry.ActMigrate, Until: now.Add(7 * time.Minute), Text: "moved 3 min ago"},
			}},
		},
		Refusals:     []telemetry.Refusal{{Reason: telemetry.RefusalBudget, Target: telemetry.Target{Node: d.node}, Act: telemetry.ActPause, Have: number(1), Need: number(1), Text: "1 of 1 pauses for owner vision is used"}},
		RefusalCount: map[telemetry.RefusalReason]int{telemetry.RefusalNotEnough: 1, telemetry.RefusalNotWorth: 1, telemetry.RefusalSettling: 1, telemetry.RefusalBudget: 1},
		Act:          &telemetry.Act{ID: id + "-a", Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: target, Summary: summary, Steps: []telemetry.Step{step}, Lease: step.Lease},
		Predicted:    &telemetry.Effect{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Before: headroom, After: sampleAim, Within: telemetry.Duration(45 * time.Second), Note: "learned 0.06 °C per W, 25 s time constant"},
		Steps:        []telemetry.StepRecord{{Step: step, OrderID: "o-" + id, Receipt: receipt}},
		VerifyBy:     now.Add(45 * time.Second),
	}
}

func workloadRef(job int) telemetry.WorkloadRef {
	return telemetry.WorkloadRef(fmt.Sprintf("k8s:vision/Job/train-%d", job))
}

// fullWorkload is a workload with everything that inventory can say of one.
func fullWorkload(job int, now time.Time) *cluster.Workload {
	room := 1
	return &cluster.Workload{Source: "k8s-lab", Name: "python3", Seen: now.Add(-time.Hour), InventoryWorkload: telemetry.InventoryWorkload{
		Ref: workloadRef(job), Owner: "vision", Tenant: "research", Priority: 50, Gang: fmt.Sprintf("train-%d", job), GangSize: 2, State: "running",
		Members:   []telemetry.WorkloadMember{{ID: fmt.Sprintf("pod-%d", job), Node: "gpu-a01-01", GPUs: []string{"GPU-1"}}},
		Requests:  telemetry.Requests{GPUs: 8, MIGProfile: "7g.80gb", MemoryBytes: 80 << 30, Model: "H100", Share: 1},
		Submitted: now.Add(-2 * time.Hour), Start: now.Add(-time.Hour), Checkpoint: &telemetry.Checkpoint{Signal: "USR1", Grace: telemetry.Duration(time.Minute), Last: now.Add(-9 * time.Minute)},
		MaxDowntime: telemetry.Duration(10 * time.Minute), MinRunTime: telemetry.Duration(5 * time.Minute), OptOut: []string{"migrate"}, PDBRoom: &room, Restarts: 1, LocalData: true,
		QueueOwner: "kueue", NodeSelector: []string{"gpu-a01-01"},
	}}
}
