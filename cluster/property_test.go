package cluster

import (
	"bytes"
	"fmt"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// story is what a node might say: anything, in any order.
type story struct {
	frames  []*telemetry.Frame
	arrived []time.Time
}

// maxDelay is how late a frame of a story comes at most; by as much the viewer may
// take a value for older than it is.
const maxDelay = 3 * time.Second

func drawStory(rt *rapid.T) story {
	n := newNode("a", rapid.IntRange(1, 3).Draw(rt, "gpus"))
	for _, g := range n.devices {
		quietGPU(g)
		sound(g)
	}
	n.period = rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 15 * time.Second}).Draw(rt, "period")
	all := n.devices
	var s story
	at := t0
	for range rapid.IntRange(5, 60).Draw(rt, "frames") {
		at = at.Add(rapid.SampledFrom([]time.Duration{n.period, n.period, n.period, 0, 20 * time.Second, 400 * time.Second, -time.Second}).Draw(rt, "step"))
		act(rt, n, all, at)
		f := proto.Clone(n.frame(at)).(*telemetry.Frame)
		f.SetHasSlowPart(rapid.Bool().Draw(rt, "slow"))
		f.SetHasLinkPart(rapid.Bool().Draw(rt, "link"))
		f.SetSamples(drawSamples(rt, all[0].GetUuid()))
		s.frames = append(s.frames, f)
		s.arrived = append(s.arrived, at.Add(time.Duration(rapid.Int64Range(0, int64(maxDelay)).Draw(rt, "delay"))))
		if len(s.frames) > 1 && rapid.IntRange(0, 9).Draw(rt, "again") == 0 {
			i := rapid.IntRange(0, len(s.frames)-1).Draw(rt, "which")
			s.frames, s.arrived = append(s.frames, s.frames[i]), append(s.arrived, at)
		}
	}
	return s
}

// act lets something happen to the node or a device.
func act(rt *rapid.T, n *node, all []*telemetry.GPU, at time.Time) {
	g := all[rapid.IntRange(0, len(all)-1).Draw(rt, "gpu")]
	switch rapid.IntRange(0, 12).Draw(rt, "act") {
	case 0:
		w := wiredSeries[rapid.IntRange(0, len(wiredSeries)-1).Draw(rt, "series")]
		g.SetValue(w.id, max(w.row.Min, min(rapid.Float64Range(-10, 1e6).Draw(rt, "v"), w.row.Max)))
	case 1:
		w := wiredSeries[rapid.IntRange(0, len(wiredSeries)-1).Draw(rt, "series")]
		g.ClearValue(w.id)
		g.SetQuality(w.id, telemetry.Quality(rapid.IntRange(0, 6).Draw(rt, "quality")))
	case 2:
		g.SetGeneration(g.GetGeneration() + 1)
	case 3:
		n.restart(at)
	case 4:
		n.restart(at)
		n.boot = fmt.Sprint("boot-", at.UnixNano())
	case 5:
		n.devices = all[:rapid.IntRange(0, len(all)).Draw(rt, "there")]
	case 6:
		g.SetLost(!g.GetLost())
	case 7:
		g.SetMembers([]*telemetry.Member{member("1"), member(rapid.StringN(0, 4, 9).Draw(rt, "id"))})
	case 8:
		n.skew += time.Duration(rapid.IntRange(-40, 40).Draw(rt, "skew")) * time.Second
	case 9:
		n.fault = rapid.SampledFrom([]string{"", "not_loaded"}).Draw(rt, "fault")
	case 10:
		g.SetLinkValue(telemetry.LinkNVLinkErrorsReplay, rapid.IntRange(0, 17).Draw(rt, "link"), float64(rapid.IntRange(0, 1e6).Draw(rt, "errors")))
		g.SetSlowAgeMs(uint32(rapid.IntRange(0, 1e8).Draw(rt, "age")))
	case 11:
		links(g, 18, rapid.IntRange(0, 18).Draw(rt, "up"))
	case 12:
		g.GetDescription().SetPci(rapid.SampledFrom([]string{"0000:00:00.0", "0000:01:00.0", "0000:77:00.0"}).Draw(rt, "pci"))
	}
}

func drawSamples(rt *rapid.T, uuid string) (out []*telemetry.Sample) {
	for range rapid.IntRange(0, 3).Draw(rt, "samples") {
		v := rapid.Float64Range(0, 3).Draw(rt, "v")
		out = append(out, rapid.SampledFrom([]*telemetry.Sample{
			sampleOf(telemetry.NodeHostPressureRatio, "", min(v, 1), "io"),
			sampleOf(telemetry.NodeHostMountStalled, "", min(v, 1), "/é", "nfs"),
			sampleOf(telemetry.NodeFabricErrors, "", v*1000, "mlx5_0", "1", "symbol"),
			sampleOf(telemetry.NodeFabricBytes, "", v*1e12, "mlx5_0", "1", "tx"),
			sampleOf(telemetry.NodeFabricSpeed, "", 5e10, "mlx5_0", "1"),
			sampleOf(telemetry.NodeReaderSuccess, "", 1, "members"),
			sampleOf(telemetry.GPUXidErrors, uuid, v*3, "119", "RESET_GPU"),
			sampleOf(telemetry.GPUXidErrors, uuid, v*3, "79", "RESTART_BM"),
			sampleOf(telemetry.InstanceMIGSMActiveRatio, uuid, min(v, 1), "1"),
		}).Draw(rt, "sample"))
	}
	return out
}

// Whatever a node says: no panic; the same frames give the same bytes, whether
// messages are used again or not; no value is ok that is older than the process
// that tells it; every verdict is one of its words, with evidence that can be
// sent, and times that have been.
func TestJudgeProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawStory(rt)
		a, b := NewJudge("a", false), NewJudge("a", true)
		reused := new(telemetry.Observation)
		var lived time.Duration
		for i, f := range s.frames {
			at := s.arrived[i]
			va, errA := a.FrameInto(at, f, reused)
			ob, errB := b.Frame(at, proto.Clone(f).(*telemetry.Frame))
			if errA == nil {
				lived = time.Duration(f.GetMonotonicNano())
			}
			if (errA == nil) != (errB == nil) || va.Publish != (ob != nil) {
				rt.Fatalf("frame %d: %v and %v, published %v and %v", i, errA, errB, va.Publish, ob != nil)
			}
			if !va.Publish {
				continue
			}
			checkObservation(rt, lived, reused)
			if !bytes.Equal(encoded(rt, reused), encoded(rt, ob)) {
				rt.Fatalf("frame %d: the same frames, two observations:\n%s\n%s", i, protojson.Format(reused), protojson.Format(ob))
			}
		}
	})
}

func encoded(rt *rapid.T, o *telemetry.Observation) []byte {
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		rt.Fatal(err)
	}
	return out
}

var (
	healthClasses   = []string{HealthOK, HealthWatch, HealthDegraded, HealthResetNeeded, HealthDrainNeeded, HealthHung, HealthLost, HealthAbsent, HealthUnknown, HealthDoubtful}
	idleCauses      = []string{IdleUnknown, IdleNoProcess, IdleFinishedHolding, IdleWaitingData, IdleWaitingNetwork, IdleCPUStarved, IdleThrottled}
	contentionKinds = []string{ContentionNeighbour, ContentionNVLink, ContentionNetwork}
	fabricStates    = []string{FabricOK, FabricDegraded, FabricErrors, FabricNotReady, FabricUnconnected, FabricUnknown}
)

func checkObservation(rt *rapid.T, lived time.Duration, o *telemetry.Observation) {
	word := func(what, got string, of []string, evidence []string, needs bool) {
		for _, e := range evidence {
			if e == "" || !utf8.ValidString(e) {
				rt.Fatalf("%s: evidence %q", what, evidence)
			}
		}
		if needs && len(evidence) == 0 {
			rt.Fatalf("%s %q without evidence", what, got)
		}
		for _, w := range of {
			if w == got {
				return
			}
		}
		rt.Fatalf("%s %q is none of its words", what, got)
	}
	for _, v := range o.GetHost() {
		word("host verdict", v.GetName(), HostVerdicts[:], []string{v.GetEvidence()}, true)
	}
	for _, g := range o.GetGpus() {
		h := g.GetHealth()
		word("health", h.GetClass(), healthClasses, h.GetEvidence(), false)
		if (h.GetClass() == HealthOK) != (h.GetReason() == "") || h.GetScore() < 0 || h.GetScore() > 1 || (h.GetScore() == 1) != (h.GetClass() == HealthOK) {
			rt.Fatalf("health %v", h)
		}
		if g.HasIdle() {
			word("cause", g.GetIdle().GetCause(), idleCauses, g.GetIdle().GetEvidence(), true)
		}
		if g.HasContention() {
			word("contention", g.GetContention().GetKind(), contentionKinds, g.GetContention().GetEvidence(), true)
		}
		if g.HasFabric() {
			word("fabric", g.GetFabric().GetState(), fabricStates, g.GetFabric().GetEvidence(), g.GetFabric().GetState() != FabricOK)
		}
		for _, v := range g.GetValues() {
			if v.GetQuality() == okQ && lived > 0 && time.Duration(v.GetAgeMs())*time.Millisecond > lived+maxDelay {
				rt.Fatalf("%v is ok and older than its process, which has lived for %s", v, lived)
			}
		}
	}
}
