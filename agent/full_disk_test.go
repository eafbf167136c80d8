package agent

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The ledger fails once the limit is set, and the device does not take the old
// one back. The cap is still undone when its lease ends, not first after a
// restart.
func TestACapThatNeitherLedgerNorDeviceTakesBack(t *testing.T) {
	r := newRig(t)
	var writes atomic.Int32
	r.dev.change(func() {
		r.dev.onSet = func(string, float64) error {
			if writes.Add(1) == 1 {
				_ = r.a.ledger.close()
				return nil
			}
			return errors.New("the device does not answer")
		}
	})
	if got := r.do(r.cap(400)); got.Result != telemetry.Failed {
		t.Fatalf("%+v", got)
	}
	r.wantLimit(gpu, 400)
	r.dev.change(func() { r.dev.onSet = nil })
	h, held := r.a.holdOf(gpu)
	if !held {
		t.Fatal("nothing is held though the limit is ours")
	}
	h.Until = time.Now().Add(-time.Second)
	r.a.held[gpu] = h
	r.a.undoDue(time.Now())
	r.a.work.Wait()
	r.wantLimit(gpu, 700)
}
