package exporter

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Whichever call hangs on one GPU, while another one is lost: the other six have
// every value of every part in every frame, and frames, /metrics and events name
// both.
func TestFaultIsolationOfEveryCall(t *testing.T) {
	for _, c := range []struct{ call, name string }{
		{"Utilization", "nvmlDeviceGetUtilizationRates"}, {"BusySamples", "nvmlDeviceGetSamples"}, {"Memory", "nvmlDeviceGetMemoryInfo"},
		{"Temperature", "nvmlDeviceGetTemperature"}, {"Margin", "nvmlDeviceGetMarginTemperature"}, {"Power", "nvmlDeviceGetPowerUsage"},
		{"PowerLimits", "nvmlDeviceGetPowerManagementLimit"}, {"Clock", "nvmlDeviceGetClockInfo(sm)"}, {"Fields", "nvmlDeviceGetFieldValues"},
		{"Processes", "nvmlDeviceGetComputeRunningProcesses"}, {"PCIeLink", "nvmlDeviceGetCurrPcieLinkGeneration"},
		{"FabricState", "nvmlDeviceGetGpuFabricInfoV"}, {"LinkErrors1", "nvmlDeviceGetNvLinkErrorCounter(crc_data)"},
	} {
		t.Run(c.call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(8)
				hung, lost := w.gpus[3], w.gpus[5]
				e, sink := start(t, w)
				ticks(16) // to where all parts were read twice
				release := make(chan struct{})
				defer close(release)
				hung.set(func(d *device) { d.hang[c.call] = release })
				lost.set(func(d *device) { d.err["*"], d.findErr = gone(Lost), gone(Lost) })
				before := len(sink.all())
				ticks(48)
				frames := sink.all()
				if len(frames) != before+48 {
					t.Fatalf("%d frames in 48 s", len(frames)-before)
				}
				for n := before; n < len(frames); n++ {
					for i, d := range w.gpus {
						if d == hung || d == lost {
							continue
						}
						same(t, fmt.Sprintf("GPU %d, frame %d", i, n), frames[n], like(t, frames[:before], frames[n]), d)
					}
				}
				g := gpuOf(t, frames[len(frames)-1], hung)
				if g.GetUp() != 0 || g.GetHung().GetCall() != c.name || g.GetHung().GetForMs() < 30_000 {
					t.Errorf("the hung GPU: up %d, %v, want %s", g.GetUp(), g.GetHung(), c.name)
				}
				if g := gpuOf(t, frames[before], lost); !g.GetLost() || g.GetUp() != 0 {
					t.Errorf("the lost GPU in its first tick: %v", g)
				}
				sickIsNamed(t, e, w, c.name, hung, lost)
				if h, l := sink.told(telemetry.EventGPUHung), sink.told(telemetry.EventGPULost); len(h) != 1 || h[0].UUID != hung.id.UUID || len(l) != 1 || l[0].UUID != lost.id.UUID {
					t.Errorf("events %v", sink.list())
				}
			})
		})
	}
}

// like finds a frame with the same parts.
func like(t *testing.T, frames []*telemetry.Frame, f *telemetry.Frame) *telemetry.Frame {
	t.Helper()
	for i := len(frames) - 1; i > 0; i-- {
		if frames[i].GetHasLinkPart() == f.GetHasLinkPart() && frames[i].GetHasSlowPart() == f.GetHasSlowPart() {
			return frames[i]
		}
	}
	// A slow part on change, between two link parts: its link part is older.
	return frames[0]
}

// same checks that a GPU's part of a frame has all values that it has in another.
func same(t *testing.T, where string, f, ref *telemetry.Frame, d *device) {
	t.Helper()
	g, want := gpuOf(t, f, d), gpuOf(t, ref, d)
	if g.GetUp() != 1 || g.GetFastAgeMs() != 0 || g.GetLinkAgeMs() > 4000 || g.GetSlowAgeMs() > 14000 || g.HasHung() || g.GetLost() || len(g.GetQualityIds()) > 0 {
		t.Fatalf("%s: up %d, ages %d, %d and %d ms, qualities %v", where, g.GetUp(), g.GetFastAgeMs(), g.GetLinkAgeMs(), g.GetSlowAgeMs(), g.GetQualityIds())
	}
	for _, row := range telemetry.Catalog {
		for _, s := range row.Series {
			_, has := want.Value(s.ID)
			late := s.Rate == telemetry.Slow || row.Rate == telemetry.Slow
			if late && !f.GetHasSlowPart() || row.Rate == telemetry.Link && !f.GetHasLinkPart() {
				continue
			}
			if _, ok := g.Value(s.ID); has && !ok {
				t.Fatalf("%s: no %s", where, s.Field)
			}
			if _, has := want.LinkValue(s.ID, 17); has && f.GetHasLinkPart() {
				if _, ok := g.LinkValue(s.ID, 17); !ok {
					t.Fatalf("%s: no %s of link 17", where, s.Field)
				}
			}
		}
	}
}

// sickIsNamed checks what /metrics says of two GPUs out of eight.
func sickIsNamed(t *testing.T, e *Exporter, w *world, call string, hung, lost *device) {
	t.Helper()
	for _, d := range w.gpus {
		want := 1.0
		if d == hung || d == lost {
			want = 0
		}
		if v, ok := series(t, e, `gpu_up{node="node-1",uuid="`+d.id.UUID+`"}`); !ok || v != want {
			t.Errorf("gpu_up of %s: %g (%v), want %g", d.id.UUID, v, ok, want)
		}
		for _, fault := range []string{"hung", "lost"} {
			_, ok := series(t, e, `gpu_reader_failing{fault="`+fault+`",node="node-1",reader="power",uuid="`+d.id.UUID+`"}`)
			if want := fault == "hung" && d == hung || fault == "lost" && d == lost; ok != want {
				t.Errorf("reader of %s fails as %s: %v, want %v", d.id.UUID, fault, ok, want)
			}
		}
		v, ok := series(t, e, `evenkeel_driver_call_hung_seconds{call="`+call+`",node="node-1",uuid="`+d.id.UUID+`"}`)
		if ok != (d == hung) || ok && v < 30 {
			t.Errorf("%s of %s hangs for %g s (%v)", call, d.id.UUID, v, ok)
		}
	}
	if v, ok := series(t, e, `evenkeel_reader_success{node="node-1",reader="power"}`); !ok || v != 0 {
		t.Errorf("the reader's success: %g (%v)", v, ok)
	}
}
