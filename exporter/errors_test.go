package exporter

import (
	"math"
	"testing"
	"testing/synctest"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What the slow and the link part say of errors, PCIe and health, of devices
// that have all of it and of one that has none.
func TestErrorsAndHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		d, bare := w.gpus[0], w.gpus[1]
		for id := range bare.plain {
			delete(bare.plain, id)
		}
		bare.err["FabricState"], bare.err["PCIeLink"] = gone(Unsupported), gone(MissingSymbol)
		for id, v := range map[FieldID]float64{
			FieldECCUncorrectedVolatile: 2, FieldECCUncorrectedAggregate: 4, FieldRemapUncorrectable: 6, FieldRemapPending: 1, FieldRecoveryAction: 2,
		} {
			d.plain[id] = v
		}
		d.pcie.MaxWidth = math.NaN()
		_, sink := start(t, w)
		ticks(1)
		f := sink.last()
		for id, want := range map[telemetry.ID]float64{
			telemetry.GPUECCErrorsCorrectedVolatile: 1, telemetry.GPUECCErrorsUncorrectedVolatile: 2,
			telemetry.GPUECCErrorsCorrectedAggregate: 3, telemetry.GPUECCErrorsUncorrectedAggregate: 4,
			telemetry.GPURowRemapCorrectable: 5, telemetry.GPURowRemapUncorrectable: 6,
			telemetry.GPURowRemapPending: 1, telemetry.GPURowRemapFailed: 0,
			telemetry.GPUPCIeBytesTx: 7e9, telemetry.GPUPCIeBytesRx: 8e9, telemetry.GPUPCIeReplays: 9,
			telemetry.GPUPCIeLinkGeneration: 5, telemetry.GPUPCIeLinkWidth: 16, telemetry.GPUPCIeLinkGenerationMax: 5,
			telemetry.GPURecoveryAction: 2, telemetry.GPUFabricState: 3,
		} {
			if v := number(t, gpuOf(t, f, d), id); v != want {
				t.Errorf("%s = %g, want %g", telemetry.RowOf(id).Name, v, want)
			}
			g := gpuOf(t, f, bare)
			if v, ok := g.Value(id); ok || g.QualityOf(id) != telemetry.Quality_QUALITY_UNSUPPORTED {
				t.Errorf("bare: %s = %g (%v), quality %v", telemetry.RowOf(id).Name, v, ok, g.QualityOf(id))
			}
		}
		if v, ok := gpuOf(t, f, d).Value(telemetry.GPUPCIeLinkWidthMax); ok {
			t.Errorf("width that is not stated: %g", v)
		}
		for _, s := range f.GetSamples() {
			if telemetry.ID(s.GetId()) == telemetry.NodeReaderSuccess && s.GetValue() != 1 {
				t.Errorf("reader %s failed", s.GetLabels()[0])
			}
		}
	})
}

// A count of 32 bits goes on when it wraps; one of bytes is doubtful where laps
// can be missed.
func TestPCIeBytesOf32Bits(t *testing.T) {
	for _, c := range []struct {
		name string
		link PCIeLink
		want telemetry.Quality
	}{
		{"wide", PCIeLink{5, 16, 5, 16}, telemetry.Quality_QUALITY_SUSPECT},
		{"idle, and faster when not", PCIeLink{1, 2, 5, 2}, telemetry.Quality_QUALITY_SUSPECT},
		{"narrow", PCIeLink{1, 2, 1, 2}, telemetry.Quality_QUALITY_OK},
		{"not known", PCIeLink{math.NaN(), 16, math.NaN(), 16}, telemetry.Quality_QUALITY_SUSPECT},
		{"of a later generation", PCIeLink{99, 1, 99, 1}, telemetry.Quality_QUALITY_SUSPECT},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				d := w.gpus[0]
				d.words, d.pcie = true, c.link
				d.plain[FieldPCIeTxBytes] = 1<<32 - 100
				_, sink := start(t, w)
				ticks(1)
				d.set(func(d *device) { d.plain[FieldPCIeTxBytes] = 50 })
				ticks(5)
				g := gpuOf(t, sink.last(), d)
				if v := number(t, g, telemetry.GPUPCIeBytesTx); v != 1<<32+50 {
					t.Errorf("%g bytes after a wrap, want %d", v, 1<<32+50)
				}
				if q := g.QualityOf(telemetry.GPUPCIeBytesTx); q != c.want {
					t.Errorf("quality %v, want %v", q, c.want)
				}
				if q := g.QualityOf(telemetry.GPUPCIeReplays); q != telemetry.Quality_QUALITY_OK {
					t.Errorf("replays: quality %v", q)
				}
			})
		})
	}
}

// ECC counts begin anew when the driver is loaded again; ours go on.
func TestECCSurvivesTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		d.plain[FieldECCCorrectedVolatile] = 100
		_, sink := start(t, w)
		ticks(2)
		w.fail(gone(NotLoaded))
		d.set(func(d *device) { d.err["*"] = gone(NotLoaded) })
		ticks(5)
		w.fail(nil)
		d.set(func(d *device) {
			d.err = map[string]error{}
			d.plain[FieldECCCorrectedVolatile] = 7
		})
		ticks(40)
		var got float64
		for _, f := range sink.all() {
			if v, ok := gpuOf(t, f, d).Value(telemetry.GPUECCErrorsCorrectedVolatile); ok {
				got = v
			}
		}
		if got != 107 {
			t.Errorf("%g corrected errors, want 107", got)
		}
	})
}
