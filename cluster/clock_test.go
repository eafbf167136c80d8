package cluster

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func tempQuality(t *testing.T, o *telemetry.Observation) telemetry.Quality {
	t.Helper()
	return valueOf(gpuOf(t, o, "GPU-a-0"), telemetry.GPUTemperatureCelsiusCore).GetQuality()
}

func TestSkewIsMeasuredAndTakenOut(t *testing.T) {
	for _, skew := range []time.Duration{0, 3 * time.Second, -20 * time.Second} {
		for _, noMono := range []bool{false, true} {
			n := newNode("a", 1)
			n.skew, n.noMono = skew, noMono
			r := newRig(t, n)
			var o *telemetry.Observation
			for i := range 60 {
				sampled := t0.Add(time.Duration(i) * time.Second)
				delay := time.Duration(2+i*7%11) * time.Millisecond
				o = r.hearLate(sampled, sampled.Add(delay))
			}
			got := time.Duration(o.GetSkewMs()) * time.Millisecond
			if diff := got - skew; diff > 15*time.Millisecond || diff < -15*time.Millisecond {
				t.Errorf("skew %s measured as %s (without monotonic clock: %v)", skew, got, noMono)
			}
			if o.GetAgeMs() > 15 || tempQuality(t, o) != okQ {
				t.Errorf("skew %s: age %d ms, quality %s", skew, o.GetAgeMs(), tempQuality(t, o))
			}
		}
	}
}

func TestDelayIsAge(t *testing.T) {
	n := newNode("a", 1)
	r := newRig(t, n)
	_, at := r.seconds(t0, 30)
	for i := range 300 { // five minutes of it do not make it the new normal
		o := r.hearLate(at, at.Add(8*time.Second))
		if o.GetAgeMs() < 7900 || o.GetAgeMs() > 8100 {
			t.Fatalf("frame %d, eight seconds late: age %d ms", i, o.GetAgeMs())
		}
		at = at.Add(time.Second)
	}
}

func TestClockFaultsMakeValuesSuspect(t *testing.T) {
	for _, tc := range []struct {
		name   string
		step   time.Duration
		noMono bool
		stays  bool // suspect for as long as it lasts
	}{
		{"steps forward", 5 * time.Second, false, false},
		{"steps back", -5 * time.Second, false, false},
		{"steps forward, no monotonic clock", 5 * time.Second, true, false},
		{"steps back, no monotonic clock", -5 * time.Second, true, false},
		{"a minute off", time.Minute, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode("a", 1)
			n.noMono = tc.noMono
			r := newRig(t, n)
			_, at := r.seconds(t0, 20)
			n.skew += tc.step
			if q := tempQuality(t, r.hear(at)); q != suspectQ {
				t.Errorf("quality %s at the step, want suspect", q)
			}
			o, _ := r.seconds(at.Add(time.Second), 20)
			want := okQ
			if tc.stays {
				want = suspectQ
			}
			if q := tempQuality(t, o); q != want {
				t.Errorf("quality %s twenty seconds later, want %s", q, want)
			}
			if age := o.GetAgeMs(); age > 100 {
				t.Errorf("age %d ms twenty seconds after the step", age)
			}
			got := time.Duration(o.GetSkewMs()) * time.Millisecond
			if diff := got - n.skew; diff > 100*time.Millisecond || diff < -100*time.Millisecond {
				t.Errorf("skew %s, want %s", got, n.skew)
			}
		})
	}
}

func TestFrozenClockIsAFault(t *testing.T) {
	n := newNode("a", 1)
	r := newRig(t, n)
	_, at := r.seconds(t0, 20)
	for range 30 {
		n.skew -= time.Second // wall clock stands still
		if q := tempQuality(t, r.hear(at)); q != suspectQ {
			t.Fatalf("quality %s with a clock that stands still", q)
		}
		at = at.Add(time.Second)
	}
}

func TestSuspendedMachine(t *testing.T) {
	// The monotonic clock stops for ten minutes, the wall clock is set right.
	n := newNode("a", 1)
	r := newRig(t, n)
	_, at := r.seconds(t0, 20)
	const pause = 10 * time.Minute
	start := n.start
	for i := range 20 {
		now := at.Add(pause + time.Duration(i)*time.Second)
		f := n.frame(now)
		f.SetMonotonicNano(int64(now.Sub(start) - pause))
		o, err := r.j.Frame(now, f)
		if err != nil {
			t.Fatal(err)
		}
		if i == 19 && (o.GetAgeMs() > 100 || tempQuality(t, o) != okQ) {
			t.Errorf("age %d ms, %s after a suspend", o.GetAgeMs(), tempQuality(t, o))
		}
	}
}

func TestFrameWithoutTimeIsRefused(t *testing.T) {
	n := newNode("a", 1)
	j := NewJudge("a", false)
	for _, nanos := range []int64{0, -1, 5e18} {
		f := n.frame(t0)
		f.SetSampleTimeUnixNano(nanos)
		_, err := j.Frame(t0, f)
		wantDrop(t, err, telemetry.DropClock)
	}
}

// A clock that is wrong from the first frame on, in either direction: the skew is
// told, the age is not made of it, and beyond the bound nothing is trusted.
func TestClockWrongFromTheStart(t *testing.T) {
	for _, tc := range []struct {
		skew time.Duration
		want telemetry.Quality
	}{{20 * time.Second, okQ}, {-20 * time.Second, okQ}, {time.Minute, suspectQ}, {-time.Minute, suspectQ}, {20 * 365 * 24 * time.Hour, suspectQ}, {-20 * 365 * 24 * time.Hour, suspectQ}} {
		n := newNode("a", 1)
		n.skew, n.born = tc.skew, tc.skew
		r, s := newRig(t, n), NewState()
		o, next := r.seconds(t0, 20)
		if q := tempQuality(t, o); q != tc.want || o.GetAgeMs() > 100 || o.GetSkewMs() != tc.skew.Milliseconds() {
			t.Errorf("skew %s: %s, age %d ms, skew told %d ms", tc.skew, q, o.GetAgeMs(), o.GetSkewMs())
		}
		at := next.Add(-time.Second)
		if err := s.Observe(at, o); err != nil {
			t.Fatal(err)
		}
		node, g, _ := s.View(at).GPU("GPU-a-0")
		read, _ := g.Reading(telemetry.GPUTemperatureCelsiusCore)
		if age := at.Sub(read.At); age > time.Second || age < 0 || node.Fresh(read, at) != (tc.want == okQ) {
			t.Errorf("skew %s: in the View %s old, fresh %v", tc.skew, age, node.Fresh(read, at))
		}
	}
}

// After an outage the frames of a minute come at once: each is as old as it is,
// and none but the last is news.
func TestBurstAfterAnOutage(t *testing.T) {
	st, s := newStage(t, 1), NewState()
	g := st.n.devices[0]
	tick := func(second int) {
		set(g, map[telemetry.ID]float64{telemetry.GPUThermalHeadroomCelsius: 60 - float64(second)/4, telemetry.GPUNVLinkTotalBytesTx: 1e12 + float64(second)*1e9})
	}
	links(g, 18, 18)
	for range 60 {
		tick(st.second)
		st.run(1)
	}
	arrive := st.at.Add(60 * time.Second)
	for i := range 60 {
		sampled := st.at.Add(time.Duration(i) * time.Second)
		tick(st.second + i)
		at := arrive.Add(time.Duration(i) * time.Millisecond)
		o, err := st.j.Frame(at, st.n.frame(sampled))
		if err != nil || o == nil {
			t.Fatalf("frame %d: %v, %v", i, o, err)
		}
		if err := s.Observe(at, o); err != nil {
			t.Fatal(err)
		}
		n, vg, _ := s.View(at).GPU(g.GetUuid())
		read, _ := vg.Reading(telemetry.GPUThermalHeadroomCelsius)
		late := at.Sub(sampled)
		if age := at.Sub(read.At); age-late > 50*time.Millisecond || late-age > 50*time.Millisecond || n.Fresh(read, at) != (late <= 3*time.Second) {
			t.Fatalf("frame %d, %s late: %s old, fresh %v", i, late, age, n.Fresh(read, at))
		}
		x := gpuOf(t, o, g.GetUuid())
		if slope := x.GetSlopeCPerS(); slope > -0.24 || slope < -0.26 {
			t.Fatalf("frame %d: slope %g", i, slope)
		}
		if ratio := x.GetFabric().GetSaturationRatio(); ratio > 0.003 {
			t.Fatalf("frame %d: saturation %g", i, ratio)
		}
	}
}
