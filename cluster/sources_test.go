package cluster

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func listed(source string, generation uint64, at time.Time, names ...string) telemetry.Inventory {
	inv := telemetry.Inventory{Source: source, Generation: generation, Time: at}
	for _, n := range names {
		inv.Nodes = append(inv.Nodes, telemetry.InventoryNode{Name: n, ExpectedGPUs: 8})
	}
	return inv
}

func many(prefix string, count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return out
}

// take folds an inventory that must be taken.
func take(t *testing.T, s *State, at time.Time, inv telemetry.Inventory) {
	t.Helper()
	if err := s.Inventory(at, inv); err != nil {
		t.Fatalf("inventory of %s refused: %v", inv.Source, err)
	}
}

// A snapshot that cannot be true is refused as a whole, and the last word of
// its source stays.
func TestInventoryThatCannotBe(t *testing.T) {
	for name, tc := range map[string]struct {
		why    telemetry.DropReason
		change func(*telemetry.Inventory)
	}{
		"no source":            {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Source = "" }},
		"node without name":    {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Nodes[0].Name = "" }},
		"node twice":           {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Nodes[1].Name = i.Nodes[0].Name }},
		"endless name":         {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Nodes[0].Name = strings.Repeat("x", 300) }},
		"name that is no text": {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Nodes[0].Name = "a\xff" }},
		"control characters":   {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Nodes[0].Rack = "r\n1" }},
		"a million GPUs":       {telemetry.DropTooMany, func(i *telemetry.Inventory) { i.Nodes[0].ExpectedGPUs = 1e6 }},
		"fewer than no GPUs":   {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Nodes[0].ExpectedGPUs = -1 }},
		"GPUs without end":     {telemetry.DropTooMany, func(i *telemetry.Inventory) { i.Nodes[0].ExpectedUUIDs = many("GPU-", 257) }},
		"aliases without end":  {telemetry.DropTooMany, func(i *telemetry.Inventory) { i.Nodes[0].Aliases = many("a", 17) }},
		"marks without end": {telemetry.DropTooMany, func(i *telemetry.Inventory) {
			i.Nodes[0].Marks = map[string]string{}
			for _, m := range many("m", 65) {
				i.Nodes[0].Marks[m] = "x"
			}
		}},
		"budget below zero": {telemetry.DropMalformed, func(i *telemetry.Inventory) { i.Budgets = []telemetry.PowerBudget{{Domain: "p", Watts: -1}} }},
		"budget of no number": {telemetry.DropMalformed, func(i *telemetry.Inventory) {
			i.Budgets = []telemetry.PowerBudget{{Domain: "p", Watts: math.NaN()}}
		}},
		"endless entitlement": {telemetry.DropMalformed, func(i *telemetry.Inventory) {
			i.Tenants = []telemetry.Tenant{{Name: "t", Entitlement: math.Inf(1)}}
		}},
		"more nodes than there are": {telemetry.DropTooMany, func(i *telemetry.Inventory) { i.Nodes = make([]telemetry.InventoryNode, telemetry.MaxInventoryNodes+1) }},
		"older than the last":       {telemetry.DropReordered, func(i *telemetry.Inventory) { i.Generation, i.Time = 4, t0.Add(-time.Second) }},
		"nothing left":              {telemetry.DropShrunk, func(i *telemetry.Inventory) { i.Nodes = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewState()
			take(t, s, t0, listed("k8s-x", 5, t0, many("n", 20)...))
			before := s.View(t0)
			inv := listed("k8s-x", 6, t0.Add(time.Second), many("n", 20)...)
			tc.change(&inv)
			wantDrop(t, s.Inventory(t0.Add(time.Second), inv), tc.why)
			after := s.View(t0)
			if after.NodeCount() != 20 || after.Coverage(t0).Expected != 160 || !slices.Equal(after.nodes, before.nodes) {
				t.Errorf("%d nodes, %+v", after.NodeCount(), after.Coverage(t0))
			}
			if src := s.Sources(); len(src) != 1 || src[0] != (SourceState{"k8s-x", 5, t0, 20, 0}) {
				t.Errorf("%+v", src)
			}
		})
	}
}

// A source that loses most of its nodes at once is believed when it goes on
// saying so, not before, and not if it takes it back.
func TestShrunkInventoryWaits(t *testing.T) {
	s := NewState()
	at := func(sec int) time.Time { return t0.Add(time.Duration(sec) * time.Second) }
	full, few := many("n", 20), many("n", 9)
	take(t, s, at(0), listed("file", 1, at(0), full...))
	wantDrop(t, s.Inventory(at(60), listed("file", 2, at(60), few...)), telemetry.DropShrunk)
	take(t, s, at(90), listed("file", 3, at(90), full...))
	wantDrop(t, s.Inventory(at(120), listed("file", 4, at(120), few...)), telemetry.DropShrunk)
	if n := s.View(at(120)).NodeCount(); n != 20 {
		t.Errorf("%d nodes meanwhile", n)
	}
	take(t, s, at(180), listed("file", 4, at(180), few...))
	if n := s.View(at(180)).NodeCount(); n != 9 {
		t.Errorf("%d nodes in the end", n)
	}
	take(t, s, at(181), listed("file", 5, at(181), few[:5]...)) // half of them and more is a change like any
	take(t, s, at(182), listed("file", 6, at(182)))             // and a handful may go at once
}

// Whenever the words of several sources come, the fleet is the same.
func TestSourcesMergeInOneOrder(t *testing.T) {
	words := []telemetry.Inventory{
		{Source: "file", Generation: 1, Nodes: []telemetry.InventoryNode{{Name: "a", Rack: "r-file", ExpectedGPUs: 8, Aliases: []string{"x"}}, {Name: "b", Aliases: []string{"y"}}}, Budgets: []telemetry.PowerBudget{{Domain: "p", Watts: 1}, {Domain: "q", Watts: 4}}},
		{Source: "k8s-1", Generation: 9, Nodes: []telemetry.InventoryNode{{Name: "a", Rack: "r-k8s", Row: "row-k8s", Aliases: []string{"y"}}, {Name: "c"}}, Budgets: []telemetry.PowerBudget{{Domain: "p", Watts: 2}}},
		{Source: "slurm-1", Generation: 3, Nodes: []telemetry.InventoryNode{{Name: "b", Row: "row-slurm", ExpectedUUIDs: []string{"GPU-1"}}}, Budgets: []telemetry.PowerBudget{{Domain: "p", Watts: 3}}},
	}
	var first string
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}, {2, 1, 0, 2, 0, 1}} {
		s := NewState()
		for i, w := range order {
			inv := words[w]
			inv.Time = t0.Add(time.Duration(i) * time.Second)
			take(t, s, inv.Time, inv)
		}
		var b strings.Builder
		for n := range s.View(t0.Add(time.Minute)).Nodes() {
			fmt.Fprintf(&b, "%s %s %s %d %v %d\n", n.Name, n.Rack, n.Row, n.Expected, n.Sources, len(n.GPUs))
		}
		fmt.Fprint(&b, s.Budgets(), s.alias)
		if first == "" {
			first = b.String()
			if !strings.Contains(first, "a r-file row-k8s 8 [file k8s-1] 0\n") || !strings.Contains(first, "[{p 1 []} {q 4 []}]") || s.alias["y"] != "b" {
				t.Errorf("merged to\n%s", first)
			}
		}
		if b.String() != first {
			t.Errorf("order %v:\n%s\nwant\n%s", order, b.String(), first)
		}
	}
}

func TestSourcesAreBounded(t *testing.T) {
	s := NewState()
	for i := range maxSources {
		take(t, s, t0, listed(fmt.Sprint("s", i), 1, t0, "a"))
	}
	wantDrop(t, s.Inventory(t0, listed("one-more", 1, t0, "b")), telemetry.DropTooMany)
	take(t, s, t0.Add(time.Second), listed("s0", 2, t0.Add(time.Second), "a", "c"))
	if s.View(t0).NodeCount() != 2 {
		t.Error("a source that is known is no longer taken")
	}
}

// A source that says what it said before changes nothing but its age, and one
// whose clock runs ahead does not outdate what it says later.
func TestWordOfASourceAges(t *testing.T) {
	f := newFleet(t, newNode("a", 2))
	take(t, f.s, t0, listed("file", 1, t0, "a", "b"))
	f.tick(t0, "a")
	before := f.s.View(t0)
	take(t, f.s, t0.Add(time.Minute), listed("file", 1, t0.Add(time.Minute), "a", "b"))
	if after := f.s.View(t0); !reflect.DeepEqual(after.nodes, before.nodes) || after.nodes[0] != before.nodes[0] {
		t.Error("the same word made the nodes anew")
	}
	if at := f.s.Sources()[0].Told; !at.Equal(t0.Add(time.Minute)) {
		t.Errorf("told at %s", at)
	}
	take(t, f.s, t0.Add(2*time.Minute), listed("file", 2, t0.Add(24*time.Hour), "a"))
	if at := f.s.Sources()[0].Told; !at.Equal(t0.Add(2 * time.Minute)) {
		t.Errorf("word of tomorrow told at %s", at)
	}
	take(t, f.s, t0.Add(3*time.Minute), listed("file", 1, t0.Add(3*time.Minute), "a", "c"))
	if _, ok := f.s.View(t0.Add(3 * time.Minute)).Node("c"); !ok {
		t.Error("a source that starts anew with a right clock is not heard")
	}
}

// What only inventory expects goes when inventory no longer does, also from a
// node that is gone, and counts while it does.
func TestExpectedFollowsInventory(t *testing.T) {
	f := newFleet(t, newNode("a", 2), newNode("b", 2))
	node := func(uuids ...string) telemetry.Inventory {
		return telemetry.Inventory{Source: "file", Nodes: []telemetry.InventoryNode{
			{Name: "a", ExpectedUUIDs: uuids, Rack: "r7", PowerDomain: "p"}, {Name: "b", ExpectedGPUs: 8}}}
	}
	take(t, f.s, t0, node("GPU-a-0", "GPU-a-1", "GPU-a-2"))
	f.tick(t0, "a", "b")
	v := f.s.View(t0)
	n, g, ok := v.GPU("GPU-a-2")
	if !ok || g.State != GPUAbsent || g.Health != HealthAbsent || n.Name != "a" || n.Rack != "r7" || n.PowerDomain != "p" || n.Expected != 3 {
		t.Errorf("a GPU that its node does not report: %+v on %+v", g, n)
	}
	if b, _ := v.Node("b"); b.Expected != 8 || len(b.GPUs) != 2 {
		t.Errorf("a node with fewer GPUs than expected: %d of %d", len(b.GPUs), b.Expected)
	}
	if c := v.Coverage(t0); c.Expected != 11 || c.Fresh != 4 {
		t.Errorf("coverage %+v, want 4 of 11", c)
	}
	gone := t0.Add(time.Hour)
	if _, g, _ := f.s.View(gone).GPU("GPU-a-2"); g.State != GPUUnknown {
		t.Errorf("on a node that is gone: %s", g.State)
	}
	take(t, f.s, gone, node("GPU-a-0", "GPU-a-1"))
	v = f.s.View(gone)
	if _, _, ok := v.GPU("GPU-a-2"); ok {
		t.Error("a GPU is expected that inventory no longer lists")
	}
	if n, _ := v.Node("a"); n.Expected != 2 || len(n.GPUs) != 2 {
		t.Errorf("%d GPUs, %d expected", len(n.GPUs), n.Expected)
	}
	// For ever while it is listed, a day when it is not.
	if n, ok := f.s.View(gone.Add(30 * ForgetAfter)).Node("a"); !ok || n.State != NodeGone {
		t.Errorf("a listed node: %+v", n)
	}
	take(t, f.s, gone.Add(31*ForgetAfter), telemetry.Inventory{Source: "file", Time: gone.Add(31 * ForgetAfter)})
	if n := f.s.View(gone.Add(31 * ForgetAfter)).NodeCount(); n != 0 {
		t.Errorf("%d nodes that nobody lists nor heard for a month", n)
	}
}
