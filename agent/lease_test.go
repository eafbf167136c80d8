package agent

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var gpus = []string{"GPU-1", "GPU-2", "GPU-3", "GPU-4"}

// TestLeaseThatEndsIsUndone: nobody renews, so the agent undoes by itself, one
// device in five seconds.
func TestLeaseThatEndsIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.run()()
		synctest.Wait() // what is under way as it starts is sent twice
		for _, g := range gpus {
			r.mustDo(r.cap(400, on(g)))
		}
		time.Sleep(10*time.Minute - time.Second)
		synctest.Wait()
		for _, g := range gpus {
			r.wantLimit(g, 400)
		}
		time.Sleep(2 * time.Second)
		for n := 1; n <= len(gpus); n++ {
			synctest.Wait()
			undone := 0
			for _, g := range gpus {
				if r.dev.now(g) == 700 {
					undone++
				}
			}
			if undone != n {
				t.Fatalf("%d undone after %d intervals", undone, n)
			}
			time.Sleep(undoEvery)
		}
		out := r.bus.get()[len(gpus):]
		if len(out) != len(gpus) {
			t.Fatalf("%d spontaneous receipts", len(out))
		}
		for i, got := range out {
			if !got.Spontaneous || got.Kind != telemetry.StepUndo || got.Result != telemetry.Done || got.Target.UUID != gpus[i] ||
				got.Before[limitKey] != 400 || got.After[limitKey] != 700 || !strings.HasPrefix(got.Detail, "lease ended") {
				t.Errorf("%+v", got)
			}
			if i > 0 && got.Started.Sub(out[i-1].Started) < undoEvery {
				t.Errorf("undone %s after the one before", got.Started.Sub(out[i-1].Started))
			}
		}
		if e, _, _ := r.a.ledger.entry(out[0].StepID); !strings.Contains(e.Receipt.Undone, "lease ended") {
			t.Errorf("the step's record says %q", e.Receipt.Undone)
		}
	})
}

func TestRenewedLeaseGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.run()()
		step := r.mustDo(r.cap(400)).StepID
		for range 5 {
			time.Sleep(9 * time.Minute)
			r.mustDo(r.order(telemetry.StepRenew, of(step)))
		}
		r.wantLimit(gpu, 400)
		time.Sleep(10*time.Minute + 2*time.Second)
		synctest.Wait()
		r.wantLimit(gpu, 700)
		r.wantRefused(r.order(telemetry.StepRenew, of(step)), telemetry.RefuseNotOurs)
	})
}

// thermometers are headrooms in memory; a device without one has an error.
type thermometers struct {
	mu      sync.Mutex
	celsius map[string]float64
	reads   map[string]int
	hang    map[string]chan struct{}
}

func (m *thermometers) set(uuid string, celsius float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.celsius[uuid] = celsius
}

func (m *thermometers) read(uuid string) (float64, error) {
	m.mu.Lock()
	m.reads[uuid]++
	hang := m.hang[uuid]
	c, ok := m.celsius[uuid]
	if c == panics {
		m.mu.Unlock()
		panic("driver")
	}
	m.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if !ok {
		return 0, errors.New("no such sensor")
	}
	return c, nil
}

// count is how often devices were read.
func (m *thermometers) count(uuids ...string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range uuids {
		n += m.reads[u]
	}
	return n
}

const panics = -1000

func newThermometers(celsius map[string]float64) *thermometers {
	return &thermometers{celsius: celsius, reads: map[string]int{}, hang: map[string]chan struct{}{}}
}

// TestHotDeviceKeepsItsCap: below the mark a cap stays, and does not hold up
// the others; at the mark it goes.
func TestHotDeviceKeepsItsCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newThermometers(map[string]float64{"GPU-1": 9.9, "GPU-2": 10, "GPU-3": 40})
		r := newRig(t, func(o *Options) { o.Headroom = m.read })
		defer r.run()()
		for _, g := range gpus[:3] {
			r.mustDo(r.cap(400, on(g)))
		}
		time.Sleep(9 * time.Minute)
		if n := m.count(gpus...); n != 0 {
			t.Errorf("%d reads while the leases ran", n)
		}
		time.Sleep(time.Minute + 2*time.Second)
		synctest.Wait()
		r.wantLimit("GPU-2", 700)
		r.wantLimit("GPU-3", 400) // one in five seconds
		time.Sleep(undoEvery)
		synctest.Wait()
		r.wantLimit("GPU-3", 700)
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		r.wantLimit("GPU-1", 400)
		m.set("GPU-1", 12)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		r.wantLimit("GPU-1", 700)
	})
}

// TestNoCapOutlivesItsLeaseForEver: what cannot be known and what stays hot is
// given back in the end; a read that fails once in between is no reason.
func TestNoCapOutlivesItsLeaseForEver(t *testing.T) {
	for _, c := range []struct {
		name   string
		gpu    string
		before time.Duration // since the end of the lease: still capped
	}{
		{"unknown", "GPU-1", unknownAtMost},
		{"hangs", "GPU-2", unknownAtMost},
		{"panics", "GPU-3", unknownAtMost},
		{"hot", "GPU-4", hotAtMost},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newThermometers(map[string]float64{"GPU-2": 40, "GPU-3": panics, "GPU-4": 3})
				release := make(chan struct{})
				defer synctest.Wait()
				defer close(release)
				m.hang["GPU-2"] = release
				r := newRig(t, func(o *Options) { o.Headroom = m.read })
				defer r.run()()
				r.mustDo(r.cap(400, on(c.gpu)))
				time.Sleep(10*time.Minute + c.before - 2*time.Second)
				if c.name == "hot" { // a sensor that fails for a moment
					r.wantLimit(c.gpu, 400)
					m.mu.Lock()
					delete(m.celsius, c.gpu)
					m.mu.Unlock()
					time.Sleep(2 * time.Second)
					synctest.Wait()
					r.wantLimit(c.gpu, 400)
					m.set(c.gpu, 3)
				}
				synctest.Wait()
				r.wantLimit(c.gpu, 400)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				r.wantLimit(c.gpu, 700)
				if n := m.count(c.gpu); c.name == "hangs" && n != 1 {
					t.Errorf("%d calls on a device that hangs", n)
				}
			})
		})
	}
}

// TestWaitOutlivesTheAgent: a restart does not begin the wait anew.
func TestWaitOutlivesTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newThermometers(map[string]float64{})
		r := newRig(t, func(o *Options) { o.Headroom = m.read })
		stop := r.run()
		r.mustDo(r.cap(400))
		time.Sleep(19 * time.Minute)
		stop()
		r.wantLimit(gpu, 400)
		r.reopen()
		stop = r.run()
		time.Sleep(50 * time.Second)
		synctest.Wait()
		r.wantLimit(gpu, 400)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		r.wantLimit(gpu, 700)
		stop()
	})
}

// TestRenewalEndsTheWait: what was renewed waits anew when its lease is over.
func TestRenewalEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newThermometers(map[string]float64{})
		r := newRig(t, func(o *Options) { o.Headroom = m.read })
		defer r.run()()
		step := r.mustDo(r.cap(400)).StepID
		time.Sleep(19 * time.Minute)
		r.mustDo(r.order(telemetry.StepRenew, of(step)))
		time.Sleep(19 * time.Minute)
		synctest.Wait()
		r.wantLimit(gpu, 400)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		r.wantLimit(gpu, 700)
	})
}

func TestLeaseEndedWhileTheAgentWasAway(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"the lease ran out":       func(r *rig) { time.Sleep(11 * time.Minute) },
		"the node restarted":      func(r *rig) { r.o.BootID = "boot-2" },
		"the clock was set back":  nil, // below
		"the lease still has run": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				stop := r.run()
				step := r.mustDo(r.cap(400)).StepID
				stop()
				want := 700.0
				switch {
				case change != nil:
					change(r)
				case name == "the clock was set back":
					// What the ledger says lies further off than any lease.
					l, err := openLedger(r.o.Ledger)
					if err != nil {
						t.Fatal(err)
					}
					h := r.a.held[gpu]
					h.Until = time.Now().Add(5 * time.Hour)
					if _, err := l.end(outcome{hold: &h}, time.Now()); err != nil {
						t.Fatal(err)
					}
					if err := l.close(); err != nil {
						t.Fatal(err)
					}
				default:
					want = 400
				}
				r.reopen()
				stop = r.run()
				time.Sleep(3 * time.Second)
				synctest.Wait()
				r.wantLimit(gpu, want)
				if want == 400 {
					r.mustDo(r.order(telemetry.StepRenew, of(step)))
				}
				stop()
			})
		})
	}
}

// TestUndoThatFailsIsTriedAgain: reported once, tried ever more slowly, done
// when the device is back.
func TestUndoThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.run()()
		r.mustDo(r.cap(400))
		var mu sync.Mutex
		var tries []time.Time
		lost := true
		onRead := func(string) error {
			mu.Lock()
			defer mu.Unlock()
			if lost {
				tries = append(tries, time.Now())
				return errors.New("GPU is lost")
			}
			return nil
		}
		r.dev.change(func() { r.dev.onRead = onRead })
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		mu.Lock()
		n, last := len(tries), tries[len(tries)-1].Sub(tries[len(tries)-2])
		lost = false
		mu.Unlock()
		if n < 8 || n > 20 || last < 55*time.Second {
			t.Errorf("%d tries in ten minutes, the last after %s", n, last)
		}
		if out := r.bus.get(); len(out) != 2 || out[1].Result != telemetry.Failed || !out[1].Spontaneous {
			t.Errorf("receipts %+v", out)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		r.wantLimit(gpu, 700)
		if out := r.bus.get(); len(out) != 3 || out[2].Result != telemetry.Done {
			t.Errorf("receipts %+v", out)
		}
	})
}

// TestHungDevice: a call that never returns keeps its own device busy and no other.
func TestHungDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.dev.onSet = func(uuid string, _ float64) error {
			if uuid == gpu {
				<-release
			}
			return nil
		}
		stop := r.run()
		first := r.sign(r.cap(400))
		done := make(chan telemetry.Receipt, 1)
		go func() { done <- r.handle(first) }()
		synctest.Wait()
		began := time.Now()
		r.wantRefused(r.cap(390), telemetry.RefuseBusy)
		if waited := time.Since(began); waited != busyAfter {
			t.Errorf("refused after %s, want %s", waited, busyAfter)
		}
		if got := r.handle(first); got.Result != telemetry.Pending {
			t.Errorf("the repeated order is %s, want pending", got.Result)
		}
		r.mustDo(r.cap(400, on("GPU-2")))
		time.Sleep(11 * time.Minute) // the other device's lease ends meanwhile
		synctest.Wait()
		r.wantLimit("GPU-2", 700)
		close(release)
		if got := <-done; got.Result != telemetry.Done {
			t.Errorf("the hung order is %s (%s)", got.Result, got.Detail)
		}
		stop()
	})
}

// TestKilledAnywhere takes the ledger as a kill would leave it at each point of
// a cap, chained and not, and starts a new agent on it with the device as it
// then is.
func TestKilledAnywhere(t *testing.T) {
	for _, chained := range []bool{false, true} {
		for _, c := range []struct {
			name   string
			point  string
			then   func(r *rig) // what happens to the device while nobody looks
			result telemetry.Result
			holds  bool
		}{
			{"before the device is read", "read", nil, telemetry.Failed, false},
			{"between started and set", "set", nil, telemetry.Failed, false},
			{"between set and done", "readback", nil, telemetry.Done, true},
			{"between started and set, changed by another", "set", func(r *rig) { r.dev.force(gpu, 333) }, telemetry.Failed, false},
			{"between set and done, changed by another", "readback", func(r *rig) { r.dev.force(gpu, 333) }, telemetry.Failed, false},
			{"between set and done, device lost", "readback", func(r *rig) { r.dev.onRead = func(string) error { return errors.New("lost") } }, telemetry.Failed, true},
		} {
			name := c.name
			if chained {
				name += ", chained"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { killed(t, c.point, c.then, c.result, c.holds, chained) })
			})
		}
	}
}

func killed(t *testing.T, point string, then func(*rig), result telemetry.Result, holds, chained bool) {
	r := newRig(t)
	found := 700.0
	if chained {
		r.mustDo(r.cap(600))
		found = 600
	}
	image := filepath.Join(t.TempDir(), "killed.db")
	limitThen := 0.0
	take := func() { r.image(image); limitThen = r.dev.now(gpu) }
	written := false
	r.dev.onRead = func(string) error {
		if point == "read" && !written || point == "readback" && written {
			take()
		}
		return nil
	}
	r.dev.onSet = func(string, float64) error {
		if point == "set" {
			take()
		}
		written = true
		return nil
	}
	o := r.cap(400)
	data := r.sign(o)
	r.handle(data)

	// The agent that was killed has not got any further than the image.
	before := len(r.bus.get())
	r.dev.onRead, r.dev.onSet = nil, nil
	r.dev.force(gpu, limitThen)
	if then != nil {
		then(r)
	}
	present := r.dev.now(gpu)
	r.reopen(func(o *Options) { o.Ledger = image })
	stop := r.run()
	synctest.Wait()
	out := r.bus.get()[before:]
	if len(out) == 0 || !out[0].Spontaneous || out[0].StepID != o.ID || out[0].Result != result {
		t.Fatalf("reported first: %+v, want %s of %s", out, result, o.ID)
	}
	r.wantLimit(gpu, present) // looking changes nothing
	if got := r.handle(data); got.Result != result || !got.Spontaneous {
		t.Errorf("the repeated order is answered with %+v", got)
	}
	if h, ok := r.a.holdOf(gpu); (ok && h.Step == o.ID) != holds {
		t.Errorf("held: %+v", h)
	} else if holds && h.Found != 700 {
		t.Errorf("would put back %g W, want what was first found", h.Found)
	}
	if present == found && chained { // the first cap still holds
		r.mustDo(r.order(telemetry.StepRenew, of("step-1")))
	}

	// Whatever it was, it ends: with the lease what is ours goes, and only that.
	r.dev.change(func() { r.dev.onRead = nil })
	time.Sleep(31 * time.Minute)
	synctest.Wait()
	stop()
	want := 700.0
	if present == 333 {
		want = 333
	}
	r.wantLimit(gpu, want)
	if len(r.a.held) != 0 {
		t.Errorf("still held: %+v", r.a.held)
	}
}

// TestReceiptsWaitForTheBus: what the bus has not stored is sent again by the
// next run.
func TestReceiptsWaitForTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.bus.setAway(true)
		stop := r.run()
		step := r.mustDo(r.cap(400)).StepID
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		stop()
		if n := len(r.bus.get()); n != 0 {
			t.Fatalf("%d receipts on a bus that is away", n)
		}
		r.bus.setAway(false)
		r.reopen()
		stop = r.run()
		synctest.Wait()
		stop()
		out := r.bus.get()
		if len(out) != 2 || out[0].StepID != step || out[0].Spontaneous || !out[1].Spontaneous {
			t.Fatalf("receipts %+v", out)
		}
		r.reopen()
		stop = r.run()
		synctest.Wait()
		stop()
		if n := len(r.bus.get()); n != 2 {
			t.Errorf("%d receipts; what was stored was sent again", n)
		}
	})
}

func TestLedgerForgetsWhatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.run()()
		old := r.cap(600)
		r.mustDo(old)
		kept := r.cap(500)
		r.mustDo(kept)
		for range 160 { // 26 hours
			time.Sleep(10*time.Minute - time.Second)
			r.mustDo(r.order(telemetry.StepRenew, of(kept.ID)))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, known, _ := r.a.ledger.entry(old.ID); known {
			t.Error("an order that ended a day ago is still there")
		}
		if _, known, _ := r.a.ledger.entry(kept.ID); !known {
			t.Error("an order that still holds is forgotten")
		}
		if got := r.do(old); got.Why != telemetry.RefuseExpired { // replayed after all that
			t.Errorf("an old order is %s %s", got.Result, got.Why)
		}
		r.wantLimit(gpu, 500)
	})
}

func TestWaitingReceiptsAreBounded(t *testing.T) {
	l, err := openLedger(filepath.Join(t.TempDir(), "l.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.db.NoSync = true // only the count matters here
	for range maxOut + 10 {
		if _, err := l.end(outcome{receipt: telemetry.Receipt{StepID: "s"}}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	keys, receipts, err := l.waiting()
	if err != nil || len(receipts) != maxOut || keys[0] != 11 {
		t.Errorf("%d receipts from %d on, %v; want the newest %d", len(receipts), keys[0], err, maxOut)
	}
}
