package collector

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// send lets a node say one frame, changed as wanted.
func (w *world) send(at time.Time, s *sender, change func(f *telemetry.Frame)) {
	w.clock.set(at)
	f := s.frame(at)
	if change != nil {
		change(f)
	}
	w.bus.send(frameSubject(s.name), encode(w.TB, f))
	w.settle()
}

// Clocks of the slow part are shown from one slow part to the next.
func TestSlowClocksLast(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	s.gpus[0].SetValue(telemetry.GPUClockHertzGraphics, 1.9e9)
	w.tick(t0, s)
	s.gpus[0].ClearValue(telemetry.GPUClockHertzGraphics)
	for i := 1; i < 15; i++ {
		w.send(t0.Add(time.Duration(i)*time.Second), s, func(f *telemetry.Frame) { f.SetHasSlowPart(false) })
		_, body := w.get("/metrics")
		if i < 3 {
			continue // not ready yet
		}
		if v, ok := value(t, parse(t, body), "gpu_clock_hertz", "domain", "graphics"); !ok || v != 1.9e9 {
			t.Fatalf("%d s after the slow part: graphics clock %g, shown %v", i, v, ok)
		}
	}
}

// A node that ticks ten times a second is told of once a second, and its values
// are shown all of that second.
func TestFastTicksStayShown(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	tenth := func(f *telemetry.Frame) { f.SetPeriodNano(uint64(100 * time.Millisecond)) }
	for i := range 30 {
		at := t0.Add(time.Duration(i) * 100 * time.Millisecond)
		w.send(at, s, tenth)
		if i < 20 {
			continue
		}
		_, body := w.get("/metrics")
		if _, ok := value(t, parse(t, body), "gpu_power_watts"); !ok {
			t.Fatalf("power is not shown at tick %d", i)
		}
	}
}

// A series whose label tells a state ends when the state changes.
func TestOneDriverState(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	state := func(up float64, reason string) func(*telemetry.Frame) {
		return func(f *telemetry.Frame) {
			f.SetSamples([]*telemetry.Sample{
				telemetry.Sample_builder{Id: uint32(telemetry.NodeDriverUp), Value: up, Labels: []string{reason}}.Build(),
				telemetry.Sample_builder{Id: uint32(telemetry.NodeReaderSuccess), Value: 1, Labels: []string{"power"}}.Build(),
			})
		}
	}
	w.send(t0, s, state(1, ""))
	w.send(t0.Add(time.Second), s, func(f *telemetry.Frame) { f.SetHasSlowPart(false) })
	w.send(t0.Add(2*time.Second), s, state(0, "not_loaded"))
	_, body := w.get("/metrics")
	families := parse(t, body)
	if f := families["evenkeel_driver_up"]; f == nil || len(f.Metric) != 1 {
		t.Errorf("driver states told: %v", f)
	}
	if v, ok := value(t, families, "evenkeel_driver_up", "reason", "not_loaded"); !ok || v != 0 {
		t.Errorf("driver up %g, told %v", v, ok)
	}
	w.send(t0.Add(3*time.Second), s, func(f *telemetry.Frame) { f.SetHasSlowPart(false) })
	_, body = w.get("/metrics")
	families = parse(t, body)
	for _, name := range []string{"evenkeel_driver_up", "evenkeel_reader_success"} {
		if f := families[name]; f == nil || len(f.Metric) != 1 {
			t.Errorf("%s between two slow parts: %v", name, f)
		}
	}
}

// A device that stops answering is named with its call, and the age of its last
// sample goes on when its values have ended.
func TestHungDeviceIsNamed(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 2)
	w.tick(t0, s)
	silent := &telemetry.GPU{}
	silent.SetUuid(s.gpus[0].GetUuid())
	silent.SetValue(telemetry.GPUUp, 0)
	s.gpus[0] = silent
	for i := 1; i <= 20; i++ {
		silent.SetHung(telemetry.HungCall_builder{Call: "nvmlDeviceGetTemperature", ForMs: uint64(i) * 1000}.Build())
		silent.SetFastAgeMs(uint32(i) * 1000)
		w.tick(t0.Add(time.Duration(i)*time.Second), s)
		if i < 3 {
			continue
		}
		_, body := w.get("/metrics")
		families := parse(t, body)
		if v, ok := value(t, families, "evenkeel_driver_call_hung_seconds", "node", "a", "uuid", "GPU-a-0", "call", "nvmlDeviceGetTemperature"); !ok || v != float64(i) {
			t.Errorf("%d s: call hung for %g s, told %v", i, v, ok)
		}
		if v, ok := value(t, families, "gpu_sample_age_seconds", "uuid", "GPU-a-0"); !ok || math.Abs(v-float64(i)) > 0.01 {
			t.Errorf("%d s: age of the last sample %g s, told %v", i, v, ok)
		}
		if v, ok := value(t, families, "gpu_sample_age_seconds", "uuid", "GPU-a-1"); !ok || v > 0.01 {
			t.Errorf("%d s: age of the other's sample %g s, told %v", i, v, ok)
		}
	}
	s.gpus[0] = newGPU("GPU-a-0", 0)
	w.tick(t0.Add(21*time.Second), s)
	_, body := w.get("/metrics")
	if strings.Contains(body, "evenkeel_driver_call_hung_seconds") {
		t.Error("a call that returned is told as hung")
	}
}

// Nodes that come and go leave nothing behind.
func TestChurnLeavesNothing(t *testing.T) {
	w := newWorld(t, nil)
	const days, each = 5, 20
	for day := range days {
		at := t0.Add(time.Duration(day) * 25 * time.Hour)
		for i := range each {
			w.tick(at, newSender(fmt.Sprintf("d%d-n%d", day, i), 1))
		}
		w.nodes.sweep(at)
		w.View()
		w.get("/metrics")
	}
	last := newSender("last", 1)
	for i := range 64 { // every worker hears somebody
		w.tick(t0.Add((days-1)*25*time.Hour+time.Duration(i)*time.Second), last, newSender(fmt.Sprintf("d%d-n%d", days-1, i%each), 1))
	}
	held := 0
	for _, x := range w.workers {
		held += len(x.bySubject)
	}
	if n := len(w.nodes.by); n != each+1 || held > n || len(w.families.nodes) > n {
		t.Errorf("%d nodes, %d subjects, %d blocks are kept of %d nodes", n, held, len(w.families.nodes), each+1)
	}
}

// While the bus is not there nobody can be heard, and silence says nothing.
func TestNotReadyWithoutBus(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	w.bus.cut = true
	for i := range 30 {
		w.clock.set(t0.Add(time.Duration(i) * time.Second))
		w.beat()
		if code, _ := w.get("/-/ready"); code != 503 {
			t.Fatalf("ready %d after %d s without a bus", code, i)
		}
	}
	w.bus.cut = false
	w.tick(t0.Add(30*time.Second), s)
	w.clock.set(t0.Add(32 * time.Second))
	w.beat()
	if code, _ := w.get("/-/ready"); code != 200 {
		t.Errorf("ready %d after a full tick", code)
	}
	w.bus.cut = true
	w.beat()
	if code, _ := w.get("/-/ready"); code != 200 {
		t.Errorf("ready %d: an outage takes away the page", code)
	}
	// Nor does it take it from somebody who asks only then.
	w = newWorld(t, nil)
	w.tick(t0.Add(time.Second), s)
	w.clock.set(t0.Add(2 * time.Second))
	w.beat()
	w.bus.cut = true
	w.clock.set(t0.Add(3 * time.Second))
	w.beat()
	if code, _ := w.get("/-/ready"); code != 200 {
		t.Errorf("ready %d for who asks first in an outage", code)
	}
}
