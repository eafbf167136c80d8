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
