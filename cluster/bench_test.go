package cluster

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"google.golang.org/protobuf/encoding/protowire"
)

// fullNode has a value for every series of a fast part.
func fullNode(gpus int) *node {
	n := newNode("bench", gpus)
	for _, g := range n.devices {
		for _, w := range wiredSeries {
			if _, ok := g.Value(w.id); !ok {
				g.SetValue(w.id, min(w.row.Max, 1))
			}
		}
	}
	return n
}

// BenchmarkJudge decodes and judges the frames of a node with 8 GPUs, 1 Hz.
func BenchmarkJudge(b *testing.B) {
	for _, slow := range []bool{false, true} {
		b.Run(fmt.Sprintf("slow=%v", slow), func(b *testing.B) {
			n := fullNode(8)
			j := NewJudge(n.name, false)
			var f telemetry.Frame
			o := new(telemetry.Observation)
			at := t0
			frame := n.frame(at)
			j.FrameInto(at, frame, o)
			if !slow {
				for _, g := range n.devices {
					for _, w := range wiredSeries {
						if w.class == classSlow {
							g.ClearValue(w.id)
						}
					}
					g.ClearDescription()
				}
			}
			body, err := telemetry.AppendFrame(nil, n.frame(at))
			body = slices.Grow(body, 64)
			if err != nil {
				b.Fatal(err)
			}
			seq := n.seq
			cpu := cpuTime()
			b.ReportAllocs()
			for b.Loop() {
				at, seq = at.Add(time.Second), seq+1
				buf := header(body, seq, at, n.start)
				if err := telemetry.DecodeFrame(buf, &f); err != nil {
					b.Fatal(err)
				}
				if v, err := j.FrameInto(at, &f, o); err != nil || !v.Publish {
					b.Fatal(v, err)
				}
			}
			b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(len(body)), "frame-bytes")
		})
	}
}

// header appends the fields that change from frame to frame: a later field
// replaces an earlier one.
func header(body []byte, seq uint64, at, start time.Time) []byte {
	b := body[: len(body) : len(body)+64]
	for _, f := range []struct {
		field protowire.Number
		v     uint64
	}{{6, seq}, {7, uint64(at.UnixNano())}, {9, uint64(at.Sub(start))}} {
		b = protowire.AppendVarint(protowire.AppendTag(b, f.field, protowire.VarintType), f.v)
	}
	return b
}

// cpuTime is the time this process has used of all cores: unlike the clock it
// does not count what other processes took.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A judge that brings no new message allocates nothing per frame.
func TestJudgeAllocations(t *testing.T) {
	n := fullNode(8)
	j := NewJudge(n.name, false)
	o := new(telemetry.Observation)
	at := t0
	f := n.frame(at)
	seq := f.GetSequence()
	got := testing.AllocsPerRun(200, func() {
		at, seq = at.Add(time.Second), seq+1
		f.SetSequence(seq)
		f.SetSampleTimeUnixNano(at.UnixNano())
		f.SetMonotonicNano(int64(at.Sub(n.start)))
		if _, err := j.FrameInto(at, f, o); err != nil {
			t.Fatal(err)
		}
	})
	if got > 0 {
		t.Errorf("%g allocations per frame, want none", got)
	}
	fresh := testing.AllocsPerRun(200, func() {
		at, seq = at.Add(time.Second), seq+1
		f.SetSequence(seq)
		f.SetSampleTimeUnixNano(at.UnixNano())
		f.SetMonotonicNano(int64(at.Sub(n.start)))
		if _, err := j.Frame(at, f); err != nil {
			t.Fatal(err)
		}
	})
	if fresh > 8*12+8 {
		t.Errorf("%g allocations for a new observation of 8 GPUs, want at most 12 per GPU", fresh)
	}
}

func stateOf8(b testing.TB, nodes int) (*State, func(i int, at time.Time)) {
	s, _, hear := fleetOf8(b, nodes)
	return s, hear
}

func fleetOf8(b testing.TB, nodes int) (*State, []*node, func(i int, at time.Time)) {
	s := NewState()
	list, judges := make([]*node, nodes), make([]*Judge, nodes)
	plan := telemetry.Inventory{Source: "s"}
	o := new(telemetry.Observation)
	for i := range list {
		list[i] = newNode(fmt.Sprintf("n%05d", i), 8)
		judges[i] = NewJudge(list[i].name, false)
		for k := range 4 {
			plan.Workloads = append(plan.Workloads, workload(fmt.Sprintf("slurm:%d", i*4+k), fmt.Sprintf("GPU-n%05d-%d", i, 2*k), fmt.Sprintf("GPU-n%05d-%d", i, 2*k+1)))
		}
	}
	hear := func(i int, at time.Time) {
		if _, err := judges[i].FrameInto(at, list[i].frame(at), o); err != nil {
			b.Fatal(err)
		}
		if err := s.Observe(at, o); err != nil {
			b.Fatal(err)
		}
	}
	for i := range list {
		hear(i, t0)
	}
	s.Inventory(t0, plan)
	s.View(t0)
	return s, list, hear
}

// BenchmarkView folds an observation of one node of many and takes a View; with
// all of them folded it is what one who looks every second costs. Snapshot is
// the part that frames wait for.
func BenchmarkView(b *testing.B) {
	for _, nodes := range []int{2000, 12500} {
		s, hear := stateOf8(b, nodes)
		at := t0
		for _, heard := range []int{1, nodes} {
			next := func() time.Time {
				at = at.Add(time.Second)
				for i := range heard {
					hear(i, at)
				}
				if heard < nodes {
					return t0 // else the others would be gone
				}
				return at
			}
			run := func(what string, look func(time.Time), after func()) {
				b.Run(fmt.Sprintf("%s/gpus=%d/heard=%d", what, 8*nodes, heard), func(b *testing.B) {
					b.ReportAllocs()
					var spent time.Duration
					for b.Loop() {
						b.StopTimer()
						now := next()
						b.StartTimer()
						cpu := cpuTime()
						look(now)
						spent += cpuTime() - cpu
						b.StopTimer()
						after()
						b.StartTimer()
					}
					b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/op")
				})
			}
			run("view", func(now time.Time) { s.View(now) }, func() {})
			var v, last *View
			var changed []string
			run("snapshot", func(now time.Time) { v, last, changed = s.snapshot(now) }, func() { v.rejoin(last, changed) })
		}
	}
}

// BenchmarkCoverage is what each pass asks of 100,000 GPUs.
func BenchmarkCoverage(b *testing.B) {
	s, hear := stateOf8(b, 12500)
	at := t0.Add(time.Second)
	for i := range 12500 {
		hear(i, at)
	}
	v := s.View(at)
	for b.Loop() {
		if c := v.Coverage(at); c.Fresh != 100000 {
			b.Fatal(c)
		}
	}
}

// BenchmarkObserve folds an observation of 8 GPUs.
func BenchmarkObserve(b *testing.B) {
	n := fullNode(8)
	j, s := NewJudge(n.name, false), NewState()
	o := new(telemetry.Observation)
	if _, err := j.FrameInto(t0, n.frame(t0), o); err != nil {
		b.Fatal(err)
	}
	seq := uint64(1)
	cpu := cpuTime()
	b.ReportAllocs()
	for b.Loop() {
		seq++
		o.SetSequence(seq)
		if err := s.Observe(t0, o); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

// BenchmarkFork applies one change to a fleet of 16,000 GPUs.
func BenchmarkFork(b *testing.B) {
	s, _ := stateOf8(b, 2000)
	v := s.View(t0)
	b.ReportAllocs()
	for b.Loop() {
		f := v.Fork()
		if err := f.Apply(Change{"GPU-n00007-3", 400}); err != nil {
			b.Fatal(err)
		}
		f.View()
	}
}
