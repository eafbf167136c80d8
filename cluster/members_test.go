package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// proc is a member of the process tree root, as a node tells of it.
func proc(node, root, pid string) *telemetry.Member {
	return telemetry.Member_builder{Id: pid + "+boot-1", Kind: KindProcess, Workload: "proc:" + node + "/" + root, Owner: "ada", Name: "train"}.Build()
}

// holding are the workloads of a View, one line each.
func holding(v *View) []string {
	var out []string
	for w := range v.Workloads() {
		line := fmt.Sprintf("%s %s/%s %s %d %s", w.Ref, w.Owner, w.Name, w.Source, w.Priority, w.State)
		for _, m := range w.Members {
			line += " " + m.ID
		}
		for _, g := range w.GPUs {
			line += " " + g.UUID
		}
		out = append(out, line)
	}
	return out
}

// whole fails where the ways into a View do not agree.
func whole(t testing.TB, v *View) {
	t.Helper()
	on := map[string][]string{}
	last, count := telemetry.WorkloadRef(""), 0
	for w := range v.Workloads() {
		if count++; w.Ref <= last {
			t.Fatalf("%s comes after %s", w.Ref, last)
		}
		last = w.Ref
		again, ok := v.Workload(w.Ref)
		if !ok || again.Source != w.Source || !slices.Equal(again.GPUs, w.GPUs) {
			t.Fatalf("%s is listed, and looked up it is %+v", w.Ref, again)
		}
		for _, g := range w.GPUs {
			if _, now, ok := v.GPU(g.UUID); !ok || now != g {
				t.Fatalf("%s points to a %s that is not the View's", w.Ref, g.UUID)
			}
			on[g.UUID] = append(on[g.UUID], string(w.Ref))
		}
	}
	if count != v.WorkloadCount() {
		t.Fatalf("%d workloads, counted as %d", count, v.WorkloadCount())
	}
	for n, g := range v.GPUs() {
		var got []string
		for _, w := range v.WorkloadsOn(g.UUID) {
			got = append(got, string(w.Ref))
		}
		if !slices.Equal(got, on[g.UUID]) {
			t.Fatalf("on %s: %q, listed are %q", g.UUID, got, on[g.UUID])
		}
		var part []string
		for _, w := range v.Of(n).WorkloadsOn(g.UUID) {
			part = append(part, string(w.Ref))
		}
		if !slices.Equal(part, got) {
			t.Fatalf("on %s: %q, in the part that is its node %q", g.UUID, got, part)
		}
	}
	if len(v.WorkloadsOn("GPU-none")) != 0 {
		t.Fatal("a device that is not there holds work")
	}
}

func TestNodesTellOfWorkloads(t *testing.T) {
	unknown := telemetry.Member_builder{Id: "9@9+boot-1", Kind: "unknown", Workload: "proc:a/9@9"}.Build()
	foreign := proc("b", "1@5", "1@5")
	nameless := telemetry.Member_builder{Id: "9@9+boot-1", Kind: KindProcess}.Build()
	child := telemetry.Member_builder{Id: "2@6+boot-1", Kind: KindProcess, Workload: "proc:a/1@5", Owner: "root", Name: "worker"}.Build()
	of := func(w telemetry.InventoryWorkload, change func(*telemetry.InventoryWorkload)) telemetry.InventoryWorkload {
		w.Owner = ""
		change(&w)
		return w
	}
	cases := []struct {
		name    string
		members [][]*telemetry.Member // by device of node a
		plan    []telemetry.InventoryWorkload
		want    []string
	}{
		{"one process on one device", [][]*telemetry.Member{{proc("a", "1@5", "1@5")}}, nil,
			[]string{"proc:a/1@5 ada/train node 0 running 1@5+boot-1 GPU-a-0"}},
		{"one process on two devices", [][]*telemetry.Member{{proc("a", "1@5", "1@5")}, {proc("a", "1@5", "1@5")}}, nil,
			[]string{"proc:a/1@5 ada/train node 0 running 1@5+boot-1 GPU-a-0 GPU-a-1"}},
		{"a tree is one workload, of its root's owner", [][]*telemetry.Member{{child}, {proc("a", "1@5", "3@7"), proc("a", "1@5", "1@5")}}, nil,
			[]string{"proc:a/1@5 ada/train node 0 running 1@5+boot-1 2@6+boot-1 3@7+boot-1 GPU-a-0 GPU-a-1"}},
		{"a root that holds nothing", [][]*telemetry.Member{{child}}, nil,
			[]string{"proc:a/1@5 root/worker node 0 running 2@6+boot-1 GPU-a-0"}},
		{"two share a device", [][]*telemetry.Member{{proc("a", "2@6", "2@6"), proc("a", "1@5", "1@5")}}, nil,
			[]string{"proc:a/1@5 ada/train node 0 running 1@5+boot-1 GPU-a-0", "proc:a/2@6 ada/train node 0 running 2@6+boot-1 GPU-a-0"}},
		{"what is unknown, foreign or has no name is no workload", [][]*telemetry.Member{{unknown, foreign, nameless}}, nil, nil},
		{"an inventory knows more of it", [][]*telemetry.Member{{proc("a", "1@5", "1@5")}},
			[]telemetry.InventoryWorkload{of(workload("proc:a/1@5"), func(w *telemetry.InventoryWorkload) { w.Priority, w.Members = 7, nil })},
			[]string{"proc:a/1@5 ada/train file 7 running 1@5+boot-1 GPU-a-0"}},
		{"an inventory's word holds", [][]*telemetry.Member{{proc("a", "1@5", "1@5")}},
			[]telemetry.InventoryWorkload{of(workload("proc:a/1@5"), func(w *telemetry.InventoryWorkload) { w.Owner, w.State, w.Members = "bob", "suspended", nil })},
			[]string{"proc:a/1@5 bob/train file 0 suspended 1@5+boot-1 GPU-a-0"}},
		{"an inventory has one member of the tree", [][]*telemetry.Member{{child}, {proc("a", "1@5", "1@5")}},
			[]telemetry.InventoryWorkload{of(workload("slurm:4"), func(w *telemetry.InventoryWorkload) { w.Members[0] = telemetry.WorkloadMember{ID: "2@6+boot-1"} })},
			[]string{"slurm:4 ada/train file 0 running 2@6+boot-1 1@5+boot-1 GPU-a-0 GPU-a-1"}},
		{"an inventory lists what is not seen", nil, []telemetry.InventoryWorkload{workload("proc:a/1@5", "GPU-a-1")},
			[]string{"proc:a/1@5 team/ file 0  proc:a/1@5-m GPU-a-1"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := newNode("a", 2)
			f := newFleet(t, a, newNode("b", 1))
			f.s.Inventory(t0, telemetry.Inventory{Source: "file", Workloads: c.plan})
			f.tick(t0, "a", "b")
			f.s.View(t0) // what comes now comes on top of this
			for i, ms := range c.members {
				a.devices[i].SetMembers(ms)
			}
			f.tick(t0.Add(time.Second), "a", "b")
			v := f.s.View(t0.Add(time.Second))
			if got := holding(v); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			whole(t, v)
			for _, g := range a.devices {
				g.SetMembers(nil)
			}
			f.tick(t0.Add(2*time.Second), "a", "b")
			if v = f.s.View(t0.Add(2 * time.Second)); v.WorkloadCount() != len(c.plan) {
				t.Errorf("without members: %q", holding(v))
			}
			whole(t, v)
		})
	}
}

// An inventory that comes after the members takes them over, and gives them
// back when it goes.
func TestInventoryTakesOverWhatNodesTold(t *testing.T) {
	a := newNode("a", 1)
	a.devices[0].SetMembers([]*telemetry.Member{proc("a", "1@5", "1@5")})
	f := newFleet(t, a)
	f.tick(t0, "a")
	v := f.s.View(t0)
	want := func(priority int, source string) {
		t.Helper()
		w, ok := f.s.View(t0).Workload("proc:a/1@5")
		if !ok || w.Priority != priority || w.Source != source || len(w.GPUs) != 1 {
			t.Errorf("%+v, want priority %d from %s", w, priority, source)
		}
		whole(t, f.s.View(t0))
	}
	want(0, SourceNode)
	f.s.Inventory(t0, telemetry.Inventory{Source: "file", Generation: 1, Workloads: []telemetry.InventoryWorkload{{Ref: "proc:a/1@5", Priority: 3}}})
	want(3, "file")
	f.s.Inventory(t0, telemetry.Inventory{Source: "file", Generation: 2})
	want(0, SourceNode)
	if w, _ := v.Workload("proc:a/1@5"); w.Source != SourceNode || w.Priority != 0 {
		t.Errorf("a View changed after it was given: %+v", w)
	}
}

// What a node tells of its processes costs nothing while it does not change.
func TestMembersAreSharedWhileTheyStay(t *testing.T) {
	a := newNode("a", 2)
	a.devices[0].SetMembers([]*telemetry.Member{proc("a", "1@5", "1@5")})
	f := newFleet(t, a, newNode("b", 1))
	f.s.Inventory(t0, telemetry.Inventory{Source: "s", Workloads: []telemetry.InventoryWorkload{workload("slurm:1", "GPU-b-0")}})
	f.tick(t0, "a", "b")
	one := f.s.View(t0)
	f.tick(t0.Add(time.Second), "a")
	two := f.s.View(t0.Add(time.Second))
	x, _ := one.Node("a")
	y, _ := two.Node("a")
	if x == y || &x.processes[0] != &y.processes[0] || &x.GPUs[0].Members[0] != &y.GPUs[0].Members[0] {
		t.Error("members that did not change were copied")
	}
	a.devices[1].SetMembers([]*telemetry.Member{proc("a", "2@6", "2@6")})
	f.tick(t0.Add(2*time.Second), "a")
	three := f.s.View(t0.Add(2 * time.Second))
	if three.WorkloadCount() != 3 || three.loads != two.loads || three.fleet != two.fleet {
		t.Errorf("%d workloads; the inventory's were joined again: %v", three.WorkloadCount(), three.loads != two.loads)
	}
}

// Every word of a member counts, not its id alone.
func TestWordsOfAMemberAreNoticed(t *testing.T) {
	for name, change := range map[string]func(*telemetry.Member){
		"owner":    func(m *telemetry.Member) { m.SetOwner("bob") },
		"name":     func(m *telemetry.Member) { m.SetName("serve") },
		"workload": func(m *telemetry.Member) { m.SetWorkload("proc:a/2@6") },
		"kind":     func(m *telemetry.Member) { m.SetKind("unknown") },
	} {
		a := newNode("a", 1)
		m := proc("a", "1@5", "1@5")
		a.devices[0].SetMembers([]*telemetry.Member{m})
		f := newFleet(t, a)
		f.tick(t0, "a")
		before := holding(f.s.View(t0))
		change(m)
		f.tick(t0.Add(time.Second), "a")
		if after := holding(f.s.View(t0.Add(time.Second))); len(before) != 1 || slices.Equal(before, after) {
			t.Errorf("%s: %q and then %q", name, before, after)
		}
	}
}

// Since when a workload holds its device is known if it came while the node was
// watched, and else only that it was there when it was seen first.
func TestSinceWhenAWorkloadIsThere(t *testing.T) {
	a := newNode("a", 1)
	f := newFleet(t, a)
	at := t0
	set := func(members ...*telemetry.Member) { a.devices[0].SetMembers(members) }
	run := func(d time.Duration) {
		for end := at.Add(d); at.Before(end); at = at.Add(time.Second) {
			f.tick(at, "a")
		}
	}
	want := func(ref string, start, seen time.Time) {
		t.Helper()
		w, ok := f.s.View(at).Workload(telemetry.WorkloadRef(ref))
		if !ok || !w.Start.Equal(start) || !w.Seen.Equal(seen) {
			t.Errorf("%s: %+v, want from %v, seen %v", ref, w, start, seen)
		}
	}
	run(20 * time.Second)
	set(proc("a", "1@5", "1@5")) // its node told of it late: it may be old
	run(60 * time.Second)
	want("proc:a/1@5", time.Time{}, t0.Add(20*time.Second))
	born := at
	set(proc("a", "1@5", "1@5"), proc("a", "2@6", "2@6"))
	run(10 * time.Second)
	want("proc:a/2@6", born.Add(-time.Second), born)
	// The exporter starts anew and tells of no members at first.
	a.restart(at)
	set()
	run(15 * time.Second)
	set(proc("a", "1@5", "1@5"), proc("a", "2@6", "2@6"), proc("a", "3@7", "3@7"))
	run(2 * time.Second)
	want("proc:a/1@5", time.Time{}, t0.Add(20*time.Second))
	want("proc:a/2@6", born.Add(-time.Second), born)
	// What comes to light after a silence may have come in it.
	at = at.Add(time.Minute)
	back := at
	set(proc("a", "1@5", "1@5"), proc("a", "4@8", "4@8"))
	run(2 * time.Second)
	want("proc:a/4@8", time.Time{}, back)
	// The same reference after a long time is not taken for new either.
	set()
	run(2 * time.Second)
	at = at.Add(keepSpan - 30*time.Second)
	set(proc("a", "1@5", "1@5"))
	run(time.Second)
	want("proc:a/1@5", time.Time{}, t0.Add(20*time.Second))
	if n := len(f.s.records["a"].spans); n > 4 {
		t.Errorf("%d references are kept", n)
	}
	set(proc("a", "9@9", "9@9"))
	run(2 * time.Second)
	at = at.Add(2 * keepSpan)
	set(proc("a", "8@8", "8@8"))
	run(2 * time.Second)
	if n := len(f.s.records["a"].spans); n != 2 { // the one that just went is kept
		t.Errorf("%d references are kept: %v", n, f.s.records["a"].spans)
	}
}

// Joined step by step or all at once, workloads are the same: whatever came and
// went, a State that hears only the last of it shows the same.
func TestIncrementalJoinsAreAFullRebuild(t *testing.T) {
	names := []string{"n1", "n1-a", "n2"} // the order of names is not that of references
	rapid.Check(t, func(rt *rapid.T) {
		nodes := map[string]*node{}
		judges := map[string]*Judge{}
		for _, name := range names {
			nodes[name] = newNode(name, 2)
			judges[name] = NewJudge(name, false)
		}
		s := NewState()
		last := map[string]*telemetry.Observation{}
		plans := map[string]telemetry.Inventory{}
		at := t0
		for step := range rapid.IntRange(2, 12).Draw(rt, "steps") {
			at = at.Add(time.Second)
			if rapid.IntRange(0, 4).Draw(rt, "inventory?") == 0 {
				inv := drawPlan(rt, names, uint64(step))
				plans[inv.Source] = inv
				s.Inventory(at, inv)
			}
			name := rapid.SampledFrom(names).Draw(rt, "node")
			for _, d := range nodes[name].devices {
				d.SetMembers(drawMembers(rt, name))
			}
			o, err := judges[name].Frame(at, nodes[name].frame(at))
			if err != nil || o == nil {
				rt.Fatal(o, err)
			}
			last[name] = o
			if err := s.Observe(at, o); err != nil {
				rt.Fatal(err)
			}
			if rapid.Bool().Draw(rt, "looked at") {
				s.View(at)
			}
		}
		fresh := NewState()
		for _, o := range last {
			if err := fresh.Observe(at, o); err != nil {
				rt.Fatal(err)
			}
		}
		for _, inv := range plans {
			fresh.Inventory(at, inv)
		}
		one, all := s.View(at), fresh.View(at)
		if a, b := holding(one), holding(all); !slices.Equal(a, b) {
			rt.Fatalf("step by step\n%s\nat once\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
		}
		whole(t, one)
		whole(t, all)
	})
}

func drawMembers(rt *rapid.T, node string) []*telemetry.Member {
	var out []*telemetry.Member
	for range rapid.IntRange(0, 3).Draw(rt, "members") {
		root := rapid.SampledFrom([]string{"1@5", "2@6", "3@7"}).Draw(rt, "root")
		pid := rapid.SampledFrom([]string{root, "4@8", "5@9"}).Draw(rt, "pid")
		m := proc(node, root, pid)
		m.SetKind(rapid.SampledFrom([]string{KindProcess, KindProcess, KindProcess, "unknown", "job"}).Draw(rt, "kind"))
		m.SetOwner(rapid.SampledFrom([]string{"ada", "bob"}).Draw(rt, "owner"))
		if !slices.ContainsFunc(out, func(o *telemetry.Member) bool { return o.GetId() == m.GetId() }) {
			out = append(out, m)
		}
	}
	return out
}

func drawPlan(rt *rapid.T, names []string, generation uint64) telemetry.Inventory {
	inv := telemetry.Inventory{Source: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "source"), Generation: generation + 1}
	for range rapid.IntRange(0, 3).Draw(rt, "planned") {
		name := rapid.SampledFrom(names).Draw(rt, "on")
		w := telemetry.InventoryWorkload{Priority: rapid.IntRange(0, 2).Draw(rt, "priority")}
		w.Ref = telemetry.WorkloadRef(rapid.SampledFrom([]string{"proc:" + name + "/1@5", "proc:" + name + "/2@6", "slurm:1", "slurm:2"}).Draw(rt, "ref"))
		if rapid.Bool().Draw(rt, "by id") {
			w.Members = []telemetry.WorkloadMember{{ID: rapid.SampledFrom([]string{"1@5+boot-1", "4@8+boot-1", "7@7+boot-1"}).Draw(rt, "id")}}
		}
		if rapid.Bool().Draw(rt, "placed") {
			w.Members = append(w.Members, telemetry.WorkloadMember{ID: "x", GPUs: []string{"GPU-" + name + "-0"}})
		}
		inv.Workloads = append(inv.Workloads, w)
	}
	return inv
}

// BenchmarkViewProcesses is BenchmarkView of a fleet whose nodes each tell of
// eight processes, of which one ends and one begins every second.
func BenchmarkViewProcesses(b *testing.B) {
	s, list, hear := processes(b, 2000)
	at, pid := t0.Add(time.Second), 100
	cpu := cpuTime()
	b.ReportAllocs()
	for b.Loop() {
		at, pid = at.Add(time.Second), pid+1
		root := fmt.Sprintf("%d@%d", pid, pid)
		list[7].devices[rand.IntN(8)].SetMembers([]*telemetry.Member{proc(list[7].name, root, root)})
		hear(7, at)
		s.View(t0)
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

// BenchmarkViewProcessesStay is the same with none that comes or goes.
func BenchmarkViewProcessesStay(b *testing.B) {
	s, _, hear := processes(b, 2000)
	at := t0.Add(time.Second)
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Second)
		hear(7, at)
		s.View(t0)
	}
}

func processes(b testing.TB, nodes int) (*State, []*node, func(i int, at time.Time)) {
	s, list, hear := fleetOf8(b, nodes)
	for i, n := range list {
		for k, d := range n.devices {
			root := fmt.Sprintf("%d@%d", k, k)
			d.SetMembers([]*telemetry.Member{proc(n.name, root, root)})
		}
		hear(i, t0.Add(time.Second))
	}
	s.View(t0)
	return s, list, hear
}

// A process that comes on one node costs the same in a fleet of any size.
func TestMemberChangesDoNotGrowWithTheFleet(t *testing.T) {
	allocations := func(nodes int) float64 {
		s, list, hear := processes(t, nodes)
		at, pid := t0.Add(time.Second), 100
		return testing.AllocsPerRun(50, func() {
			at, pid = at.Add(time.Second), pid+1
			root := fmt.Sprintf("%d@%d", pid, pid)
			list[7].devices[pid%8].SetMembers([]*telemetry.Member{proc(list[7].name, root, root)})
			hear(7, at)
			s.View(t0)
		})
	}
	small, large := allocations(10), allocations(300)
	if large > small+5 || large > 120 {
		t.Errorf("%g allocations for a change among 10 nodes, %g among 300", small, large)
	}
}
