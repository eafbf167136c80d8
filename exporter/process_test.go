package exporter

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// held is what an exporter knows of who holds a GPU.
func held(e *Exporter, d *device) (list []Process, listed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.gpus {
		if g.uuid == d.id.UUID {
			return slices.Clone(g.front.processes), g.front.listed
		}
	}
	return nil, false
}

// The link part comes every fifth tick, with its age, and the calls for it are
// made then only.
func TestLinkPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		e, sink := start(t, w)
		holders := []Process{{PID: 7, MemoryBytes: 1 << 30, Instance: NoInstance}, {PID: 9, Instance: NoInstance}}
		w.gpus[1].set(func(d *device) { d.processes = holders })
		ticks(31)
		for i, f := range sink.all() {
			if want := i%5 == 0; f.GetHasLinkPart() != want {
				t.Errorf("frame %d: link part %v, want %v", i, f.GetHasLinkPart(), want)
			}
			for _, g := range f.GetGpus() {
				if age := g.GetLinkAgeMs(); age != uint32(i%5)*1000 {
					t.Errorf("frame %d: link age %d ms", i, age)
				}
			}
		}
		if n := w.gpus[1].count["Processes"]; n != 7 {
			t.Errorf("processes listed %d times in 31 ticks, want 7", n)
		}
		if list, listed := held(e, w.gpus[1]); !listed || !slices.Equal(list, holders) {
			t.Errorf("held by %v (%v), want %v", list, listed, holders)
		}
		if list, listed := held(e, w.gpus[0]); !listed || len(list) != 0 {
			t.Errorf("held by %v (%v), want nobody", list, listed)
		}
	})
}

// A device that cannot list processes fails nothing; one whose list fails is
// named by its reader, and the list is not taken for an empty one.
func TestProcessesThatCannotBeListed(t *testing.T) {
	for _, c := range []struct {
		fault   Fault
		success float64
	}{{Unsupported, 1}, {MissingSymbol, 1}, {NoPermission, 0}, {OtherFault, 0}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(1)
			d := w.gpus[0]
			d.processes = []Process{{PID: 7, Instance: NoInstance}}
			e, sink := start(t, w)
			ticks(1)
			d.set(func(d *device) { d.err["Processes"] = gone(c.fault) })
			ticks(15)
			if list, listed := held(e, d); listed || len(list) != 0 {
				t.Errorf("%s: held by %v (%v)", c.fault, list, listed)
			}
			f := sink.last()
			for _, s := range f.GetSamples() {
				if telemetry.ID(s.GetId()) == telemetry.NodeReaderSuccess && s.GetLabels()[0] == "processes" && s.GetValue() != c.success {
					t.Errorf("%s: success %g, want %g", c.fault, s.GetValue(), c.success)
				}
			}
			if g := gpuOf(t, f, d); g.GetUp() != 1 {
				t.Errorf("%s: the GPU is down", c.fault)
			}
			d.set(func(d *device) { delete(d.err, "Processes") })
			ticks(15)
			if list, listed := held(e, d); !listed || len(list) != 1 {
				t.Errorf("%s: held by %v (%v) when it can be told again", c.fault, list, listed)
			}
		})
	}
}
