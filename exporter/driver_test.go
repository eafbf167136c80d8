package exporter

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A node without a working driver says why, serves on, and recovers by itself.
func TestDriverComesLater(t *testing.T) {
	for _, fault := range []Fault{NoLibrary, NotLoaded, Mismatch, NoPermission, NoGPU, MissingSymbol} {
		t.Run(string(fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(2)
				gpus := w.gpus
				if fault == NoGPU {
					w.gpus = nil
				} else {
					w.openErr = gone(fault)
				}
				_, sink := start(t, w)
				ticks(5)
				for _, f := range sink.all() {
					if f.GetDriverFault() != string(fault) || len(f.GetGpus()) != 0 {
						t.Fatalf("fault %q, %d GPUs", f.GetDriverFault(), len(f.GetGpus()))
					}
				}
				w.mu.Lock()
				w.openErr, w.gpus = nil, gpus
				w.mu.Unlock()
				ticks(31) // the longest back-off, and a tick
				if f := sink.last(); f.GetDriverFault() != "" || len(f.GetGpus()) != 2 || f.GetGpus()[1].GetUp() != 1 {
					t.Errorf("not back: %v", f)
				}
			})
		})
	}
}

// Attempts back off from 1 s to 30 s.
func TestDriverBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.openErr = gone(NotLoaded)
		start(t, w)
		ticks(300)
		// At 0, 1, 3, 7, 15, 31 s, then every 30 s.
		if n := w.calls.Load(); n < 13 || n > 16 {
			t.Errorf("%d attempts in 300 s, want about 14", n)
		}
	})
}

// An Init that hangs holds up nothing and is named.
func TestDriverHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.hang = make(chan struct{})
		e, sink := start(t, w)
		ticks(3)
		if f := sink.last(); f.GetDriverFault() != "not_initialized" {
			t.Errorf("after 3 s: %q", f.GetDriverFault())
		}
		ticks(7)
		if n := len(sink.all()); n != 10 {
			t.Errorf("%d frames in 10 s", n)
		}
		if f := sink.last(); f.GetDriverFault() != "hung" {
			t.Errorf("after 10 s: %q", f.GetDriverFault())
		}
		if v, ok := series(t, e, `evenkeel_driver_call_hung_seconds{call="nvmlInit",node="node-1",uuid=""}`); !ok || v < 9 {
			t.Errorf("hung seconds %g, %v", v, ok)
		}
		w.mu.Lock()
		hang := w.hang
		w.hang = nil
		w.mu.Unlock()
		close(hang)
		ticks(2)
		if f := sink.last(); f.GetDriverFault() != "" || f.GetGpus()[0].GetUp() != 1 {
			t.Errorf("not up: %v", f)
		}
	})
}

// Devices that say the driver is gone lead to a new start. Counters go on from
// where they were.
func TestDriverReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		_, sink := start(t, w)
		ticks(10)
		before := number(t, sink.last().GetGpus()[0], telemetry.GPUEnergyJoules)
		generation := sink.last().GetGpus()[0].GetGeneration()
		w.fail(gone(NotLoaded))
		for _, d := range w.gpus {
			d.set(func(d *device) { d.err["*"] = gone(NotInitialized) })
		}
		ticks(3)
		f := sink.last()
		if f.GetDriverFault() != "not_loaded" || len(f.GetGpus()) != 2 || f.GetGpus()[0].GetUp() != 0 {
			t.Errorf("driver gone: %v", f)
		}
		w.fail(nil)
		for _, d := range w.gpus {
			d.set(func(d *device) {
				d.err = map[string]error{}
				d.born, d.energyBase = time.Now(), 0 // a new driver counts anew
			})
		}
		ticks(9)
		f = sink.last()
		if f.GetDriverFault() != "" || f.GetGpus()[0].GetUp() != 1 {
			t.Fatalf("driver back: %v", f)
		}
		if g := f.GetGpus()[0]; g.GetGeneration() <= generation || number(t, g, telemetry.GPUEnergyJoules) < before {
			t.Errorf("generation %d after %d, energy %g after %g", g.GetGeneration(), generation, number(t, g, telemetry.GPUEnergyJoules), before)
		}
		if w.ends.Load() == 0 {
			t.Error("the old start was not closed")
		}
	})
}

// Handles are not closed under a call that hangs, and the driver is opened
// again beside it.
func TestDriverReloadWithHungCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		_, sink := start(t, w)
		ticks(5)
		release := make(chan struct{})
		w.gpus[0].set(func(d *device) { d.hang["Power"] = release })
		ticks(3)
		w.gpus[1].set(func(d *device) { d.err["*"] = gone(NotInitialized) })
		ticks(2)
		w.gpus[1].set(func(d *device) { d.err = map[string]error{} })
		ticks(5)
		if w.ends.Load() != 0 {
			t.Error("closed while a call was outstanding")
		}
		if w.opens.Load() < 2 {
			t.Errorf("opened %d times", w.opens.Load())
		}
		f := sink.last()
		if g := gpuOf(t, f, w.gpus[1]); g.GetUp() != 1 {
			t.Errorf("the other GPU is not back: %v", g)
		}
		if g := gpuOf(t, f, w.gpus[0]); g.GetUp() != 0 || g.GetHung().GetCall() == "" {
			t.Errorf("hung GPU: %v", g)
		}
		w.gpus[0].set(func(d *device) { d.hang = map[string]chan struct{}{} })
		close(release)
		ticks(3)
		if g := gpuOf(t, sink.last(), w.gpus[0]); g.GetUp() != 1 || w.gpus[0].most.Load() != 1 {
			t.Errorf("hung GPU after the call returned: %v, %d calls at once", g, w.gpus[0].most.Load())
		}
	})
}

// A GPU that drops out of the enumeration is down under its own name, though
// the indexes move.
func TestGPUDropsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(3)
		_, sink := start(t, w)
		ticks(3)
		first := w.gpus[0]
		w.mu.Lock()
		w.gpus = w.gpus[1:]
		w.mu.Unlock()
		ticks(61)
		f := sink.last()
		if len(f.GetGpus()) != 3 {
			t.Fatalf("%d GPUs", len(f.GetGpus()))
		}
		if g := gpuOf(t, f, first); !g.GetLost() || g.GetUp() != 0 {
			t.Errorf("dropped out: %v", g)
		}
		for _, d := range w.gpus {
			if g := gpuOf(t, f, d); g.GetUp() != 1 {
				t.Errorf("%s is down", d.id.UUID)
			}
		}
	})
}

// A GPU that cannot be opened at the start is in the frame under the name the
// source remembers.
func TestGPUThatCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		w.gpus[1].findErr = gone(Lost)
		_, sink := start(t, w)
		ticks(1)
		g := gpuOf(t, sink.last(), w.gpus[1])
		if g.GetUp() != 0 || !g.GetLost() {
			t.Errorf("%v", g)
		}
	})
}

// A GPU that never said its name is looked for again and again, and told of once.
func TestNamelessGPUIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		w.gpus[1].findErr, w.gpus[1].id.UUID = gone(Lost), ""
		var text bytes.Buffer
		e, err := New(Options{Node: "node-1", Source: w, Log: slog.New(slog.NewTextHandler(&text, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		w.gpus[1].set(func(d *device) { d.findErr = gone(NoPermission) })
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(text.String(), "cannot be identified"); n != 2 {
			t.Errorf("logged %d times in six minutes with two causes, want 2", n)
		}
	})
}

// Run ends though a call never returns.
func TestRunEndsWithHungCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		release := make(chan struct{})
		w.gpus[0].hang["Power"] = release
		e, err := New(Options{Node: "n", Source: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 9*time.Second {
			t.Errorf("Run took %v to end", d-5*time.Second)
		}
		if w.ends.Load() != 0 {
			t.Error("closed under a call")
		}
		close(release)
		time.Sleep(noticeWait) // the listener ends with its wait, as the driver was left open
		synctest.Wait()
	})
}
