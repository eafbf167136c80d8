package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// began is when a device that never does anything is first known to be quiet:
// the traffic of its links takes two readings.
var began = t0.Add(time.Second)

func TestIdleWithoutProcess(t *testing.T) {
	s := newStage(t, 1)
	s.run(11)
	s.wantIdle("", time.Time{})
	s.run(1)
	s.wantIdle(IdleNoProcess, began)
	s.run(200)
	s.wantIdle(IdleNoProcess, began)
	if e := s.gpu(0).GetIdle().GetEvidence(); !slices.Equal(e, []string{"utilization 0 %, SM active 0 %, memory traffic 0 %", "no process holds it"}) {
		t.Errorf("evidence %q", e)
	}
}

// Use by any one signal is use.
func TestUseIsSeenByAnySignal(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(s *stage, g *telemetry.GPU)
	}{
		{"kernels", func(_ *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUUtilizationRatio, 0.04) }},
		{"multiprocessors", func(_ *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUSMActiveRatio, 0.02) }},
		{"memory", func(_ *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUDRAMActiveRatio, 0.05) }},
		{"memory, by the driver's window", func(_ *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUMemoryUtilizationRatio, 0.05) }},
		{"NVLink", func(s *stage, g *telemetry.GPU) {
			g.SetValue(telemetry.GPUNVLinkTotalBytesRx, 1<<40+float64(s.second)*5e6)
		}},
		{"bursts between ticks", func(s *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUBusySeconds, 1000+float64(s.second)*0.05) }},
		{"PCIe", func(s *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUPCIeBytesRx, float64(s.second)*1e9) }},
		// Profiling that broke after a fault reads zero while kernels run.
		{"profiling reads zero", func(_ *stage, g *telemetry.GPU) { g.SetValue(telemetry.GPUUtilizationRatio, 1) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			s.run(30)
			s.wantIdle(IdleNoProcess, began)
			s.change = func(*telemetry.Frame) { tc.make(s, s.n.devices[0]) }
			s.run(7) // the slower signals come every 5 s
			s.wantIdle("", time.Time{})
			s.run(30)
			s.wantIdle("", time.Time{})
		})
	}
}

// Without every signal it is not known whether a device is used.
func TestIdleTakesEverySignal(t *testing.T) {
	clear := func(ids ...telemetry.ID) func(*stage, *telemetry.Frame) {
		return func(s *stage, f *telemetry.Frame) {
			for _, id := range ids {
				s.n.devices[0].ClearValue(id)
			}
		}
	}
	suspect := func(id telemetry.ID) func(*stage, *telemetry.Frame) {
		return func(s *stage, f *telemetry.Frame) { s.n.devices[0].SetQuality(id, suspectQ) }
	}
	for _, tc := range []struct {
		name  string
		spoil func(*stage, *telemetry.Frame)
		after int
		want  string
	}{
		{"kernels", clear(telemetry.GPUUtilizationRatio), 6, "multiprocessors"},
		{"multiprocessors told and then not", clear(telemetry.GPUSMActiveRatio), 6, "multiprocessors"},
		{"long after the value was forgotten", clear(telemetry.GPUSMActiveRatio), 300, "multiprocessors"},
		{"multiprocessors suspect", suspect(telemetry.GPUSMActiveRatio), 2, "multiprocessors"},
		{"memory", clear(telemetry.GPUMemoryUtilizationRatio, telemetry.GPUDRAMActiveRatio), 6, "memory"},
		{"NVLink", clear(telemetry.GPUNVLinkTotalBytesTx), 6, "NVLinks"},
		{"processes", func(s *stage, f *telemetry.Frame) { f.SetSamples(nil) }, 60, "processes"},
		{"the reader of processes fails", func(s *stage, f *telemetry.Frame) {
			if len(f.GetSamples()) > 0 {
				f.SetSamples([]*telemetry.Sample{sampleOf(telemetry.NodeReaderSuccess, "", 0, "members")})
			}
		}, 20, "processes"},
		{"the device does not tell them", func(s *stage, f *telemetry.Frame) {
			if len(f.GetSamples()) > 0 {
				f.SetSamples(append(f.GetSamples(), sampleOf(telemetry.GPUReaderFailing, "GPU-a-0", 1, "processes", "other")))
			}
		}, 20, "processes"},
		{"the node's clock steps", func(s *stage, f *telemetry.Frame) {
			f.SetSampleTimeUnixNano(f.GetSampleTimeUnixNano() + int64(time.Minute))
		}, 2, "multiprocessors"},
		{"the device is lost", func(s *stage, f *telemetry.Frame) { s.n.devices[0].SetLost(true) }, 2, "does not answer"},
		{"it hangs", func(s *stage, f *telemetry.Frame) {
			s.n.devices[0].SetHung(telemetry.HungCall_builder{Call: "c", ForMs: 900}.Build())
		}, 2, "does not answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			s.run(60)
			s.wantIdle(IdleNoProcess, began)
			s.change = func(f *telemetry.Frame) { tc.spoil(s, f) }
			s.run(tc.after)
			s.wantIdle(IdleUnknown, time.Time{})
			if e := strings.Join(s.gpu(0).GetIdle().GetEvidence(), "; "); !strings.Contains(e, tc.want) {
				t.Errorf("evidence %q does not name %q", e, tc.want)
			}
		})
	}
	t.Run("a busy device needs no other signal", func(t *testing.T) {
		s := newStage(t, 1)
		s.change = func(f *telemetry.Frame) { clear(telemetry.GPUNVLinkTotalBytesTx)(s, f); f.SetSamples(nil) }
		busyGPU(s.n.devices[0], 0.9)
		s.run(60)
		s.wantIdle("", time.Time{})
	})
	t.Run("what a device does not have is not missing", func(t *testing.T) {
		s := newStage(t, 1)
		g := s.n.devices[0]
		for _, id := range []telemetry.ID{telemetry.GPUSMActiveRatio, telemetry.GPUTensorActiveRatio, telemetry.GPUDRAMActiveRatio, telemetry.GPUNVLinkTotalBytesTx, telemetry.GPUNVLinkTotalBytesRx, telemetry.GPUNVLinkLinksExpected} {
			g.ClearValue(id)
		}
		s.change = func(f *telemetry.Frame) {
			for _, id := range []telemetry.ID{telemetry.GPUSMActiveRatio, telemetry.GPUNVLinkTotalBytesTx, telemetry.GPUNVLinkTotalBytesRx} {
				g.SetQuality(id, okQ)
				if f.GetHasSlowPart() {
					g.SetQuality(id, telemetry.Quality_QUALITY_UNSUPPORTED)
				}
			}
		}
		s.run(100)
		s.wantIdle(IdleNoProcess, t0)
	})
}

// A hole in the signals does not end the quiet if the counter of busy time, which
// misses nothing, shows that there was none; else it does.
func TestIdleTimeOverAHole(t *testing.T) {
	for _, tc := range []struct {
		name string
		busy float64 // seconds of work in the hole
		gone bool    // no counter
		want time.Time
	}{
		{"quiet all the time", 0, false, began},
		{"used meanwhile", 3, false, t0.Add(81 * time.Second)},
		{"nobody knows", 0, true, t0.Add(80 * time.Second)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			g := s.n.devices[0]
			if tc.gone {
				g.ClearValue(telemetry.GPUBusySeconds)
			}
			s.run(60)
			g.ClearValue(telemetry.GPUUtilizationRatio)
			s.run(20)
			s.wantIdle(IdleUnknown, time.Time{})
			g.SetValue(telemetry.GPUUtilizationRatio, 0)
			if !tc.gone {
				g.SetValue(telemetry.GPUBusySeconds, 1000+tc.busy)
			}
			s.run(15)
			s.wantIdle(IdleNoProcess, tc.want)
		})
	}
	t.Run("a restart of the process begins anew", func(t *testing.T) {
		s := newStage(t, 1)
		s.run(60)
		s.n.restart(s.at)
		since := s.at.Add(time.Second)
		s.second = 0
		s.run(20)
		s.wantIdle(IdleNoProcess, since)
	})
	t.Run("lost frames", func(t *testing.T) {
		s := newStage(t, 1)
		s.run(60)
		s.at, s.n.seq = s.at.Add(30*time.Second), s.n.seq+30
		s.second = 0
		s.run(20)
		s.wantIdle(IdleNoProcess, began)
	})
}

func TestIdleCauses(t *testing.T) {
	hostWith := func(samples ...*telemetry.Sample) func() []*telemetry.Sample {
		return func() []*telemetry.Sample {
			out := calmHost()
			for _, x := range samples {
				out = slices.DeleteFunc(out, func(y *telemetry.Sample) bool {
					return y.GetId() == x.GetId() && slices.Equal(y.GetLabels(), x.GetLabels())
				})
			}
			return append(out, samples...)
		}
	}
	down := func() func() []*telemetry.Sample {
		told := 0
		return func() []*telemetry.Sample {
			told++
			up := 0.0
			if told == 1 {
				up = 1
			}
			return append(calmHost(), sampleOf(telemetry.NodeFabricUp, "", up, "mlx5_0", "1"))
		}
	}
	for _, tc := range []struct {
		name    string
		samples func() []*telemetry.Sample
		make    func(g *telemetry.GPU)
		seconds int
		want    string
		says    string
	}{
		{"finished", calmHost, nil, 400, IdleFinishedHolding, "1 process holds 61.0 GiB"},
		{"not long enough to say", calmHost, nil, 250, IdleUnknown, "quiet for less than 5 min"},
		{"a mount is dead", hostWith(sampleOf(telemetry.NodeHostMountStalled, "", 1, "/data", "nfs4")), nil, 400, IdleWaitingData, "/data (nfs4) does not answer"},
		{"tasks wait for storage", hostWith(sampleOf(telemetry.NodeHostPressureRatio, "", 0.8, "io")), nil, 400, IdleWaitingData, "some task waited for storage 80 % of the time"},
		{"processors wait for storage", hostWith(sampleOf(telemetry.NodeHostCPUIOWaitRatio, "", 0.3)), nil, 400, IdleWaitingData, "processors waited for it 30 %"},
		{"no processor is free", hostWith(sampleOf(telemetry.NodeHostCPUUtilizationRatio, "", 0.99)), nil, 400, IdleCPUStarved, "processors in use 99 %"},
		{"a port went down", down(), nil, 400, IdleWaitingNetwork, "mlx5_0 port 1 is down"},
		{"throttled", calmHost, func(g *telemetry.GPU) { g.SetValue(telemetry.GPUThrottleActivePowerBrake, 1) }, 400, IdleThrottled, "throttled: power_brake"},
		{"the host says nothing", func() []*telemetry.Sample { return calmHost()[:1] }, nil, 400, IdleUnknown, "whether it waits for storage is not known"},
		{"the host says nothing of its processors", func() []*telemetry.Sample {
			return []*telemetry.Sample{calmHost()[0], calmHost()[2]}
		}, nil, 400, IdleUnknown, "whether it waits for the CPU is not known"},
		{"memory that nobody holds", calmHost, func(g *telemetry.GPU) { g.SetMembers(nil) }, 400, IdleUnknown, "61.0 GiB are in use by no process"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			g := s.n.devices[0]
			g.SetValue(telemetry.GPUMemoryUsedBytes, 61<<30)
			g.SetMembers([]*telemetry.Member{member("4001@77+boot")})
			if tc.make != nil {
				tc.make(g)
			}
			s.samples = tc.samples
			s.run(tc.seconds)
			s.wantIdle(tc.want, began)
			if e := strings.Join(s.gpu(0).GetIdle().GetEvidence(), "; "); !strings.Contains(e, tc.says) {
				t.Errorf("evidence %q does not say %q", e, tc.says)
			}
		})
	}
}

// Work whose storage was down is not finished when the storage is back: it gets
// the whole time again.
func TestWaitingIsNotFinishing(t *testing.T) {
	s := newStage(t, 1)
	g := s.n.devices[0]
	g.SetValue(telemetry.GPUMemoryUsedBytes, 61<<30)
	g.SetMembers([]*telemetry.Member{member("1")})
	stalled := func() []*telemetry.Sample {
		return append(calmHost(), sampleOf(telemetry.NodeHostMountStalled, "", 1, "/data", "nfs4"))
	}
	s.samples = stalled
	s.run(600)
	s.wantIdle(IdleWaitingData, began)
	s.samples = func() []*telemetry.Sample {
		return append(calmHost(), sampleOf(telemetry.NodeHostMountStalled, "", 0, "/data", "nfs4"))
	}
	s.run(30)
	s.wantIdle(IdleUnknown, began)
	s.run(240)
	s.wantIdle(IdleUnknown, began)
	s.run(60)
	s.wantIdle(IdleFinishedHolding, began)
	// The storage is down once more: it is waiting again, and so on.
	s.samples = stalled
	s.run(30)
	s.wantIdle(IdleWaitingData, began)
	s.samples = calmHost
	s.run(120)
	s.wantIdle(IdleUnknown, began)
	// It works again: everything begins anew.
	busyGPU(g, 0.8)
	s.run(1)
	s.wantIdle("", time.Time{})
}

// Which part of a frame tells of processes is not ours to know; an empty list is
// one only in that part.
func TestMembersAreTold(t *testing.T) {
	for _, tc := range []struct {
		name string
		on   func(f *telemetry.Frame) bool
	}{
		{"with every tick", func(*telemetry.Frame) bool { return true }},
		{"with the link part", func(f *telemetry.Frame) bool { return f.GetHasLinkPart() }},
		{"with the slow part", func(f *telemetry.Frame) bool { return f.GetHasSlowPart() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			g := s.n.devices[0]
			holds := true
			s.change = func(f *telemetry.Frame) {
				g.SetMembers(nil)
				if holds && tc.on(f) {
					g.SetMembers([]*telemetry.Member{member("1"), member("2")})
				}
			}
			for i := range 60 {
				s.run(1)
				if n := len(s.gpu(0).GetMembers()); n != 2 {
					t.Fatalf("second %d: %d members, want 2", i, n)
				}
			}
			holds = false
			s.run(15)
			if n := len(s.gpu(0).GetMembers()); n != 0 {
				t.Errorf("%d members 15 s after they ended", n)
			}
		})
	}
	t.Run("too many", func(t *testing.T) {
		s := newStage(t, 1)
		list := make([]*telemetry.Member, 5000)
		for i := range list {
			list[i] = member("same")
		}
		s.n.devices[0].SetMembers(list)
		if o := s.run(1); len(s.gpu(0).GetMembers()) != maxMembers || o.GetRefused()[0].GetWhy() != RefusedMember {
			t.Errorf("%d members, refused %v", len(s.gpu(0).GetMembers()), o.GetRefused())
		}
	})
}
