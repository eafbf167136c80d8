package exporter

import (
	"context"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// counting is a Sink that keeps sizes only.
type counting struct{ frames, bytes int }

func (c *counting) Frame(data []byte) error {
	c.frames++
	c.bytes += len(data)
	return nil
}

// idle prepares an exporter whose driver is up and whose ticks the caller makes.
func idle(t testing.TB, w *world, sink Sink) *Exporter {
	t.Helper()
	e, err := New(Options{Node: "node-1", Cluster: "lab", Source: w, Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	e.workers = ctx
	if err := e.driver.open(); err != nil {
		t.Fatal(err)
	}
	return e
}

// Few allocations a tick, and none that grow with the number of values.
func TestAllocationsPerTick(t *testing.T) {
	const gpus = 8
	sink := &counting{}
	e := idle(t, newWorld(gpus), sink)
	for range 3 {
		e.tick(time.Second)
	}
	e.lastLink = time.Now().Add(time.Hour) // fast ticks only
	e.lastSlow = e.lastLink
	got := testing.AllocsPerRun(200, func() { e.tick(time.Second) })
	t.Logf("%.1f allocations a tick, %d GPUs", got, gpus)
	if got > 3*gpus {
		t.Errorf("%.1f allocations a tick, at most %d", got, 3*gpus)
	}
	if up := e.frame.msg.GetGpus(); len(up) != gpus || up[gpus-1].GetUp() != 1 {
		t.Error("the ticks measured read nothing")
	}
}

// A frame of the fast part is small, and the slow part does not weigh much on
// the mean.
func TestFrameBytes(t *testing.T) {
	sink := &counting{}
	e := idle(t, newWorld(8), sink)
	e.tick(time.Second) // all parts
	all := sink.bytes
	e.tick(time.Second)
	fast := sink.bytes - all
	e.lastLink = time.Time{}
	e.tick(time.Second)
	link := sink.bytes - all - fast
	mean := (12*fast + 2*link + all) / 15
	t.Logf("fast part %d bytes, with link part %d, with all %d, mean %d", fast, link, all, mean)
	if link < 2*fast {
		t.Error("no link part was measured")
	}
	if mean > 3000 {
		t.Errorf("mean %d bytes a node and second, at most 3000", mean)
	}
}

// Ticks leave nothing behind that grows.
func TestTicksAreFlat(t *testing.T) {
	sink := &counting{}
	e := idle(t, newWorld(2), sink)
	for range 100 {
		e.lastSlow = time.Time{}
		e.tick(time.Second)
	}
	samples, gpus, buf := len(e.frame.samples), len(e.frame.gpus), cap(e.frame.buf)
	for range 2000 {
		e.lastLink, e.lastSlow = time.Time{}, time.Time{}
		e.tick(time.Second)
	}
	if len(e.frame.samples) != samples || len(e.frame.gpus) != gpus || cap(e.frame.buf) > 2*buf {
		t.Errorf("samples %d after %d, GPUs %d after %d, buffer %d after %d", len(e.frame.samples), samples, len(e.frame.gpus), gpus, cap(e.frame.buf), buf)
	}
}

func BenchmarkTick(b *testing.B) {
	for _, part := range []string{"fast", "link", "slow"} {
		b.Run(part, func(b *testing.B) {
			sink := &counting{}
			e := idle(b, newWorld(8), sink)
			e.tick(time.Second)
			sink.frames, sink.bytes = 0, 0
			b.ReportAllocs()
			for b.Loop() {
				never := time.Now().Add(time.Hour)
				e.lastLink, e.lastSlow = never, never
				switch part {
				case "link":
					e.lastLink = time.Time{}
				case "slow": // and everything
					e.lastSlow = time.Time{}
				}
				e.tick(time.Second)
			}
			b.ReportMetric(float64(sink.bytes)/float64(sink.frames), "bytes/frame")
		})
	}
}

func BenchmarkScrape(b *testing.B) {
	e := idle(b, newWorld(8), &counting{})
	e.tick(time.Second)
	h := e.Handler()
	b.ReportAllocs()
	for b.Loop() {
		get(b, h, "/metrics")
	}
}

// The driver's number of a slot never collides with another's.
func TestSlots(t *testing.T) {
	for i, s := range slots {
		if int(slotOf[s.id]) != i {
			t.Errorf("slot %d holds id %d, whose slot is %d", i, s.id, slotOf[s.id])
		}
		if telemetry.RowOf(s.id) != s.row {
			t.Errorf("slot %d has another row", i)
		}
	}
}
