package exporter

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var nan = math.NaN()

func TestHeadroom(t *testing.T) {
	for _, c := range []struct {
		name    string
		arch    string
		change  func(*device)
		want    float64 // NaN: absent
		quality telemetry.Quality
	}{
		{"margin, core nearer", "hopper", func(d *device) { d.hbm = 60 }, 29, telemetry.Quality_QUALITY_OK},
		{"margin, memory nearer", "hopper", func(d *device) { d.hbm = 90 }, 5, telemetry.Quality_QUALITY_OK},
		{"margin, no memory limit", "hopper", func(d *device) { d.memLimit = nan }, 29, telemetry.Quality_QUALITY_OK},
		{"margin at the limit", "hopper", func(d *device) { d.margin = -5; d.memLimit = nan }, -3, telemetry.Quality_QUALITY_OK},
		{"margin failed: no guess by the other model", "hopper", func(d *device) { d.err["Margin"] = gone(OtherFault) }, nan, telemetry.Quality_QUALITY_ERROR},
		{"margin missing in this driver", "hopper", func(d *device) { d.err["Margin"] = gone(MissingSymbol); d.memLimit = nan }, 29, telemetry.Quality_QUALITY_OK},
		{"margin out of range", "hopper", func(d *device) { d.margin = 1 << 31; d.memLimit = nan }, nan, telemetry.Quality_QUALITY_OUT_OF_RANGE},
		{"margin, core unknown", "hopper", func(d *device) { d.err["Temperature"] = gone(OtherFault) }, nan, telemetry.Quality_QUALITY_ERROR},
		{"blank: all ones are -1", "hopper", func(d *device) {
			d.margin, d.offset = -1, -1
			d.err["Temperature"], d.err["MemoryThreshold"] = gone(Unsupported), gone(Unsupported)
			d.fields[FieldMemoryTemperature] = gone(Unsupported)
		}, nan, telemetry.Quality_QUALITY_UNSUPPORTED},
		{"margin and offset of -1", "hopper", func(d *device) { d.margin, d.offset, d.memLimit = -1, -1, nan }, 0, telemetry.Quality_QUALITY_OK},
		{"absolute", "ampere", func(d *device) { d.offset = nan; d.memLimit = nan }, 29, telemetry.Quality_QUALITY_OK},
		{"absolute, memory nearer", "ampere", func(d *device) { d.offset = nan; d.hbm = 93 }, 2, telemetry.Quality_QUALITY_OK},
		{"absolute though a margin is told", "ampere", func(d *device) { d.margin = 1; d.memLimit = nan }, 29, telemetry.Quality_QUALITY_OK},
		{"absolute, core unknown", "ampere", func(d *device) { d.offset = nan; d.err["Temperature"] = gone(OtherFault) }, nan, telemetry.Quality_QUALITY_ERROR},
		{"neither model", "turing", func(d *device) { d.offset, d.threshold = nan, nan }, nan, telemetry.Quality_QUALITY_UNSUPPORTED},
		{"memory has a limit and no reading", "hopper", func(d *device) { d.fields[FieldMemoryTemperature] = gone(OtherFault) }, 29, telemetry.Quality_QUALITY_SUSPECT},
		{"memory has a limit and no sensor", "hopper", func(d *device) { d.fields[FieldMemoryTemperature] = gone(Unsupported) }, 29, telemetry.Quality_QUALITY_OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				w.gpus[0].id.Arch = c.arch
				c.change(w.gpus[0])
				_, sink := start(t, w)
				ticks(1)
				g := gpuOf(t, sink.last(), w.gpus[0])
				v, ok := g.Value(telemetry.GPUThermalHeadroomCelsius)
				if ok == math.IsNaN(c.want) || ok && v != c.want {
					t.Errorf("headroom %g (%v), want %g", v, ok, c.want)
				}
				if q := g.QualityOf(telemetry.GPUThermalHeadroomCelsius); q != c.quality {
					t.Errorf("quality %v, want %v", q, c.quality)
				}
				one, err := Headroom(w.gpus[0])
				if known := c.quality == telemetry.Quality_QUALITY_OK; known != (err == nil) || known && one != c.want {
					t.Errorf("read by itself: %g, %v, want %g of quality %v", one, err, c.want, c.quality)
				}
				if _, ok := g.Value(telemetry.GPUSlowdownOffsetCelsius); ok && c.arch == "ampere" {
					t.Error("a slowdown offset on Ampere")
				}
			})
		})
	}
}

func TestHeadroomOfWhatDoesNotAnswer(t *testing.T) {
	for _, f := range []Fault{Lost, ResetRequired, NotLoaded, NoPermission} {
		d := newWorld(1).gpus[0]
		d.err["*"] = gone(f)
		if v, err := Headroom(d); FaultOf(err) != f {
			t.Errorf("%s: %g, %v", f, v, err)
		}
	}
	d := newWorld(1).gpus[0]
	d.err["MemoryThreshold"] = gone(OtherFault) // the memory may be nearer than the core
	if v, err := Headroom(d); err == nil {
		t.Errorf("memory limit failed: %g", v)
	}
}

func TestIntegrate(t *testing.T) {
	s := func(pairs ...float64) (list []Sample) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, Sample{uint64(pairs[i] * 1e6), pairs[i+1]})
		}
		return list
	}
	for _, c := range []struct {
		name    string
		samples []Sample
		since   float64
		seconds float64
		last    float64
		bad     uint32
	}{
		{"what was buffered before the start is not ours", s(1, 1, 2, 1, 3, 1), 0, 0, 3, 0},
		{"each sample stands for the time since the last", s(3.5, 1, 4, 0.5), 3, 0.75, 4, 0},
		{"seen twice counts once", s(3, 1, 3.5, 1, 3.5, 1, 4, 1), 3, 1, 4, 0},
		{"out of order", s(4, 1, 3.5, 1), 3, 1, 4, 0},
		{"a gap is not claimed beyond two seconds", s(60, 1), 3, 2, 60, 0},
		{"no ratio: the next one speaks for its time", s(3.5, 42, 4, 0.5), 3, 0.5, 4, 1},
		{"nothing new", nil, 3, 0, 3, 0},
	} {
		seconds, last, bad := integrate(c.samples, uint64(c.since*1e6))
		if math.Abs(seconds-c.seconds) > 1e-9 || last != uint64(c.last*1e6) || bad != c.bad {
			t.Errorf("%s: %g s, last %d, %d bad", c.name, seconds, last, bad)
		}
	}
}

// Load between two ticks counts; so does the fallback without driver samples,
// by measured time.
func TestBusySeconds(t *testing.T) {
	for name, samples := range map[string]int{"driver samples": 10, "utilisation": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				d := w.gpus[0]
				d.samples = samples
				_, sink := start(t, w)
				ticks(3)
				from := number(t, gpuOf(t, sink.last(), d), telemetry.GPUBusySeconds)
				ticks(20)
				if got := number(t, gpuOf(t, sink.last(), d), telemetry.GPUBusySeconds) - from; math.Abs(got-10) > 0.2 {
					t.Errorf("%g s busy in 20 s at a half, want 10", got)
				}
				last := 0.0
				for _, f := range sink.all() {
					v := number(t, gpuOf(t, f, d), telemetry.GPUBusySeconds)
					if v < last {
						t.Errorf("fell from %g to %g", last, v)
					}
					last = v
				}
			})
		})
	}
}

func TestThrottleSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		delete(d.throttleNs, FieldThrottleHWThermalNs) // this driver does not count it
		_, sink := start(t, w)
		ticks(2)
		// Bits: hw_thermal (2), hw_slowdown (3), idle (6).
		d.set(func(d *device) {
			d.reasons = 1<<2 | 1<<3 | 1<<6
			d.throttleNs[FieldThrottlePowerNs] = 1.5e9
		})
		ticks(10)
		g := gpuOf(t, sink.last(), d)
		for id, want := range map[telemetry.ID]float64{
			telemetry.GPUThrottleSecondsHWThermal: 10, telemetry.GPUThrottleSecondsHWSlowdown: 10, telemetry.GPUThrottleSecondsIdle: 10,
			telemetry.GPUThrottleSecondsOther: 0, telemetry.GPUThrottleSecondsSWPower: 1.5, telemetry.GPUThrottleSecondsSWThermal: 2,
			telemetry.GPUThrottleActiveHWThermal: 1, telemetry.GPUThrottleActiveSWPower: 0, telemetry.GPUThrottleActiveIdle: 1,
		} {
			if v := number(t, g, id); math.Abs(v-want) > 1e-6 {
				_, s, _ := telemetry.Lookup(id)
				t.Errorf("%s = %g, want %g", s.Field, v, want)
			}
		}
	})
}

// The order of reason bits is the catalogue's.
func TestThrottleOrder(t *testing.T) {
	if len(throttle) != len(telemetry.ThrottleReasons) {
		t.Fatalf("%d reasons, the catalogue has %d", len(throttle), len(telemetry.ThrottleReasons))
	}
	for i, name := range telemetry.ThrottleReasons {
		for _, id := range []telemetry.ID{throttle[i].active, throttle[i].seconds} {
			if _, s, _ := telemetry.Lookup(id); s.Values[0] != name {
				t.Errorf("reason %d is %s, the catalogue says %s", i, s.Values[0], name)
			}
		}
	}
}

// step is a number of the driver and what becomes of it.
type step struct {
	raw        float64
	generation uint64
	ok         bool
	value      float64
}

func observeAll(t *testing.T, name string, wrap float64, steps []step) {
	t.Helper()
	var c counter
	for i, s := range steps {
		if ok := c.observe(s.raw, wrap, s.generation); ok != s.ok || c.value() != s.value {
			t.Errorf("%s, step %d: %v, %g; want %v, %g", name, i, ok, c.value(), s.ok, s.value)
		}
	}
}

func TestCounter(t *testing.T) {
	const word = 1 << 32
	wraps := map[string][]step{
		"a wrap is no fall":         {{word - 10, 1, true, word - 10}, {5, 1, true, word + 5}, {20, 1, true, word + 20}, {1, 1, false, word + 20}, {2, 1, true, word + 22}},
		"a fall of less than half":  {{1000, 1, true, 1000}, {3, 1, false, 1000}, {1004, 1, true, 1004}},
		"a wrap in each reading":    {{3e9, 1, true, 3e9}, {5e8, 1, true, word + 5e8}, {2.4e9, 1, true, word + 2.4e9}, {1e8, 1, true, 2*word + 1e8}},
		"a new start of the driver": {{word - 10, 1, true, word - 10}, {5, 2, true, word - 5}},
	}
	for name, steps := range map[string][]step{
		"grows":                         {{5, 1, true, 5}, {9, 1, true, 9}, {9, 1, true, 9}},
		"one wrong reading":             {{1000, 1, true, 1000}, {3, 1, false, 1000}, {1001, 1, true, 1001}},
		"a fall that is confirmed":      {{1000, 1, true, 1000}, {3, 1, false, 1000}, {4, 1, true, 1004}, {6, 1, true, 1006}},
		"a new start of the driver":     {{1000, 1, true, 1000}, {3, 2, true, 1003}, {5, 2, true, 1005}},
		"a start, and the number grows": {{1000, 1, true, 1000}, {2000, 2, true, 2000}},
	} {
		observeAll(t, name, 0, steps)
	}
	for name, steps := range wraps {
		observeAll(t, name, word, steps)
	}
	var c counter
	c.add(2)
	c.add(-1)
	c.add(math.NaN())
	c.observe(500, 0, 1) // the driver begins to count by itself
	c.observe(501, 0, 1)
	if c.value() != 3 {
		t.Errorf("from integrated to the driver's own: %g, want 3", c.value())
	}
	c.add(1)
	if c.value() != 4 {
		t.Errorf("and back: %g, want 4", c.value())
	}
}

func TestArchOf(t *testing.T) {
	for name, want := range map[string]telemetry.Arch{
		"turing": telemetry.Turing, "Ampere": telemetry.Ampere, "ada": telemetry.Ada, "hopper": telemetry.Hopper,
		"blackwell": telemetry.Blackwell, "rubin": telemetry.AllArchs, "": telemetry.AllArchs,
	} {
		if got := archOf(name); got != want {
			t.Errorf("%q: %b, want %b", name, got, want)
		}
	}
}

// Each field is read for one reader only, and the batch has room for all.
func TestReaders(t *testing.T) {
	seen, names := map[FieldID]string{}, map[string]bool{}
	for _, r := range readers {
		if names[r.name] {
			t.Errorf("reader %s twice", r.name)
		}
		names[r.name] = true
		for _, f := range r.fields {
			if other, twice := seen[f]; twice {
				t.Errorf("field %d for %s and %s", f, other, r.name)
			}
			seen[f] = r.name
		}
	}
	if len(seen) > maxFields {
		t.Errorf("%d fields, room for %d", len(seen), maxFields)
	}
	for id, name := range callNames {
		if callID(id) != callNone && name == "" {
			t.Errorf("call %d has no name", id)
		}
	}
	if len(slots) > maxSlots {
		t.Errorf("%d slots", len(slots))
	}
	if SlowPeriod < 10*time.Second {
		t.Error("the slow part is not slow")
	}
}

// With a long tick the driver's samples come rarely and still count.
func TestBusySecondsOfLongTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		sink := &recorder{t: t}
		e, err := New(Options{Node: "node-1", Source: w, Sink: sink, Period: 11 * time.Second}) // beyond what the driver may be silent for
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- e.Run(ctx) }()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		from := number(t, gpuOf(t, sink.last(), d), telemetry.GPUBusySeconds)
		time.Sleep(110 * time.Second)
		if got := number(t, gpuOf(t, sink.last(), d), telemetry.GPUBusySeconds) - from; math.Abs(got-55) > 1 {
			t.Errorf("%g s busy in 110 s at a half, want 55", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Values dropped of several series of one metric are one count.
func TestInvalidIsOneCountPerMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		d := w.gpus[0]
		d.set(func(d *device) { d.core, d.hbm = 4294967295, 4294967295 })
		e, sink := start(t, w)
		ticks(16)
		want := 2 * 15.0 // two sensors, and the slow part was made at the fifteenth or sixteenth tick
		var got []float64
		for _, f := range sink.all() {
			n := 0
			for _, s := range f.GetSamples() {
				if telemetry.ID(s.GetId()) == telemetry.GPUSampleInvalid && s.GetLabels()[0] == "gpu_temperature_celsius" {
					got = append(got, s.GetValue())
					n++
				}
			}
			if n > 1 {
				t.Errorf("frame %d has the count %d times", f.GetSequence(), n)
			}
		}
		if len(got) < 2 || got[len(got)-1] < want {
			t.Errorf("counts %v, want at least %g in the end", got, want)
		}
		_, text := get(t, e.Handler(), "/metrics")
		if n := strings.Count(text, `gpu_sample_invalid_total{metric="gpu_temperature_celsius"`); n != 1 {
			t.Errorf("the series is exposed %d times", n)
		}
	})
}
