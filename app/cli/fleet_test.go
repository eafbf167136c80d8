package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

// testTime is when the fleet of these tests stands still.
var testTime = time.Date(2026, 11, 30, 3, 12, 0, 0, time.UTC)

// fleet is two nodes of two GPUs, judged, under a real handler.
type fleet struct {
	mu        sync.Mutex
	view      *cluster.View
	decisions []*telemetry.Decision
	alerts    []ui.RuleAlert
	changed   []chan struct{}
}

func (f *fleet) View() *cluster.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view
}

func (f *fleet) History(string) []ui.Point { return nil }

func (f *fleet) Changes(context.Context) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{}, 1)
	f.changed = append(f.changed, c)
	return c
}

func (f *fleet) Decisions() []*telemetry.Decision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decisions
}

func (f *fleet) Decision(id string) (*telemetry.Decision, bool) {
	for _, d := range f.Decisions() {
		if d.ID == id {
			return d, true
		}
	}
	return nil, false
}

func (f *fleet) Alerts() []ui.RuleAlert {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alerts
}

// change does something to the fleet and tells whoever listens.
func (f *fleet) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	for _, c := range f.changed {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Control implements ui.Control: a leader that has nothing to do.
func (f *fleet) Control(_ context.Context, verb string, _ []byte) ([]byte, error) {
	if verb == "plan" {
		return []byte(`{"text":"nothing to do\n"}`), nil
	}
	return []byte(`{"text":"Nothing is beyond its mark.\n"}`), nil
}

const (
	uuidA = "GPU-0000000a-71c5-4f1b-9c0e-00000000000a"
	uuidB = "GPU-0000000b-71c5-4f1b-9c0e-00000000000b"
	uuidC = "GPU-0000000c-71c5-4f1b-9c0e-00000000000c"
	train = telemetry.WorkloadRef("k8s:vision/Job/train")
)

func device(uuid, node string, index int, headroom, watts, limit, busy float64, more func(*cluster.GPU)) *cluster.GPU {
	g := cluster.GPU{
		UUID: uuid, Node: node, PCI: "0000:17:00.0", Index: index, Model: "NVIDIA H100 80GB HBM3", Arch: "hopper", Driver: "580.95.05", State: cluster.GPUOK, Generation: 1,
		HeadroomC: cluster.Some(headroom), SlopeCPerS: cluster.Some(-0.02), RCPerW: cluster.Some(0.061), TauS: cluster.Some(25), BaseC: cluster.Some(31),
		LimitW: cluster.Some(limit), MinW: cluster.Some(200), DefaultW: cluster.Some(700), MaxW: cluster.Some(700),
		Health: cluster.HealthOK, HealthScore: 1,
		Fabric: cluster.Fabric{State: cluster.FabricOK, LinksUp: 18, LinksExpected: 18, Saturation: cluster.Some(0.21), ErrorsPerSecond: cluster.Some(0), Since: testTime.Add(-time.Hour)},
	}
	if more != nil {
		more(&g)
	}
	at := testTime.Add(-400 * time.Millisecond)
	reading := func(id telemetry.ID, v float64) cluster.Reading {
		return cluster.Reading{ID: id, V: v, At: at, Quality: telemetry.Quality_QUALITY_OK}
	}
	memory := reading(telemetry.GPUTemperatureCelsiusMemory, 90-headroom)
	memory.Quality = telemetry.Quality_QUALITY_SUSPECT
	return cluster.NewGPU(g, reading(telemetry.GPUTemperatureCelsiusCore, 87-headroom), memory, reading(telemetry.GPUPowerWatts, watts), reading(telemetry.GPUUtilizationRatio, busy),
		reading(telemetry.GPUClockHertzSM, 1.98e9), reading(telemetry.GPUMemoryUsedBytes, 61<<30), reading(telemetry.GPUMemoryTotalBytes, 80<<30), reading(telemetry.GPUThrottleActiveSWPower, 1))
}

func newFleet() *fleet {
	held := []cluster.Member{{ID: "pod-1", Kind: "pod", Workload: train, Owner: "vision", Name: "python3"}}
	a := device(uuidA, "a-1", 0, 3.25, 690.4, 700, 0.97, func(g *cluster.GPU) {
		g.Members = held
		g.Health, g.HealthScore, g.HealthReason, g.HealthSince, g.HealthEvidence = cluster.HealthDegraded, 0.6, "1 of 18 NVLinks down", testTime.Add(-31*time.Minute), []string{"link 7 is down", "Xid 74 on NVLink 7"}
		g.Fabric.State, g.Fabric.LinksUp, g.Fabric.Evidence = cluster.FabricDegraded, 17, []string{"link 7 is down since 02:41:10"}
		g.Contention = &cluster.Contention{Kind: cluster.ContentionNVLink, Ratio: 0.97, With: []string{"pod-9"}, Evidence: []string{"its links carry 97 % of what they can"}, Since: testTime.Add(-90 * time.Second)}
	})
	b := device(uuidB, "a-1", 1, 12, 120, 500, 0, func(g *cluster.GPU) {
		g.Members = held
		g.IdleSince, g.IdleCause, g.IdleEvidence = testTime.Add(-22*time.Minute), cluster.IdleFinishedHolding, []string{"61.0 GiB held by pod-1", "no activity for 22 min"}
	})
	c := cluster.NewGPU(cluster.GPU{UUID: uuidC, Node: "b-1", Index: 0, State: cluster.GPUHung, HungCall: "nvmlDeviceGetPowerUsage", HungFor: 95 * time.Second, Health: cluster.HealthHung, HealthReason: "driver call does not return", IdleCause: cluster.IdleUnknown, IdleEvidence: []string{"no value is fresh"}})
	nodes := []*cluster.Node{
		{
			Name: "a-1", Cluster: "lab", BootID: "b4f1", Incarnation: 3, State: cluster.NodeUp, Seen: testTime.Add(-400 * time.Millisecond), Heard: testTime.Add(-300 * time.Millisecond), Since: testTime.Add(-time.Hour),
			Period: time.Second, Skew: 12 * time.Millisecond, ClockSynchronized: true, Expected: 2, Rack: "a01", Row: "a", Feed: "feed-1", PowerDomain: "pdu-1", InletC: cluster.Some(24.5), AirC: cluster.Some(31),
			Marks: map[string]string{"pool": "train"}, Sources: []string{"file"}, GPUs: []*cluster.GPU{a, b},
			Host: []cluster.HostVerdict{
				{Name: cluster.HostCPUStarved, Value: cluster.Some(0.11), Evidence: "processors were busy 11 % of the time", Since: testTime.Add(-time.Hour)},
				{Name: cluster.HostStorageStalled, Holds: true, Value: cluster.Some(0.71), Evidence: "tasks waited for I/O 71 % of the time", Since: testTime.Add(-5 * time.Minute)},
			},
		},
		{Name: "b-1", State: cluster.NodeGone, Seen: testTime.Add(-4 * time.Minute), Period: time.Second, Expected: 2, Rack: "b01", Row: "b", Doubt: "2 machines speak for it", GPUs: []*cluster.GPU{c}},
	}
	w := &cluster.Workload{Source: "k8s-lab", Name: "python3", InventoryWorkload: telemetry.InventoryWorkload{
		Ref: train, Owner: "vision", Tenant: "research", Priority: 50, Gang: "train", GangSize: 2, State: "running", Start: testTime.Add(-3 * time.Hour),
		Members: []telemetry.WorkloadMember{{ID: "pod-1", Node: "a-1", GPUs: []string{uuidA, uuidB}}}, Requests: telemetry.Requests{GPUs: 2, Model: "H100"},
		Checkpoint: &telemetry.Checkpoint{Signal: "USR1", Grace: telemetry.Duration(time.Minute), Last: testTime.Add(-9 * time.Minute)}, MaxDowntime: telemetry.Duration(10 * time.Minute), OptOut: []string{"migrate"},
	}, GPUs: []*cluster.GPU{a, b}}
	return &fleet{
		view: cluster.NewView(testTime, nodes, []*cluster.Workload{w}), decisions: []*telemetry.Decision{capOf(uuidA, 2), undoneCap(uuidB, 1)},
		alerts: []ui.RuleAlert{
			{Rule: "GPUThermalHeadroomLow", Firing: true, Since: testTime.Add(-9 * time.Minute), FiredAt: testTime.Add(-4 * time.Minute), Value: 3.25, Labels: map[string]string{"alertname": "GPUThermalHeadroomLow", "severity": "warning", "node": "a-1"}, Annotations: map[string]string{"summary": "The hottest GPU on a-1 is 3.2 °C from slowing down", "runbook_url": "docs/runbooks/GPUThermalHeadroomLow.md"}},
			{Rule: "GPUDriverCallHung", Since: testTime.Add(-time.Minute), Value: 1, Labels: map[string]string{"alertname": "GPUDriverCallHung", "severity": "critical", "node": "b-1", "uuid": uuidC}, Annotations: map[string]string{"summary": "nvmlDeviceGetPowerUsage does not return on b-1"}},
		},
	}
}

func capOf(uuid string, n int) *telemetry.Decision {
	id := []string{"", "d-000001", "d-000002"}[n]
	target := telemetry.Target{Node: "a-1", UUID: uuid, Generation: 1}
	watts, made := 500.0, testTime.Add(time.Duration(n-3)*time.Minute)
	epoch := telemetry.Epoch{Incarnation: "k1", Revision: 7}
	step := telemetry.Step{ID: id + "-1", Decision: id, Kind: telemetry.StepPowerCap, Backend: "node", Target: target, Params: telemetry.Params{PowerLimitWatts: &watts}, Epoch: epoch, Lease: telemetry.Duration(10 * time.Minute)}
	return &telemetry.Decision{
		ID: id, Policy: "thermal", Revision: "r3", Mode: telemetry.Enforce, Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: target, Outcome: telemetry.OutcomeActed,
		Why: "headroom 3.2 °C, below the mark of 5 °C; cap power at 500 W", Time: made, ViewTime: made, Epoch: epoch, Coverage: telemetry.Coverage{Expected: 4, Fresh: 2, Ratio: 0.5}, VerifyBy: made.Add(45 * time.Second),
		Violations: []telemetry.Violation{{Target: target, Signal: "gpu_thermal_headroom_celsius", Value: 3.25, Unit: "celsius", Mark: 5, Aim: 9, Seen: 3, Of: 3, Needed: 3}},
		Candidates: []telemetry.Candidate{{Workload: train, Owner: "vision", Priority: 50, Share: 1}},
		Act:        &telemetry.Act{ID: id + "-a", Kind: telemetry.ActCap, Class: telemetry.Gentle, Target: target, Summary: "cap power at 500 W, from 700 W", Steps: []telemetry.Step{step}},
		Steps:      []telemetry.StepRecord{{Step: step, Receipt: &telemetry.Receipt{StepID: step.ID, Target: target, Result: telemetry.Done, Ended: made.Add(100 * time.Millisecond)}}},
	}
}

func undoneCap(uuid string, n int) *telemetry.Decision {
	d := capOf(uuid, n)
	d.Outcome, d.Ended, d.Ending = telemetry.OutcomeUndone, testTime.Add(-time.Minute), "limit put back to 700 W"
	return d
}

// serve runs the real handler over the fleet; without rules none are evaluated.
func serve(t *testing.T, f *fleet, rules bool) *Client {
	t.Helper()
	o := ui.Options{Fleet: f, Decisions: f, Control: f, Now: func() time.Time { return testTime }}
	if rules {
		o.Alerts = f
	}
	web := httptest.NewServer(ui.Handler(o))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	return clientOf(web.URL)
}

func clientOf(url string) *Client {
	c := NewClient(url)
	c.HTTP = &http.Client{Transport: &http.Transport{}}
	c.Now = func() time.Time { return testTime }
	return c
}
