package cluster

import (
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestFabricStates(t *testing.T) {
	expected := func(n float64) func(s *stage, g *telemetry.GPU) {
		return func(_ *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUNVLinkLinksExpected, n) }
	}
	for _, tc := range []struct {
		name string
		make func(s *stage, g *telemetry.GPU)
		want string
		up   uint32
		of   uint32
	}{
		{"all up", func(_ *stage, g *telemetry.GPU) { links(g, 18, 18) }, FabricOK, 18, 18},
		{"two down", func(_ *stage, g *telemetry.GPU) { links(g, 18, 16) }, FabricDegraded, 16, 18},
		{"two not told of", func(_ *stage, g *telemetry.GPU) { links(g, 16, 16) }, FabricDegraded, 16, 18},
		{"expectation not told", func(s *stage, g *telemetry.GPU) {
			links(g, 12, 11)
			g.ClearValue(telemetry.GPUNVLinkLinksExpected)
		}, FabricDegraded, 11, 0},
		{"no bridge", func(_ *stage, g *telemetry.GPU) { links(g, 12, 0) }, FabricUnconnected, 0, 18},
		{"links not told", func(*stage, *telemetry.GPU) {}, FabricUnknown, 0, 18},
		{"no links", expected(0), "", 0, 0},
		{"all went down", func(s *stage, g *telemetry.GPU) { links(g, 18, 18); s.run(10); links(g, 18, 0) }, FabricDegraded, 0, 18},
		{"told no more", func(s *stage, g *telemetry.GPU) { links(g, 18, 18); s.run(10); g.SetLinkMask(0) }, FabricUnknown, 0, 18},
		{"joining", func(_ *stage, g *telemetry.GPU) { links(g, 18, 18); g.SetValue(telemetry.GPUFabricState, 1) }, FabricNotReady, 18, 18},
		{"fabric state not supported", func(_ *stage, g *telemetry.GPU) { links(g, 18, 18); g.SetValue(telemetry.GPUFabricState, 0) }, FabricOK, 18, 18},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			tc.make(s, s.n.devices[0])
			s.run(30)
			f := s.gpu(0).GetFabric()
			if f.GetState() != tc.want || s.gpu(0).HasFabric() != (tc.want != "") {
				t.Fatalf("fabric %v, want %q", f, tc.want)
			}
			if up := f.GetLinksUp(); tc.want != FabricUnknown && up != tc.up || f.GetLinksExpected() != tc.of {
				t.Errorf("%d of %d links, want %d of %d", up, f.GetLinksExpected(), tc.up, tc.of)
			}
			if tc.want != "" && tc.want != FabricOK && len(f.GetEvidence()) == 0 {
				t.Errorf("%q without evidence", tc.want)
			}
		})
	}
}

// Errors are told as a rate, and stay told for a while after the last of them.
func TestFabricErrors(t *testing.T) {
	s := newStage(t, 1)
	g := s.n.devices[0]
	links(g, 18, 18)
	s.run(10)
	s.change = func(*telemetry.Frame) { g.SetLinkValue(telemetry.LinkNVLinkErrorsCRCFlit, 3, float64(s.second-10)*200) }
	s.run(11)
	f := s.gpu(0).GetFabric()
	if f.GetState() != FabricErrors || f.GetErrorsPerSecond() < 199 || f.GetErrorsPerSecond() > 201 {
		t.Errorf("fabric %v, want 200 errors/s", f)
	}
	s.change = nil
	s.run(20)
	if f = s.gpu(0).GetFabric(); f.GetState() != FabricErrors || f.GetErrorsPerSecond() != 0 {
		t.Errorf("20 s after the last error: %v", f)
	}
	s.run(60)
	if f = s.gpu(0).GetFabric(); f.GetState() != FabricOK {
		t.Errorf("80 s after the last error: %v", f)
	}
	// Counters of a link that was reset do not make errors.
	g.SetLinkValue(telemetry.LinkNVLinkErrorsCRCFlit, 3, 0)
	s.run(30)
	if f = s.gpu(0).GetFabric(); f.GetState() != FabricOK || f.GetErrorsPerSecond() != 0 {
		t.Errorf("after a reset of the counter: %v", f)
	}
}
