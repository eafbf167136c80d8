package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func (s *stage) wantContention(kind string, says ...string) {
	s.Helper()
	c := s.gpu(0).GetContention()
	if c.GetKind() != kind {
		s.Errorf("second %d: contention %v, want %q", s.second, c, kind)
		return
	}
	all := strings.Join(c.GetEvidence(), "; ")
	for _, w := range says {
		if !strings.Contains(all, w) {
			s.Errorf("evidence %q does not say %q", all, w)
		}
	}
	if kind != "" && (len(c.GetEvidence()) == 0 || c.GetSinceUnixNano() == 0 || c.GetRatio() <= 0) {
		s.Errorf("contention without evidence, since or ratio: %v", c)
	}
}

func TestNoisyNeighbour(t *testing.T) {
	share := func(list ...*telemetry.Member) func(g *telemetry.GPU) {
		return func(g *telemetry.GPU) { g.SetMembers(list) }
	}
	of := func(id, workload string, gi ...uint32) *telemetry.Member {
		m := member(id)
		m.SetWorkload(workload)
		if len(gi) > 0 {
			m.SetGi(gi[0])
		}
		return m
	}
	for _, tc := range []struct {
		name string
		make func(g *telemetry.GPU)
		util float64
		want string
	}{
		{"two that leave no room", share(of("1", ""), of("2", "")), 1, ContentionNeighbour},
		{"two with room", share(of("1", ""), of("2", "")), 0.8, ""},
		{"one alone", share(of("1", "")), 1, ""},
		{"two processes of one workload", share(of("1", "proc:a/1@2"), of("2", "proc:a/1@2")), 1, ""},
		{"use not known, which is not full", func(g *telemetry.GPU) {
			share(of("1", ""), of("2", ""))(g)
			g.SetQuality(telemetry.GPUUtilizationRatio, errorQ)
		}, 1, ""},
		{"each in its own instance", share(of("1", "", 1), of("2", "", 2)), 1, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			g := s.n.devices[0]
			busyGPU(g, tc.util)
			tc.make(g)
			if g.QualityOf(telemetry.GPUUtilizationRatio) == errorQ {
				g.ClearValue(telemetry.GPUUtilizationRatio)
			}
			s.run(15)
			s.wantContention("")
			s.run(30)
			s.wantContention(tc.want)
		})
	}
	t.Run("evidence", func(t *testing.T) {
		s := newStage(t, 1)
		g := s.n.devices[0]
		share(of("pod-b", ""), of("pod-a", ""))(g)
		busyGPU(g, 0.99)
		g.SetValue(telemetry.GPUSMActiveRatio, 0.31)
		g.SetValue(telemetry.GPUTensorActiveRatio, 0.04)
		s.run(60)
		s.wantContention(ContentionNeighbour, "2 members share the device", "never free: 9", "SM active 31 %, tensor 4 %: they take turns")
		if with := s.gpu(0).GetContention().GetWith(); !slices.Equal(with, []string{"pod-a", "pod-b"}) {
			t.Errorf("with %q", with)
		}
		// A pause of some seconds does not end it, calm does.
		busyGPU(g, 0.2)
		s.run(10)
		s.wantContention(ContentionNeighbour)
		s.run(30)
		s.wantContention("")
	})
	t.Run("processes not known", func(t *testing.T) {
		s := newStage(t, 1)
		g := s.n.devices[0]
		share(of("1", ""), of("2", ""))(g)
		busyGPU(g, 1)
		s.run(60)
		s.wantContention(ContentionNeighbour)
		s.change = func(f *telemetry.Frame) { g.SetMembers(nil); f.SetHasSlowPart(false); f.SetHasLinkPart(false) }
		s.run(60)
		s.wantContention("")
	})
	t.Run("within a MIG instance", func(t *testing.T) {
		s := newStage(t, 1)
		g := s.n.devices[0]
		share(of("1", "", 3), of("2", "", 3), of("3", "", 4))(g)
		g.ClearValue(telemetry.GPUUtilizationRatio)
		busy := 0.99
		s.change = func(f *telemetry.Frame) {
			f.SetSamples(append(f.GetSamples(),
				sampleOf(telemetry.InstanceMIGSMActiveRatio, g.GetUuid(), busy, "3"), sampleOf(telemetry.InstanceMIGSMActiveRatio, g.GetUuid(), 0.1, "4")))
		}
		s.run(60)
		s.wantContention(ContentionNeighbour, "2 members share")
		busy = 0.1
		s.run(60)
		s.wantContention("")
	})
}

// Full links are told by bytes against what the links carry, apart from errors.
func TestNVLinkSaturation(t *testing.T) {
	for _, tc := range []struct {
		name      string
		arch      string
		up        int
		perSecond float64 // in the busier direction
		want      string
		ratio     float64
	}{
		{"full", "hopper", 18, 430e9, ContentionNVLink, 430 / (18 * 26.5625)},
		{"in use", "hopper", 18, 300e9, "", 300 / (18 * 26.5625)},
		{"full with links down", "hopper", 9, 220e9, ContentionNVLink, 220 / (9 * 26.5625)},
		{"Blackwell carries more", "blackwell", 18, 430e9, "", 430 / (18 * 50.)},
		{"Ampere less", "ampere", 12, 280e9, ContentionNVLink, 280 / (12 * 25.)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			g := s.n.devices[0]
			g.GetDescription().SetArch(tc.arch)
			links(g, tc.up, tc.up)
			busyGPU(g, 1)
			s.change = func(*telemetry.Frame) {
				g.SetValue(telemetry.GPUNVLinkTotalBytesTx, 1e12+float64(s.second)*tc.perSecond)
				g.SetValue(telemetry.GPUNVLinkTotalBytesRx, 1e12+float64(s.second)*tc.perSecond/2)
			}
			s.run(60)
			s.wantContention(tc.want)
			f := s.gpu(0).GetFabric()
			if d := f.GetSaturationRatio() - tc.ratio; d > 0.01 || d < -0.01 {
				t.Errorf("saturation %g, want %g", f.GetSaturationRatio(), tc.ratio)
			}
			if f.GetErrorsPerSecond() != 0 || f.GetState() == FabricErrors {
				t.Errorf("full links are told as errors: %v", f)
			}
			if tc.want != "" {
				s.wantContention(tc.want, "links of ")
			}
		})
	}
	t.Run("a counter that is reset is not traffic", func(t *testing.T) {
		s := newStage(t, 1)
		g := s.n.devices[0]
		links(g, 18, 18)
		s.change = func(*telemetry.Frame) {
			v := 1e15
			if s.second%20 == 10 {
				v = 5 // misread, each time
			}
			g.SetValue(telemetry.GPUNVLinkTotalBytesTx, v)
		}
		for range 100 {
			s.run(1)
			if r := s.gpu(0).GetFabric().GetSaturationRatio(); r > 0 {
				t.Fatalf("second %d: saturation %g of a still link", s.second, r)
			}
		}
	})
	t.Run("a new process begins anew", func(t *testing.T) {
		s := newStage(t, 1)
		g := s.n.devices[0]
		links(g, 18, 18)
		s.run(30)
		s.n.restart(s.at)
		s.second = 0
		g.SetValue(telemetry.GPUNVLinkTotalBytesTx, 1<<50) // the driver's own count; ours was lower
		s.run(1)
		if f := s.gpu(0).GetFabric(); f.HasSaturationRatio() {
			t.Errorf("saturation %g over a restart", f.GetSaturationRatio())
		}
		s.run(1)
		if f := s.gpu(0).GetFabric(); !f.HasSaturationRatio() || f.GetSaturationRatio() > 0 {
			t.Errorf("saturation after a restart: %v", f)
		}
	})
}

// Full ports slow the work of all that share them: told on the devices of a node
// with more than one piece of work.
func TestNetworkContention(t *testing.T) {
	for _, tc := range []struct {
		name string
		ids  []string // of the members on each device
		want string
	}{
		{"two jobs", []string{"1", "2"}, ContentionNetwork},
		{"one job on both", []string{"1", "1"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 2)
			for i, g := range s.n.devices {
				g.SetMembers([]*telemetry.Member{member(tc.ids[i])})
				busyGPU(g, 0.7)
			}
			round := 0.0
			s.samples = func() []*telemetry.Sample {
				round++
				return append(calmHost(), sampleOf(telemetry.NodeFabricBytes, "", round*15*49e9, "mlx5_0", "1", "rx"), sampleOf(telemetry.NodeFabricSpeed, "", 50e9, "mlx5_0", "1"))
			}
			s.run(61)
			s.wantContention(tc.want)
			if tc.want != "" {
				s.wantContention(tc.want, "mlx5_0 port 1 rx 49.0 GB/s of 50.0 GB/s")
			}
		})
	}
}
