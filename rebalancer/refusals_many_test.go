package rebalancer_test

import (
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// More GPUs are refused than a record holds, and which of them are the worst
// changes with every sample. The reasons stay the same, so that is one record,
// not one a pass.
func TestManyRefusalsAreOneSet(t *testing.T) {
	w := newWorld(40, 2)
	b := newBench(t, w, enforcing(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Observe })...)
	for i, d := range w.devices {
		d.r, d.tau = 0.1, 1e9 // nothing changes but by the lines below
		d.temp = 89 - float64(i)/100
	}
	b.run(20 * time.Second)
	before := len(b.journal.all())
	for pass := range 60 {
		for i, d := range w.devices {
			d.temp = 89 - float64((i*37+pass*11)%len(w.devices))/100
		}
		b.run(time.Second)
	}
	if n := b.last.Refused.Counts[telemetry.RefusalMode]; n <= telemetry.MaxDetailedRefusals {
		t.Fatalf("%d refused for the mode, want more than a record holds", n)
	}
	if more := len(b.journal.all()) - before; more > 1 {
		t.Errorf("%d records in 60 passes that changed nothing, for the same reasons", more)
	}
}
