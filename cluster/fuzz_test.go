package cluster

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// FuzzJudge gives a judge whatever decodes as a frame, twice, on top of a good
// one: nothing panics, nothing that is not a number comes out, and the State
// takes the observation.
func FuzzJudge(f *testing.F) {
	n := newNode("a", 2)
	n.devices[0].SetLinkValue(telemetry.LinkNVLinkBytesTx, 3, 9)
	n.devices[1].SetHung(telemetry.HungCall_builder{Call: "c", ForMs: 1 << 63}.Build())
	good := n.frame(t0)
	n.seq = 0
	for _, make := range []func(m *telemetry.Frame){
		func(*telemetry.Frame) {},
		func(m *telemetry.Frame) { m.SetSequence(1 << 63) },
		func(m *telemetry.Frame) { m.SetSampleTimeUnixNano(1 << 61); m.SetMonotonicNano(-1 << 63) },
		func(m *telemetry.Frame) { m.SetPeriodNano(1 << 63); m.SetIncarnation(1<<64 - 1) },
		func(m *telemetry.Frame) {
			m.SetSamples([]*telemetry.Sample{telemetry.Sample_builder{Id: 402, Value: 2}.Build()})
		},
		func(m *telemetry.Frame) {
			m.SetHasLinkPart(true)
			m.SetHasSlowPart(true)
			for _, g := range m.GetGpus() {
				quietGPU(g)
				sound(g)
				g.SetLinkMask(1<<64 - 1)
				g.SetLinkAgeMs(1<<32 - 1)
				g.SetMembers([]*telemetry.Member{member(""), member("é"), {}})
			}
			m.SetSamples(append(calmHost(),
				sampleOf(telemetry.GPUXidErrors, "GPU-a-0", 1e300, "-5", "workflow"), sampleOf(telemetry.InstanceMIGSMActiveRatio, "GPU-a-0", 1, ""),
				sampleOf(telemetry.NodeFabricBytes, "", 1e300, "", "", ""), sampleOf(telemetry.NodeFabricSpeed, "", 0, "", ""),
				sampleOf(telemetry.NodeFabricErrors, "", 9, "a", "1", "é"), sampleOf(telemetry.NodeHostMountStalled, "", 1, "/", "")))
		},
		func(m *telemetry.Frame) {
			m.GetGpus()[0].SetFastAgeMs(1<<32 - 1)
			m.GetGpus()[0].SetQualityIds([]uint32{5, 8, 999, 1 << 31})
			m.GetGpus()[0].SetQualities([]telemetry.Quality{1, 90, -3})
		},
	} {
		m := n.frame(t0.Add(time.Second))
		make(m)
		data, err := telemetry.AppendFrame(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, int64(time.Second))
	}
	f.Fuzz(func(t *testing.T, data []byte, later int64) {
		var m telemetry.Frame
		if telemetry.DecodeFrame(data, &m) != nil {
			return
		}
		j, s := NewJudge("a", true), NewState()
		o := new(telemetry.Observation)
		at := t0
		for _, m := range []*telemetry.Frame{good, &m, &m} {
			v, err := j.FrameInto(at, m, o)
			at = at.Add(time.Duration(min(max(later, -int64(time.Hour)), int64(time.Hour))))
			if err != nil || !v.Publish {
				continue
			}
			checkNumbers(t, o)
			data, err := telemetry.AppendObservation(nil, o)
			if err != nil {
				t.Fatal(err)
			}
			var back telemetry.Observation
			if err := telemetry.DecodeObservation(data, &back); err != nil {
				t.Fatalf("own observation: %v", err)
			}
			_ = s.Observe(at, &back)
			s.View(at)
		}
		for x := range j.Samples() {
			if !finite(x.V) {
				t.Fatalf("sample %g", x.V)
			}
		}
		for x := range j.Links() {
			if !finite(x.V) || x.V < 0 {
				t.Fatalf("link value %g", x.V)
			}
		}
	})
}

func checkNumbers(t *testing.T, o *telemetry.Observation) {
	for _, g := range o.GetGpus() {
		p := g.GetPower()
		for _, v := range []float64{g.GetHeadroomC(), g.GetSlopeCPerS(), g.GetSecondsToSlowdown(), g.GetRCPerW(), g.GetTauS(), g.GetBaseC(),
			p.GetLimitW(), p.GetMinW(), p.GetMaxW(), p.GetDefaultW(), g.GetHealth().GetScore(), g.GetContention().GetRatio(),
			g.GetFabric().GetSaturationRatio(), g.GetFabric().GetErrorsPerSecond(), o.GetAir().GetBaseC(), o.GetAir().GetInletC()} {
			if !finite(v) {
				t.Fatalf("%g in %v", v, g)
			}
		}
		for _, v := range g.GetValues() {
			if row := telemetry.RowOf(telemetry.ID(v.GetId())); row == nil || !row.InRange(v.GetV()) && telemetry.ID(v.GetId()) != telemetry.GPUThermalHeadroomCelsius || !finite(v.GetV()) {
				t.Fatalf("value %v", v)
			}
		}
	}
}

// FuzzObserve gives a State whatever decodes as an observation.
func FuzzObserve(f *testing.F) {
	j := NewJudge("a", false)
	o, err := j.Frame(t0, newNode("a", 2).frame(t0))
	if err != nil {
		f.Fatal(err)
	}
	data, err := telemetry.AppendObservation(nil, o)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var o telemetry.Observation
		if telemetry.DecodeObservation(data, &o) != nil {
			return
		}
		s := NewState()
		for i := range 2 {
			at := t0.Add(time.Duration(i) * time.Second)
			_ = s.Observe(at, &o)
			v := s.View(at)
			for _, g := range v.GPUs() {
				for r := range g.Readings() {
					if !finite(r.V) {
						t.Fatalf("reading %+v", r)
					}
				}
				for _, x := range []Opt{g.HeadroomC, g.SlopeCPerS, g.RCPerW, g.LimitW, g.Fabric.Saturation, g.Fabric.ErrorsPerSecond, {V: g.HealthScore}} {
					if !finite(x.V) {
						t.Fatalf("GPU %+v", g)
					}
				}
			}
			v.Coverage(at)
			f := v.Fork()
			for _, g := range v.GPUs() {
				_ = f.Apply(Change{g.UUID, 300})
			}
		}
	})
}
