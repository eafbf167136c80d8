package cluster

import (
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestAir(t *testing.T) {
	s := newStage(t, 4)
	s.run(3)
	if s.last.HasAir() {
		t.Errorf("air without sensor and fit: %v", s.last.GetAir())
	}
	for i, base := range []float64{30, 31, 33, 80} { // one fit is wrong
		f := &s.j.tracks[i].fit
		f.hasR, f.r, f.baseW, f.base = true, 0.06, 1, base
	}
	for _, g := range s.n.devices {
		g.ClearValue(telemetry.GPUPowerWatts) // nothing is learned meanwhile
	}
	s.samples = func() []*telemetry.Sample {
		return append(calmHost(), sampleOf(telemetry.NodeHostInletCelsius, "", 24))
	}
	s.slow()
	a := s.last.GetAir()
	if a.GetInletC() != 24 || a.GetDevices() != 4 || a.GetBaseC() != 32 {
		t.Errorf("air %v, want inlet 24 and a base of 32", a)
	}
	st := NewState()
	if err := st.Observe(s.at, s.last); err != nil {
		t.Fatal(err)
	}
	if n, _ := st.View(s.at).Node("a"); n.InletC != Some(24) || n.AirC.V != a.GetBaseC() {
		t.Errorf("in the View: %v, %v", n.InletC, n.AirC)
	}
	s.samples = calmHost
	s.run(60)
	if a := s.last.GetAir(); a.HasInletC() {
		t.Errorf("an inlet that was told a minute ago: %v", a)
	}
}
