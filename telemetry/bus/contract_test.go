package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

type message struct {
	subject string
	data    string
}

func TestFramesAndObservations(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		const node = "Rack-7.Node 3"
		collector, exporter, rebalancer := w.connect(t, bus.UserCollector), w.connect(t, telemetry.ExporterUser(node)), w.connect(t, bus.UserRebalancer)
		var frames, backfill, observations list[message]
		for _, s := range []struct {
			on func(func(string, []byte)) (func(), error)
			to *list[message]
		}{{collector.Frames, &frames}, {collector.Backfills, &backfill}, {rebalancer.Observations, &observations}} {
			stop, err := s.on(func(subject string, data []byte) { s.to.add(message{subject, string(data)}) })
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		flush(t, collector, rebalancer)

		sink := exporter.FrameSink(node)
		buf := []byte("frame 0") // reused, as the exporter does
		for i := range 10 {
			buf = fmt.Appendf(buf[:0], "frame %d", i)
			for sink.Frame(buf) != nil {
				time.Sleep(time.Millisecond)
			}
		}
		sink.Close()
		if err := errors.Join(exporter.PublishBackfill(node, []byte("old")), collector.PublishObservation(node, []byte("seen"))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "ten frames, one old frame, one observation", func() bool {
			return frames.len() == 10 && backfill.len() == 1 && observations.len() == 1
		})
		for i, m := range frames.get() {
			if want := (message{telemetry.PartitionSubject(telemetry.FamilyFrame, node), fmt.Sprintf("frame %d", i)}); m != want {
				t.Errorf("got %v, want %v", m, want)
			}
		}
		if got, err := telemetry.SubjectNode(observations.get()[0].subject); err != nil || got != node {
			t.Errorf("observation of %q, %v; want %q", got, err, node)
		}
	})
}

func flush(t *testing.T, conns ...*bus.Conn) {
	t.Helper()
	for _, c := range conns {
		if err := c.Flush(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEventsAndReceipts(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		agent, exporter := w.connect(t, telemetry.AgentUser("node1")), w.connect(t, telemetry.ExporterUser("node1"))
		var stored atomic.Int32
		r := telemetry.Receipt{StepID: "s1", Result: telemetry.Done, Node: "node1", After: map[string]float64{"power_limit_watts": 300}}
		for range 3 { // an agent that starts again says it again
			if err := agent.PublishReceipt("node1", r, func() { stored.Add(1) }); err != nil {
				t.Fatal(err)
			}
		}
		undone := r
		undone.Result, undone.Spontaneous = telemetry.Failed, true
		if err := agent.PublishReceipt("node1", undone, nil); err != nil {
			t.Fatal(err)
		}
		e := telemetry.Event{ID: "boot-1", Node: "node1", Kind: telemetry.EventXid, Code: 79}
		for range 2 {
			if err := exporter.PublishEvent(e); err != nil {
				t.Fatal(err)
			}
		}
		flush(t, agent, exporter)
		if n := stored.Load(); n != 3 {
			t.Errorf("%d receipts reported as stored, want 3", n)
		}

		// Who comes later gets what was stored, each once, and then what is new.
		collector := w.connect(t, bus.UserCollector)
		var receipts list[telemetry.Receipt]
		var events list[telemetry.Event]
		stopReceipts, err := collector.Receipts(func(_ string, r telemetry.Receipt) { receipts.add(r) })
		if err != nil {
			t.Fatal(err)
		}
		defer stopReceipts()
		stopEvents, err := collector.Events(func(_ string, e telemetry.Event) { events.add(e) })
		if err != nil {
			t.Fatal(err)
		}
		defer stopEvents()
		eventually(t, "two receipts, one event", func() bool { return receipts.len() == 2 && events.len() == 1 })
		live := telemetry.Receipt{StepID: "s2", Result: telemetry.Done}
		if err := agent.PublishReceipt("node1", live, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the live receipt", func() bool { return receipts.len() == 3 })
		got := receipts.get()
		if got[0].StepID != "s1" || got[0].After["power_limit_watts"] != 300 || !got[1].Spontaneous || got[2].StepID != "s2" {
			t.Errorf("receipts %+v", got)
		}
		if got := events.get()[0]; got.Code != 79 || got.Kind != telemetry.EventXid {
			t.Errorf("event %+v", got)
		}
	})
}

func TestInventoryKeepsTheLastOfEachSource(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := bounded(t)
		source, collector := w.connect(t, bus.UserRebalancer), w.connect(t, bus.UserCollector)
		publish := func(name string, generation uint64) {
			t.Helper()
			if err := source.PublishInventory(ctx, telemetry.Inventory{Source: name, Generation: generation}); err != nil {
				t.Fatal(err)
			}
		}
		publish("file", 1)
		publish("k8s-main", 1)
		publish("file", 2)
		var got list[string]
		stop, err := collector.Inventories(ctx, func(i telemetry.Inventory) { got.add(fmt.Sprintf("%s/%d", i.Source, i.Generation)) })
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the last of both sources", func() bool { return got.len() == 2 })
		publish("k8s-main", 2)
		eventually(t, "the live one", func() bool { return got.len() == 3 })
		if want := []string{"k8s-main/1", "file/2", "k8s-main/2"}; !slices.Equal(got.get(), want) {
			t.Errorf("got %v, want %v", got.get(), want)
		}
		stop()
		publish("k8s-main", 3)
		if got.len() != 3 {
			t.Error("called after stop")
		}

		big := telemetry.Inventory{Source: "k8s-main", Nodes: []telemetry.InventoryNode{{Name: strings.Repeat("n", bus.DefaultMaxPayload)}}}
		if err := source.PublishInventory(ctx, big); err == nil || !strings.Contains(err.Error(), "raise max_payload") {
			t.Errorf("an inventory over the limit: %v; want an error that says what to do", err)
		}
	})
}

func TestOrders(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		leader, agent := w.connect(t, bus.UserRebalancer), w.connect(t, telemetry.AgentUser("node1"))
		ctx := bounded(t)
		if _, err := leader.RequestOrder(ctx, "node1", []byte("o")); !errors.Is(err, telemetry.ErrNoAgent) {
			t.Fatalf("no agent: %v, want ErrNoAgent", err)
		}
		release := make(chan struct{})
		stop, err := agent.HandleOrders("node1", func(data []byte) []byte {
			if string(data) == "slow" {
				<-release
			}
			return append([]byte("done "), data...)
		})
		if err != nil {
			t.Fatal(err)
		}
		flush(t, agent)
		slow := make(chan string, 1)
		go func() {
			answer, err := leader.RequestOrder(ctx, "node1", []byte("slow"))
			slow <- fmt.Sprint(string(answer), err)
		}()
		// One slow device does not hold up the others.
		for i := range 20 {
			want := fmt.Sprintf("done %d", i)
			if answer, err := leader.RequestOrder(ctx, "node1", fmt.Append(nil, i)); err != nil || string(answer) != want {
				t.Fatalf("got %q, %v; want %q", answer, err, want)
			}
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := leader.RequestOrder(short, "node1", []byte("slow")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an agent that does not answer: %v, want a deadline", err)
		}
		close(release)
		if got := <-slow; got != "done slow<nil>" {
			t.Errorf("slow order: %s", got)
		}
		stop()
		if _, err := leader.RequestOrder(ctx, "node1", []byte("o")); !errors.Is(err, telemetry.ErrNoAgent) {
			t.Errorf("after stop: %v, want ErrNoAgent", err)
		}
	})
}

func TestControl(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		collector, leader := w.connect(t, bus.UserCollector), w.connect(t, bus.UserRebalancer)
		ctx := bounded(t)
		if _, err := collector.Control(ctx, "plan", nil); !errors.Is(err, telemetry.ErrNoLeader) {
			t.Fatalf("no leader: %v, want ErrNoLeader", err)
		}
		stop, err := leader.ServeControl(func(_ context.Context, verb string, body []byte) ([]byte, error) {
			if verb == "pause" {
				return nil, errors.New("breaker\nis open")
			}
			return []byte(verb + " " + string(body)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		flush(t, leader)
		if got, err := collector.Control(ctx, "approve", []byte("d1")); err != nil || string(got) != "approve d1" {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := collector.Control(ctx, "pause", nil); !errors.Is(err, telemetry.ErrRefused) || !strings.Contains(err.Error(), "breaker is open") {
			t.Errorf("refused verb: %v", err)
		}
		stop()
		if _, err := collector.Control(ctx, "plan", nil); !errors.Is(err, telemetry.ErrNoLeader) {
			t.Errorf("after stop: %v, want ErrNoLeader", err)
		}
	})
}

// TestIdentityIsTheSubject lets every user try what is another's. The server
// refuses it, the client learns of it only afterwards, and nothing arrives.
func TestIdentityIsTheSubject(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := bounded(t)
		reader := w.connect(t, bus.UserReader)
		var seen list[message]
		for _, on := range []func(func(string, []byte)) (func(), error){reader.Frames, reader.Observations, reader.Backfills} {
			if _, err := on(func(subject string, data []byte) { seen.add(message{subject, string(data)}) }); err != nil {
				t.Fatal(err)
			}
		}
		flush(t, reader)
		var orders atomic.Int32
		stop, err := w.connect(t, telemetry.AgentUser("node2")).HandleOrders("node2", func([]byte) []byte { orders.Add(1); return []byte("done") })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()

		record := telemetry.Record{ID: "r1", Topic: telemetry.TopicIntent}
		short := func(fn func(context.Context)) {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			fn(ctx)
		}
		for _, c := range []struct {
			user, what string
			try        func(c *bus.Conn)
		}{
			{telemetry.ExporterUser("node1"), "a frame of another node", func(c *bus.Conn) { _ = c.PublishFrame("node2", []byte("forged")) }},
			{telemetry.ExporterUser("node1"), "an old frame of another node", func(c *bus.Conn) { _ = c.PublishBackfill("node2", []byte("forged")) }},
			{telemetry.ExporterUser("node1"), "an observation", func(c *bus.Conn) { _ = c.PublishObservation("node1", []byte("forged")) }},
			{telemetry.ExporterUser("node1"), "an event of another node", func(c *bus.Conn) { _ = c.PublishEvent(telemetry.Event{ID: "e", Node: "node2"}) }},
			{telemetry.ExporterUser("node1"), "a receipt", func(c *bus.Conn) { _ = c.PublishReceipt("node1", telemetry.Receipt{}, nil) }},
			{telemetry.ExporterUser("node1"), "an order", func(c *bus.Conn) {
				short(func(ctx context.Context) { _, _ = c.RequestOrder(ctx, "node2", []byte("o")) })
			}},
			{telemetry.AgentUser("node1"), "the orders of another node", func(c *bus.Conn) { _, _ = c.HandleOrders("node2", func([]byte) []byte { return nil }) }},
			{telemetry.AgentUser("node1"), "a receipt of another node", func(c *bus.Conn) { _ = c.PublishReceipt("node2", telemetry.Receipt{}, nil) }},
			{telemetry.AgentUser("node1"), "a frame", func(c *bus.Conn) { _ = c.PublishFrame("node1", []byte("forged")) }},
			{bus.UserCollector, "an order", func(c *bus.Conn) {
				short(func(ctx context.Context) { _, _ = c.RequestOrder(ctx, "node2", []byte("o")) })
			}},
			{bus.UserCollector, "the journal", func(c *bus.Conn) { short(func(ctx context.Context) { _, _ = c.Append(ctx, 0, record) }) }},
			{bus.UserCollector, "to lead", func(c *bus.Conn) {
				short(func(ctx context.Context) { _ = c.Lease(bus.LeaseRebalancer, time.Second).Hold(ctx, "me", noChange) })
			}},
			{bus.UserCollector, "to answer for the leader", func(c *bus.Conn) {
				_, _ = c.ServeControl(func(context.Context, string, []byte) ([]byte, error) { return nil, nil })
			}},
			{bus.UserReader, "an observation", func(c *bus.Conn) { _ = c.PublishObservation("node1", []byte("forged")) }},
			{bus.UserReader, "a verb", func(c *bus.Conn) { short(func(ctx context.Context) { _, _ = c.Control(ctx, "pause", nil) }) }},
			{bus.UserReader, "the orders", func(c *bus.Conn) { _, _ = c.HandleOrders("node2", func([]byte) []byte { return nil }) }},
		} {
			conn := w.connect(t, c.user)
			c.try(conn)
			eventually(t, fmt.Sprintf("%s is refused %s", c.user, c.what), func() bool {
				return conn.Stats().AsyncErrors[bus.ErrorPermission] > 0
			})
			conn.Close()
		}
		// What is allowed comes through, and it alone.
		if err := w.connect(t, telemetry.ExporterUser("node2")).PublishFrame("node2", []byte("own")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the node's own frame", func() bool { return seen.len() == 1 })
		if got := seen.get()[0]; got.data != "own" {
			t.Errorf("got through: %v", got)
		}
		if n := orders.Load(); n != 0 {
			t.Errorf("%d orders of others arrived", n)
		}
		if last, err := w.connect(t, bus.UserRebalancer).Replay(ctx, nil); err != nil || last != 0 {
			t.Errorf("journal at %d, %v; want it empty", last, err)
		}
	})
}

func noChange(telemetry.Leadership) {}

func TestWrongPasswordIsSaid(t *testing.T) {
	w := startTCP(t, nil)
	c, err := bus.Connect(bus.Options{URLs: []string{w.url}, User: bus.UserReader, Password: "wrong", ReconnectWait: 10 * time.Millisecond, ReconnectJitter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := c.Ready(ctx); !errors.Is(err, bus.ErrNotConnected) || !strings.Contains(strings.ToLower(err.Error()), "authorization") {
		t.Errorf("got %v, want an error that names authorization", err)
	}
}

func TestSlowHandlerIsCounted(t *testing.T) {
	w := startInProcess(t, []string{"node1"})
	collector, exporter := w.connect(t, bus.UserCollector), w.connect(t, telemetry.ExporterUser("node1"))
	release := make(chan struct{})
	var handled atomic.Int64
	stop, err := collector.Frames(func(string, []byte) { <-release; handled.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	flush(t, collector)
	const sent = 1<<16 + 1000
	frame := bytes.Repeat([]byte("f"), 16)
	for range sent {
		if err := exporter.PublishFrame("node1", frame); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, exporter)
	eventually(t, "drops", func() bool { return collector.Stats().Dropped >= 900 })
	close(release)
	eventually(t, "each frame is handled or counted as dropped", func() bool {
		return uint64(handled.Load())+collector.Stats().Dropped == sent
	})
	dropped := collector.Stats().Dropped
	stop()
	if got := collector.Stats(); got.Dropped != dropped || got.AsyncErrors[bus.ErrorSlowConsumer] == 0 {
		t.Errorf("after stop %+v, want %d drops still and a slow consumer", got, dropped)
	}
}
