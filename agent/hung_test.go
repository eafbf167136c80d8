package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A device hangs while one cap is to replace another, and comes back with the
// earlier one. It is ours all the same, and is undone when the lease ends.
func TestHungWhileACapIsReplaced(t *testing.T) {
	hung := errors.New("the device does not answer")
	silent := func(r *rig) {
		r.dev.change(func() {
			r.dev.onSet = func(string, float64) error { return hung }
			r.dev.onRead = func(string) error { return hung }
		})
	}
	back := func(r *rig) { r.dev.change(func() { r.dev.onSet, r.dev.onRead = nil, nil }) }
	over := func(r *rig) {
		t.Helper()
		h := r.a.held[gpu]
		if h.UUID == "" {
			t.Fatal("nothing is held though the limit may be ours")
		}
		h.Until = time.Now().Add(-time.Second)
		r.a.held[gpu] = h
		r.a.undoDue(time.Now())
		r.a.work.Wait()
		r.wantLimit(gpu, 700)
		if len(r.a.held) != 0 {
			t.Errorf("still held: %+v", r.a.held)
		}
	}
	t.Run("in the order itself", func(t *testing.T) {
		r := newRig(t)
		r.mustDo(r.cap(500))
		r.dev.change(func() {
			r.dev.onSet = func(string, float64) error {
				r.dev.change(func() { r.dev.onRead = func(string) error { return hung } })
				return hung
			}
		})
		if got := r.do(r.cap(400)); got.Result != telemetry.Failed {
			t.Fatalf("%+v", got)
		}
		back(r)
		r.wantLimit(gpu, 500)
		over(r)
	})
	t.Run("across a kill", func(t *testing.T) {
		r := newRig(t)
		r.mustDo(r.cap(500))
		ledger := r.o.Ledger + ".image"
		r.dev.change(func() { r.dev.onSet = func(string, float64) error { r.image(ledger); return hung } })
		r.do(r.cap(400))
		r.dev.force(gpu, 500)
		silent(r)
		r.reopen(func(o *Options) { o.Ledger = ledger })
		if err := r.a.resolveUnfinished(); err != nil {
			t.Fatal(err)
		}
		back(r)
		over(r)
	})
	t.Run("another's limit is left", func(t *testing.T) {
		r := newRig(t)
		r.mustDo(r.cap(500))
		r.dev.change(func() {
			r.dev.onSet = func(string, float64) error {
				r.dev.change(func() { r.dev.onRead = func(string) error { return hung } })
				return hung
			}
		})
		r.do(r.cap(400))
		back(r)
		r.dev.force(gpu, 450)
		h := r.a.held[gpu]
		h.Until = time.Now().Add(-time.Second)
		r.a.held[gpu] = h
		r.a.undoDue(time.Now())
		r.a.work.Wait()
		r.wantLimit(gpu, 450)
	})
}
