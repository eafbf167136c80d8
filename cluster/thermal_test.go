package cluster

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// device is the world the fit is tried on: a first-order model whose
// temperature is told in whole degrees.
type device struct {
	r, tau, base, t float64
	rng             *rand.Rand
}

func newDevice(r, tau, base, watts float64, seed uint64) *device {
	return &device{r: r, tau: tau, base: base, t: base + r*watts, rng: rand.New(rand.NewPCG(seed, 1))}
}

// run lets the device follow a power curve for so many seconds.
func (d *device) run(m *thermal, from, seconds int, watts func(second int) float64) {
	for i := range seconds {
		p := watts(i)
		for range 10 { // finer than the samples
			d.t += (d.base + d.r*p - d.t) / d.tau * 0.1
		}
		read := math.Floor(d.t + d.rng.NormFloat64()*0.3)
		m.take(new(decays), float64(from+i), read, p+d.rng.NormFloat64()*4, 1)
	}
}

func constant(w float64) func(int) float64 { return func(int) float64 { return w } }

func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s = %.4g, want %.4g within %.0f %%", what, got, want, share*100)
	}
}

func TestThermalLearnsFromPowerStep(t *testing.T) {
	for _, tc := range []struct {
		name             string
		r, tau, low, hot float64
	}{
		{"H100 air", 0.06, 25, 90, 680},
		{"H200 air", 0.055, 40, 120, 690},
		{"B200 liquid", 0.025, 6, 150, 950},
		{"L40S", 0.12, 30, 40, 330},
		{"T4 passive", 0.55, 60, 12, 68},
		{"A100, downwards", 0.1, 20, 390, 110},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m thermal
			d := newDevice(tc.r, tc.tau, 31, tc.low, 7)
			d.run(&m, 1000, 120, constant(tc.low))
			if m.hasR {
				t.Errorf("resistance %.3g from constant power", m.r)
			}
			d.run(&m, 1120, 300, constant(tc.hot))
			if !m.hasR {
				t.Fatal("no resistance after a power step")
			}
			within(t, "R", m.r, tc.r, 0.2)
			if m.hasTau {
				within(t, "τ", m.tau, tc.tau, 0.35)
			}
			if math.Abs(m.base-31) > 4 {
				t.Errorf("base = %.1f, want 31 within 4", m.base)
			}
		})
	}
}

func TestThermalSaysNothingItCannotKnow(t *testing.T) {
	for name, watts := range map[string]func(int) float64{
		"constant power":     constant(300),
		"small changes":      func(i int) float64 { return 300 + 10*float64(i/40%2) },
		"faster than a tick": func(i int) float64 { return 300 + 60*float64(i%2) },
	} {
		t.Run(name, func(t *testing.T) {
			var m thermal
			newDevice(0.06, 25, 31, 300, 3).run(&m, 1000, 1800, watts)
			if m.hasR || m.hasTau {
				t.Errorf("R = %.3g (%v), τ = %.3g (%v); nothing can be known", m.r, m.hasR, m.tau, m.hasTau)
			}
		})
	}
	t.Run("temperature that power does not explain", func(t *testing.T) {
		var m thermal
		d := newDevice(0.06, 25, 31, 300, 3)
		for i := range 60 { // the inlet wanders, power does not
			d.base = 31 + 12*math.Sin(float64(i)/4)
			d.run(&m, 1000+i*20, 20, constant(300))
		}
		if m.hasR {
			t.Errorf("R = %.3g from a wandering inlet", m.r)
		}
	})
	t.Run("first minute of a device in mid-heating", func(t *testing.T) {
		var m thermal
		d := newDevice(0.06, 60, 31, 90, 3)
		d.run(&m, 1000, 60, constant(600))
		if m.hasR {
			t.Errorf("R = %.3g from one transient at constant power", m.r)
		}
	})
}

func TestThermalFromPlateaus(t *testing.T) {
	// The steps themselves are not seen: the node was silent for minutes.
	var m thermal
	base := 31.0
	quiet := func(from int, w float64) {
		for i := range 200 {
			m.take(new(decays), float64(from+i), math.Round(base+0.06*w), w, 1)
		}
	}
	quiet(1000, 100)
	base = 45 // the inlet warms up while nobody looks
	quiet(1500, 600)
	if m.hasR {
		t.Errorf("R = %.3g from one pair of plateaus, which the inlet may have made", m.r)
	}
	quiet(2000, 150)
	if m.hasR {
		t.Errorf("R = %.3g from two pairs that do not agree", m.r)
	}
	quiet(2500, 500)
	if !m.hasR {
		t.Fatal("no resistance from two pairs of plateaus that agree")
	}
	within(t, "R", m.r, 0.06, 0.2)
	if m.hasTau {
		t.Errorf("τ = %.3g without having seen a transient", m.tau)
	}
}

func TestThermalKeepsWhatItLearned(t *testing.T) {
	var m thermal
	d := newDevice(0.06, 25, 31, 100, 5)
	d.run(&m, 1000, 100, constant(100))
	d.run(&m, 1100, 200, constant(650))
	if !m.hasR {
		t.Fatal("no resistance after a power step")
	}
	d.run(&m, 9000, 2000, constant(650)) // a gap, then nothing new
	within(t, "R", m.r, 0.06, 0.2)
	// A warmer inlet moves base, not R.
	d.base = 41
	d.run(&m, 11000, 600, constant(650))
	within(t, "R", m.r, 0.06, 0.2)
	if math.Abs(m.base-41) > 4 {
		t.Errorf("base = %.1f, want 41 within 4", m.base)
	}
}

// Whatever the device and the load: a resistance that is told is right.
func TestThermalHonest(t *testing.T) {
	told, tries := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		d := newDevice(
			math.Exp(rapid.Float64Range(math.Log(0.02), math.Log(0.4)).Draw(rt, "ln R")),
			math.Exp(rapid.Float64Range(math.Log(3), math.Log(90)).Draw(rt, "ln tau")),
			rapid.Float64Range(18, 45).Draw(rt, "base"),
			100, rapid.Uint64().Draw(rt, "seed"))
		full := 45 / d.r // watts for 45 degrees
		var m thermal
		at := 1000
		for range rapid.IntRange(2, 8).Draw(rt, "phases") {
			w := rapid.Float64Range(0.1, 1).Draw(rt, "load") * full
			length := rapid.IntRange(5, 240).Draw(rt, "seconds")
			d.run(&m, at, length, constant(w))
			at += length
			if m.hasR && math.Abs(m.r-d.r) > 0.35*d.r {
				rt.Fatalf("told R = %.4g, it is %.4g (τ %.3g)", m.r, d.r, d.tau)
			}
			if m.hasTau && (m.tau > 2*d.tau || m.tau < d.tau/2) {
				rt.Fatalf("told τ = %.4g, it is %.4g", m.tau, d.tau)
			}
		}
		tries++
		if m.hasR {
			told++
		}
	})
	if told*4 < tries {
		t.Errorf("resistance told in %d of %d runs; want at least a quarter", told, tries)
	}
}

// What fades is gone in the end: numbers near the smallest there is cost
// processors a hundred times as much.
func TestThermalFades(t *testing.T) {
	var m thermal
	d := newDevice(0.06, 25, 31, 100, 5)
	d.run(&m, 1000, 12*3600, constant(300))
	for i, l := range m.lags {
		for _, v := range []float64{l.e, l.sE, l.sXE, l.sEE, l.sET} {
			if v != 0 && math.Abs(v) < 1e-250 {
				t.Errorf("time constant %g s: %g is left", tauGrid[i], v)
			}
		}
	}
}
