package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

func quick(urls ...string) bus.Options {
	return bus.Options{URLs: urls, ReconnectWait: 10 * time.Millisecond, ReconnectJitter: 10 * time.Millisecond}
}

// A reader that does not read loses frames, costs nobody else a frame or a wait,
// is cut by the server in the end, and is back and hears as soon as it reads.
func TestSlowSubscriberHarmsItselfOnly(t *testing.T) {
	url := startImpatient(t)
	proxy := startProxy(t, url[len("nats://"):])
	slow, good, node := connect(t, quick("nats://"+proxy.addr)), connect(t, quick(url)), connect(t, quick(url))
	var heardSlow, heardGood list[int]
	for c, to := range map[*bus.Conn]*list[int]{slow: &heardSlow, good: &heardGood} {
		stop, err := c.Frames(func(_ string, data []byte) { to.add(len(data)) })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	flush(t, slow, good)
	proxy.pauseAnswers.Store(true)
	const frames = 500 // 100 MB: more than the server holds back for one connection
	big := bytes.Repeat([]byte("f"), 200<<10)
	for range frames {
		if err := node.PublishFrame("node1", big); err != nil {
			t.Fatalf("a publisher is told of another's slowness: %v", err)
		}
	}
	flush(t, node)
	eventually(t, "every frame at who reads", func() bool { return heardGood.len() == frames })
	time.Sleep(4 * impatience)
	proxy.pauseAnswers.Store(false)
	eventually(t, "the cut connection stands again", func() bool { return slow.Stats().Reconnects >= 1 })
	flush(t, slow)
	if heardSlow.len() == frames {
		t.Fatal("nothing was lost: nothing is tried here")
	}
	if err := node.PublishFrame("node1", []byte("after")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the frame after", func() bool { l := heardSlow.get(); return len(l) > 0 && l[len(l)-1] == len("after") })
}

// impatience is for how long the server below waits for a reader.
const impatience = 250 * time.Millisecond

// startImpatient is a server like ours that cuts slow readers sooner.
func startImpatient(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, MaxPayload: bus.DefaultMaxPayload, NoFastProducerStall: true, WriteDeadline: impatience})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(within) {
		t.Fatal("the server does not start")
	}
	return s.ClientURL()
}

// What could not be sent in an outage is refused at once and never sent later:
// an old frame is worth nothing, and a fleet of them is a storm.
func TestNothingOldIsSentAfterAnOutage(t *testing.T) {
	o := embedded.Options{StoreDir: t.TempDir(), Port: freePort(t)}
	server := startEmbedded(t, o)
	node := connect(t, quick(server.URL()))
	server.Shutdown()
	eventually(t, "the outage is noticed", func() bool { return !node.Connected() })
	for i := range 1000 {
		if err := node.PublishFrame("node1", fmt.Append(nil, i)); !errors.Is(err, bus.ErrNotConnected) {
			t.Fatalf("frame %d in an outage: %v", i, err)
		}
	}
	server = startEmbedded(t, o)
	reader := connect(t, quick(server.URL()))
	var heard list[string]
	stop, err := reader.Frames(func(_ string, data []byte) { heard.add(string(data)) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	flush(t, reader)
	eventually(t, "the node is back", node.Connected)
	eventually(t, "a frame goes", func() bool { return node.PublishFrame("node1", []byte("new")) == nil })
	flush(t, node)
	eventually(t, "the new frame", func() bool { return heard.len() > 0 })
	flush(t, node, reader)
	if got := heard.get(); len(got) != 1 || got[0] != "new" {
		t.Errorf("%d frames after the outage, the first %q", len(got), got[0])
	}
}

// A server whose disk has no room for streams carries frames and observations
// all the same, and what cannot be stored says so.
func TestFullDiskLeavesTelemetryAlone(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, MaxStoreBytes: 1 << 20})
	c, node := connect(t, quick(server.URL())), connect(t, quick(server.URL()))
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := c.EnsureStreams(ctx, small()); err == nil || !strings.Contains(err.Error(), "storage") {
		t.Fatalf("streams of 32 MiB on 1 MiB: %v", err)
	}
	var heard list[string]
	stop, err := c.Frames(func(subject string, _ []byte) { heard.add(subject) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	flush(t, c)
	short, cancel2 := context.WithTimeout(ctx, time.Second)
	defer cancel2()
	if err := c.PublishInventory(short, telemetry.Inventory{Source: "file"}); err == nil {
		t.Error("an inventory was stored nowhere, and nobody says so")
	}
	for range 100 {
		if err := errors.Join(node.PublishFrame("node1", []byte("f")), c.PublishObservation("node1", []byte("o"))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the frames", func() bool { return heard.len() == 100 })
}

// A stream that is full gives up its oldest; what is new is stored.
func TestFullStreamGivesUpItsOldest(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	c := connect(t, quick(server.URL()))
	s := small()
	s.Events.MaxBytes = 256 << 10
	if err := c.EnsureStreams(bounded(t), s); err != nil {
		t.Fatal(err)
	}
	const events = 2000
	for i := range events {
		e := telemetry.Event{ID: fmt.Sprint("boot-", i), Node: "node1", Detail: strings.Repeat("x", 400)}
		if err := c.PublishEvent(e); err != nil {
			t.Fatal(err)
		}
		if i%500 == 499 { // the outbox gives up its oldest too
			eventually(t, "the outbox is empty", func() bool { return c.Stats().OutboxQueued == 0 })
		}
	}
	eventually(t, "all are stored", func() bool { return c.Stats().OutboxQueued == 0 })
	info, err := rawStreams(t, server.URL()).Stream(t.Context(), bus.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.CachedInfo().State; st.LastSeq != events || st.FirstSeq < 2 || st.Bytes > 256<<10 {
		t.Errorf("stream %+v, want the last %d events within its bytes", st, events)
	}
}

// Renewing does not make a lease eternal: one that was renewed, and whose holder
// is dead, ends.
func TestRenewedLeaseStillEnds(t *testing.T) {
	const ttl = time.Second
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	dying := connect(t, quick(server.URL()))
	if err := dying.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	one := hold(t, dying, "one", ttl)
	eventually(t, "a holder", one.acts)
	first := one.state().Until
	eventually(t, "three renewals", func() bool { return one.state().Until.Sub(first) > ttl })
	dying.Close()
	two := hold(t, connect(t, quick(server.URL())), "two", ttl)
	eventually(t, "the next holder", two.acts)
}

// A consumer that the server loses in silence is made again, and nothing is
// missed or told twice.
func TestConsumerThatVanishes(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	c := connect(t, quick(server.URL()))
	if err := c.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	var heard list[uint64]
	stop, err := c.Inventories(t.Context(), func(inv telemetry.Inventory) { heard.add(inv.Generation) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	say := func(g uint64) {
		t.Helper()
		if err := c.PublishInventory(bounded(t), telemetry.Inventory{Source: fmt.Sprint("s", g), Generation: g}); err != nil {
			t.Fatal(err)
		}
	}
	say(1)
	eventually(t, "the first", func() bool { return heard.len() == 1 })
	stream, err := rawStreams(t, server.URL()).Stream(t.Context(), bus.StreamInventory)
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	for name := range stream.ConsumerNames(t.Context()).Name() {
		if err := stream.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		removed++
	}
	if removed != 1 {
		t.Fatalf("%d consumers removed, want that of the follower", removed)
	}
	say(2)
	eventually(t, "what came while there was no consumer", func() bool { return heard.len() == 2 })
	say(3)
	eventually(t, "what comes after", func() bool { return heard.len() == 3 })
	if got := heard.get(); got[0] != 1 || got[1] != 2 || got[2] != 3 {
		t.Errorf("heard %v", got)
	}
}

// Followers that come and go leave no consumer behind, and a stream takes more
// of them than the server's default of a thousand.
func TestConsumersDoNotRunOut(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	c := connect(t, quick(server.URL()))
	if err := c.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	stream, err := rawStreams(t, server.URL()).Stream(t.Context(), bus.StreamInventory)
	if err != nil {
		t.Fatal(err)
	}
	count := func() int {
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Consumers
	}
	for range 20 {
		var stops []func()
		for range 5 {
			stop, err := c.Inventories(t.Context(), func(telemetry.Inventory) {})
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		eventually(t, "five consumers", func() bool { return count() == 5 })
		for _, stop := range stops {
			stop()
		}
		eventually(t, "none left", func() bool { return count() == 0 })
	}
	for i := range 1100 {
		if _, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute}); err != nil {
			t.Fatalf("consumer %d: %v", i, err)
		}
	}
}

// An inventory that speaks for another source than that of its subject is left
// out: the subject is what the server lets a user speak on.
func TestInventoryOfAnotherSource(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	c := connect(t, quick(server.URL()))
	if err := c.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	js := rawStreams(t, server.URL())
	for subject, source := range map[string]string{"file": "k8s-x", "k8s-x": "k8s-x"} {
		if _, err := js.Publish(t.Context(), telemetry.InventorySubject(subject), fmt.Appendf(nil, `{"source":%q,"generation":1}`, source)); err != nil {
			t.Fatal(err)
		}
	}
	var heard list[string]
	stop, err := c.Inventories(t.Context(), func(inv telemetry.Inventory) { heard.add(inv.Source) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	eventually(t, "one heard, one counted", func() bool { return heard.len() == 1 && c.Stats().Malformed == 1 })
}

// The collector may speak for the file, and for no other source.
func TestCollectorSpeaksForTheFileOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		c := w.connect(t, bus.UserCollector)
		if err := c.PublishInventory(bounded(t), telemetry.Inventory{Source: telemetry.SourceFile, Generation: 1}); err != nil {
			t.Errorf("the file's inventory: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := c.PublishInventory(short, telemetry.Inventory{Source: "k8s-x"}); err == nil {
			t.Error("the collector spoke for a scheduler")
		}
		eventually(t, "the refusal is counted", func() bool { return c.Stats().AsyncErrors[bus.ErrorPermission] > 0 })
	})
}
