package agent

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestPowerCap(t *testing.T) {
	r := newRig(t)
	would := r.mustDo(r.cap(400, dry))
	if would.Before[limitKey] != 700 || would.After != nil || !would.DryRun || r.dev.writes() != 0 || len(r.bus.get()) != 0 {
		t.Errorf("dry run: %+v, %d writes", would, r.dev.writes())
	}
	before := time.Now()
	got := r.mustDo(r.cap(400))
	if got.Before[limitKey] != 700 || got.After[limitKey] != 400 || got.Started.IsZero() || got.Ended.Before(got.Started) {
		t.Errorf("receipt %+v", got)
	}
	if lease := got.LeaseUntil.Sub(before).Round(time.Minute); lease != 10*time.Minute {
		t.Errorf("lease of %s, want 10m", lease)
	}
	r.wantLimit(gpu, 400)
	if out := r.bus.get(); len(out) != 1 || out[0].StepID != got.StepID || out[0].Result != telemetry.Done {
		t.Errorf("published %+v", out)
	}
	long := r.mustDo(r.cap(400, on("GPU-2"), func(o *telemetry.Order) { o.Lease = telemetry.Duration(99 * time.Hour) }))
	if lease := long.LeaseUntil.Sub(before).Round(time.Minute); lease != 30*time.Minute {
		t.Errorf("lease of %s, want the agent's 30m", lease)
	}
}

func TestWhatTheDriverSaysDoesNotCount(t *testing.T) {
	no := errors.New("driver says no")
	t.Run("an error, but the limit is set", func(t *testing.T) {
		r := newRig(t)
		r.dev.onSet = func(uuid string, w float64) error { r.dev.force(uuid, w); return no }
		r.mustDo(r.cap(400))
		r.wantLimit(gpu, 400)
	})
	t.Run("no error, but the limit is not set", func(t *testing.T) {
		r := newRig(t)
		r.dev.after = func(float64) float64 { return 700 }
		got := r.do(r.cap(400))
		if got.Result != telemetry.Failed || !strings.Contains(got.Undone, "700 W") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("another limit than ordered is put back", func(t *testing.T) {
		r := newRig(t)
		r.dev.after = func(w float64) float64 { return max(w, 450) }
		got := r.do(r.cap(400))
		if got.Result != telemetry.Failed || !strings.Contains(got.Detail, "reads back as 450 W") || !strings.Contains(got.Undone, "put back to 700 W") || got.After[limitKey] != 700 {
			t.Errorf("%+v", got)
		}
		r.wantLimit(gpu, 700)
		if len(r.a.held) != 0 {
			t.Error("something is held")
		}
	})
	t.Run("rounded by the driver", func(t *testing.T) {
		r := newRig(t)
		r.dev.after = func(w float64) float64 { return w + 0.6 }
		r.mustDo(r.cap(400))
		r.mustDo(r.order(telemetry.StepUndo, of("step-1")))
	})
	t.Run("a panic", func(t *testing.T) {
		r := newRig(t)
		r.dev.onSet = func(string, float64) error { panic("in the library") }
		if got := r.do(r.cap(400)); got.Result != telemetry.Failed || !strings.Contains(got.Detail, "in the library") {
			t.Errorf("%+v", got)
		}
		r.dev.onSet = nil
		r.mustDo(r.cap(400)) // the device is not left locked
	})
	t.Run("not set and not put back", func(t *testing.T) {
		r := newRig(t)
		var sets atomic.Int32
		r.dev.after = func(w float64) float64 { return max(w, 450) }
		r.dev.onSet = func(string, float64) error {
			if sets.Add(1) == 2 {
				return no
			}
			return nil
		}
		got := r.do(r.cap(400))
		if got.Result != telemetry.Failed || got.Undone != "" || got.After[limitKey] != 450 || got.LeaseUntil.IsZero() {
			t.Errorf("%+v", got)
		}
		// It stays on the books with what is there and what was found.
		if h := r.a.held[gpu]; h.Set != 450 || h.Found != 700 {
			t.Errorf("held %+v", h)
		}
		r.mustDo(r.order(telemetry.StepUndo, of(got.StepID)))
		r.wantLimit(gpu, 700)
	})
}

func TestChainedCapsKeepWhatWasFound(t *testing.T) {
	r := newRig(t)
	first := r.mustDo(r.cap(600))
	second := r.mustDo(r.cap(500))
	third := r.mustDo(r.cap(550)) // up again, but not above what was found
	if second.Before[limitKey] != 600 || third.Before[limitKey] != 500 {
		t.Errorf("before: %v and %v", second.Before, third.Before)
	}
	got := r.wantRefused(r.order(telemetry.StepUndo, of(first.StepID)), telemetry.RefuseNotOurs)
	if !strings.Contains(got.Detail, "superseded by step "+second.StepID) {
		t.Errorf("says %q", got.Detail)
	}
	r.wantRefused(r.order(telemetry.StepRenew, of(second.StepID)), telemetry.RefuseNotOurs)
	r.reopen()
	r.mustDo(r.order(telemetry.StepUndo, of(third.StepID)))
	r.wantLimit(gpu, 700)
	if e, _, err := r.a.ledger.entry(first.StepID); err != nil || !strings.Contains(e.Receipt.Undone, "superseded") {
		t.Errorf("the first step's record says %q, %v", e.Receipt.Undone, err)
	}
}

func TestChainThatFailsLeavesTheFirst(t *testing.T) {
	r := newRig(t)
	first := r.mustDo(r.cap(600))
	r.dev.after = func(w float64) float64 { return max(w, 550) }
	if got := r.do(r.cap(500)); got.Result != telemetry.Failed || got.After[limitKey] != 600 {
		t.Errorf("%+v", got)
	}
	r.dev.after = nil
	r.mustDo(r.order(telemetry.StepRenew, of(first.StepID)))
	r.mustDo(r.order(telemetry.StepUndo, of(first.StepID)))
	r.wantLimit(gpu, 700)
}

func TestChainOnWhatSomebodyElseSet(t *testing.T) {
	r := newRig(t)
	r.mustDo(r.cap(600))
	r.dev.force(gpu, 650) // not ours any more
	second := r.mustDo(r.cap(500))
	r.mustDo(r.order(telemetry.StepUndo, of(second.StepID)))
	r.wantLimit(gpu, 650) // what was found then, not what the first one found
}

func TestRenew(t *testing.T) {
	r := newRig(t)
	c := r.mustDo(r.cap(400))
	n := r.dev.writes()
	longer := func(o *telemetry.Order) { o.Lease = telemetry.Duration(20 * time.Minute) }
	r.mustDo(r.order(telemetry.StepRenew, of(c.StepID), longer, dry))
	if !r.a.held[gpu].Until.Round(0).Equal(c.LeaseUntil) {
		t.Error("a dry run renewed the lease")
	}
	got := r.mustDo(r.order(telemetry.StepRenew, of(c.StepID), longer))
	if d := got.LeaseUntil.Sub(c.LeaseUntil).Round(time.Minute); d != 10*time.Minute {
		t.Errorf("extended by %s, want 10m", d)
	}
	shorter := r.mustDo(r.order(telemetry.StepRenew, of(c.StepID), func(o *telemetry.Order) { o.Lease = telemetry.Duration(time.Second) }))
	if !shorter.LeaseUntil.Equal(got.LeaseUntil) {
		t.Error("a renewal made the lease shorter")
	}
	r.wantRefused(r.order(telemetry.StepRenew, of(c.StepID), on("GPU-2")), telemetry.RefuseNoTarget)
	r.wantRefused(r.order(telemetry.StepRenew, of(c.StepID), func(o *telemetry.Order) { o.Lease = 0 }), telemetry.RefuseMalformed)
	if r.dev.writes() != n {
		t.Error("a renewal wrote to the device")
	}
	r.reopen()
	if !r.a.held[gpu].Until.Equal(got.LeaseUntil) {
		t.Errorf("after a restart the lease ends %s, want %s", r.a.held[gpu].Until, got.LeaseUntil)
	}
	r.reopen(func(o *Options) { o.Allow = nil })
	r.wantRefused(r.order(telemetry.StepRenew, of(c.StepID)), telemetry.RefuseNotAllowed)
	r.mustDo(r.order(telemetry.StepUndo, of(c.StepID))) // undoing is always allowed
	r.reopen(func(o *Options) { o.Allow = []telemetry.StepKind{telemetry.StepPowerCap} })
	r.wantRefused(r.order(telemetry.StepRenew, of(c.StepID)), telemetry.RefuseNotOurs)
}

func TestUndoIsCompareAndSet(t *testing.T) {
	for _, c := range []struct {
		name    string
		present float64
		kind    telemetry.StepKind
		result  telemetry.Result
		leaves  float64
	}{
		{"ours", 400, telemetry.StepUndo, telemetry.Done, 700},
		{"back already", 700, telemetry.StepUndo, telemetry.Done, 700},
		{"lowered by another", 350, telemetry.StepUndo, telemetry.Refused, 350},
		{"raised by another", 500, telemetry.StepUndo, telemetry.Refused, 500},
		{"renewed though changed by another", 350, telemetry.StepRenew, telemetry.Refused, 350},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			step := r.mustDo(r.cap(400)).StepID
			r.dev.force(gpu, c.present)
			if would := r.do(r.order(c.kind, of(step), dry)); would.Result != c.result || r.dev.now(gpu) != c.present || len(r.a.held) != 1 {
				t.Errorf("dry run: %+v", would)
			}
			got := r.do(r.order(c.kind, of(step)))
			if got.Result != c.result || got.Result == telemetry.Refused && got.Why != telemetry.RefuseNotOurs {
				t.Errorf("%s %s (%s), want %s", got.Result, got.Why, got.Detail, c.result)
			}
			r.wantLimit(gpu, c.leaves)
			// Either way it is off the books, also after a restart.
			r.reopen()
			r.wantRefused(r.order(telemetry.StepUndo, of(step)), telemetry.RefuseNotOurs)
			r.wantLimit(gpu, c.leaves)
		})
	}
}

func TestUndoThatFailsIsStillOwed(t *testing.T) {
	r := newRig(t)
	step := r.mustDo(r.cap(400)).StepID
	r.dev.onSet = func(string, float64) error { return errors.New("no") }
	if got := r.do(r.order(telemetry.StepUndo, of(step))); got.Result != telemetry.Failed {
		t.Errorf("%+v", got)
	}
	r.dev.onSet = nil
	r.reopen()
	r.mustDo(r.order(telemetry.StepUndo, of(step)))
	r.wantLimit(gpu, 700)
}

// TestLedgerThatCannotBeWritten takes the disk away at the worst moment: the
// device is set, and nothing would know.
func TestLedgerThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	var once sync.Once
	r.dev.onSet = func(string, float64) error {
		once.Do(func() { _ = r.a.ledger.close() })
		return nil
	}
	got := r.do(r.cap(400))
	if got.Result != telemetry.Failed || !strings.Contains(got.Detail, "ledger") || !strings.Contains(got.Undone, "700 W") {
		t.Errorf("%+v", got)
	}
	r.wantLimit(gpu, 700)
	if got := r.do(r.cap(400)); got.Result != telemetry.Failed || !strings.Contains(got.Detail, "nothing was done") {
		t.Errorf("%+v", got)
	}
	if n := r.dev.writes(); n != 2 {
		t.Errorf("%d writes, want the cap and its undo", n)
	}
}

// TestHostileParallelOrders lets many orders, each sent several times, fight
// over two devices. Each is done at most once, the devices are written by one
// at a time, and in the end what was found is back.
func TestHostileParallelOrders(t *testing.T) {
	r := newRig(t)
	var inside [2]atomic.Int32
	index := map[string]int{"GPU-1": 0, "GPU-2": 1}
	r.dev.onSet = func(uuid string, _ float64) error {
		n := &inside[index[uuid]]
		if n.Add(1) > 1 {
			t.Error("two writers on one device")
		}
		time.Sleep(time.Millisecond)
		n.Add(-1)
		return nil
	}
	const caps, copies = 24, 3
	var data [][]byte
	var steps []string
	for i := range caps {
		o := r.cap(float64(400+10*i), on(fmt.Sprintf("GPU-%d", i%2+1)))
		steps = append(steps, o.ID)
		data = append(data, r.sign(o))
		data = append(data, r.sign(r.order(telemetry.StepUndo, of(o.ID), on(""))))
		data = append(data, r.sign(r.order(telemetry.StepRenew, of(o.ID), on(""))))
	}
	var all sync.WaitGroup
	for _, d := range data {
		for range copies {
			all.Go(func() { r.handle(d) })
		}
	}
	all.Wait()
	done := 0
	for _, s := range steps {
		e, ok, err := r.a.ledger.entry(s)
		if err != nil || !ok || e.Phase != ended {
			t.Fatalf("step %s: %+v, %v", s, e, err)
		}
		if e.Receipt.Result == telemetry.Done {
			done++
		}
	}
	if done != caps {
		t.Errorf("%d of %d caps done", done, caps)
	}
	undos := 0
	for _, rec := range r.bus.get() {
		if rec.Kind == telemetry.StepUndo && rec.Result == telemetry.Done {
			undos++
		}
	}
	if n := r.dev.writes(); n != done+undos {
		t.Errorf("%d writes for %d caps and %d undos", n, done, undos)
	}
	if n := len(r.bus.get()); n != 3*caps {
		t.Errorf("%d receipts, want one for each of %d orders", n, 3*caps)
	}
	for uuid, h := range r.a.held {
		r.mustDo(r.order(telemetry.StepUndo, of(h.Step), on(uuid)))
	}
	r.wantLimit("GPU-1", 700)
	r.wantLimit("GPU-2", 700)
}
