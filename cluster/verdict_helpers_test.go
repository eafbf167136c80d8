package cluster

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// quietGPU makes a device that does nothing and tells of it by every signal.
func quietGPU(g *telemetry.GPU) {
	set(g, map[telemetry.ID]float64{
		telemetry.GPUUtilizationRatio: 0, telemetry.GPUSMActiveRatio: 0, telemetry.GPUTensorActiveRatio: 0,
		telemetry.GPUMemoryUtilizationRatio: 0, telemetry.GPUDRAMActiveRatio: 0, telemetry.GPUBusySeconds: 1000,
		telemetry.GPUNVLinkTotalBytesTx: 1 << 40, telemetry.GPUNVLinkTotalBytesRx: 1 << 40, telemetry.GPUNVLinkLinksExpected: 18,
		telemetry.GPUMemoryUsedBytes: 4 << 20, telemetry.GPUPowerWatts: 70,
		telemetry.GPUThrottleActiveHWThermal: 0, telemetry.GPUThrottleActiveSWThermal: 0, telemetry.GPUThrottleActiveHWSlowdown: 0, telemetry.GPUThrottleActivePowerBrake: 0,
	})
}

// busyGPU makes it work at a share of its time.
func busyGPU(g *telemetry.GPU, share float64) {
	set(g, map[telemetry.ID]float64{telemetry.GPUUtilizationRatio: share, telemetry.GPUSMActiveRatio: share / 2, telemetry.GPUDRAMActiveRatio: share / 3})
}

func member(id string) *telemetry.Member {
	return telemetry.Member_builder{Id: id, Kind: "proc", MemoryBytes: 40 << 30}.Build()
}

func sampleOf(id telemetry.ID, uuid string, v float64, labels ...string) *telemetry.Sample {
	return telemetry.Sample_builder{Id: uint32(id), Uuid: uuid, Value: v, Labels: labels}.Build()
}

// calmHost is a host that keeps nobody from working, as its readers tell it.
func calmHost() []*telemetry.Sample {
	return []*telemetry.Sample{
		sampleOf(telemetry.NodeReaderSuccess, "", 1, "members"),
		sampleOf(telemetry.NodeHostCPUUtilizationRatio, "", 0.1),
		sampleOf(telemetry.NodeHostCPUIOWaitRatio, "", 0),
		sampleOf(telemetry.NodeHostPressureRatio, "", 0.01, "io"),
		sampleOf(telemetry.NodeHostPressureRatio, "", 0.01, "cpu"),
	}
}

// stage is a node whose frames have a slow part with samples every 15 s and a
// link part every 5 s, as an exporter's have.
type stage struct {
	*rig
	at      time.Time
	second  int
	samples func() []*telemetry.Sample
	change  func(f *telemetry.Frame)
	last    *telemetry.Observation
}

func newStage(t *testing.T, gpus int) *stage {
	s := &stage{rig: newRig(t, newNode("a", gpus)), at: t0, samples: calmHost}
	for _, g := range s.n.devices {
		quietGPU(g)
	}
	return s
}

// run lets seconds pass and returns the last observation.
func (s *stage) run(seconds int) *telemetry.Observation {
	s.Helper()
	for range seconds {
		f := s.n.frame(s.at)
		f.SetHasSlowPart(s.second%15 == 0)
		f.SetHasLinkPart(s.second%5 == 0)
		if s.second%15 == 0 && s.samples != nil {
			f.SetSamples(s.samples())
		}
		if s.change != nil {
			s.change(f)
		}
		o, err := s.j.Frame(s.at, f)
		if err != nil {
			s.Fatalf("second %d: %v", s.second, err)
		}
		if o != nil {
			s.last = o
		}
		s.at, s.second = s.at.Add(s.n.period), s.second+1
	}
	return s.last
}

// slow runs to just after the next slow part.
func (s *stage) slow() *telemetry.Observation {
	s.Helper()
	return s.run(15 - (s.second+14)%15)
}

func (s *stage) gpu(i int) *telemetry.GPUObservation {
	s.Helper()
	return gpuOf(s.T, s.last, s.n.devices[i].GetUuid())
}

func (s *stage) wantIdle(cause string, since time.Time) {
	s.Helper()
	i := s.gpu(0).GetIdle()
	got := time.Time{}
	if i.GetSinceUnixNano() != 0 {
		got = time.Unix(0, i.GetSinceUnixNano())
	}
	if i.GetCause() != cause || !got.Equal(since) && got.Sub(since).Abs() > 50*time.Millisecond {
		s.Errorf("second %d: idle %v since %s, want %q since %s", s.second, i, got.UTC(), cause, since)
	}
	if cause != "" && len(i.GetEvidence()) == 0 {
		s.Errorf("second %d: cause %q without evidence", s.second, cause)
	}
}

func (s *stage) wantHealth(class, reason string) {
	s.Helper()
	h := s.gpu(0).GetHealth()
	if h.GetClass() != class || h.GetReason() != reason {
		s.Errorf("second %d: health %s (%s), want %s (%s)", s.second, h.GetClass(), h.GetReason(), class, reason)
	}
}
