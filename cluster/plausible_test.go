package cluster

import (
	"math"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// learned is a device whose thermal resistance the judge has learned, with a
// world around it.
type learned struct {
	*stage
	d     *device
	watts float64
	stuck bool
	read  float64
}

func newLearned(t *testing.T) *learned {
	l := &learned{stage: newStage(t, 1), d: newDevice(0.06, 25, 31, 100, 3), watts: 100}
	g := l.n.devices[0]
	l.change = func(*telemetry.Frame) {
		for range 10 {
			l.d.t += (l.d.base + l.d.r*l.watts - l.d.t) / l.d.tau * 0.1
		}
		if !l.stuck {
			l.read = math.Floor(l.d.t + l.d.rng.NormFloat64()*0.2)
		}
		g.SetValue(telemetry.GPUTemperatureCelsiusCore, l.read)
		g.SetValue(telemetry.GPUThermalHeadroomCelsius, 87-l.read)
		g.SetValue(telemetry.GPUPowerWatts, l.watts+l.d.rng.NormFloat64()*3)
	}
	l.run(120)
	l.watts = 650
	l.run(300)
	if !l.gpu(0).HasRCPerW() {
		t.Fatal("no resistance learned")
	}
	return l
}

// A temperature that stands still while the power moves is not one to act on.
func TestStuckSensor(t *testing.T) {
	l := newLearned(t)
	quality := func(id telemetry.ID) telemetry.Quality { return valueOf(l.gpu(0), id).GetQuality() }
	l.stuck = true
	l.run(120)
	if q := quality(telemetry.GPUTemperatureCelsiusCore); q != okQ {
		t.Fatalf("steady power, steady temperature: %s", q)
	}
	l.watts = 200
	l.run(60)
	l.wantHealth(HealthWatch, "the temperature does not follow the power: its sensor is suspect")
	for _, id := range []telemetry.ID{telemetry.GPUTemperatureCelsiusCore, telemetry.GPUThermalHeadroomCelsius} {
		if q := quality(id); q != suspectQ {
			t.Errorf("value %d of a stuck sensor: %s", id, q)
		}
	}
	if q := quality(telemetry.GPUPowerWatts); q != okQ {
		t.Errorf("power: %s", q)
	}
	if l.last.GetGpusFresh() != 0 {
		t.Error("a device whose temperature is suspect counts as seen")
	}
	r := l.gpu(0).GetRCPerW()
	l.run(1200)
	if got := l.gpu(0).GetRCPerW(); got != r {
		t.Errorf("resistance %g learned from a stuck sensor, was %g", got, r)
	}
	l.stuck = false
	l.run(90)
	l.wantHealth(HealthOK, "")
	if q := quality(telemetry.GPUTemperatureCelsiusCore); q != okQ {
		t.Errorf("a sensor that moves again: %s", q)
	}
}

// Loads that change all the time, fans that hold the temperature, gaps and a
// room that warms up are no stuck sensor.
func TestLivelySensorIsNotStuck(t *testing.T) {
	for name, watts := range map[string]func(second int) float64{
		"phases":      func(i int) float64 { return 150 + 450*float64(i/40%2) },
		"short ones":  func(i int) float64 { return 150 + 450*float64(i/3%2) },
		"a slow ramp": func(i int) float64 { return 150 + 450*float64(i%1200)/1200 },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLearned(t)
			for i := range 3000 {
				l.watts = watts(i)
				l.d.base = 31 + 6*math.Sin(float64(i)/500)
				if i%700 == 699 {
					l.at, l.n.seq = l.at.Add(40e9), l.n.seq+40
				}
				l.run(1)
				if q := valueOf(l.gpu(0), telemetry.GPUTemperatureCelsiusCore).GetQuality(); q != okQ {
					t.Fatalf("second %d: %s", i, q)
				}
			}
		})
	}
	t.Run("fans that hold the temperature", func(t *testing.T) {
		l := newLearned(t)
		l.stuck = true // whatever the power, the reading is the same
		for i := range 3600 {
			l.watts = 650 - 300*float64(i)/3600
			l.run(1)
			if q := valueOf(l.gpu(0), telemetry.GPUTemperatureCelsiusCore).GetQuality(); q != okQ {
				t.Fatalf("second %d: %s", i, q)
			}
		}
	})
}

// Values that contradict each other are not acted on.
func TestContradictions(t *testing.T) {
	const head, sm = telemetry.GPUThermalHeadroomCelsius, telemetry.GPUSMActiveRatio
	for _, tc := range []struct {
		name   string
		values map[telemetry.ID]float64
		id     telemetry.ID
		want   telemetry.Quality
		reason string
	}{
		{"throttled for heat with headroom", map[telemetry.ID]float64{head: 40, telemetry.GPUThrottleActiveHWThermal: 1}, head, suspectQ, "throttled: hw_thermal"},
		{"throttled for heat without", map[telemetry.ID]float64{head: 1, telemetry.GPUThrottleActiveHWThermal: 1}, head, okQ, "throttled: hw_thermal"},
		{"no headroom, no throttling", map[telemetry.ID]float64{head: -5}, head, suspectQ, "no headroom is left and nothing throttles: the headroom is suspect"},
		{"no headroom and throttled", map[telemetry.ID]float64{head: -5, telemetry.GPUThrottleActiveHWSlowdown: 1}, head, okQ, "throttled: hw_slowdown"},
		{"at the limit", map[telemetry.ID]float64{head: -1}, head, okQ, ""},
		{"kernels run, profiling stands still", map[telemetry.ID]float64{telemetry.GPUUtilizationRatio: 1, sm: 0}, sm, suspectQ, "kernels run and the profiling counters stand still"},
		{"kernels run and are small", map[telemetry.ID]float64{telemetry.GPUUtilizationRatio: 1, sm: 0.01}, sm, okQ, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSound(t)
			g := s.n.devices[0]
			s.run(20)
			set(g, tc.values)
			s.run(5)
			if q := valueOf(s.gpu(0), tc.id).GetQuality(); q != okQ {
				t.Errorf("after five seconds: %s", q)
			}
			s.run(20)
			if q := valueOf(s.gpu(0), tc.id).GetQuality(); q != tc.want {
				t.Errorf("after 25 s: %s, want %s", q, tc.want)
			}
			if h := s.gpu(0).GetHealth(); h.GetReason() != tc.reason {
				t.Errorf("health %v, want %q", h, tc.reason)
			}
			for id := range tc.values {
				g.SetValue(id, 0)
			}
			g.SetValue(head, 30)
			s.run(120)
			if q := valueOf(s.gpu(0), tc.id).GetQuality(); q != okQ {
				t.Errorf("long after: %s", q)
			}
			s.wantHealth(HealthOK, "")
		})
	}
}
