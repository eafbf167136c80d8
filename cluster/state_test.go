package cluster

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// fleet is nodes, their judges and a state.
type fleet struct {
	*testing.T
	s    *State
	rigs map[string]*rig
}

func newFleet(t *testing.T, nodes ...*node) *fleet {
	f := &fleet{t, NewState(), map[string]*rig{}}
	for _, n := range nodes {
		f.rigs[n.name] = newRig(t, n)
	}
	return f
}

// tick lets nodes be heard once, in the order given.
func (f *fleet) tick(at time.Time, names ...string) {
	f.Helper()
	for _, name := range names {
		if o := f.rigs[name].hear(at); o != nil {
			if err := f.s.Observe(at, o); err != nil {
				f.Fatalf("observation of %s refused: %v", name, err)
			}
		}
	}
}

func TestNodeStates(t *testing.T) {
	f := newFleet(t, newNode("a", 2), newNode("b", 2))
	f.s.Inventory(t0, telemetry.Inventory{Source: "file", Nodes: []telemetry.InventoryNode{
		{Name: "a", Rack: "r1"}, {Name: "c", ExpectedUUIDs: []string{"GPU-c-0"}, Rack: "r2"}}})
	f.tick(t0, "a", "b")
	want := func(at time.Time, states map[string]NodeState) {
		t.Helper()
		v := f.s.View(at)
		if v.NodeCount() != len(states) {
			t.Errorf("%d nodes, want %d", v.NodeCount(), len(states))
		}
		for name, state := range states {
			n, ok := v.Node(name)
			if !ok || n.State != state {
				t.Errorf("at %s: node %s: %+v, want %s", at.Sub(t0), name, n, state)
			}
		}
	}
	want(t0, map[string]NodeState{"a": NodeUp, "b": NodeUp, "c": NodeUnknown})
	f.tick(t0.Add(5*time.Second), "a")
	want(t0.Add(10*time.Second), map[string]NodeState{"a": NodeUp, "b": NodeUp, "c": NodeUnknown})
	want(t0.Add(10*time.Second+time.Millisecond), map[string]NodeState{"a": NodeUp, "b": NodeGone, "c": NodeUnknown})
	v := f.s.View(t0.Add(11 * time.Second))
	if _, g, ok := v.GPU("GPU-b-0"); !ok || g.State != GPUUnknown || g.Health != HealthUnknown {
		t.Errorf("GPU of a silent node: %+v", g)
	}
	if _, g, ok := v.GPU("GPU-c-0"); !ok || g.State != GPUUnknown || g.Value(telemetry.GPUTemperatureCelsiusCore).OK {
		t.Errorf("GPU of a node never heard: %+v", g)
	}
	if c := v.Coverage(t0.Add(5 * time.Second)); c.Expected != 5 || c.Fresh != 2 {
		t.Errorf("coverage %+v, want 2 of 5", c)
	}
	// Back again, and in the end forgotten, unless inventory lists it.
	f.tick(t0.Add(20*time.Second), "b")
	want(t0.Add(20*time.Second), map[string]NodeState{"a": NodeGone, "b": NodeUp, "c": NodeUnknown})
	want(t0.Add(25*time.Hour), map[string]NodeState{"a": NodeGone, "c": NodeUnknown})
}

func TestGoneFollowsThePeriod(t *testing.T) {
	n := newNode("a", 1)
	n.period = 10 * time.Second
	f := newFleet(t, n)
	f.tick(t0, "a")
	if n, _ := f.s.View(t0.Add(30 * time.Second)).Node("a"); n.State != NodeUp {
		t.Errorf("gone after three of its periods: %s", n.State)
	}
	if n, _ := f.s.View(t0.Add(31 * time.Second)).Node("a"); n.State != NodeGone {
		t.Errorf("still %s after more than three periods", n.State)
	}
}

func TestFreshness(t *testing.T) {
	f := newFleet(t, newNode("a", 1))
	f.tick(t0, "a")
	v := f.s.View(t0)
	n, g, _ := v.GPU("GPU-a-0")
	temp, ok := g.Reading(telemetry.GPUTemperatureCelsiusCore)
	if !ok || !n.Fresh(temp, t0.Add(3*time.Second)) || n.Fresh(temp, t0.Add(3*time.Second+time.Millisecond)) {
		t.Errorf("a reading is fresh for three ticks: %+v", temp)
	}
	if limit, _ := g.Reading(telemetry.GPUPowerLimitWatts); !n.Fresh(limit, t0.Add(45*time.Second)) || n.Fresh(limit, t0.Add(46*time.Second)) {
		t.Errorf("a slow reading is fresh for 45 s: %+v", limit)
	}
	before := temp
	before.At = n.Since.Add(-time.Second)
	if n.Fresh(before, t0) {
		t.Error("a reading from before the process is fresh")
	}
	suspect := temp
	suspect.Quality = suspectQ
	if n.Fresh(suspect, t0) {
		t.Error("a suspect reading is fresh")
	}
}

func TestObservationsOfTheOldProcess(t *testing.T) {
	n := newNode("a", 1)
	f := newFleet(t, n)
	old := f.rigs["a"].hear(t0)
	n.restart(t0.Add(time.Second))
	fresh := f.rigs["a"].hear(t0.Add(2 * time.Second))
	if err := f.s.Observe(t0.Add(2*time.Second), fresh); err != nil {
		t.Fatal(err)
	}
	wantDrop(t, f.s.Observe(t0.Add(3*time.Second), old), telemetry.DropReordered)
	wantDrop(t, f.s.Observe(t0.Add(3*time.Second), fresh), telemetry.DropDuplicate)
	if n, _ := f.s.View(t0.Add(3 * time.Second)).Node("a"); !n.Since.Equal(t0.Add(time.Second)) {
		t.Errorf("since %s, want the start of the new process", n.Since)
	}
	if err := f.s.Observe(t0.Add(13*time.Second), old); err != nil {
		t.Errorf("the newer process is silent, the older one refused: %v", err)
	}
}

// One node that says nothing sensible leaves the others as they are.
func TestOneBlindNode(t *testing.T) {
	blind := newNode("b", 1)
	for _, w := range wiredSeries {
		blind.devices[0].ClearValue(w.id)
	}
	f := newFleet(t, newNode("a", 1), blind)
	f.tick(t0, "a", "b")
	v := f.s.View(t0)
	_, g, _ := v.GPU("GPU-b-0")
	if g.State != GPUUnknown {
		t.Errorf("device without values: %s", g.State)
	}
	for _, id := range []telemetry.ID{telemetry.GPUUtilizationRatio, telemetry.GPUTemperatureCelsiusCore, telemetry.GPUPowerWatts} {
		if x := g.Value(id); x.OK {
			t.Errorf("missing value %d reads %g", id, x.V)
		}
	}
	if g.HeadroomC.OK || g.LimitW.OK || g.RCPerW.OK {
		t.Errorf("missing values are known: %+v", g)
	}
	if c := v.Coverage(t0); c.Fresh != 1 || c.Expected != 2 || c.Ratio != 0.5 {
		t.Errorf("coverage %+v", c)
	}
}

func TestExpectedDeviceMissing(t *testing.T) {
	n := newNode("a", 2)
	f := newFleet(t, n)
	f.s.Inventory(t0, telemetry.Inventory{Source: "file", Nodes: []telemetry.InventoryNode{{Name: "a", ExpectedUUIDs: []string{"GPU-a-0", "GPU-a-9"}, Model: "H100"}}})
	f.tick(t0, "a")
	state := func() GPUState {
		_, g, ok := f.s.View(t0).GPU("GPU-a-9")
		if !ok {
			t.Fatal("expected device is not in the view")
		}
		return g.State
	}
	if s := state(); s != GPUAbsent {
		t.Errorf("expected device on a live node: %s", s)
	}
	n.fault = "mismatch"
	n.devices = nil
	f.tick(t0.Add(time.Second), "a")
	if s := state(); s != GPUUnknown {
		t.Errorf("expected device while the driver does not answer: %s", s)
	}
	if nn, _ := f.s.View(t0).Node("a"); nn.Expected != 2 || nn.DriverFault != "mismatch" {
		t.Errorf("node %+v", nn)
	}
}

func TestReceiptMovesTheLimit(t *testing.T) {
	n := newNode("a", 2)
	f := newFleet(t, n)
	f.tick(t0, "a")
	limit := func(at time.Time) float64 {
		_, g, _ := f.s.View(at).GPU("GPU-a-0")
		r, _ := g.Reading(telemetry.GPUPowerLimitWatts)
		if r.V != g.LimitW.V {
			t.Errorf("limit %g, its reading %g", g.LimitW.V, r.V)
		}
		return g.LimitW.V
	}
	before := f.s.View(t0)
	receipt := telemetry.Receipt{StepID: "1", Kind: telemetry.StepPowerCap, Target: telemetry.Target{Node: "a", UUID: "GPU-a-0"},
		Result: telemetry.Done, After: map[string]float64{"power_limit_watts": 450}}
	for _, none := range []func(r *telemetry.Receipt){
		func(r *telemetry.Receipt) { r.DryRun = true },
		func(r *telemetry.Receipt) { r.Result = telemetry.Refused },
		func(r *telemetry.Receipt) { r.After = nil },
		func(r *telemetry.Receipt) { r.Target.UUID = "GPU-of-another" },
		func(r *telemetry.Receipt) { r.Target.Node = "z" },
	} {
		r := receipt
		none(&r)
		f.s.Receipt(t0, r)
	}
	if w := limit(t0); w != 700 {
		t.Fatalf("limit %g after receipts that change none", w)
	}
	f.s.Receipt(t0.Add(500*time.Millisecond), receipt)
	if w := limit(t0.Add(time.Second)); w != 450 {
		t.Errorf("limit %g after the receipt, want 450", w)
	}
	if _, g, _ := before.GPU("GPU-a-0"); g.LimitW.V != 700 {
		t.Error("a View changed after it was given")
	}
	// Frames without a newer reading of the limit do not take it back …
	for _, g := range n.devices {
		g.ClearValue(telemetry.GPUPowerLimitWatts)
	}
	for i := 1; i < 5; i++ {
		f.tick(t0.Add(time.Duration(i)*time.Second), "a")
	}
	if w := limit(t0.Add(5 * time.Second)); w != 450 {
		t.Errorf("limit %g, want 450 until the device says otherwise", w)
	}
	// … a newer one does.
	n.devices[0].SetValue(telemetry.GPUPowerLimitWatts, 600)
	f.tick(t0.Add(6*time.Second), "a")
	if w := limit(t0.Add(6 * time.Second)); w != 600 {
		t.Errorf("limit %g, want 600 as the device says", w)
	}
	if _, g, _ := f.s.View(t0).GPU("GPU-a-1"); g.LimitW.V != 700 {
		t.Errorf("limit of the other device %g", g.LimitW.V)
	}
}

func TestTwoNodesClaimOneDevice(t *testing.T) {
	a, b := newNode("a", 2), newNode("b", 2)
	b.devices[1].SetUuid("GPU-a-1")
	f := newFleet(t, a, b)
	f.tick(t0, "a", "b")
	for range 2 {
		v := f.s.View(t0)
		claims := 0
		for n, g := range v.GPUs() {
			if g.UUID != "GPU-a-1" {
				if g.DoubtfulIdentity {
					t.Errorf("%s of %s is doubtful", g.UUID, n.Name)
				}
				continue
			}
			claims++
			r, _ := g.Reading(telemetry.GPUTemperatureCelsiusCore)
			if !g.DoubtfulIdentity || g.Health != HealthDoubtful || n.Fresh(r, t0) || r.Quality != suspectQ {
				t.Errorf("claimed twice, on %s: %+v, reading %+v", n.Name, g, r)
			}
		}
		if claims != 2 || f.s.Conflicts() != 1 {
			t.Errorf("%d claims, %d conflicts", claims, f.s.Conflicts())
		}
		f.tick(t0.Add(time.Second), "a", "b")
	}
	// The device was moved: the node it left says that it is absent.
	a.devices = a.devices[:1]
	f.tick(t0.Add(2*time.Second), "a", "b")
	f.s.View(t0.Add(2 * time.Second))
	f.tick(t0.Add(3*time.Second), "a", "b")
	v := f.s.View(t0.Add(3 * time.Second))
	n, g, _ := v.GPU("GPU-a-1")
	if n.Name != "b" || g.DoubtfulIdentity || f.s.Conflicts() != 0 {
		t.Errorf("after the move: on %s, doubtful %v, %d conflicts", n.Name, g.DoubtfulIdentity, f.s.Conflicts())
	}
}

func workload(ref string, gpus ...string) telemetry.InventoryWorkload {
	return telemetry.InventoryWorkload{Ref: telemetry.WorkloadRef(ref), Owner: "team", Members: []telemetry.WorkloadMember{{ID: ref + "-m", GPUs: gpus}}}
}

func TestWorkloadsJoin(t *testing.T) {
	a := newNode("a", 3)
	a.devices[2].SetMembers([]*telemetry.Member{telemetry.Member_builder{Id: "slurm:9-m", Kind: "job"}.Build()})
	f := newFleet(t, a, newNode("b", 2))
	f.s.Inventory(t0, telemetry.Inventory{Source: "k8s-x", Generation: 1, Workloads: []telemetry.InventoryWorkload{
		workload("slurm:9"), workload("k8s:n/Job/x", "GPU-b-1", "GPU-a-0", "GPU-none"), workload("proc:a/1@2", "GPU-a-0")}})
	f.tick(t0, "a", "b")
	check := func(v *View) {
		t.Helper()
		var got []string
		for w := range v.Workloads() {
			line := string(w.Ref)
			for _, g := range w.GPUs {
				line += " " + g.UUID
				if _, now, _ := v.GPU(g.UUID); now != g {
					t.Errorf("%s points to an older %s", w.Ref, g.UUID)
				}
			}
			got = append(got, line)
		}
		want := []string{"k8s:n/Job/x GPU-a-0 GPU-b-1", "proc:a/1@2 GPU-a-0", "slurm:9 GPU-a-2"}
		if !slices.Equal(got, want) {
			t.Errorf("workloads %q, want %q", got, want)
		}
		if on := v.WorkloadsOn("GPU-a-0"); len(on) != 2 || on[0].Ref != "k8s:n/Job/x" {
			t.Errorf("workloads on GPU-a-0: %v", on)
		}
	}
	check(f.s.View(t0))
	f.tick(t0.Add(time.Second), "a")
	check(f.s.View(t0.Add(time.Second)))
	f.s.Inventory(t0, telemetry.Inventory{Source: "k8s-x", Generation: 0, Time: time.Time{}})
	if _, ok := f.s.View(t0).Workload("slurm:9"); !ok {
		t.Error("an older snapshot replaced a newer one")
	}
	f.s.Inventory(t0, telemetry.Inventory{Source: "k8s-x", Generation: 2})
	if v := f.s.View(t0); len(v.WorkloadsOn("GPU-a-0")) != 0 {
		t.Error("workloads outlived the snapshot that had them")
	}
}

func TestInventorySources(t *testing.T) {
	f := newFleet(t, newNode("a.example", 1))
	f.s.Inventory(t0, telemetry.Inventory{Source: "b", Nodes: []telemetry.InventoryNode{{Name: "a", Rack: "from-b", Row: "row-b", Marks: map[string]string{"x": "b"}, Unschedulable: true}}})
	f.s.Inventory(t0, telemetry.Inventory{Source: "a", Nodes: []telemetry.InventoryNode{{Name: "a", Aliases: []string{"a.example"}, Rack: "from-a", ExpectedGPUs: 8}}})
	if n, ok := f.s.View(t0).Node("a"); !ok || n.State != NodeUnknown {
		t.Errorf("expected node: %+v", n)
	}
	f.tick(t0, "a.example")
	v := f.s.View(t0)
	n, ok := v.Node("a.example")
	if !ok || v.NodeCount() != 1 {
		t.Fatalf("%d nodes; the one heard by its other name must be the only one", v.NodeCount())
	}
	if n.Rack != "from-a" || n.Row != "row-b" || n.Expected != 8 || !n.Unschedulable || n.Marks["x"] != "b" || !slices.Equal(n.Sources, []string{"a", "b"}) {
		t.Errorf("merged %+v", n)
	}
}

func TestViewsShareWhatDidNotChange(t *testing.T) {
	f := newFleet(t, newNode("a", 2), newNode("b", 2))
	f.s.Inventory(t0, telemetry.Inventory{Source: "s", Workloads: []telemetry.InventoryWorkload{workload("slurm:1", "GPU-a-0"), workload("slurm:2", "GPU-b-0")}})
	f.tick(t0, "a", "b")
	one := f.s.View(t0)
	f.tick(t0.Add(time.Second), "a")
	two := f.s.View(t0.Add(time.Second))
	same := func(name string) bool { x, _ := one.Node(name); y, _ := two.Node(name); return x == y }
	if same("a") || !same("b") {
		t.Errorf("shared: a %v, b %v; only b did not change", same("a"), same("b"))
	}
	if one.fleet != two.fleet || one.loads != two.loads {
		t.Error("indexes were built again though no member changed")
	}
	w1, _ := one.Workload("slurm:2")
	w2, _ := two.Workload("slurm:2")
	if w1 != w2 {
		t.Error("the workload of an unchanged node was copied")
	}
}

// sameView compares all that a View tells.
func sameView(a, b *View) bool {
	return reflect.DeepEqual(a.nodes, b.nodes) && reflect.DeepEqual(a.workloads, b.workloads) &&
		reflect.DeepEqual(a.fleet, b.fleet) && reflect.DeepEqual(a.loads, b.loads)
}

// Two equal fleets with different histories give equal Views.
func TestViewDoesNotDependOnHistory(t *testing.T) {
	const nodes = 40
	plan := telemetry.Inventory{Source: "s"}
	var names []string
	for i := range nodes {
		name := fmt.Sprintf("n%02d", i)
		names = append(names, name)
		plan.Nodes = append(plan.Nodes, telemetry.InventoryNode{Name: name, Rack: fmt.Sprint(i % 5)})
		plan.Workloads = append(plan.Workloads, workload(fmt.Sprintf("slurm:%d", i), fmt.Sprintf("GPU-%s-%d", name, i%2)))
	}
	build := func(drift bool, seed uint64) *View {
		rng := rand.New(rand.NewPCG(seed, 2))
		f := newFleet(t)
		for _, name := range names {
			f.rigs[name] = newRig(t, newNode(name, 2))
		}
		f.s.Inventory(t0, plan)
		order := slices.Clone(names)
		at := t0
		for range 8 {
			rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, name := range order {
				n := f.rigs[name].n
				gone := drift && at.Sub(t0) > 2*time.Second && at.Sub(t0) < 6*time.Second && rng.IntN(2) == 0
				list := n.devices
				if gone {
					n.devices = list[:1]
				}
				f.tick(at, name)
				n.devices = list
			}
			if drift {
				f.s.View(at)
			}
			at = at.Add(time.Second)
		}
		// Only what the last frames say may count: what was learned and how
		// devices came and went is history.
		for _, r := range f.rigs {
			r.n.restart(at)
			r.n.boot = "boot-2"
			r.j = NewJudge(r.n.name, false)
		}
		f.tick(at, order...)
		return f.s.View(at)
	}
	want := build(false, 1)
	for seed := range uint64(5) {
		if !sameView(build(true, seed+2), want) {
			t.Fatalf("seed %d: the View depends on its history", seed)
		}
	}
}
