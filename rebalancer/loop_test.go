package rebalancer_test

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A cooling fault on one row: the air gets 20 °C warmer for ten minutes.
func TestClosedLoopCoolsAndLetsGo(t *testing.T) {
	w := newWorld(4, 4)
	b := newBench(t, w)
	b.run(time.Minute)
	if n := len(b.journal.all()); n != 0 {
		t.Fatalf("%d records while all is well", n)
	}
	w.inlet["n00"], w.inlet["n01"] = 50, 50
	throttled := 0
	for range 600 {
		b.run(time.Second)
		for _, d := range w.devices {
			if d.headroom() <= 0 {
				throttled++
			}
		}
	}
	if throttled > 0 {
		t.Errorf("throttled for %d GPU-seconds; without acts it would be about 4000", throttled)
	}
	for _, d := range w.devices {
		hot := d.node < "n02"
		if hot && (d.headroom() < 7.5 || d.headroom() > 12) {
			t.Errorf("%s settled at %.1f °C of headroom, want about the aim of 8", d.uuid, d.headroom())
		}
		if !hot && d.sets != 0 {
			t.Errorf("%s was touched though it is cool", d.uuid)
		}
	}
	for _, d := range b.decisions() {
		if d.Outcome != telemetry.OutcomeVerified {
			t.Errorf("%s is %s, want verified", d.ID, d.Outcome)
		}
	}
	w.inlet["n00"], w.inlet["n01"] = 30, 30
	b.run(10 * time.Minute)
	for _, d := range w.devices {
		if d.limit != defaultW {
			t.Errorf("%s is still limited to %v W", d.uuid, d.limit)
		}
		if d.sets > 2 {
			t.Errorf("%s had its limit set %d times, want at most 2", d.uuid, d.sets)
		}
	}
	for _, d := range b.decisions() {
		if d.Outcome != telemetry.OutcomeUndone {
			t.Errorf("%s is %s, want undone", d.ID, d.Outcome)
		}
	}
}
