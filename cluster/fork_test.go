package cluster

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"pgregory.net/rapid"
)

func forkFleet(t *testing.T) *View {
	f := newFleet(t, newNode("a", 4), newNode("b", 4), newNode("c", 1))
	f.s.Inventory(t0, telemetry.Inventory{Source: "s", Workloads: []telemetry.InventoryWorkload{
		workload("slurm:1", "GPU-a-0", "GPU-b-0"), workload("slurm:2", "GPU-c-0")}})
	for i, r := range f.rigs {
		if i != "c" {
			r.hear(t0.Add(-time.Second))
			for _, tr := range r.j.tracks {
				tr.fit.r, tr.fit.hasR = 0.05, true
			}
		}
	}
	f.tick(t0, "a", "b", "c")
	return f.s.View(t0)
}

func TestForkPredicts(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		uuid                    string
		before                  float64 // a limit set first, 0 for none
		limit                   float64
		power, headroom, celsus Opt
	}{
		{"cap below the draw", "GPU-a-0", 0, 400, Some(400), Some(32), Some(55)},
		{"cap above the draw", "GPU-a-0", 0, 600, Some(500), Some(27), Some(60)},
		{"raise a limit that holds the device", "GPU-a-0", 400, 600, Some(600), Some(22), Some(65)},
		{"no resistance known, less power", "GPU-c-0", 0, 400, Some(400), Some(27), Some(60)},
		{"no resistance known, more power", "GPU-c-0", 400, 700, Some(700), Opt{}, Some(60)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := forkFleet(t).Fork()
			if tc.before > 0 {
				if err := f.Apply(Change{tc.uuid, tc.before}); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Apply(Change{tc.uuid, tc.limit}); err != nil {
				t.Fatal(err)
			}
			_, g, _ := f.View().GPU(tc.uuid)
			near := func(what string, got, want Opt) {
				t.Helper()
				if got.OK != want.OK || math.Abs(got.V-want.V) > 1e-9 {
					t.Errorf("%s %+v, want %+v", what, got, want)
				}
			}
			near("limit", g.LimitW, Some(tc.limit))
			near("power", g.Value(telemetry.GPUPowerWatts), tc.power)
			near("headroom", g.HeadroomC, tc.headroom)
			near("temperature", g.Value(telemetry.GPUTemperatureCelsiusCore), tc.celsus)
		})
	}
	f := forkFleet(t).Fork()
	for _, bad := range []Change{{"GPU-none", 400}, {"GPU-a-0", 0}, {"GPU-a-0", math.NaN()}, {"GPU-a-0", math.Inf(1)}} {
		if f.Apply(bad) == nil {
			t.Errorf("%+v was applied", bad)
		}
	}
}

func TestForkLeavesTheViewAlone(t *testing.T) {
	base, pristine := forkFleet(t), forkFleet(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := base.Fork()
		var earlier []*View
		touched := map[string]bool{}
		for range rapid.IntRange(1, 6).Draw(rt, "changes") {
			node := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "node")
			uuid := fmt.Sprintf("GPU-%s-%d", node, rapid.IntRange(0, 3).Draw(rt, "gpu"))
			if err := f.Apply(Change{uuid, rapid.Float64Range(150, 800).Draw(rt, "watts")}); err != nil {
				rt.Fatal(err)
			}
			touched[node] = true
			v := f.View()
			for w := range v.Workloads() {
				for _, g := range w.GPUs {
					if _, now, _ := v.GPU(g.UUID); now != g {
						rt.Fatalf("%s points to a %s that is not the fork's", w.Ref, g.UUID)
					}
				}
			}
			earlier = append(earlier, v)
		}
		if !sameView(base, pristine) {
			rt.Fatal("the base changed")
		}
		for n := range f.View().Nodes() {
			if b, _ := base.Node(n.Name); (b == n) == touched[n.Name] {
				rt.Fatalf("node %s: shared %v, touched %v", n.Name, b == n, touched[n.Name])
			}
		}
		// A View taken in between keeps what it had.
		if _, g, _ := earlier[0].GPU("GPU-c-0"); g.LimitW.V != 700 {
			rt.Fatal("an untouched device changed")
		}
	})
}

func TestViewOfAForkIsKept(t *testing.T) {
	f := forkFleet(t).Fork()
	_ = f.Apply(Change{"GPU-a-0", 400})
	one := f.View()
	_ = f.Apply(Change{"GPU-a-0", 300})
	if _, g, _ := one.GPU("GPU-a-0"); g.LimitW.V != 400 {
		t.Errorf("limit %g in a View taken before", g.LimitW.V)
	}
	if _, g, _ := f.View().GPU("GPU-a-0"); g.LimitW.V != 300 {
		t.Errorf("limit %g, want 300", g.LimitW.V)
	}
}
