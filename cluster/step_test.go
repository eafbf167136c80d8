package cluster

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// stepped is a reading of the clock after its wall time was stepped: whole
// seconds are in the bits from the 30th on while there is a monotonic reading.
func stepped(t *testing.T, at time.Time, seconds int) time.Time {
	t.Helper()
	out := at
	*(*uint64)(unsafe.Pointer(&out)) += uint64(int64(seconds) << 30)
	if out.Sub(at) != 0 || out.UnixNano()-at.UnixNano() != int64(seconds)*1e9 {
		t.Fatalf("%s was not stepped to %s", at, out)
	}
	return out
}

// When the viewer's own clock is stepped, nothing happened to the nodes: their
// values stay fresh and trusted, and observations go on.
func TestViewerClockStep(t *testing.T) {
	for _, seconds := range []int{3600, 5, -5, -3600} {
		for _, noMono := range []bool{false, true} {
			n := newNode("a", 1)
			n.noMono = noMono
			start := time.Now() // with a monotonic reading
			n.start = start.Add(-time.Minute)
			r, s := newRig(t, n), NewState()
			published := 0
			for i := range 120 {
				sampled := start.Add(time.Duration(i) * time.Second)
				arrived := sampled.Add(3 * time.Millisecond)
				step := 0
				if i >= 60 {
					step = seconds
					arrived = stepped(t, arrived, seconds)
				}
				set(n.devices[0], map[telemetry.ID]float64{telemetry.GPUThermalHeadroomCelsius: 40 - float64(i)/4})
				o := r.hearLate(sampled, arrived)
				if o == nil {
					continue
				}
				published++
				if err := s.Observe(arrived, o); err != nil {
					t.Fatal(err)
				}
				v := s.View(arrived)
				node, g, _ := v.GPU("GPU-a-0")
				if read, ok := g.Reading(telemetry.GPUTemperatureCelsiusCore); !ok || !node.Fresh(read, arrived) && max(step, -step) < 30 {
					t.Fatalf("step %d s, no monotonic clock %v, second %d: temperature %+v is not fresh", seconds, noMono, i, read)
				} else if age := arrived.Sub(read.At); age > time.Second {
					t.Fatalf("step %d s, no monotonic clock %v, second %d: temperature is %s old", seconds, noMono, i, age)
				}
				if skew := node.Skew + time.Duration(step)*time.Second; skew > 100*time.Millisecond || skew < -100*time.Millisecond {
					t.Fatalf("step %d s, second %d: skew %s", seconds, i, node.Skew)
				}
				if g := gpuOf(t, o, "GPU-a-0"); i > 20 && math.Abs(g.GetSlopeCPerS()+0.25) > 0.01 {
					t.Fatalf("step %d s, second %d: slope %g", seconds, i, g.GetSlopeCPerS())
				}
			}
			if published != 120 {
				t.Errorf("step %d s, no monotonic clock %v: %d observations in 120 s", seconds, noMono, published)
			}
		}
	}
}
