package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// A View never changes, whatever memory later nodes are folded into; and a node
// is the same whether its memory was used before or not.
func TestViewsKeepTheirNodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	type old struct {
		v    *View
		said string
	}
	s := NewState()
	var nodes []*node
	var judges []*Judge
	for i := range 5 {
		nodes = append(nodes, newNode(fmt.Sprintf("n%d", i), 1+i))
		judges = append(judges, NewJudge(nodes[i].name, false))
	}
	devices := nodes[4].devices
	var views []old
	reused := 0
	for i := range 400 {
		at := t0.Add(time.Duration(i) * 250 * time.Millisecond)
		k := rng.IntN(len(nodes))
		nodes[4].devices = devices[:1+rng.IntN(len(devices))]
		for _, g := range nodes[k].devices {
			set(g, map[telemetry.ID]float64{telemetry.GPUTemperatureCelsiusCore: float64(40 + rng.IntN(30))})
		}
		o, err := judges[k].Frame(at, nodes[k].frame(at))
		if err != nil {
			t.Fatal(err)
		}
		if o == nil {
			continue
		}
		if s.spare != nil {
			reused++
		}
		before := s.records[nodes[k].name]
		var fresh *Node
		if before != nil {
			fresh = new(block).fold(at, o, nil, before.node)
		}
		if err := s.Observe(at, o); err != nil {
			t.Fatal(err)
		}
		if fresh != nil {
			if got, want := text(s.records[nodes[k].name].node), text(fresh); got != want {
				t.Fatalf("folded into used memory:\n%s\ninto new:\n%s", got, want)
			}
		}
		if rng.IntN(3) == 0 {
			v := s.View(at)
			views = append(views, old{v, textOf(v)})
		}
	}
	if reused < 50 || len(views) < 50 {
		t.Fatalf("%d folds into used memory and %d views", reused, len(views))
	}
	for i, x := range views {
		checkCoverage(t, x.v)
		if now := textOf(x.v); now != x.said {
			t.Fatalf("view %d was\n%s\nand is\n%s", i, x.said, now)
		}
	}
}

// checkCoverage compares coverage with what the devices themselves say, now and
// while they grow stale.
func checkCoverage(t *testing.T, v *View) {
	t.Helper()
	for after := range 6 {
		now, fresh := v.Time.Add(time.Duration(after)*time.Second), 0
		for n, g := range v.GPUs() {
			if r, ok := g.Reading(telemetry.GPUTemperatureCelsiusCore); ok && g.State == GPUOK && n.Fresh(r, now) {
				fresh++
			}
		}
		if got := v.Coverage(now).Fresh; got != fresh {
			t.Fatalf("%d s after the View %d devices are fresh, coverage says %d", after, fresh, got)
		}
	}
}

func textOf(v *View) string {
	var b []byte
	for n := range v.Nodes() {
		b = append(b, text(n)...)
	}
	return string(b)
}

func text(n *Node) string {
	c := *n
	c.GPUs, c.processes, c.cover = nil, nil, cover{}
	b := fmt.Appendf(nil, "%+v\n", c)
	for _, g := range n.GPUs {
		b = fmt.Appendf(b, "%+v %v\n", *g, slices.Collect(g.Readings()))
	}
	return string(b)
}

// Folding what no View has seen allocates nothing, and no more than the node
// itself for each that one has.
func TestObserveAllocations(t *testing.T) {
	for _, c := range []struct {
		viewed bool
		most   float64
	}{{false, 0}, {true, 12}} {
		s := NewState()
		list := make([]*telemetry.Observation, 3)
		for i := range list {
			n := fullNode(8)
			n.name = fmt.Sprint("n", i)
			for k, g := range n.devices {
				g.SetUuid(fmt.Sprintf("GPU-%d-%d", i, k))
			}
			o, err := NewJudge(n.name, false).Frame(t0, n.frame(t0))
			if err != nil {
				t.Fatal(err)
			}
			list[i] = o
		}
		k := 0
		got := testing.AllocsPerRun(100, func() {
			o := list[k%len(list)]
			k++
			o.SetSequence(o.GetSequence() + 1)
			if err := s.Observe(t0, o); err != nil {
				t.Fatal(err)
			}
			if c.viewed {
				s.View(t0)
			}
		})
		if got > c.most {
			t.Errorf("viewed %v: %g allocations to fold an observation of 8 GPUs, at most %g", c.viewed, got, c.most)
		}
	}
}

// Views that are taken while frames are folded and inventory changes are whole:
// a workload's devices are those of the same View.
func TestViewsWhileFolding(t *testing.T) {
	s, hear := stateOf8(t, 6)
	var folding, looking sync.WaitGroup
	ended := make(chan struct{})
	for range 2 {
		looking.Go(func() {
			for {
				v := s.View(t0)
				for w := range v.Workloads() {
					for _, g := range w.GPUs {
						if _, x, ok := v.GPU(g.UUID); !ok || x != g {
							t.Errorf("workload %s has a device of another View", w.Ref)
							return
						}
					}
				}
				if v.WorkloadCount() != 24 {
					t.Errorf("%d workloads", v.WorkloadCount())
				}
				select {
				case <-ended:
					return
				default:
				}
			}
		})
	}
	folding.Go(func() {
		for i := range 600 {
			hear(i%6, t0.Add(time.Duration(i/6+1)*time.Second))
		}
	})
	folding.Go(func() {
		for i := range 50 {
			s.Inventory(t0, telemetry.Inventory{Source: "other", Generation: uint64(i), Nodes: []telemetry.InventoryNode{{Name: "n00001", Rack: fmt.Sprint(i)}}})
		}
	})
	folding.Wait()
	close(ended)
	looking.Wait()
}
