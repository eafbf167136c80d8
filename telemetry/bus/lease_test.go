package bus_test

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// holder holds the lease in the background and keeps every change.
type holder struct {
	mu      sync.Mutex
	now     telemetry.Leadership
	changes []telemetry.Leadership
	cancel  context.CancelFunc
	done    chan struct{}
}

func hold(t *testing.T, c *bus.Conn, name string, ttl time.Duration) *holder {
	ctx, cancel := context.WithCancel(t.Context())
	h := &holder{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		_ = c.Lease(bus.LeaseRebalancer, ttl).Hold(ctx, name, func(l telemetry.Leadership) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.now = l
			h.changes = append(h.changes, l)
		})
	}()
	t.Cleanup(h.stop)
	return h
}

func (h *holder) stop() { h.cancel(); <-h.done }

func (h *holder) state() telemetry.Leadership {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// acts is what a holder may think at this moment.
func (h *holder) acts() bool {
	s := h.state()
	return s.Held && time.Now().Before(s.Until)
}

func TestLeaseHasOneHolder(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		const ttl = time.Second
		holders := []*holder{
			hold(t, w.connect(t, bus.UserRebalancer), "one", ttl),
			hold(t, w.connect(t, bus.UserRebalancer), "two", ttl),
			hold(t, w.connect(t, bus.UserRebalancer), "three", ttl),
		}
		holding := func() (n int, who *holder) {
			for _, h := range holders {
				if h.acts() {
					n, who = n+1, h
				}
			}
			return n, who
		}
		var epochs []telemetry.Epoch
		for range 3 {
			eventually(t, "a holder", func() bool { n, _ := holding(); return n == 1 })
			_, first := holding()
			epochs = append(epochs, first.state().Epoch)
			// Through several renewals there is one, and it is the same.
			for end := time.Now().Add(3 * ttl / 2); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if n, who := holding(); n > 1 || n == 1 && who != first {
					t.Fatalf("%d holders", n)
				}
			}
			if s := first.state(); !s.Held || s.Epoch != epochs[len(epochs)-1] {
				t.Fatalf("holder lost its lease or changed its epoch while it renewed: %+v", s)
			}
			first.stop()
			if s := first.state(); s.Held {
				t.Fatal("a holder that has stopped still holds")
			}
		}
		for i := 1; i < len(epochs); i++ {
			if epochs[i].Incarnation != epochs[0].Incarnation || epochs[i].Revision <= epochs[i-1].Revision {
				t.Errorf("epochs %v do not grow", epochs)
			}
		}
	})
}

// TestPausedHolderLoses holds the holder's traffic back for longer than the
// lease: it stops by its own clock before another begins, and finds out.
func TestPausedHolderLoses(t *testing.T) {
	const ttl = time.Second
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	proxy := startProxy(t, server.URL()[len("nats://"):])
	paused := connect(t, bus.Options{URLs: []string{"nats://" + proxy.addr}})
	if err := paused.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	one := hold(t, paused, "one", ttl)
	eventually(t, "the first holder", one.acts)
	two := hold(t, connect(t, bus.Options{URLs: []string{server.URL()}}), "two", ttl)

	proxy.pause.Store(true)
	for !two.acts() {
		if one.acts() && two.acts() {
			t.Fatal("two holders")
		}
		time.Sleep(time.Millisecond)
	}
	if one.acts() {
		t.Fatal("the paused holder still acts")
	}
	eventually(t, "the paused holder knows", func() bool { return !one.state().Held })
	first, second := one.state().Epoch, two.state().Epoch
	if second.Incarnation != first.Incarnation || second.Revision <= first.Revision {
		t.Errorf("epochs %v, then %v", first, second)
	}

	// Back again, its late renewals must not take the lease from the second.
	proxy.pause.Store(false)
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if one.acts() || !two.acts() {
			t.Fatalf("late renewal took effect: one %+v, two %+v", one.state(), two.state())
		}
	}
}

// TestLostAnswerToARenewal holds back only what the server answers: the renewal
// is stored, its answer late. The holder finds its own write and goes on.
func TestLostAnswerToARenewal(t *testing.T) {
	const ttl = 4 * time.Second
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	proxy := startProxy(t, server.URL()[len("nats://"):])
	c := connect(t, bus.Options{URLs: []string{"nats://" + proxy.addr}})
	if err := c.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	one := hold(t, c, "one", ttl)
	eventually(t, "the holder", one.acts)
	before := one.state()
	js := rawStreams(t, server.URL())
	revision := func() uint64 {
		s, err := js.Stream(t.Context(), "KV_"+bus.BucketLease)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.LastSeq
	}
	acquired := revision()
	proxy.pauseAnswers.Store(true)
	eventually(t, "the renewal is stored", func() bool { return revision() > acquired })
	time.Sleep(ttl/4 + 100*time.Millisecond) // beyond the time that the attempt waits
	proxy.pauseAnswers.Store(false)
	eventually(t, "the holder knows that it has renewed", func() bool { return one.state().Until.After(before.Until) })
	if s := one.state(); !s.Held || s.Epoch != before.Epoch {
		t.Errorf("after a lost answer %+v, want the tenure of %+v", s, before)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	for _, l := range one.changes {
		if !l.Held {
			t.Error("the lease was given up for a lost answer")
		}
	}
}

// TestLeaseOfADeadHolderEnds closes the holder's connection: nothing is given
// back, and the server lets the lease go.
func TestLeaseOfADeadHolderEnds(t *testing.T) {
	const ttl = time.Second
	dir, port := t.TempDir(), freePort(t)
	o := embedded.Options{StoreDir: dir, Port: port}
	server := startEmbedded(t, o)
	at := bus.Options{URLs: []string{server.URL()}, ReconnectWait: 10 * time.Millisecond, ReconnectJitter: 10 * time.Millisecond}
	dying := connect(t, at)
	if err := dying.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	one := hold(t, dying, "one", ttl)
	eventually(t, "the first holder", one.acts)
	first := one.state().Epoch
	dying.Close()
	two := hold(t, connect(t, at), "two", ttl)
	eventually(t, "the second holder", two.acts)
	second := two.state().Epoch
	if second.Incarnation != first.Incarnation || second.Revision <= first.Revision {
		t.Errorf("epochs %v, then %v", first, second)
	}

	// The bucket's life goes on over a restart of the server.
	server.Shutdown()
	server = startEmbedded(t, o)
	eventually(t, "a holder after the restart", func() bool { return two.acts() && server.URL() != "" })
	if third := two.state().Epoch; third.Incarnation != first.Incarnation || third.Revision < second.Revision {
		t.Errorf("epochs %v, then %v", second, third)
	}

	// A new folder is a new life: the same revisions, another incarnation.
	two.stop()
	fresh := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	c := connect(t, bus.Options{URLs: []string{fresh.URL()}})
	if err := c.EnsureStreams(bounded(t), small()); err != nil {
		t.Fatal(err)
	}
	other := hold(t, c, "other", ttl)
	eventually(t, "a holder of the new bucket", other.acts)
	if got := other.state().Epoch.Incarnation; got == first.Incarnation {
		t.Error("two buckets with one incarnation")
	}
}

// proxy passes bytes on, or holds them back without closing anything.
type proxy struct {
	addr                string
	pause, pauseAnswers atomic.Bool
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String()}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			t.Cleanup(func() { in.Close(); out.Close() })
			go p.copy(out, in, &p.pause)
			go p.copy(in, out, &p.pause, &p.pauseAnswers)
		}
	}()
	return p
}

func (p *proxy) copy(to io.WriteCloser, from io.Reader, pauses ...*atomic.Bool) {
	defer to.Close() // what one side ends the other sees
	paused := func() bool {
		return slices.ContainsFunc(pauses, func(b *atomic.Bool) bool { return b.Load() })
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for paused() {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
