package rebalancer_test

import (
	"testing"
)

// BenchmarkStep is a pass over 2,048 and 100,000 GPUs of which few are hot.
func BenchmarkStep(b *testing.B) {
	for _, size := range []struct {
		name        string
		nodes, gpus int
	}{{"2048", 256, 8}, {"100000", 12500, 8}} {
		b.Run(size.name, func(b *testing.B) {
			w := newWorld(size.nodes, size.gpus)
			for i := range w.devices {
				if i%100 == 0 {
					w.devices[i].temp = 87
				}
			}
			bench := newBench(b, w)
			v := w.view()
			b.ReportAllocs()
			for b.Loop() {
				bench.planner.Step(w.now, v, bench.mem)
			}
		})
	}
}
