package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC)

// memoryBus is a bus within the process. It copies what it carries, as a
// network would.
type memoryBus struct {
	mu          sync.Mutex
	frames      func(string, []byte)
	inventories func(telemetry.Inventory)
	receipts    func(string, telemetry.Receipt)
	journal     []telemetry.Record
	grown       chan struct{}
	observed    map[string][][]byte
	refuse      error // what a subscription answers
	broken      error // what a publication answers
	cut         bool  // not connected
	deaf        bool  // observations are counted and not kept
	published   int   // bytes of observations
}

func newBus() *memoryBus {
	return &memoryBus{observed: map[string][][]byte{}, grown: make(chan struct{}, 1)}
}

func (b *memoryBus) Connected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.cut
}

func (b *memoryBus) FramesOf(_ telemetry.PartitionSet, fn func(string, []byte)) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames = fn
	return func() {}, b.refuse
}

func (b *memoryBus) Inventories(_ context.Context, fn func(telemetry.Inventory)) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inventories = fn
	return func() {}, b.refuse
}

func (b *memoryBus) Receipts(fn func(string, telemetry.Receipt)) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.receipts = fn
	return func() {}, b.refuse
}

func (b *memoryBus) PublishObservation(node string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.published += len(data)
	if !b.deaf {
		b.observed[node] = append(b.observed[node], slices.Clone(data))
	}
	return b.broken
}

func (b *memoryBus) FollowJournal(ctx context.Context, fn func(uint64, telemetry.Record)) error {
	for next := 0; ; {
		b.mu.Lock()
		list := b.journal[next:]
		b.mu.Unlock()
		for _, r := range list {
			next++
			fn(uint64(next), r)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.grown:
		}
	}
}

func (b *memoryBus) Control(context.Context, string, []byte) ([]byte, error) {
	return nil, errors.New("no leader")
}

func (b *memoryBus) append(r ...telemetry.Record) {
	b.mu.Lock()
	b.journal = append(b.journal, r...)
	b.mu.Unlock()
	select {
	case b.grown <- struct{}{}:
	default:
	}
}

func (b *memoryBus) send(subject string, data []byte) { b.frames(subject, slices.Clone(data)) }

func (b *memoryBus) observations(t *testing.T, node string) []*telemetry.Observation {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*telemetry.Observation
	for _, data := range b.observed[node] {
		o := new(telemetry.Observation)
		if err := telemetry.DecodeObservation(data, o); err != nil {
			t.Fatalf("observation of %s: %v", node, err)
		}
		out = append(out, o)
	}
	return out
}

// clock is set by hand.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

// world is a collector on a bus in memory, whose workers run when the test says
// so: nothing happens by chance.
type world struct {
	testing.TB
	*Collector
	bus   *memoryBus
	clock *clock
}

func newWorld(t testing.TB, change func(*Options)) *world {
	w := &world{TB: t, bus: newBus(), clock: &clock{t: t0}}
	o := Options{Bus: w.bus, Now: w.clock.now, Log: slog.New(slog.DiscardHandler), Workers: 2, Registry: prometheus.NewRegistry()}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Collector = c
	if _, err := c.subscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.ready.start(t0)
	return w
}

// settle lets the workers do what is queued.
func (w *world) settle() {
	for _, x := range w.workers {
		for {
			batch := x.queue.take(make([]arrival, 0, 64))
			if len(batch) == 0 {
				break
			}
			for _, a := range batch {
				x.take(a)
			}
		}
	}
}

func (w *world) dropped(why telemetry.DropReason) int {
	var m dto.Metric
	if err := w.metrics.dropped[why].Write(&m); err != nil {
		w.Fatal(err)
	}
	return int(m.Counter.GetValue())
}

func (w *world) get(path string) (int, string) {
	w.Helper()
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}

// sender is a node.
type sender struct {
	name  string
	start time.Time
	seq   uint64
	gpus  []*telemetry.GPU
}

func newSender(name string, gpus int) *sender {
	s := &sender{name: name, start: t0.Add(-time.Hour)}
	for i := range gpus {
		s.gpus = append(s.gpus, newGPU(fmt.Sprintf("GPU-%s-%d", name, i), i))
	}
	return s
}

func newGPU(uuid string, index int) *telemetry.GPU {
	g := &telemetry.GPU{}
	g.SetUuid(uuid)
	g.SetDescription(telemetry.Description_builder{Index: uint32(index), Pci: fmt.Sprintf("0000:%02x:00.0", index), Model: "NVIDIA H100 80GB HBM3", Driver: "570.1", Arch: "hopper"}.Build())
	for id, v := range map[telemetry.ID]float64{
		telemetry.GPUUtilizationRatio: 0.9, telemetry.GPUTemperatureCelsiusCore: 60, telemetry.GPUPowerWatts: 500,
		telemetry.GPUThermalHeadroomCelsius: 27, telemetry.GPUClockHertzSM: 1.98e9, telemetry.GPUUp: 1,
		telemetry.GPUThrottleActiveSWPower: 1, telemetry.GPUEnergyJoules: 1e6, telemetry.GPUPowerLimitWatts: 700,
	} {
		g.SetValue(id, v)
	}
	return g
}

func (s *sender) frame(at time.Time) *telemetry.Frame {
	s.seq++
	return telemetry.Frame_builder{
		Schema: telemetry.Schema, Cluster: "test", Node: s.name, BootId: "boot-1", Incarnation: uint64(s.start.UnixNano()), Sequence: s.seq,
		SampleTimeUnixNano: at.UnixNano(), SendTimeUnixNano: at.UnixNano(), MonotonicNano: int64(at.Sub(s.start)),
		PeriodNano: uint64(time.Second), ClockSynchronized: true, Gpus: s.gpus, HasSlowPart: true,
	}.Build()
}

func encode(t testing.TB, f *telemetry.Frame) []byte {
	t.Helper()
	data, err := telemetry.AppendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func frameSubject(node string) string { return telemetry.PartitionSubject(telemetry.FamilyFrame, node) }

// tick lets nodes speak at a time and the workers hear them.
func (w *world) tick(at time.Time, nodes ...*sender) {
	w.Helper()
	w.clock.set(at)
	for _, s := range nodes {
		w.bus.send(frameSubject(s.name), encode(w.TB, s.frame(at)))
	}
	w.settle()
}

func newRequest(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}
