package agent

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestKilledInAnUndo: whether the limit was put back is what the device says,
// not what the ledger had time to say.
func TestKilledInAnUndo(t *testing.T) {
	for _, c := range []struct {
		name   string
		point  string
		then   func(r *rig) // what happens to the device while nobody looks
		result telemetry.Result
		holds  bool
		ends   float64
	}{
		{"before the device is read", "read", nil, telemetry.Failed, true, 700},
		{"before it is set", "set", nil, telemetry.Failed, true, 700},
		{"after it is set", "readback", nil, telemetry.Done, false, 700},
		{"before it is set, changed by another", "set", func(r *rig) { r.dev.force(gpu, 333) }, telemetry.Failed, true, 333},
		{"after it is set, device lost", "readback", func(r *rig) { r.dev.onRead = func(string) error { return errors.New("lost") } }, telemetry.Failed, true, 700},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.mustDo(r.cap(400))
				image := filepath.Join(t.TempDir(), "killed.db")
				limitThen, written := 0.0, false
				take := func() { r.image(image); limitThen = r.dev.now(gpu) }
				r.dev.onRead = func(string) error {
					if c.point == "read" && !written || c.point == "readback" && written {
						take()
					}
					return nil
				}
				r.dev.onSet = func(string, float64) error {
					if c.point == "set" {
						take()
					}
					written = true
					return nil
				}
				o := r.order(telemetry.StepUndo, of("step-1"))
				r.handle(r.sign(o))

				// The agent that was killed has not got any further than the image.
				before := len(r.bus.get())
				r.dev.onRead, r.dev.onSet = nil, nil
				r.dev.force(gpu, limitThen)
				if c.then != nil {
					c.then(r)
				}
				present, writes := r.dev.now(gpu), r.dev.writes()
				r.reopen(func(o *Options) { o.Ledger = image })
				stop := r.run()
				synctest.Wait()
				out := r.bus.get()[before:]
				if len(out) == 0 || !out[0].Spontaneous || out[0].StepID != o.ID || out[0].Result != c.result {
					t.Fatalf("reported first: %+v, want %s of %s", out, c.result, o.ID)
				}
				if r.dev.writes() != writes || r.dev.now(gpu) != present {
					t.Error("looking has changed the limit")
				}
				if _, ok := r.a.holdOf(gpu); ok != c.holds {
					t.Errorf("still held: %t", ok)
				}

				r.dev.change(func() { r.dev.onRead = nil })
				time.Sleep(11 * time.Minute) // the lease ends
				synctest.Wait()
				stop()
				r.wantLimit(gpu, c.ends)
				if _, ok := r.a.holdOf(gpu); ok {
					t.Error("held beyond its lease")
				}
			})
		})
	}
}
