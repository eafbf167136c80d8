package cluster

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// A counter that is reset, wraps, is misread, or pauses never gives a rate that
// was not there.
func TestMeter(t *testing.T) {
	type reading struct {
		ms int64
		v  float64
	}
	none := math.NaN()
	for _, tc := range []struct {
		name     string
		readings []reading
		want     []float64 // after each reading; NaN for none
	}{
		{"steady", []reading{{1000, 10}, {2000, 20}, {4000, 60}}, []float64{none, 10, 20}},
		{"reset", []reading{{1000, 1e9}, {2000, 1e9 + 50}, {3000, 5}, {4000, 25}, {5000, 45}}, []float64{none, 50, none, none, 20}},
		{"reset to zero and still", []reading{{1000, 70}, {2000, 0}, {3000, 0}, {4000, 0}}, []float64{none, none, none, 0}},
		{"wraps at 32 bits", []reading{{1000, 1<<32 - 600}, {2000, 1<<32 - 100}, {3000, 400}, {4000, 900}, {5000, 1400}}, []float64{none, 500, none, none, 500}},
		{"misread once", []reading{{1000, 1000}, {2000, 3}, {3000, 1020}, {4000, 1030}}, []float64{none, none, 10, 10}},
		{"told twice", []reading{{1000, 10}, {2000, 20}, {2000, 20}}, []float64{none, 10, 10}},
		{"goes back in time", []reading{{5000, 10}, {6000, 20}, {5500, 15}}, []float64{none, 10, none}},
		{"a gap says nothing of now", []reading{{1000, 10}, {2000, 20}, {9000, 900}, {10000, 901}}, []float64{none, 10, none, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m meter
			for i, r := range tc.readings {
				m.take(r.v, r.ms, 3000)
				got, ok := m.rate(r.ms, 3000)
				if ok == math.IsNaN(tc.want[i]) || ok && math.Abs(got-tc.want[i]) > 1e-6*tc.want[i] {
					t.Errorf("reading %d (%g at %d ms): rate %g, known %v; want %g", i, r.v, r.ms, got, ok, tc.want[i])
				}
			}
		})
	}
	var m meter
	m.take(0, 1000, 3000)
	m.take(5, 2000, 3000)
	if _, ok := m.rate(5001, 3000); ok {
		t.Error("a rate is told long after its interval")
	}
}

// Whatever is read: no rate is negative, and none is more than the greatest step
// between two readings explains.
func TestMeterIsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var m meter
		at, top := int64(1), 0.0
		for range rapid.IntRange(2, 40).Draw(rt, "readings") {
			at += rapid.Int64Range(0, 4000).Draw(rt, "ms")
			v := float64(rapid.Uint32Range(0, 1000).Draw(rt, "v"))
			top = max(top, v)
			m.take(v, at, 3000)
			if r, ok := m.rate(at, 3000); ok && !(r >= 0 && r <= top*1000) {
				rt.Fatalf("rate %g", r)
			}
		}
	})
}

func TestSustained(t *testing.T) {
	var s sustained
	look := func(beyond, clear bool, times int) (on bool) {
		for range times {
			on = s.see(beyond, clear, 5)
		}
		return on
	}
	if look(true, false, 4) {
		t.Error("on after four of five looks")
	}
	if look(false, true, 1) || look(true, false, 1) {
		t.Error("a pause does not count")
	}
	if !look(true, false, 1) {
		t.Error("not on after five looks in excess")
	}
	if !look(false, false, 100) {
		t.Error("between the marks it ceased")
	}
	if !look(false, true, 4) || look(false, true, 1) {
		t.Error("want it to cease after five looks clear of the mark")
	}
}
