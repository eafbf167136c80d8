package cluster

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func verdictOf(o *telemetry.Observation, name string) *telemetry.HostVerdict {
	for _, v := range o.GetHost() {
		if v.GetName() == name {
			return v
		}
	}
	return nil
}

// Each verdict on a host: what makes it hold, what only looks like it, and what
// it says.
func TestHostVerdicts(t *testing.T) {
	port := func(perSecond, speed float64) func(round int) []*telemetry.Sample {
		return func(round int) []*telemetry.Sample {
			return []*telemetry.Sample{
				sampleOf(telemetry.NodeFabricBytes, "", 1e15+float64(round)*15*perSecond, "mlx5_0", "1", "tx"),
				sampleOf(telemetry.NodeFabricSpeed, "", speed, "mlx5_0", "1"),
			}
		}
	}
	counter := func(id telemetry.ID, perSecond float64, labels ...string) func(round int) []*telemetry.Sample {
		return func(round int) []*telemetry.Sample {
			return []*telemetry.Sample{sampleOf(id, "", 7+float64(round)*15*perSecond, labels...)}
		}
	}
	fixed := func(samples ...*telemetry.Sample) func(int) []*telemetry.Sample {
		return func(int) []*telemetry.Sample { return samples }
	}
	for _, tc := range []struct {
		name    string
		samples func(round int) []*telemetry.Sample
		verdict string
		holds   bool
		says    string
	}{
		{"mount", fixed(sampleOf(telemetry.NodeHostMountStalled, "", 1, "/scratch", "lustre")), HostStorageStalled, true, "/scratch (lustre) does not answer"},
		{"pressure", fixed(sampleOf(telemetry.NodeHostPressureRatio, "", 0.7, "io")), HostStorageStalled, true, "some task waited for storage 70 % of the time"},
		{"iowait", fixed(sampleOf(telemetry.NodeHostCPUIOWaitRatio, "", 0.25)), HostStorageStalled, true, "processors waited for it 25 %"},
		{"a busy disk that nobody waits for", func(round int) []*telemetry.Sample {
			return append(counter(telemetry.NodeHostDiskBusySeconds, 1, "nvme0n1")(round), sampleOf(telemetry.NodeHostPressureRatio, "", 0.1, "io"))
		}, HostStorageStalled, false, "some task waited for storage 10 % of the time, nvme0n1 busy 100 %"},
		{"a busy disk that somebody waits for", func(round int) []*telemetry.Sample {
			return append(counter(telemetry.NodeHostDiskBusySeconds, 1, "nvme0n1")(round), sampleOf(telemetry.NodeHostPressureRatio, "", 0.4, "io"))
		}, HostStorageStalled, true, "some task waited for storage 40 % of the time, nvme0n1 busy 100 %"},
		{"processors", fixed(sampleOf(telemetry.NodeHostCPUUtilizationRatio, "", 1)), HostCPUStarved, true, "processors in use 100 %"},
		{"processors, by pressure", fixed(sampleOf(telemetry.NodeHostPressureRatio, "", 0.9, "cpu")), HostCPUStarved, true, "some task waited for one 90 % of the time"},
		{"memory pressure is another thing", fixed(sampleOf(telemetry.NodeHostPressureRatio, "", 0.9, "memory"), sampleOf(telemetry.NodeHostCPUUtilizationRatio, "", 0.5)), HostCPUStarved, false, "processors in use 50 %"},
		{"a full port", port(47e9, 50e9), HostNetworkSaturated, true, "mlx5_0 port 1 tx 47.0 GB/s of 50.0 GB/s"},
		{"a port in use", port(30e9, 50e9), HostNetworkSaturated, false, "mlx5_0 port 1 tx 30.0 GB/s of 50.0 GB/s"},
		{"waiting for credit", counter(telemetry.NodeFabricCongestionWait, 0.5, "mlx5_0", "1"), HostNetworkSaturated, true, "mlx5_0 port 1 waited for credit 50 % of the time"},
		{"errors", counter(telemetry.NodeFabricErrors, 4, "mlx5_0", "1", "symbol"), HostNetworkErrors, true, "mlx5_0 port 1: 4 symbol errors/s"},
		{"an error now and then", counter(telemetry.NodeFabricErrors, 0.05, "mlx5_0", "1", "symbol"), HostNetworkErrors, false, "mlx5_0 port 1: 0.05 symbol errors/s"},
		{"a port that never was up", fixed(sampleOf(telemetry.NodeFabricUp, "", 0, "mlx5_7", "1")), HostNetworkDown, false, "every port that was up is up"},
		{"a port that went down", func(round int) []*telemetry.Sample {
			up := 0.0
			if round == 0 {
				up = 1
			}
			return []*telemetry.Sample{sampleOf(telemetry.NodeFabricUp, "", up, "mlx5_0", "1")}
		}, HostNetworkDown, true, "mlx5_0 port 1 is down and was up"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, 1)
			round := -1
			s.samples = func() []*telemetry.Sample { round++; return tc.samples(round) }
			o := s.run(61)
			v := verdictOf(o, tc.verdict)
			if v == nil || v.GetHolds() != tc.holds || v.GetEvidence() != tc.says {
				t.Errorf("%v, want holds %v, %q", v, tc.holds, tc.says)
			}
			if v.GetHolds() && (!v.HasValue() || v.GetSinceUnixNano() < t0.UnixNano()) {
				t.Errorf("without value or since: %v", v)
			}
			for _, other := range o.GetHost() {
				if other.GetName() != tc.verdict && other.GetHolds() {
					t.Errorf("%v holds too", other)
				}
			}
			s.samples = nil
			if o := s.run(60); verdictOf(o, tc.verdict) != nil {
				t.Errorf("45 s after the last sample: %v", o.GetHost())
			}
		})
	}
}

// One burst is not a state, and neither is one pause.
func TestHostVerdictsDoNotFlap(t *testing.T) {
	s := newStage(t, 1)
	high := false
	s.samples = func() []*telemetry.Sample {
		v := 0.2
		if high {
			v = 0.9
		}
		return []*telemetry.Sample{sampleOf(telemetry.NodeHostPressureRatio, "", v, "io")}
	}
	holds := func(beyond bool, rounds int) bool {
		high = beyond
		s.run(15 * rounds)
		return verdictOf(s.last, HostStorageStalled).GetHolds()
	}
	if holds(true, 1) {
		t.Error("holds after one look")
	}
	if holds(false, 1) || !holds(true, 2) {
		t.Error("want it to hold after two looks in a row")
	}
	if !holds(false, 1) || holds(false, 1) {
		t.Error("want it to cease after two looks in a row")
	}
}

// Samples that come in several frames are one look.
func TestHostLooksOnceEachRound(t *testing.T) {
	s := newStage(t, 1)
	s.samples = nil
	s.change = func(f *telemetry.Frame) {
		if s.second%15 < 3 { // three readers, a second apart
			f.SetSamples([]*telemetry.Sample{sampleOf(telemetry.NodeHostPressureRatio, "", 0.9, "io"), sampleOf(telemetry.NodeHostLoad1, "", float64(s.second))})
		}
	}
	s.run(10)
	if verdictOf(s.last, HostStorageStalled).GetHolds() {
		t.Error("one round of samples counted as two looks")
	}
	s.run(15)
	if !verdictOf(s.last, HostStorageStalled).GetHolds() {
		t.Error("does not hold after two rounds")
	}
}

// A counter of the host that wraps, is reset or whose port is replaced does not
// look like a flood.
func TestHostCounterResets(t *testing.T) {
	s := newStage(t, 1)
	round, v := 0, 0.0
	s.samples = func() []*telemetry.Sample {
		round++
		v += 15 * 10e9
		if round == 4 {
			v = 0 // the driver of the port was loaded anew
		}
		if round == 7 {
			v = 1e18 // misread
			defer func() { v = 15 * 10e9 * 3 }()
		}
		return []*telemetry.Sample{
			sampleOf(telemetry.NodeFabricBytes, "", v, "mlx5_0", "1", "rx"), sampleOf(telemetry.NodeFabricSpeed, "", 50e9, "mlx5_0", "1"),
		}
	}
	for range 12 {
		s.run(15)
		if x := verdictOf(s.last, HostNetworkSaturated); x.GetHolds() {
			t.Fatalf("round %d: %v", round, x)
		}
	}
}

// A verdict that changes is told at once.
func TestHostVerdictIsPublishedAtOnce(t *testing.T) {
	n := newNode("a", 1)
	n.period = 100 * time.Millisecond
	r := newRig(t, n)
	at := t0
	for range 105 {
		r.hear(at)
		at = at.Add(n.period)
	}
	f := n.frame(at)
	f.SetSamples([]*telemetry.Sample{sampleOf(telemetry.NodeHostMountStalled, "", 1, "/data", "nfs")})
	if o, err := r.j.Frame(at, f); err != nil || o == nil || !verdictOf(o, HostStorageStalled).GetHolds() {
		t.Errorf("observation %v, %v", o, err)
	}
}

// What was said of the host before a restart does not count.
func TestHostAfterARestart(t *testing.T) {
	s := newStage(t, 1)
	s.samples = func() []*telemetry.Sample {
		return []*telemetry.Sample{sampleOf(telemetry.NodeHostPressureRatio, "", 0.9, "io")}
	}
	s.run(31)
	if !verdictOf(s.last, HostStorageStalled).GetHolds() {
		t.Fatal("does not hold")
	}
	s.n.restart(s.at)
	s.second = 1
	if o := s.run(5); len(o.GetHost()) != 0 {
		t.Errorf("from before the restart: %v", o.GetHost())
	}
	s.second = 0
	if o := s.run(1); verdictOf(o, HostStorageStalled).GetHolds() {
		t.Error("one look after a restart is enough")
	}
}
