package rebalancer_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// drawGPU is any GPU that a judge could show, hot or not, seen or not.
func drawGPU(t *rapid.T, node string, i int, now time.Time) *cluster.GPU {
	opt := func(name string, lo, hi float64) cluster.Opt {
		if rapid.IntRange(0, 9).Draw(t, name+"?") == 0 {
			return cluster.Opt{}
		}
		return cluster.Some(rapid.Float64Range(lo, hi).Draw(t, name))
	}
	g := cluster.GPU{
		UUID: fmt.Sprintf("GPU-%s-%d", node, i), Node: node, Index: i, Model: "H100", Members: drawHolders(t, node), Generation: uint64(rapid.IntRange(1, 2).Draw(t, "generation")),
		State:     rapid.SampledFrom([]cluster.GPUState{cluster.GPUOK, cluster.GPUOK, cluster.GPUOK, cluster.GPUHung, cluster.GPULost, cluster.GPUUnknown}).Draw(t, "state"),
		HeadroomC: opt("headroom", -15, 30), SlopeCPerS: opt("slope", -2, 2), TauS: opt("tau", 1, 120), RCPerW: opt("r", 0.01, 0.3),
		LimitW: opt("limit", 200, 700), MinW: opt("min", 100, 300), DefaultW: opt("default", 300, 700),
	}
	reading := func(id telemetry.ID, v float64) cluster.Reading {
		return cluster.Reading{ID: id, V: v,
			At: now.Add(-time.Duration(rapid.SampledFrom([]int{0, 100, 900, 2900, 3100, 60000}).Draw(t, "age")) * time.Millisecond),
			Quality: rapid.SampledFrom([]telemetry.Quality{telemetry.Quality_QUALITY_OK, telemetry.Quality_QUALITY_OK, telemetry.Quality_QUALITY_OK, telemetry.Quality_QUALITY_OK,
				telemetry.Quality_QUALITY_SUSPECT, telemetry.Quality_QUALITY_STALE, telemetry.Quality_QUALITY_ERROR}).Draw(t, "quality")}
	}
	readings := []cluster.Reading{
		reading(telemetry.GPUTemperatureCelsiusCore, 80), reading(telemetry.GPUPowerWatts, rapid.Float64Range(50, 750).Draw(t, "power")),
		reading(telemetry.GPUThrottleActiveSWThermal, float64(rapid.IntRange(0, 1).Draw(t, "throttled"))),
	}
	if g.HeadroomC.OK {
		readings = append(readings, reading(telemetry.GPUThermalHeadroomCelsius, g.HeadroomC.V))
	}
	return cluster.NewGPU(g, readings...)
}

// drawHolders are the members of one GPU; the same process may be on several.
func drawHolders(t *rapid.T, node string) []cluster.Member {
	var out []cluster.Member
	for pid := range rapid.IntRange(0, 3).Draw(t, "holders") {
		if rapid.Bool().Draw(t, "holds") {
			out = append(out, cluster.Member{ID: fmt.Sprintf("%d@%d+%s", pid+1, pid+1, bootID), Kind: rapid.SampledFrom([]string{cluster.KindProcess, cluster.KindProcess, cluster.KindProcess, "unknown"}).Draw(t, "kind"),
				Workload: telemetry.WorkloadRef(fmt.Sprintf("proc:%s/%d@%d", node, pid+1, pid+1)), Owner: "ada", Name: fmt.Sprint("job", pid)})
		}
	}
	return out
}

// fleet is what a View is made from, in an order of its own.
type fleet struct {
	nodes []*cluster.Node
	work  []*cluster.Workload
}

func drawFleet(t *rapid.T, now time.Time) fleet {
	var f fleet
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		n := &cluster.Node{Name: fmt.Sprintf("n%d", i), BootID: bootID, Period: time.Second, Incarnation: 1, Row: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "row"),
			State: rapid.SampledFrom([]cluster.NodeState{cluster.NodeUp, cluster.NodeUp, cluster.NodeUp, cluster.NodeGone}).Draw(t, "node"),
			Since: now.Add(-time.Duration(rapid.SampledFrom([]int{3600, 3600, 3600, 0}).Draw(t, "up for")) * time.Second)}
		for g := range rapid.IntRange(0, 4).Draw(t, "gpus") {
			n.GPUs = append(n.GPUs, drawGPU(t, n.Name, g, now))
		}
		n.Expected = len(n.GPUs)
		f.nodes = append(f.nodes, n)
	}
	var all []*cluster.GPU
	for _, n := range f.nodes {
		all = append(all, n.GPUs...)
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "workloads") {
		w := &cluster.Workload{InventoryWorkload: telemetry.InventoryWorkload{Ref: telemetry.WorkloadRef(fmt.Sprintf("slurm:%d", i))}}
		for _, g := range all {
			if rapid.Bool().Draw(t, "on") {
				w.GPUs = append(w.GPUs, g)
			}
		}
		f.work = append(f.work, w)
	}
	return f
}

// view builds the View with everything handed over in a shuffled order.
func (f fleet) view(now time.Time, seed uint64) *cluster.View {
	r := rand.New(rand.NewPCG(seed, 1))
	nodes, work := slices.Clone(f.nodes), slices.Clone(f.work)
	r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	r.Shuffle(len(work), func(i, j int) { work[i], work[j] = work[j], work[i] })
	return cluster.NewView(now, nodes, work)
}

func drawPolicies(t *rapid.T) []rebalancer.Policy {
	return enforcing(func(p *rebalancer.PolicySpec) {
		p.Mode = rapid.SampledFrom([]telemetry.Mode{telemetry.Enforce, telemetry.Enforce, telemetry.Recommend, telemetry.Approve, telemetry.Observe}).Draw(t, "mode")
		p.Budget = rebalancer.Budget{Percent: rapid.Float64Range(1, 100).Draw(t, "percent"), Max: rapid.IntRange(0, 5).Draw(t, "max"),
			Per: rapid.SampledFrom([]rebalancer.Scope{rebalancer.PerNode, rebalancer.PerRow, rebalancer.PerFleet}).Draw(t, "per")}
		p.Filter.N = rapid.IntRange(1, 3).Draw(t, "n")
		if rapid.Bool().Draw(t, "preempt") { // which much stands against: let it be done now and then
			p.Ladder = append(slices.Clone(p.Ladder), telemetry.ActPreempt)
			p.Filter.N, p.Floor = 1, 0.9
			p.Mode = rapid.SampledFrom([]telemetry.Mode{telemetry.Enforce, p.Mode}).Draw(t, "mode of both")
		}
	})
}

// TestStepProperties drives Step over random fleets that change from sample to
// sample, with acts done or not, and checks on every pass what must always
// hold.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policies := drawPolicies(t)
		w := newWorld(1, 1)
		pl := rebalancer.Planner{Policies: policies, Actuators: []rebalancer.Actuator{w}, Breaker: rebalancer.DefaultBreaker, Expiry: 30 * time.Second}
		if slices.Contains(policies[0].Spec().Ladder, telemetry.ActPreempt) {
			pl.Breaker = rebalancer.BreakerLimits{Disrupted: 1, Failed: 1, FailedOf: 1000}
		}
		var m rebalancer.Memory
		m.Leading, m.Epoch = true, epoch
		ids := map[string]bool{}
		now := start
		for range rapid.IntRange(1, 6).Draw(t, "passes") {
			now = now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			f := drawFleet(t, now)
			v := f.view(now, 0)
			before := plainMemory(t, m)
			plan, next := pl.Step(now, v, m)
			if after := plainMemory(t, m); after != before {
				t.Fatalf("Step changed the memory it was given")
			}
			again, _ := pl.Step(now, f.view(now, rapid.Uint64().Draw(t, "shuffle")), m.Clone())
			if a, b := asText(t, plan), asText(t, again); a != b {
				t.Fatalf("two plans for one View and Memory:\n%s\n%s", a, b)
			}
			checkPlan(t, policies[0].Spec(), v, m, now, plan, ids)
			m = next
			m = foldPlan(t, m, plan, now)
		}
	})
}

func plainMemory(t *rapid.T, m rebalancer.Memory) string {
	data, err := json.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func asText(t *rapid.T, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func foldPlan(t *rapid.T, m rebalancer.Memory, plan rebalancer.Plan, now time.Time) rebalancer.Memory {
	write := func(r telemetry.Record) {
		r.Time = now
		if err := m.Fold(m.Seq+1, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range plan.Entries {
		write(telemetry.Record{Topic: e.Topic, Decision: e.Decision, Breaker: e.Breaker, Refused: e.Refused})
		if e.Do == nil || rapid.IntRange(0, 3).Draw(t, "lost") == 0 {
			continue
		}
		result := rapid.SampledFrom([]telemetry.Result{telemetry.Done, telemetry.Done, telemetry.Refused, telemetry.Failed}).Draw(t, "result")
		if next := rebalancer.WithReceipt(m.Decisions[e.Do.Decision], telemetry.Receipt{StepID: e.Do.ID, Result: result}, now); next != nil {
			write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: next})
		}
	}
	return m
}

func checkPlan(t *rapid.T, spec rebalancer.PolicySpec, v *cluster.View, m rebalancer.Memory, now time.Time, plan rebalancer.Plan, ids map[string]bool) {
	busy := map[string]bool{}
	under := map[string]bool{}
	for _, d := range m.Decisions {
		for _, uuid := range heldBy(d) {
			if d.Outcome == telemetry.OutcomeIntended || d.Outcome == telemetry.OutcomeActed {
				busy[uuid] = true
			}
			under[uuid] = true
		}
	}
	fresh := map[string]bool{}
	for _, e := range plan.Entries {
		if e.Do != nil && ids[e.Do.ID] {
			t.Fatalf("step id %s is used twice", e.Do.ID)
		}
		if e.Decision != nil && !e.Decision.Ended.IsZero() {
			for _, uuid := range heldBy(e.Decision) {
				if !heldByAnother(m, e.Decision, uuid) {
					delete(under, uuid)
				}
			}
		}
		switch {
		case e.Do == nil || e.Do.Kind != telemetry.StepPowerCap && e.Do.Kind != telemetry.StepPreempt:
			continue
		case e.Do.Kind == telemetry.StepPowerCap:
			checkCap(t, spec, v, now, e)
		default:
			checkEnding(t, spec, v, now, e)
		}
		ids[e.Do.ID] = true
		for _, uuid := range heldBy(e.Decision) {
			if busy[uuid] {
				t.Fatalf("two acts on %s", uuid)
			}
			busy[uuid] = true
			if !under[uuid] {
				fresh[uuid] = true
			}
		}
	}
	checkBudget(t, spec, v, under, fresh)
}

// checkCap wants everything a cap rests on to be seen and good.
func checkCap(t *rapid.T, spec rebalancer.PolicySpec, v *cluster.View, now time.Time, e rebalancer.Entry) {
	n, g, ok := v.GPU(e.Do.Target.UUID)
	if !ok || g.State != cluster.GPUOK || n.State != cluster.NodeUp || g.Generation != e.Do.Target.Generation {
		t.Fatalf("cap of %s, which is not there or not well", e.Do.Target)
	}
	r, ok := g.Reading(telemetry.GPUThermalHeadroomCelsius)
	if !ok || !n.Fresh(r, now) {
		t.Fatalf("cap on a value that is not fresh: %+v", r)
	}
	if g.HeadroomC.V >= spec.Aim {
		t.Fatalf("cap at %.1f °C of headroom", g.HeadroomC.V)
	}
	watts := *e.Do.Params.PowerLimitWatts
	if watts < g.MinW.V || watts > g.LimitW.Or(watts)+1e-9 && limitRead(g) || watts != float64(int(watts)) {
		t.Fatalf("cap at %v W of a device that takes %v to %v", watts, g.MinW, g.LimitW)
	}
	if spec.Mode != telemetry.Enforce {
		t.Fatalf("acts in mode %s", spec.Mode)
	}
	if e.Topic != telemetry.TopicIntent || e.Decision.Predicted == nil {
		t.Fatalf("an act without intent or without a prediction: %+v", e)
	}
	if p, ok := g.Reading(telemetry.GPUPowerWatts); ok && n.Fresh(p, now) && watts >= p.V {
		t.Fatalf("cap at %v W of a device that draws %v", watts, p.V)
	}
}

func heldByAnother(m rebalancer.Memory, than *telemetry.Decision, uuid string) bool {
	for _, d := range m.Decisions {
		if d.ID != than.ID && slices.Contains(heldBy(d), uuid) {
			return true
		}
	}
	return false
}

// checkEnding wants a process to be the very one, all its GPUs to be held, and
// its GPU to be seen beyond its mark.
func checkEnding(t *rapid.T, spec rebalancer.PolicySpec, v *cluster.View, now time.Time, e rebalancer.Entry) {
	n, g, ok := v.GPU(e.Do.Target.UUID)
	r, read := g.Reading(telemetry.GPUThermalHeadroomCelsius)
	if !ok || !read || g.State != cluster.GPUOK || !n.Fresh(r, now) || g.HeadroomC.V > spec.Act {
		t.Fatalf("an ending for %s, which is not seen beyond its mark: %+v", e.Do.Target.UUID, r)
	}
	w, ok := v.Workload(e.Do.Target.Workload)
	if !ok || !slices.Contains(w.GPUs, g) || n.BootID != e.Do.Target.BootID || string(w.Ref) != fmt.Sprintf("proc:%s/%d@%d", n.Name, e.Do.Target.PID, e.Do.Target.PIDStart) {
		t.Fatalf("the end of %+v, which is %+v", e.Do.Target, w)
	}
	var gpus []string
	for _, held := range w.GPUs {
		gpus = append(gpus, held.UUID)
		for _, m := range held.Members {
			if m.Workload == w.Ref && m.Kind != cluster.KindProcess {
				t.Fatalf("%s has a member of kind %s", w.Ref, m.Kind)
			}
		}
	}
	if !slices.Equal(gpus, e.Decision.Act.GPUs) || !slices.Contains(spec.Ladder, telemetry.ActPreempt) || spec.Mode != telemetry.Enforce {
		t.Fatalf("%s has %v, its end holds %v, in mode %s", w.Ref, gpus, e.Decision.Act.GPUs, spec.Mode)
	}
	if !rebalancer.BeginBy(*e.Do).Equal(now.Add(30*time.Second)) || e.Do.Lease != 0 {
		t.Fatalf("to be begun by %v, lease %v", rebalancer.BeginBy(*e.Do), e.Do.Lease)
	}
}

// limitRead says that the limit in the View is the one in force: nothing was capped
// on the device before, or the reading says otherwise.
func limitRead(g *cluster.GPU) bool {
	_, read := g.Reading(telemetry.GPUPowerLimitWatts)
	return read
}

// checkBudget wants no new act in a scope beyond its budget. GPUs already under
// acts may be more than the budget when the fleet has shrunk; then none is new.
func checkBudget(t *rapid.T, spec rebalancer.PolicySpec, v *cluster.View, under, fresh map[string]bool) {
	scope := func(n *cluster.Node) string {
		switch spec.Budget.Per {
		case rebalancer.PerNode:
			return n.Name
		case rebalancer.PerRow:
			return n.Row
		}
		return ""
	}
	total, have, added := map[string]int{}, map[string]int{}, map[string]int{}
	for n, g := range v.GPUs() {
		total[scope(n)]++
		if under[g.UUID] {
			have[scope(n)]++
		}
		if fresh[g.UUID] {
			added[scope(n)]++
		}
	}
	for in, n := range added {
		limit := int(float64(total[in])*spec.Budget.Percent/100) + 1
		if spec.Budget.Max > 0 {
			limit = min(limit, spec.Budget.Max)
		}
		if have[in]+n > limit {
			t.Fatalf("%d new acts in %q beside %d, %d are allowed", n, in, have[in], limit)
		}
	}
}

// A dry run is the live run: the same plan from the same state.
func TestDryRunIsLive(t *testing.T) {
	b := hotBench(t, telemetry.Enforce)
	for range 300 {
		b.w.advance(time.Second)
		dry, _ := b.planner.Step(b.w.now, b.w.view(), b.mem.Clone())
		live := b.pass()
		a, _ := json.Marshal(dry)
		c, _ := json.Marshal(live)
		if string(a) != string(c) {
			t.Fatalf("dry: %s\nlive: %s", a, c)
		}
	}
	if len(b.decisions()) == 0 {
		t.Fatal("nothing was decided; the test proves nothing")
	}
}
