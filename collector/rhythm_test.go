package collector

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// rhythm is the frames of a node as its exporter sends them in 15 seconds at one
// a second: all parts in the first, the link part in each fifth, else the fast
// part alone. The collector's figures rest on it.
type rhythm [15]*telemetry.Frame

// newRhythm records the exporter of a node with 8 H100.
func newRhythm(t testing.TB) *rhythm {
	t.Helper()
	var all, fast []*telemetry.Frame
	for _, data := range record(t, "H100-SXM5-80GB", 8, func(*sim.World) { time.Sleep(1800 * time.Millisecond) }) {
		f := new(telemetry.Frame)
		if err := telemetry.DecodeFrame(data, f); err != nil {
			t.Fatal(err)
		}
		f.SetPeriodNano(uint64(time.Second))
		switch {
		case f.GetHasSlowPart():
			all = append(all, f)
		case !f.GetHasLinkPart() && len(f.GetGpus()) == 8:
			fast = append(fast, f)
		}
	}
	if len(all) == 0 || len(fast) < 2 {
		t.Fatalf("%d frames with all parts and %d of the fast part were recorded", len(all), len(fast))
	}
	r := new(rhythm)
	for i := range r {
		switch {
		case i == 0:
			r[i] = all[0]
		case i%5 == 0:
			r[i] = withoutSlowPart(t, all[0])
		default:
			r[i] = fast[i%len(fast)]
		}
	}
	return r
}

func withoutSlowPart(t testing.TB, all *telemetry.Frame) *telemetry.Frame {
	f := new(telemetry.Frame)
	if err := telemetry.DecodeFrame(encode(t, all), f); err != nil {
		t.Fatal(err)
	}
	f.SetHasSlowPart(false)
	f.SetSamples(nil)
	for _, g := range f.GetGpus() {
		g.ClearDescription()
		for id := range telemetry.ID(200) {
			if telemetry.RateOf(id) == telemetry.Slow {
				g.ClearValue(id)
			}
		}
	}
	return f
}

// of is the encoded frames of another node that does the same, with room for a
// header behind each.
func (r *rhythm) of(t testing.TB, node string) (frames [len(rhythm{})][]byte) {
	t.Helper()
	for i, f := range r {
		f.SetNode(node)
		for k, g := range f.GetGpus() {
			g.SetUuid(fmt.Sprintf("GPU-%s-%029d", node, k))
		}
		data := encode(t, f)
		frames[i] = append(make([]byte, 0, len(data)+64), data...)
	}
	return frames
}

// stamped is the frame with the header of a tick; what stands later in a message
// replaces what stood before.
func stamped(frame []byte, seq uint64, at, start time.Time) []byte {
	for _, f := range []struct {
		field protowire.Number
		v     uint64
	}{{6, seq}, {7, uint64(at.UnixNano())}, {9, uint64(at.Sub(start))}, {5, uint64(start.UnixNano())}} {
		frame = protowire.AppendVarint(protowire.AppendTag(frame, f.field, protowire.VarintType), f.v)
	}
	return frame
}

// rhythmic is the frames of many nodes, each node at another place of its 15
// seconds.
type rhythmic struct {
	subjects []string
	frames   [][len(rhythm{})][]byte
	start    time.Time
	n        int
}

func newRhythmic(t testing.TB, nodes int) *rhythmic {
	r := newRhythm(t)
	x := &rhythmic{start: t0.Add(-time.Hour)}
	for i := range nodes {
		name := fmt.Sprintf("n%05d", i)
		x.subjects, x.frames = append(x.subjects, frameSubject(name)), append(x.frames, r.of(t, name))
	}
	return x
}

// next is the next frame of the fleet and when it comes.
func (x *rhythmic) next() arrival {
	node, tick := x.n%len(x.frames), x.n/len(x.frames)
	x.n++
	at := t0.Add(time.Duration(tick)*time.Second + time.Duration(node)*time.Second/time.Duration(len(x.frames)))
	f := x.frames[node][(tick+node)%len(rhythm{})]
	return arrival{x.subjects[node], stamped(f, uint64(1+tick), at, x.start), at}
}

// BenchmarkRhythm takes, judges, folds and publishes the frames of nodes with 8
// GPUs as exporters send them; an operation is a frame. Decode is the library's
// part alone.
func BenchmarkRhythm(b *testing.B) {
	const nodes = 1000
	x := newRhythmic(b, nodes)
	bytes := 0
	for _, f := range x.frames[0] {
		bytes += len(f)
	}
	report := func(b *testing.B, cpu time.Duration) {
		b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
		b.ReportMetric(float64(bytes)/float64(len(rhythm{})), "frame-bytes")
	}
	b.Run("decode", func(b *testing.B) {
		var f telemetry.Frame
		b.ReportAllocs()
		cpu := cpuTime()
		for b.Loop() {
			if err := telemetry.DecodeFrame(x.next().data, &f); err != nil {
				b.Fatal(err)
			}
		}
		report(b, cpuTime()-cpu)
	})
	b.Run("all", func(b *testing.B) {
		x.n = 0
		w := newWorld(b, func(o *Options) { o.Workers = 1 })
		w.bus.deaf = true
		worker := w.workers[0]
		take := func() {
			a := x.next()
			w.clock.set(a.at)
			worker.take(a)
		}
		for range 16 * nodes {
			take()
		}
		b.ReportAllocs()
		cpu := cpuTime()
		for b.Loop() {
			take()
		}
		report(b, cpuTime()-cpu)
		for _, why := range telemetry.DropReasons {
			if d := w.dropped(why); d > 0 {
				b.Fatalf("%d frames dropped: %s", d, why)
			}
		}
		b.ReportMetric(float64(w.bus.published)/float64(x.n), "observation-bytes")
	})
}

// A frame costs what the library allocates to decode it, and little more: no
// messages for devices or values, no node, no buffers.
func TestIngestAllocations(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Workers = 1 })
	w.bus.deaf = true
	x := newRhythmic(t, 4)
	take := func() {
		a := x.next()
		w.clock.set(a.at)
		w.workers[0].take(a)
	}
	for range 20 * len(x.frames) {
		take()
	}
	var d telemetry.FrameDecoder
	decode := testing.AllocsPerRun(15*len(x.frames), func() {
		if _, err := d.Decode(x.next().data); err != nil {
			t.Fatal(err)
		}
	})
	x.n = 20 * len(x.frames)
	all := testing.AllocsPerRun(15*len(x.frames), take)
	if all > decode+4 {
		t.Errorf("%g allocations a frame, %g of them to decode it", all, decode)
	}
	if n := w.dropped(telemetry.DropReordered) + w.dropped(telemetry.DropDuplicate); n > 0 {
		t.Errorf("%d frames were refused", n)
	}
}
