package bench

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// nowhere is a connection that takes everything.
type nowhere struct{ net.Conn }

func (nowhere) Write(p []byte) (int, error)      { return len(p), nil }
func (nowhere) SetWriteDeadline(time.Time) error { return nil }
func (nowhere) Close() error                     { return nil }

// TestGeneratorAllocatesNothing per frame, however many nodes there are.
func TestGeneratorAllocatesNothing(t *testing.T) {
	for _, nodes := range []int{100, 2000} {
		o := testOptions(nodes)
		o.Events = 0
		w, err := newWorld(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		k, err := w.step()
		if err != nil {
			t.Fatal(err)
		}
		r := &run{o: o, ear: newEar(o, time.Now()), server: &server{}}
		r.fleet(w)
		for _, c := range r.clients {
			c.conn = nowhere{}
		}
		s := r.senders(newTicks(), 1<<30, 1<<30)[0]
		i, now := 0, time.Now()
		tick := func() {
			if err := s.tick(s.nodes[i%len(s.nodes)], k, i, now, now); err != nil {
				t.Fatal(err)
			}
			i++
		}
		for range 2 * len(s.nodes) {
			tick()
		}
		if n := testing.AllocsPerRun(5000, tick); n > 0.01 {
			t.Errorf("%d nodes: %g allocations a frame", nodes, n)
		}
		if s.frames < 5000 || s.bytes/s.frames < 1000 {
			t.Errorf("%d frames of %d bytes in all", s.frames, s.bytes)
		}
	}
}

// loopBus hands frames straight to a collector and counts what it publishes.
type loopBus struct {
	frames   func(string, []byte)
	listens  chan struct{}
	observed atomic.Int64
}

func (b *loopBus) Connected() bool { return true }
func (b *loopBus) FramesOf(_ telemetry.PartitionSet, fn func(string, []byte)) (func(), error) {
	b.frames = fn
	close(b.listens)
	return func() {}, nil
}
func (b *loopBus) PublishObservation(string, []byte) error { b.observed.Add(1); return nil }
func (b *loopBus) Inventories(context.Context, func(telemetry.Inventory)) (func(), error) {
	return func() {}, nil
}
func (b *loopBus) Receipts(func(string, telemetry.Receipt)) (func(), error) { return func() {}, nil }
func (b *loopBus) FollowJournal(ctx context.Context, _ func(uint64, telemetry.Record)) error {
	<-ctx.Done()
	return nil
}
func (b *loopBus) Control(context.Context, string, []byte) ([]byte, error) { return nil, io.EOF }

// collected is what a collector takes for the frames of a fleet.
type collected struct{ allocations, bytes, perNode float64 }

// collect runs the frames of a fleet through a collector, everything in the
// first and then in the rhythm of exporters.
func collect(t *testing.T, nodes int) (out collected) {
	t.Helper()
	o := testOptions(nodes)
	w, err := newWorld(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{o: o, ear: newEar(o, time.Now()), server: &server{}}
	r.fleet(w)
	heap := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC() // the first one leaves what pools held
		runtime.ReadMemStats(&m)
		return m
	}
	empty := heap()
	var at atomic.Int64
	at.Store(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	b := &loopBus{listens: make(chan struct{})}
	c, err := collector.New(collector.Options{
		Bus: b, Now: func() time.Time { return time.Unix(0, at.Load()) }, Log: slog.New(slog.DiscardHandler),
		HistoryGPUs: 1, Workers: 2, // history is bounded for the fleet, and is not what is compared
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	select {
	case <-b.listens:
	case <-time.After(10 * time.Second):
		t.Fatal("the collector does not listen")
	}
	const warm, ticks = 3, 6
	var before runtime.MemStats
	var frame []byte
	for k := range warm + ticks {
		made, err := w.step()
		if err != nil {
			t.Fatal(err)
		}
		if k == warm {
			runtime.ReadMemStats(&before)
		}
		now := at.Add(int64(time.Second))
		for _, n := range r.nodes {
			n.sequence++
			frame = made.bodies[n.template][n.part(k, time.Second)].appendTo(frame[:0], n.number, header{
				incarnation: 1, sequence: n.sequence, sample: now, send: now, monotonic: int64(k+1) * int64(time.Second),
			})
			b.frames(string(n.put[4:len(n.put)-1]), append([]byte(nil), frame...))
		}
		for end := time.Now().Add(30 * time.Second); b.observed.Load() < int64(nodes*(k+1)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d observations of %d", b.observed.Load(), nodes*(k+1))
			}
		}
	}
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	frames := float64(nodes * ticks)
	out.allocations = float64(after.Mallocs-before.Mallocs) / frames
	out.bytes = float64(after.TotalAlloc-before.TotalAlloc) / frames
	out.perNode = float64(heap().HeapAlloc-empty.HeapAlloc) / float64(nodes)
	runtime.KeepAlive(c)
	return out
}

// TestCollectorGrowsWithItsNodes and no faster: what a frame allocates, and what
// a node occupies, is the same in a fleet that is twenty times as large.
func TestCollectorGrowsWithItsNodes(t *testing.T) {
	small, large := collect(t, 100), collect(t, 2000)
	t.Logf("100 nodes: %.0f allocations and %.0f bytes a frame, %.0f bytes a node", small.allocations, small.bytes, small.perNode)
	t.Logf("2,000 nodes: %.0f allocations and %.0f bytes a frame, %.0f bytes a node", large.allocations, large.bytes, large.perNode)
	if large.allocations > 1.1*small.allocations+1 {
		t.Errorf("%.1f allocations a frame, with fewer nodes %.1f", large.allocations, small.allocations)
	}
	if large.bytes > 1.1*small.bytes {
		t.Errorf("%.0f bytes allocated a frame, with fewer nodes %.0f", large.bytes, small.bytes)
	}
	if large.perNode > 1.25*small.perNode || large.perNode > 128<<10 {
		t.Errorf("%.0f bytes kept a node, with fewer nodes %.0f, at most 128 KiB", large.perNode, small.perNode)
	}
}
