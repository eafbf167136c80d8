package exporter

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// recorder is a Sink that keeps every frame decoded.
type recorder struct {
	t      testing.TB
	mu     sync.Mutex
	frames []*telemetry.Frame
	at     []time.Time
	err    error

	events   []telemetry.Event
	eventAt  []time.Time
	eventErr error
	block    chan struct{} // Event returns when it is closed
}

func (r *recorder) Event(e telemetry.Event) error {
	r.mu.Lock()
	block := r.block
	r.mu.Unlock()
	if block != nil {
		<-block
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events, r.eventAt = append(r.events, e), append(r.eventAt, time.Now())
	return r.eventErr
}

func (r *recorder) list() []telemetry.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

func (r *recorder) count() int { return len(r.list()) }

// told returns the events of a kind.
func (r *recorder) told(kind telemetry.EventKind) (list []telemetry.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

func (r *recorder) Frame(data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &telemetry.Frame{}
	if err := telemetry.DecodeFrame(data, f); err != nil {
		r.t.Errorf("frame cannot be decoded: %v", err)
	}
	r.frames, r.at = append(r.frames, f), append(r.at, time.Now())
	return r.err
}

func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *recorder) all() []*telemetry.Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames[:len(r.frames):len(r.frames)]
}

func (r *recorder) last() *telemetry.Frame {
	f := r.all()
	return f[len(f)-1]
}

// start runs an exporter in the bubble of the test, and returns half a second
// before its first tick.
func start(t *testing.T, w *world) (*Exporter, *recorder) {
	t.Helper()
	sink := &recorder{t: t}
	e, err := New(Options{Node: "node-1", Cluster: "lab", Source: w, Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	return e, runs(t, e, sink)
}

func runs(t *testing.T, e *Exporter, sink *recorder) *recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	first := untilTick(time.Now(), time.Second, "node-1")
	go func() { ended <- e.Run(ctx) }()
	time.Sleep(first - time.Second/2)
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return sink
}

// ticks lets n ticks pass.
func ticks(n int) {
	time.Sleep(time.Duration(n) * time.Second)
	synctest.Wait()
}

func gpuOf(t *testing.T, f *telemetry.Frame, d *device) *telemetry.GPU {
	t.Helper()
	for _, g := range f.GetGpus() {
		if g.GetUuid() == d.id.UUID {
			return g
		}
	}
	t.Fatalf("%s is not in the frame", d.id.UUID)
	return nil
}

func number(t *testing.T, g *telemetry.GPU, id telemetry.ID) float64 {
	t.Helper()
	v, ok := g.Value(id)
	if !ok {
		t.Fatalf("%s has no %s", g.GetUuid(), telemetry.RowOf(id).Name)
	}
	return v
}

func TestFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		_, sink := start(t, w)
		ticks(40)
		frames := sink.all()
		if len(frames) != 40 {
			t.Fatalf("%d frames in 40 s, want 40", len(frames))
		}
		slow := 0
		for i, f := range frames {
			if f.GetSequence() != uint64(i+1) || f.GetNode() != "node-1" || f.GetCluster() != "lab" || f.GetDriverFault() != "" ||
				f.GetBootId() == "" || f.GetPeriodNano() != 1e9 || f.GetIncarnation() != frames[0].GetIncarnation() {
				t.Fatalf("frame %d: header %v", i, f)
			}
			if i > 0 {
				if d := f.GetMonotonicNano() - frames[i-1].GetMonotonicNano(); d != 1e9 {
					t.Errorf("frame %d: %d ns after the one before", i, d)
				}
			}
			if f.GetHasSlowPart() {
				slow++
			}
			for _, g := range f.GetGpus() {
				if g.GetUp() != 1 || g.GetFastAgeMs() != 0 {
					t.Errorf("frame %d: %s up %d, age %d ms", i, g.GetUuid(), g.GetUp(), g.GetFastAgeMs())
				}
				_, hasLimit := g.Value(telemetry.GPUPowerLimitWatts)
				if hasLimit != f.GetHasSlowPart() || g.HasDescription() != f.GetHasSlowPart() {
					t.Errorf("frame %d: slow values %v, description %v, slow part %v", i, hasLimit, g.HasDescription(), f.GetHasSlowPart())
				}
			}
		}
		// The first tick, which also brings both GPUs up, then every 15 s.
		if slow != 3 {
			t.Errorf("%d slow parts in 40 s, want 3", slow)
		}
		g := gpuOf(t, frames[0], w.gpus[1])
		for id, want := range map[telemetry.ID]float64{
			telemetry.GPUUtilizationRatio: 0.5, telemetry.GPUMemoryUtilizationRatio: 0.25, telemetry.GPUMemoryUsedBytes: 10 << 30,
			telemetry.GPUMemoryTotalBytes: 80 << 30, telemetry.GPUTemperatureCelsiusCore: 60, telemetry.GPUTemperatureCelsiusMemory: 70,
			telemetry.GPUThermalHeadroomCelsius: 25, telemetry.GPUPowerWatts: 400, telemetry.GPUPowerLimitWatts: 700,
			telemetry.GPUPowerLimitMinWatts: 200, telemetry.GPUClockHertzSM: 1980e6, telemetry.GPUClockHertzVideo: 1545e6,
			telemetry.GPUSlowdownOffsetCelsius: -2, telemetry.GPUSlowdownThresholdCelsius: 89,
			telemetry.GPUThrottleSecondsSWPower: 1, telemetry.GPUThrottleSecondsSyncBoost: 5, telemetry.GPUThrottleSecondsIdle: 0,
		} {
			if v := number(t, g, id); math.Abs(v-want) > 1e-6*math.Abs(want) {
				t.Errorf("%s = %g, want %g", telemetry.RowOf(id).Name, v, want)
			}
		}
		d := g.GetDescription()
		if d.GetModel() != "NVIDIA H100 80GB HBM3" || d.GetDriver() != "580.95.05" || d.GetArch() != "hopper" || d.GetIndex() != 1 || d.GetPci() != "00000000:19:00.0" {
			t.Errorf("description %v", d)
		}
	})
}

// One GPU hangs, one is lost, at the same time: the other six do not miss a
// tick, and both are named within two.
func TestFaultIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(8)
		hung, lost := w.gpus[3], w.gpus[5]
		_, sink := start(t, w)
		ticks(5)
		release := make(chan struct{})
		hung.set(func(d *device) { d.hang["Power"] = release })
		lost.set(func(d *device) { d.err["*"], d.findErr = gone(Lost), gone(Lost) })
		before := len(sink.all())
		ticks(90)
		frames := sink.all()
		if len(frames) != before+90 {
			t.Fatalf("%d frames in 90 s", len(frames)-before)
		}
		for i, d := range w.gpus {
			if d == hung || d == lost {
				continue
			}
			for n := before; n < len(frames); n++ {
				g := gpuOf(t, frames[n], d)
				if g.GetUp() != 1 || g.GetFastAgeMs() != 0 || g.HasHung() || g.GetLost() {
					t.Fatalf("GPU %d, frame %d: up %d, age %d ms", i, n, g.GetUp(), g.GetFastAgeMs())
				}
				if e := number(t, g, telemetry.GPUEnergyJoules) - number(t, gpuOf(t, frames[n-1], d), telemetry.GPUEnergyJoules); math.Abs(e-400) > 1 {
					t.Fatalf("GPU %d, frame %d: %g J in a tick, want 400", i, n, e)
				}
			}
		}
		// The call hangs in the first tick and is named in the second.
		g := gpuOf(t, frames[before+1], hung)
		if g.GetUp() != 0 || g.GetHung().GetCall() != "nvmlDeviceGetPowerUsage" || g.GetHung().GetForMs() < 500 {
			t.Errorf("hung GPU after two ticks: up %d, %v", g.GetUp(), g.GetHung())
		}
		if g := gpuOf(t, frames[len(frames)-1], hung); g.GetHung().GetForMs() < 85_000 || g.GetFastAgeMs() < 85_000 {
			t.Errorf("hung GPU after 90 s: %v, age %d ms", g.GetHung(), g.GetFastAgeMs())
		}
		if g := gpuOf(t, frames[before], lost); !g.GetLost() || g.GetUp() != 0 {
			t.Errorf("lost GPU in its first tick: %v", g)
		}
		if g := gpuOf(t, frames[len(frames)-1], lost); !g.GetLost() {
			t.Errorf("lost GPU after 90 s: %v", g)
		}
		if _, ok := gpuOf(t, frames[len(frames)-1], lost).Value(telemetry.GPUPowerWatts); ok {
			t.Error("a lost GPU still shows its power")
		}
		if n := hung.most.Load(); n != 1 {
			t.Errorf("%d calls at once on the hung GPU", n)
		}
		if f := sink.last(); f.GetDriverFault() != "" {
			t.Errorf("driver fault %q", f.GetDriverFault())
		}

		close(release)
		lost.set(func(d *device) { d.err, d.findErr = map[string]error{}, nil })
		ticks(15)
		for _, d := range []*device{hung, lost} {
			if g := gpuOf(t, sink.last(), d); g.GetUp() != 1 || g.GetLost() || g.HasHung() {
				t.Errorf("%s is not back: %v", d.id.UUID, g)
			}
		}
		if w.ends.Load() != 0 || w.opens.Load() != 1 {
			t.Errorf("driver opened %d and closed %d times", w.opens.Load(), w.ends.Load())
		}
	})
}

// A reader that fails leaves the others of its GPU alone, and is named.
func TestReaderIsolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.gpus[0].err["Power"] = gone(OtherFault)
		w.gpus[0].err["Margin"] = gone(Unsupported)
		_, sink := start(t, w)
		ticks(2)
		f := sink.all()[0]
		g := gpuOf(t, f, w.gpus[0])
		if _, ok := g.Value(telemetry.GPUPowerWatts); ok || g.QualityOf(telemetry.GPUPowerWatts) != telemetry.Quality_QUALITY_ERROR {
			t.Errorf("power: present %v, quality %v", ok, g.QualityOf(telemetry.GPUPowerWatts))
		}
		number(t, g, telemetry.GPUEnergyJoules) // the same reader's other value
		number(t, g, telemetry.GPUTemperatureCelsiusCore)
		if v := number(t, g, telemetry.GPUThermalHeadroomCelsius); v != 25 {
			t.Errorf("headroom without margin = %g, want the memory's 95-70", v)
		}
		success := map[string]float64{}
		for _, s := range f.GetSamples() {
			if telemetry.ID(s.GetId()) == telemetry.NodeReaderSuccess {
				success[s.GetLabels()[0]] = s.GetValue()
			}
		}
		for _, r := range readers {
			want := 1.0
			if r.name == "power" {
				want = 0
			}
			if got, ok := success[r.name]; !ok || got != want {
				t.Errorf("reader %s: success %v (%v), want %v", r.name, got, ok, want)
			}
		}
	})
}

func TestInvalidValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		d.util, d.hbm, d.watts = 8.08, 4294967295, math.NaN()
		_, sink := start(t, w)
		ticks(1)
		g := gpuOf(t, sink.last(), d)
		for _, id := range []telemetry.ID{telemetry.GPUUtilizationRatio, telemetry.GPUMemoryUtilizationRatio, telemetry.GPUTemperatureCelsiusMemory, telemetry.GPUPowerWatts} {
			if v, ok := g.Value(id); ok || g.QualityOf(id) != telemetry.Quality_QUALITY_OUT_OF_RANGE {
				t.Errorf("%s = %g, %v, quality %v", telemetry.RowOf(id).Name, v, ok, g.QualityOf(id))
			}
		}
		if q := g.QualityOf(telemetry.GPUThermalHeadroomCelsius); q != telemetry.Quality_QUALITY_SUSPECT {
			t.Errorf("headroom without the memory's temperature: quality %v, want suspect", q)
		}
		d.set(func(d *device) { d.util, d.hbm, d.watts = 0.5, 70, 400 })
		ticks(16)
		f := sink.all()[15]
		if !f.GetHasSlowPart() {
			t.Fatal("no slow part after 15 s")
		}
		count := map[string]float64{}
		for _, s := range f.GetSamples() {
			if telemetry.ID(s.GetId()) == telemetry.GPUSampleInvalid {
				count[s.GetLabels()[0]+"/"+s.GetLabels()[1]] = s.GetValue()
			}
		}
		// The memory's ratio is half of the GPU's here, so it is out too; energy follows power.
		for _, name := range []string{"gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_power_watts", "gpu_temperature_celsius"} {
			if count[name+"/out_of_range"] != 1 {
				t.Errorf("%s counted %g times out of range, want 1", name, count[name+"/out_of_range"])
			}
		}
		number(t, gpuOf(t, f, d), telemetry.GPUPowerWatts)
	})
}

func TestNewPowerLimitShowsInTheNextTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		_, sink := start(t, w)
		ticks(5)
		w.gpus[1].set(func(d *device) { d.limit = 500 })
		ticks(1)
		f := sink.last()
		if !f.GetHasSlowPart() || number(t, gpuOf(t, f, w.gpus[1]), telemetry.GPUPowerLimitWatts) != 500 {
			t.Fatalf("slow part %v, limit not 500", f.GetHasSlowPart())
		}
		if v := number(t, gpuOf(t, f, w.gpus[0]), telemetry.GPUPowerLimitWatts); v != 700 {
			t.Errorf("the other's limit = %g", v)
		}
	})
}

func TestDriverCallsPerTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(8)
		_, sink := start(t, w)
		ticks(3)
		for n := range 10 {
			before := w.gpus[0].calls.Load()
			all := w.calls.Load()
			ticks(1)
			if got := w.gpus[0].calls.Load() - before; got > 15 {
				t.Errorf("tick %d: %d driver calls on one GPU, at most 15", n, got)
			}
			want := uint64(11)
			if sink.last().GetHasLinkPart() {
				want += 4 // links, and three lists of processes
			}
			if got := w.calls.Load() - all; got != 8*want {
				t.Errorf("tick %d: %d driver calls, want %d", n, got, 8*want)
			}
		}
	})
}

// What a device does not have is asked for again in slow rounds only.
func TestUnsupportedCallsAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		for _, call := range []string{"Utilization", "BusySamples", "ThrottleReasons", "Clock", "Processes"} {
			d.err[call] = gone(Unsupported)
		}
		start(t, w)
		ticks(3)
		before := d.calls.Load()
		ticks(5)
		if got := d.calls.Load() - before; got != 5*5+1 {
			t.Errorf("%d calls in 5 ticks, want 26: memory, power, temperature, margin, fields, once those of links", got)
		}
		d.set(func(d *device) { d.err = map[string]error{} })
		ticks(15)
		before = d.calls.Load()
		ticks(1)
		if got := d.calls.Load() - before; got != 11 {
			t.Errorf("%d calls a tick after it can, want 11", got)
		}
	})
}

func TestSinkErrorsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		e, sink := start(t, w)
		sink.fail(&telemetry.DropError{Why: telemetry.DropQueueFull})
		ticks(3)
		sink.fail(context.DeadlineExceeded)
		ticks(2)
		families, err := e.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if f.GetName() == "evenkeel_frames_dropped_total" {
				for _, m := range f.Metric {
					got[m.Label[0].GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
		if got["queue_full"] != 3 || got[notSent] != 2 || len(got) != len(telemetry.DropReasons)+1 {
			t.Errorf("drops %v", got)
		}
	})
}

func TestUntilTick(t *testing.T) {
	const period = time.Second
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	places := map[time.Duration]bool{}
	for _, node := range []string{"a", "b", "node-1", "node-2", "gpu-0007"} {
		first := untilTick(base, period, node)
		place := base.Add(first).Sub(base.Add(first).Truncate(period))
		places[place] = true
		for ms := range 1000 {
			now := base.Add(time.Duration(ms) * time.Millisecond)
			wait := untilTick(now, period, node)
			if at := now.Add(wait); at.Sub(at.Truncate(period)) != place {
				t.Fatalf("%s at %d ms: tick at %v, want place %v", node, ms, at, place)
			}
			if wait < period/2 || wait >= 3*period/2 {
				t.Fatalf("%s at %d ms: wait %v", node, ms, wait)
			}
		}
	}
	if len(places) != 5 {
		t.Errorf("5 nodes share %d places in the period", len(places))
	}
}

func TestOptions(t *testing.T) {
	w := newWorld(1)
	for name, o := range map[string]Options{
		"no node": {Source: w}, "no source": {Node: "n"}, "too fast": {Node: "n", Source: w, Period: 10 * time.Millisecond},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(2)
		e, err := New(Options{Node: "node-1", Source: w})
		if err != nil {
			t.Fatal(err)
		}
		f, err := e.Once(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(f.GetGpus()) != 2 || !f.GetHasSlowPart() || number(t, f.GetGpus()[0], telemetry.GPUPowerLimitWatts) != 700 {
			t.Errorf("frame %v", f)
		}
		if w.ends.Load() != 1 {
			t.Errorf("driver closed %d times", w.ends.Load())
		}
	})
}

// Once on a node without a driver, and on one whose driver hangs.
func TestOnceWithoutDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.openErr = gone(NoLibrary)
		e, _ := New(Options{Node: "node-1", Source: w, Log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil))})
		f, err := e.Once(context.Background())
		if err != nil || f.GetDriverFault() != "no_library" || len(f.GetGpus()) != 0 {
			t.Errorf("%v, %v", f, err)
		}

		w = newWorld(1)
		w.hang = make(chan struct{})
		defer close(w.hang)
		e, _ = New(Options{Node: "node-1", Source: w})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if f, err = e.Once(ctx); err != nil || f.GetDriverFault() != "hung" {
			t.Errorf("%v, %v", f, err)
		}
	})
}
