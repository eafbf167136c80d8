package rebalancer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// hotFleet is a world where every GPU is beyond its mark.
func hotFleet(t testing.TB, nodes, gpus int, budget rebalancer.Budget) *bench {
	w := newWorld(nodes, gpus)
	b := newBench(t, w, enforcing(func(p *rebalancer.PolicySpec) { p.Budget = budget })...)
	b.run(10 * time.Second)
	for n := range w.inlet {
		w.inlet[n] = 52
	}
	return b
}

// capped counts devices under a cap by what place says.
func cappedBy(w *world, place func(*device) string) map[string]int {
	out := map[string]int{}
	for _, d := range w.devices {
		if d.limit != defaultW {
			out[place(d)]++
		}
	}
	return out
}

func TestBudget(t *testing.T) {
	fleet := func(*device) string { return "fleet" }
	cases := []struct {
		budget rebalancer.Budget
		place  func(*world) func(*device) string
		scopes int
		want   int // capped per scope in the end
	}{
		{rebalancer.Budget{Percent: 100, Per: rebalancer.PerFleet}, func(*world) func(*device) string { return fleet }, 1, 16},
		{rebalancer.Budget{Percent: 50, Per: rebalancer.PerFleet}, func(*world) func(*device) string { return fleet }, 1, 8},
		{rebalancer.Budget{Percent: 50, Max: 3, Per: rebalancer.PerFleet}, func(*world) func(*device) string { return fleet }, 1, 3},
		{rebalancer.Budget{Percent: 10, Max: 99, Per: rebalancer.PerFleet}, func(*world) func(*device) string { return fleet }, 1, 2}, // 1.6, rounded up
		{rebalancer.Budget{Percent: 25, Per: rebalancer.PerNode}, func(*world) func(*device) string { return func(d *device) string { return d.node } }, 4, 1},
		{rebalancer.Budget{Percent: 1, Per: rebalancer.PerNode}, func(*world) func(*device) string { return func(d *device) string { return d.node } }, 4, 1}, // room for one
		{rebalancer.Budget{Percent: 75, Per: rebalancer.PerRack}, func(*world) func(*device) string { return func(d *device) string { return d.node } }, 4, 3},
		{rebalancer.Budget{Percent: 25, Max: 5, Per: rebalancer.PerRow}, func(w *world) func(*device) string { return func(d *device) string { return w.rows[d.node] } }, 2, 2},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%+v", c.budget), func(t *testing.T) {
			b := hotFleet(t, 4, 4, c.budget)
			place := c.place(b.w)
			for range 300 {
				b.run(time.Second)
				for where, n := range cappedBy(b.w, place) {
					if n > c.want {
						t.Fatalf("%d GPUs of %s are capped, %d are allowed", n, where, c.want)
					}
				}
			}
			got := cappedBy(b.w, place)
			if len(got) != c.scopes {
				t.Errorf("capped in %d scopes, want %d: %v", len(got), c.scopes, got)
			}
			for where, n := range got {
				if n != c.want {
					t.Errorf("%s: %d capped, want %d", where, n, c.want)
				}
			}
			if c.want < 16/c.scopes && b.last.Refused.Counts[telemetry.RefusalBudget] == 0 {
				t.Errorf("nothing was refused for the budget: %v", b.last.Refused.Counts)
			}
		})
	}
}

// A new leader that knows the journal alone keeps to the same budget.
func TestBudgetHoldsAcrossRestarts(t *testing.T) {
	b := hotFleet(t, 4, 4, rebalancer.Budget{Percent: 100, Max: 4, Per: rebalancer.PerFleet})
	for i := range 10 {
		b.run(30 * time.Second)
		if n := cappedBy(b.w, func(*device) string { return "" })[""]; n > 4 {
			t.Fatalf("%d capped after %d restarts, 4 are allowed", n, i)
		}
		b.mem = b.journal.fold(t)
		b.mem.Leading, b.mem.Epoch = true, epoch
	}
	if n := cappedBy(b.w, func(*device) string { return "" })[""]; n != 4 {
		t.Errorf("%d capped, want all 4 that are allowed", n)
	}
}

// The worst GPUs come first when the budget does not reach for all.
func TestBudgetGoesToTheHottest(t *testing.T) {
	w := newWorld(2, 4)
	b := newBench(t, w, enforcing(func(p *rebalancer.PolicySpec) {
		p.Budget = rebalancer.Budget{Percent: 100, Max: 2, Per: rebalancer.PerFleet}
	})...)
	for i, d := range w.devices {
		d.temp = slowdownC - float64(8-i)/2 // the last one is the hottest
	}
	var v *cluster.View
	for range 3 {
		w.now = w.now.Add(time.Second)
		v = w.view()
		b.pass(v)
	}
	for i, d := range w.devices {
		if capped := d.limit != defaultW; capped != (i >= 6) {
			t.Errorf("%s with %.1f °C of headroom capped: %v", d.uuid, d.headroom(), capped)
		}
	}
}

// A capped GPU whose node vanishes from the View still counts: it may be
// anywhere, and its cap is still in force.
func TestBudgetCountsWhatIsOutOfSight(t *testing.T) {
	b := hotFleet(t, 4, 1, rebalancer.Budget{Percent: 50, Per: rebalancer.PerRow})
	b.until(2*time.Minute, "one capped per row", func() bool { return len(cappedBy(b.w, func(d *device) string { return b.w.rows[d.node] })) == 2 })
	hidden := ""
	for _, d := range b.w.devices {
		if d.limit != defaultW && b.w.rows[d.node] == "row0" {
			hidden = d.node
		}
	}
	for range 60 {
		b.w.advance(time.Second)
		var rest []*cluster.Node
		for n := range b.w.view().Nodes() {
			if n.Name != hidden {
				rest = append(rest, n)
			}
		}
		b.pass(cluster.NewView(b.w.now, rest, nil))
	}
	if n := cappedBy(b.w, func(d *device) string { return b.w.rows[d.node] })["row0"]; n != 1 {
		t.Errorf("%d GPUs of row0 are capped, 1 is allowed", n)
	}
}

// Nodes without a place share a scope; they are not each a scope of their own.
func TestBudgetOfUnknownPlaces(t *testing.T) {
	b := hotFleet(t, 4, 1, rebalancer.Budget{Percent: 25, Per: rebalancer.PerRow})
	clear(b.w.rows)
	b.run(3 * time.Minute)
	if n := len(cappedBy(b.w, func(d *device) string { return d.uuid })); n != 1 {
		t.Errorf("%d capped, want one of the four", n)
	}
}

// Recommendations hold their place, so that what is shown could all be done.
func TestBudgetBoundsRecommendations(t *testing.T) {
	b := hotFleet(t, 2, 4, rebalancer.Budget{Percent: 100, Max: 3, Per: rebalancer.PerFleet})
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Mode: telemetry.Recommend, By: "ada"}})
	b.run(5 * time.Minute)
	if n := len(b.mem.Decisions); n != 3 {
		t.Errorf("%d recommendations stand, 3 are allowed", n)
	}
}

func TestUndoGivesBudgetBack(t *testing.T) {
	b := hotFleet(t, 1, 2, rebalancer.Budget{Percent: 50, Per: rebalancer.PerFleet})
	b.until(4*time.Minute, "verified", outcomeIs(b, telemetry.OutcomeVerified))
	for _, d := range b.w.devices {
		if d.limit != defaultW {
			d.r, d.temp = 0.01, 60
		}
	}
	b.until(2*time.Minute, "the other one capped", func() bool {
		for _, d := range b.w.devices {
			if d.r == 0.06 && d.limit != defaultW {
				return true
			}
		}
		return false
	})
}
