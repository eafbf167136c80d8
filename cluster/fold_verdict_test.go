package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// hear folds an observation that has crossed the wire.
func fold1(t *testing.T, s *State, at time.Time, o *telemetry.Observation) *View {
	t.Helper()
	data, err := telemetry.AppendObservation(nil, o)
	if err != nil {
		t.Fatal(err)
	}
	var back telemetry.Observation
	if err := telemetry.DecodeObservation(data, &back); err != nil {
		t.Fatal(err)
	}
	if err := s.Observe(at, &back); err != nil {
		t.Fatal(err)
	}
	return s.View(at)
}

// What the judge says is what the View shows, over the wire and all; what is no
// longer said is no longer shown.
func TestVerdictsReachTheView(t *testing.T) {
	s, state := newSound(t), NewState()
	g := s.n.devices[0]
	g.SetMembers([]*telemetry.Member{member("b"), member("a")})
	busyGPU(g, 0.99)
	g.SetValue(telemetry.GPURowRemapPending, 1)
	g.SetValue(telemetry.GPUPCIeLinkWidth, 8)
	links(g, 18, 17)
	s.samples = func() []*telemetry.Sample {
		return append(calmHost(), sampleOf(telemetry.NodeHostMountStalled, "", 1, "/data", "nfs4"))
	}
	s.run(60)
	v := fold1(t, state, s.at, s.last)
	n, x, _ := v.GPU(g.GetUuid())
	if holds, known, why := n.HostHolds(HostStorageStalled); !holds || !known || why != "/data (nfs4) does not answer" {
		t.Errorf("host %+v", n.Host)
	}
	if holds, known, _ := n.HostHolds(HostCPUStarved); holds || !known {
		t.Errorf("host %+v", n.Host)
	}
	if _, known, _ := n.HostHolds(HostNetworkErrors); known {
		t.Errorf("host %+v", n.Host)
	}
	if x.Health != HealthResetNeeded || x.HealthReason != "a row remap waits for a reset" || !slices.Equal(x.HealthEvidence, []string{"NVLinks are down, 17 are up", "PCIe has 8 lanes, less than it could"}) || x.HealthSince.Sub(t0).Abs() > time.Second {
		t.Errorf("health %s, %s, %q since %s", x.Health, x.HealthReason, x.HealthEvidence, x.HealthSince)
	}
	if c := x.Contention; c == nil || c.Kind != ContentionNeighbour || !slices.Equal(c.With, []string{"a", "b"}) || len(c.Evidence) != 3 || c.Ratio < 0.9 || c.Since.Before(t0) {
		t.Errorf("contention %+v", c)
	}
	if f := x.Fabric; f.State != FabricDegraded || f.LinksUp != 17 || f.LinksExpected != 18 || !f.Saturation.OK || f.ErrorsPerSecond != Some(0) || len(f.Evidence) != 1 || f.Since.Before(t0) {
		t.Errorf("fabric %+v", f)
	}
	if x.IdleCause != "" || !x.IdleSince.IsZero() {
		t.Errorf("idle: %s since %s", x.IdleCause, x.IdleSince)
	}
	gone, _, _ := fold1(t, NewState(), s.at, s.last).GPU(g.GetUuid())
	silent := gone.GPUs[0].clone()
	if silent.silence("gone"); silent.Contention != nil || silent.IdleCause != IdleUnknown {
		t.Errorf("of a silent device: %+v", silent)
	}
	before := x
	// Now it does nothing, and the signals of that are there.
	quietGPU(g)
	s.run(60)
	v = fold1(t, state, s.at, s.last)
	_, x, _ = v.GPU(g.GetUuid())
	if x.Contention != nil || x.IdleCause != IdleWaitingData || s.at.Sub(x.IdleSince) > 70*time.Second || len(x.IdleEvidence) != 3 {
		t.Errorf("idle: %s since %s, %q; contention %+v", x.IdleCause, x.IdleSince, x.IdleEvidence, x.Contention)
	}
	if &x.HealthEvidence[0] != &before.HealthEvidence[0] {
		t.Error("evidence that did not change is kept twice")
	}
	// A signal is missing: it is not known whether it is used.
	g.ClearValue(telemetry.GPUUtilizationRatio)
	s.run(60)
	v = fold1(t, state, s.at, s.last)
	if _, x, _ = v.GPU(g.GetUuid()); x.IdleCause != IdleUnknown || !x.IdleSince.IsZero() || len(x.IdleEvidence) != 1 {
		t.Errorf("idle: %s since %s, %q", x.IdleCause, x.IdleSince, x.IdleEvidence)
	}
	// The node falls silent: nothing that was judged of it is so now.
	n, x, _ = state.View(s.at.Add(time.Hour)).GPU(g.GetUuid())
	if x.State != GPUUnknown || x.Health != HealthUnknown || x.HealthEvidence != nil || x.IdleCause != IdleUnknown || !x.IdleSince.IsZero() || x.Contention != nil || x.Fabric.State != FabricUnknown || n.Host != nil {
		t.Errorf("of a silent node: %+v, host %+v", x, n.Host)
	}
}
