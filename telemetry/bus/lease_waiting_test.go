package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// holdAnnounced is hold for a lease whose waiters say so.
func holdAnnounced(t *testing.T, c *bus.Conn, lease, name string, ttl time.Duration) *holder {
	ctx, cancel := context.WithCancel(t.Context())
	h := &holder{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		_ = c.Lease(lease, ttl).Announced().Hold(ctx, name, func(l telemetry.Leadership) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.now = l
			h.changes = append(h.changes, l)
		})
	}()
	t.Cleanup(h.stop)
	return h
}

// TestWhoWaitsIsKnown: a holder knows whether it is alone, one that waits knows
// that another holds, and both again when they have changed places. The users
// may do no more than that needs, a share's user nothing of another share.
func TestWhoWaitsIsKnown(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		const ttl = time.Second
		one := holdAnnounced(t, w.connect(t, bus.UserCollector), bus.LeaseCollector, "one", ttl)
		eventually(t, "the first holds", one.acts)
		for end := time.Now().Add(ttl); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if s := one.state(); !s.Held || s.Others {
				t.Fatalf("alone it is %+v", s)
			}
		}
		two := holdAnnounced(t, w.connect(t, bus.UserCollector), bus.LeaseCollector, "two", ttl)
		eventually(t, "the first knows of the second", func() bool { s := one.state(); return s.Held && s.Others })
		eventually(t, "the second knows of the first", func() bool { s := two.state(); return !s.Held && s.Others })

		one.stop()
		eventually(t, "the second holds, alone", func() bool { s := two.state(); return s.Held && !s.Others })
		again := holdAnnounced(t, w.connect(t, bus.UserCollector), bus.LeaseCollector, "one-again", ttl)
		eventually(t, "the second knows that it is not alone", func() bool { return two.state().Others })
		again.stop()
		eventually(t, "the second knows that it is alone again", func() bool { return !two.state().Others })
		if s := two.state(); !s.Held {
			t.Errorf("who waits has cost the holder its lease: %+v", s)
		}

		// Each share has its lease.
		low, err := telemetry.ParsePartitions("0-31")
		if err != nil {
			t.Fatal(err)
		}
		three := holdAnnounced(t, w.connect(t, bus.UserCollector), bus.CollectorLease(low), "three", ttl)
		eventually(t, "the lease of a share is held beside that of the whole", func() bool { return three.acts() && two.acts() })
	})
}

// TestHolderThatIsCutOffKnowsWhetherItWasAlone: what a holder does without the
// server depends on it.
func TestHolderThatIsCutOffKnowsWhetherItWasAlone(t *testing.T) {
	const ttl = time.Second
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	proxy := startProxy(t, server.URL()[len("nats://"):])
	c := connect(t, bus.Options{URLs: []string{"nats://" + proxy.addr}})
	if err := c.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	one := holdAnnounced(t, c, bus.LeaseCollector, "one", ttl)
	eventually(t, "it holds", one.acts)
	proxy.pause.Store(true)
	eventually(t, "it knows that the lease is lost", func() bool { return !one.state().Held })
	if one.state().Others {
		t.Error("alone and cut off, it believes in another")
	}
	proxy.pause.Store(false)
	eventually(t, "it has the lease again", one.acts)

	two := holdAnnounced(t, connect(t, bus.Options{URLs: []string{server.URL()}}), bus.LeaseCollector, "two", ttl)
	eventually(t, "it knows of the other", func() bool { return one.state().Others })
	proxy.pause.Store(true)
	eventually(t, "the other holds", two.acts)
	eventually(t, "it knows that it must stop", func() bool { s := one.state(); return !s.Held && s.Others })
	proxy.pause.Store(false)
	eventually(t, "it waits, and the holder knows", func() bool { return two.state().Held && two.state().Others && one.state().Others })
}

func TestRightsOfAShare(t *testing.T) {
	w := startInProcess(t, []string{"node1"}) // partition 52
	low := bus.User{Name: "collector.0-31", Password: "p"}
	s := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Users: append(users("node1"), low)})
	w.inProcess = s
	conn := func() *bus.Conn {
		return connect(t, bus.Options{User: low.Name, Password: low.Password, InProcess: s})
	}
	good := conn()
	if err := good.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	share, err := telemetry.ParsePartitions("0-31")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := good.FramesOf(share, func(string, []byte) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := good.BackfillsOf(share, func(string, []byte) {}); err != nil {
		t.Fatal(err)
	}
	own := holdAnnounced(t, good, bus.CollectorLease(share), "own", time.Second)
	eventually(t, "its own lease", own.acts)
	waits := holdAnnounced(t, conn(), bus.CollectorLease(share), "standby", time.Second)
	eventually(t, "its standby is known", func() bool { return own.state().Others && !waits.state().Held })
	if n := good.Stats().AsyncErrors[bus.ErrorPermission]; n != 0 {
		t.Errorf("%d of its own rights are refused", n)
	}
	var low31, high52 = "", "node1"
	for i := range 1000 {
		if name := "n" + string(rune('a'+i%26)) + string(rune('a'+i/26)); share.HasNode(name) {
			low31 = name
			break
		}
	}
	reader := w.connect(t, bus.UserReader)
	var seen list[string]
	if _, err := reader.Observations(func(subject string, _ []byte) { seen.add(subject) }); err != nil {
		t.Fatal(err)
	}
	flush(t, reader)
	for _, node := range []string{high52, low31} {
		if err := good.PublishObservation(node, []byte("o")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the observation of its share", func() bool { return seen.len() > 0 })
	if got := seen.get(); len(got) != 1 || got[0] != telemetry.PartitionSubject(telemetry.FamilyObservation, low31) {
		t.Errorf("observations of %v came through", got)
	}
	for what, try := range map[string]func(*bus.Conn){
		"frames of all":        func(c *bus.Conn) { _, _ = c.Frames(func(string, []byte) {}) },
		"frames of the others": func(c *bus.Conn) { _, _ = c.FramesOf(telemetry.AllPartitions&^share, func(string, []byte) {}) },
		"the lease of all": func(c *bus.Conn) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = c.Lease(bus.LeaseCollector, time.Second).Hold(ctx, "x", noChange)
		},
	} {
		c := conn()
		try(c)
		eventually(t, "it is refused "+what, func() bool { return c.Stats().AsyncErrors[bus.ErrorPermission] > 0 })
	}
}
