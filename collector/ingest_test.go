package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Each way to be refused is counted under its reason and leaves the node beside
// it, and the node itself, as they were.
func TestRefusedFrames(t *testing.T) {
	bad, good := newSender("bad", 2), newSender("good", 2)
	for _, tc := range []struct {
		name string
		why  telemetry.DropReason
		send func(w *world, at time.Time)
	}{
		{"truncated", telemetry.DropMalformed, func(w *world, at time.Time) {
			data := encode(t, bad.frame(at))
			w.bus.send(frameSubject("bad"), data[:len(data)-7])
		}},
		{"noise", telemetry.DropMalformed, func(w *world, at time.Time) {
			w.bus.send(frameSubject("bad"), []byte(strings.Repeat("\xff\x07", 400)))
		}},
		{"empty", telemetry.DropSchema, func(w *world, at time.Time) { w.bus.send(frameSubject("bad"), nil) }},
		{"oversized", telemetry.DropOversized, func(w *world, at time.Time) {
			w.bus.send(frameSubject("bad"), make([]byte, telemetry.MaxFrameBytes+1))
		}},
		{"newer schema", telemetry.DropSchema, func(w *world, at time.Time) {
			f := bad.frame(at)
			f.SetSchema(telemetry.Schema + 1)
			w.bus.send(frameSubject("bad"), encode(t, f))
		}},
		{"another node's name", telemetry.DropForeign, func(w *world, at time.Time) {
			w.bus.send(frameSubject("bad"), encode(t, newSender("good", 2).frame(at)))
		}},
		{"wrong partition", telemetry.DropForeign, func(w *world, at time.Time) {
			w.bus.send(fmt.Sprintf("%s.frame.%d.bad", telemetry.Root, (telemetry.Partition("bad")+1)%telemetry.Partitions), encode(t, bad.frame(at)))
		}},
		{"subject of another family", telemetry.DropForeign, func(w *world, at time.Time) {
			w.bus.send(telemetry.PartitionSubject(telemetry.FamilyBackfill, "bad"), encode(t, bad.frame(at)))
		}},
		{"short subject", telemetry.DropForeign, func(w *world, at time.Time) { w.bus.send("x", encode(t, bad.frame(at))) }},
		{"duplicate", telemetry.DropDuplicate, func(w *world, at time.Time) {
			bad.seq--
			w.bus.send(frameSubject("bad"), encode(t, bad.frame(at)))
		}},
		{"an earlier process", telemetry.DropReordered, func(w *world, at time.Time) {
			old := newSender("bad", 2)
			old.start = old.start.Add(-time.Hour)
			w.bus.send(frameSubject("bad"), encode(t, old.frame(at)))
		}},
		{"no time", telemetry.DropClock, func(w *world, at time.Time) {
			f := bad.frame(at)
			f.SetSampleTimeUnixNano(0)
			w.bus.send(frameSubject("bad"), encode(t, f))
			bad.seq--
		}},
		{"too many GPUs", telemetry.DropTooMany, func(w *world, at time.Time) {
			f := newSender("bad", telemetry.MaxGPUs+1).frame(at)
			w.bus.send(frameSubject("bad"), encode(t, f))
		}},
		{"a GPU twice", telemetry.DropMalformed, func(w *world, at time.Time) {
			f := bad.frame(at)
			f.SetGpus([]*telemetry.GPU{f.GetGpus()[0], f.GetGpus()[0]})
			w.bus.send(frameSubject("bad"), encode(t, f))
			bad.seq--
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad.seq, good.seq = 0, 0
			w := newWorld(t, nil)
			w.tick(t0, bad, good)
			before, _ := w.View().Node("bad")
			tc.send(w, t0.Add(time.Second))
			w.settle()
			for _, why := range telemetry.DropReasons {
				want := 0
				if why == tc.why {
					want = 1
				}
				if got := w.dropped(why); got != want {
					t.Errorf("dropped{why=%q} = %d, want %d", why, got, want)
				}
			}
			if after, _ := w.View().Node("bad"); after != before {
				t.Error("a refused frame changed its node")
			}
			w.tick(t0.Add(2*time.Second), bad, good)
			for _, name := range []string{"bad", "good"} {
				n, ok := w.View().Node(name)
				if !ok || n.State != cluster.NodeUp || !n.Seen.Equal(t0.Add(2*time.Second)) {
					t.Errorf("%s afterwards: %+v", name, n)
				}
			}
			if got := len(w.bus.observations(t, "good")); got != 2 {
				t.Errorf("%d observations of the good node, want 2", got)
			}
		})
	}
}

func TestLostFramesAreCounted(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	w.tick(t0, s)
	s.seq += 5
	w.tick(t0.Add(6*time.Second), s)
	if got := w.dropped(telemetry.DropLost); got != 5 {
		t.Errorf("lost %d, want 5", got)
	}
}

func TestNodesAreBounded(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxNodes = 3 })
	for i := range 5 {
		w.tick(t0, newSender(fmt.Sprintf("n%d", i), 1))
	}
	if w.View().NodeCount() != 3 || w.dropped(telemetry.DropTooMany) != 2 {
		t.Errorf("%d nodes, %d refused; want 3 and 2", w.View().NodeCount(), w.dropped(telemetry.DropTooMany))
	}
	// Nodes that are silent for a day make room.
	later := newSender("late", 1)
	w.tick(t0.Add(cluster.ForgetAfter+time.Minute), later)
	if n, ok := w.View().Node("late"); !ok || n.State != cluster.NodeUp {
		t.Error("no room for a new node a day after the others fell silent")
	}
}

func TestFullQueueDropsTheOldest(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Queue, o.Workers = 8, 1 })
	s := newSender("a", 1)
	for i := range 20 {
		at := t0.Add(time.Duration(i) * time.Second)
		w.clock.set(at)
		w.bus.send(frameSubject("a"), encode(t, s.frame(at)))
	}
	w.settle()
	if got := w.dropped(telemetry.DropQueueFull); got != 12 {
		t.Errorf("dropped %d, want 12", got)
	}
	n, ok := w.View().Node("a")
	if !ok || !n.Seen.Equal(t0.Add(19*time.Second)) {
		t.Errorf("the newest frame is not in the view: %+v", n)
	}
}

// A frame that makes the judge panic costs that frame.
func TestPanicIsContained(t *testing.T) {
	w, a, b := newWorld(t, nil), newSender("a", 1), newSender("b", 1)
	w.tick(t0, a, b)
	e := w.nodes.get("a")
	j := e.j
	e.j = nil
	w.tick(t0.Add(time.Second), a, b)
	if got := w.dropped(telemetry.DropMalformed); got != 1 {
		t.Errorf("dropped %d, want 1", got)
	}
	e.j = j
	w.tick(t0.Add(2*time.Second), a, b)
	for _, name := range []string{"a", "b"} {
		if n, _ := w.View().Node(name); !n.Seen.Equal(t0.Add(2 * time.Second)) {
			t.Errorf("%s was not heard again", name)
		}
	}
}

func TestObservationsArePublished(t *testing.T) {
	w, s := newWorld(t, nil), newSender("Node.1", 2)
	for i := range 3 {
		w.tick(t0.Add(time.Duration(i)*time.Second), s)
	}
	list := w.bus.observations(t, "Node.1")
	if len(list) != 3 {
		t.Fatalf("%d observations of three frames", len(list))
	}
	o := list[2]
	if o.GetNode() != "Node.1" || o.GetSequence() != 3 || len(o.GetGpus()) != 2 || o.GetGpus()[1].GetHeadroomC() != 27 {
		t.Errorf("observation %v", o)
	}
	w.bus.broken = errors.New("no connection")
	w.tick(t0.Add(3*time.Second), s)
	if n, _ := w.View().Node("Node.1"); !n.Seen.Equal(t0.Add(3 * time.Second)) {
		t.Error("a bus that takes no observation keeps the collector from folding it")
	}
}

func TestReceiptsAreChecked(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	w.tick(t0, s)
	r := telemetry.Receipt{StepID: "s1", Result: telemetry.Done, Target: telemetry.Target{Node: "a", UUID: "GPU-a-0"}, After: map[string]float64{"power_limit_watts": 400}}
	w.bus.receipts(telemetry.ReceiptSubject("b"), r)
	if w.dropped(telemetry.DropForeign) != 1 || len(w.Receipts()) != 0 {
		t.Error("a receipt on another node's subject was taken")
	}
	w.bus.receipts(telemetry.ReceiptSubject("a"), r)
	if _, g, _ := w.View().GPU("GPU-a-0"); g.LimitW.V != 400 {
		t.Errorf("limit %+v after the receipt", g.LimitW)
	}
	if got := w.Receipts(); len(got) != 1 || got[0].StepID != "s1" {
		t.Errorf("receipts %v", got)
	}
	for range maxReceipts + 10 {
		w.bus.receipts(telemetry.ReceiptSubject("a"), r)
	}
	if got := len(w.Receipts()); got != maxReceipts {
		t.Errorf("%d receipts kept, want %d", got, maxReceipts)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := newBus()
		bus.append(telemetry.Record{Topic: telemetry.TopicIntent, Decision: &telemetry.Decision{ID: "d1", Outcome: telemetry.OutcomeIntended}})
		c, err := New(Options{Bus: bus, Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		ctx := t.Context()
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		changes := c.Changes(ctx)
		bus.inventories(telemetry.Inventory{Source: "file", Nodes: []telemetry.InventoryNode{{Name: "a", Rack: "r1"}}})
		s := newSender("a", 1)
		s.start = time.Now().Add(-time.Hour)
		for range 5 {
			bus.send(frameSubject("a"), encode(t, s.frame(time.Now())))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		select {
		case <-changes:
		default:
			t.Error("no token after five changes")
		}
		if n, ok := c.View().Node("a"); !ok || n.State != cluster.NodeUp || n.Rack != "r1" {
			t.Errorf("node %+v", n)
		}
		if d, ok := c.Decision("d1"); !ok || d.Outcome != telemetry.OutcomeIntended {
			t.Errorf("decision %+v", d)
		}
		bus.append(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: &telemetry.Decision{ID: "d1", Outcome: telemetry.OutcomeVerified}})
		synctest.Wait()
		if d, _ := c.Decision("d1"); d.Outcome != telemetry.OutcomeVerified {
			t.Errorf("decision %+v", d)
		}
		if got := len(bus.observations(t, "a")); got != 5 {
			t.Errorf("%d observations, want 5", got)
		}
		if _, err := c.Control(ctx, "plan", nil); err == nil {
			t.Error("the bus's answer is lost")
		}
		select {
		case err := <-done:
			t.Errorf("Run ended by itself: %v", err)
		default:
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{Bus: newBus()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	bus := newBus()
	bus.refuse = errors.New("no permission")
	c, err := New(Options{Bus: bus})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, bus.refuse) {
		t.Errorf("Run on a bus that refuses: %v", err)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a collector without a bus")
	}
}

// FuzzIngest sends anything on any subject: no panic, the node beside it stays
// heard, and what is refused is counted.
func FuzzIngest(f *testing.F) {
	s := newSender("bad", 2)
	good := encode(f, s.frame(t0.Add(time.Second)))
	f.Add(frameSubject("bad"), good)
	f.Add(frameSubject("bad"), good[:len(good)/2])
	f.Add(frameSubject("good"), good)
	f.Add("ek.v1.frame.0.", []byte{})
	f.Add("ek.v1.frame.x.=ZZ", []byte("\x08\x01"))
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		w := newWorld(t, nil)
		neighbour := newSender("good", 1)
		w.tick(t0, neighbour)
		w.clock.set(t0.Add(time.Second))
		w.bus.send(subject, data)
		w.bus.send(subject, data)
		w.settle()
		if w.dropped(telemetry.DropMalformed) > 0 && telemetry.DecodeFrame(data, new(telemetry.Frame)) == nil {
			t.Fatal("a frame that decodes was refused as malformed: it made the judge panic")
		}
		if frameSubject("good") == subject && telemetry.DecodeFrame(data, new(telemetry.Frame)) == nil {
			return // it is the good node that speaks
		}
		w.tick(t0.Add(2*time.Second), neighbour)
		if n, ok := w.View().Node("good"); !ok || !n.Seen.Equal(t0.Add(2*time.Second)) {
			t.Fatalf("the node beside it: %+v", n)
		}
		w.clock.set(t0.Add(3 * time.Second))
		if code, _ := w.get("/metrics"); code != 200 {
			t.Fatalf("/metrics answers %d", code)
		}
	})
}

// One node that floods loses its own frames, not those of the others.
func TestFloodHarmsItsSenderOnly(t *testing.T) {
	r := newRing(2 * share)
	drops := 0
	for i := range 100 * share {
		if r.push(arrival{subject: "loud"}) {
			drops++
		}
		if i%(10*share) == 0 && r.push(arrival{subject: fmt.Sprintf("quiet-%d", i)}) {
			t.Fatal("a quiet node's frame pushed another out")
		}
	}
	seen := map[string]int{}
	for batch := r.take(make([]arrival, 0, 7)); len(batch) > 0; batch = r.take(batch) {
		for _, a := range batch {
			seen[a.subject]++
		}
	}
	if seen["loud"] != share || len(seen) != 11 || drops != 99*share {
		t.Errorf("%d loud frames and %d nodes taken, %d dropped; want %d, 11 and %d", seen["loud"], len(seen), drops, share, 99*share)
	}
	if len(r.held) != 0 {
		t.Errorf("%d counts are kept of an empty queue", len(r.held))
	}
}

// A sequence that leaps says nothing about the fleet's losses.
func TestLeapingSequence(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 1)
	w.tick(t0, s)
	s.seq = 1 << 62
	w.tick(t0.Add(time.Second), s)
	if got := w.dropped(telemetry.DropLost); got > 100 {
		t.Errorf("%d frames counted as lost within a second", got)
	}
}

// Everything at once: for the race detector, and every frame arrives.
func TestConcurrentUse(t *testing.T) {
	bus := newBus()
	c, err := New(Options{Bus: bus, Workers: 3, PerLink: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for { // until the collector has subscribed
		bus.mu.Lock()
		up := bus.frames != nil
		bus.mu.Unlock()
		if up {
			break
		}
		time.Sleep(time.Millisecond)
	}
	const nodes, frames = 12, 40
	var wg sync.WaitGroup
	for i := range nodes {
		s := newSender(fmt.Sprintf("n%02d", i), 4)
		s.start = time.Now().Add(-time.Hour)
		wg.Go(func() {
			at := time.Now()
			for k := range frames {
				s.gpus[0].SetLost(k%2 == 1) // a change of verdict: told at once
				bus.send(frameSubject(s.name), encode(t, s.frame(at.Add(time.Duration(k)*time.Second))))
			}
		})
	}
	h := c.Handler()
	c.ready.done.Store(true)
	for range 3 {
		wg.Go(func() {
			for range 20 {
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				for _, g := range c.View().GPUs() {
					c.History(g.UUID)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			bus.inventories(telemetry.Inventory{Source: "s", Generation: uint64(i), Workloads: []telemetry.InventoryWorkload{{Ref: "slurm:1", Members: []telemetry.WorkloadMember{{ID: "1", GPUs: []string{"GPU-n01-1"}}}}}})
			bus.receipts(telemetry.ReceiptSubject("n01"), telemetry.Receipt{Result: telemetry.Done, Target: telemetry.Target{UUID: "GPU-n01-1"}, After: map[string]float64{"power_limit_watts": float64(300 + i)}})
			bus.append(telemetry.Record{Decision: &telemetry.Decision{ID: fmt.Sprint(i % 7)}})
			c.Decisions()
		}
	})
	wg.Wait()
	for _, w := range c.workers { // the queues run empty
		for {
			w.queue.mu.Lock()
			left := w.queue.count
			w.queue.mu.Unlock()
			if left == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		name := fmt.Sprintf("n%02d", i)
		list := bus.observations(t, name)
		if len(list) != frames || list[len(list)-1].GetSequence() != frames {
			t.Errorf("%s: %d observations of %d frames", name, len(list), frames)
		}
	}
}
