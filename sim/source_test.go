package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var (
	_ agent.Writer               = (*Writer)(nil)
	_ rebalancer.InventorySource = (*InventorySource)(nil)
)

func openNode(t testing.TB, w *World, node string) (exporter.Source, []exporter.Found) {
	t.Helper()
	s, err := w.Source(node)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	found, err := s.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return s, found
}

func loadWorld(t testing.TB, name string) *World {
	t.Helper()
	s, err := LoadScenario(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestSourceShowsTheWorld(t *testing.T) {
	w := loadWorld(t, "hot-row")
	run(w, 10*time.Second)
	s, found := openNode(t, w, "a-1")
	if len(found) != 8 {
		t.Fatalf("%d devices", len(found))
	}
	run(w, 5*time.Second)
	driver, err := s.Driver()
	if err != nil || driver.Version == "" || driver.NVML == "" || driver.CUDA == "" {
		t.Errorf("driver %+v, %v", driver, err)
	}
	for i, f := range found {
		r := readOne(t, w, "a-1", i)
		id := f.Device.Identity()
		if id.UUID != r.UUID || id.UUID != f.UUID || id.PCI != f.PCI || id.Index != i || id.Arch != "hopper" || id.Links != 18 || id.Model != r.Model.Name {
			t.Errorf("identity of %d: %+v", i, id)
		}
		expect := func(name string, got float64, err error, want, within float64) {
			t.Helper()
			if err != nil || math.Abs(got-want) > within {
				t.Errorf("GPU %d: %s is %v, %v, want %v", i, name, got, err, want)
			}
		}
		gpu, memory, err := f.Device.Utilization()
		expect("utilisation", gpu, err, r.Utilization, 0.005)
		expect("memory utilisation", memory, err, r.MemoryUtilization, 0.005)
		used, total, err := f.Device.Memory()
		expect("memory used", float64(used), err, 68<<30, 0)
		expect("memory total", float64(total), err, 81559<<20, 0)
		celsius, err := f.Device.Temperature()
		expect("temperature", celsius, err, float64(r.CoreC), 0)
		margin, err := f.Device.Margin()
		expect("margin", margin, err, 87-float64(r.CoreC), 0)
		slowdown, err := f.Device.SlowdownThreshold()
		expect("slowdown", slowdown, err, 89, 0)
		watts, err := f.Device.Power()
		expect("power", watts, err, r.AverageW, 0)
		current, def, low, high, err := f.Device.PowerLimits()
		expect("limit", current, err, 700, 0)
		expect("default limit", def, err, 700, 0)
		expect("lowest limit", low, err, 200, 0)
		expect("highest limit", high, err, 700, 0)
		hertz, err := f.Device.Clock(exporter.ClockSM)
		expect("clock", hertz, err, 1980e6, 0)
		hertz, err = f.Device.Clock(exporter.ClockMemory)
		expect("memory clock", hertz, err, 2619e6, 0)
		if _, err := f.Device.Clock(exporter.Domain(9)); err == nil {
			t.Error("a clock domain that does not exist has a clock")
		}
		set, err := f.Device.ThrottleReasons()
		expect("reasons", float64(set), err, 0, 0)
	}
}

func TestSourceFields(t *testing.T) {
	w := loadWorld(t, "hot-row")
	_, found := openNode(t, w, "a-1")
	run(w, 10*time.Second)
	r := readOne(t, w, "a-1", 0)
	batch := []exporter.Field{
		{ID: exporter.FieldMemoryTemperature}, {ID: exporter.FieldEnergyMillijoules}, {ID: exporter.FieldNVLinkCount},
		{ID: exporter.FieldNVLinkTxKiB, Scope: exporter.AllLinks}, {ID: exporter.FieldNVLinkRxKiB, Scope: 17}, {ID: exporter.FieldNVLinkRxKiB, Scope: 18},
		{ID: exporter.FieldTLimitSlowdown}, {ID: exporter.FieldTLimitShutdown}, {ID: exporter.FieldTLimitGPUMax}, {ID: exporter.FieldTLimitMemoryMax},
		{ID: fieldPowerCurrent}, {ID: fieldPowerCurrent, Scope: 1}, {ID: 4242}, {ID: exporter.FieldNVLink5TxBytes, Scope: 1},
	}
	if err := found[0].Device.Fields(batch); err != nil {
		t.Fatal(err)
	}
	all := float64(r.NVLinkBytes / 1024)
	want := []float64{float64(r.MemoryC), math.Floor(r.EnergyJ * 1000), 18, all, math.Floor(float64(r.NVLinkBytes/18) / 1024), math.NaN(), -2, -8, 0, 0, 700e3, math.NaN(), math.NaN(), math.NaN()}
	for i, f := range batch {
		if math.IsNaN(want[i]) {
			if exporter.FaultOf(f.Err) != exporter.Unsupported || f.Value != 0 {
				t.Errorf("field %d scope %d: %v, %v, want it unsupported", f.ID, f.Scope, f.Value, f.Err)
			}
		} else if f.Err != nil || f.Value != want[i] {
			t.Errorf("field %d scope %d: %v, %v, want %v", f.ID, f.Scope, f.Value, f.Err, want[i])
		}
	}
	if all < 1e6 {
		t.Errorf("ten seconds of training moved %.0f KiB over NVLink", all)
	}
}

func TestSourceCapAndThrottleReasons(t *testing.T) {
	w := loadWorld(t, "hot-row")
	_, found := openNode(t, w, "a-1")
	writer, err := w.Writer("a-1")
	if err != nil {
		t.Fatal(err)
	}
	uuid := found[2].UUID
	if err := writer.SetPowerLimit(uuid, 400); err != nil {
		t.Fatal(err)
	}
	got, err := writer.PowerLimits(uuid)
	if want := (telemetry.PowerLimits{Current: 400, Default: 700, Min: 200, Max: 700}); err != nil || got != want {
		t.Errorf("limits read back: %+v, %v", got, err)
	}
	run(w, 2*time.Second)
	set, err := found[2].Device.ThrottleReasons()
	if err != nil || set != 1<<slices.Index(telemetry.ThrottleReasons, "sw_power") {
		t.Errorf("reasons under a cap: %b, %v", set, err)
	}
	idle := parseWorld(t, goodScenario)
	_, free := openNode(t, idle, "n")
	run(idle, time.Second)
	if set, err := free[1].Device.ThrottleReasons(); err != nil || set != 1<<slices.Index(telemetry.ThrottleReasons, "idle") {
		t.Errorf("reasons of an idle GPU: %b, %v", set, err)
	}
	for _, watts := range []float64{199, 701, math.NaN()} {
		if err := writer.SetPowerLimit(uuid, watts); !errors.Is(err, ErrLimitRange) {
			t.Errorf("%v W: %v", watts, err)
		}
	}
	if err := writer.SetPowerLimit("GPU-nobody", 400); err == nil {
		t.Error("a GPU that is not there took a limit")
	}
	if _, err := writer.PowerLimits("GPU-nobody"); err == nil {
		t.Error("a GPU that is not there has limits")
	}
	if err := w.SetFault("a-1", 2, FaultDenied, true); err != nil {
		t.Fatal(err)
	}
	if err := writer.SetPowerLimit(uuid, 500); exporter.FaultOf(err) != exporter.NoPermission {
		t.Errorf("a denied write: %v", err)
	}
	if got, err := writer.PowerLimits(uuid); err != nil || got.Current != 400 {
		t.Errorf("limits after refusals: %+v, %v", got, err)
	}
}

func TestSourceFaults(t *testing.T) {
	w := parseWorld(t, goodScenario)
	s, found := openNode(t, w, "n")
	lost, other := found[0], found[1]
	set := func(slot int, f Fault, on bool) {
		t.Helper()
		if err := w.SetFault("n", slot, f, on); err != nil {
			t.Fatal(err)
		}
	}
	set(0, FaultLost, true)
	if _, err := lost.Device.Temperature(); exporter.FaultOf(err) != exporter.Lost {
		t.Errorf("a lost GPU: %v", err)
	}
	if _, err := other.Device.Temperature(); err != nil {
		t.Errorf("the other: %v", err)
	}
	again, err := s.Devices()
	if err != nil || len(again) != 2 || exporter.FaultOf(again[0].Err) != exporter.Lost || again[0].UUID != lost.UUID || again[1].Err != nil {
		t.Errorf("enumeration with a lost GPU: %+v, %v", again, err)
	}
	writer, err := w.Writer("n")
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.SetPowerLimit(lost.UUID, 65); exporter.FaultOf(err) != exporter.Lost {
		t.Errorf("a write to a lost GPU: %v", err)
	}
	set(0, FaultLost, false)
	set(0, FaultBlank, true)
	if _, err := lost.Device.Power(); exporter.FaultOf(err) != exporter.Unsupported {
		t.Errorf("a blank value: %v", err)
	}
	batch := []exporter.Field{{ID: exporter.FieldEnergyMillijoules}}
	if err := lost.Device.Fields(batch); err != nil || exporter.FaultOf(batch[0].Err) != exporter.Unsupported {
		t.Errorf("a blank field: %v, %v", batch[0].Err, err)
	}
	set(0, FaultBlank, false)
	if _, err := lost.Device.Margin(); exporter.FaultOf(err) != exporter.Unsupported {
		t.Errorf("a T4 has a thermal margin: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Device.Power(); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("a call after Close: %v", err)
	}
	if _, err := s.Devices(); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("enumeration after Close: %v", err)
	}
	if _, err := w.Source("nobody"); err == nil {
		t.Error("a node that is not there has devices")
	}
	if _, err := w.Writer("nobody"); err == nil {
		t.Error("a node that is not there has a writer")
	}
}

func TestHungCallEndsWithTheFaultOrTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := parseWorld(t, goodScenario)
		s, found := openNode(t, w, "n")
		hang := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := found[0].Device.Power()
				done <- err
			}()
			synctest.Wait()
			return done
		}
		pending := func(done <-chan error) bool { return len(done) == 0 }
		if err := w.SetFault("n", 0, FaultHung, true); err != nil {
			t.Fatal(err)
		}
		first := hang()
		run(w, time.Second) // the world goes on while a call hangs
		if !pending(first) {
			t.Fatal("a hung GPU answered")
		}
		if _, err := found[1].Device.Power(); err != nil {
			t.Errorf("the other GPU: %v", err)
		}
		if err := w.SetFault("n", 0, FaultHung, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if pending(first) {
			t.Fatal("the call hangs though the fault is over")
		}
		if err := <-first; err != nil {
			t.Errorf("after the hang: %v", err)
		}
		if err := w.SetFault("n", 0, FaultHung, true); err != nil {
			t.Fatal(err)
		}
		second := hang()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if pending(second) {
			t.Fatal("the call hangs though its source is closed")
		}
		if err := <-second; exporter.FaultOf(err) != exporter.NotInitialized {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestHungGPUDoesNotHideTheOthers: enumeration names the one that hangs after
// a bound, joins its lookup the next time, and finds it when it answers.
func TestHungGPUDoesNotHideTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := loadWorld(t, "hot-row")
		s, all := openNode(t, w, "a-1")
		hang := func(on bool) {
			for _, slot := range []int{2, 5} {
				if err := w.SetFault("a-1", slot, FaultHung, on); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := func(hung int) {
			t.Helper()
			found, err := s.Devices()
			if err != nil || len(found) != len(all) {
				t.Fatalf("%d devices, %v", len(found), err)
			}
			for i, f := range found {
				bad := exporter.FaultOf(f.Err) == exporter.Hung
				if f.UUID != all[i].UUID || f.PCI != all[i].PCI || (f.Device == nil) != bad || bad != (hung > 0 && (i == 2 || i == 5)) {
					t.Errorf("GPU %d: %+v", i, f)
				}
			}
		}
		hang(true)
		for range 3 {
			began := time.Now()
			want(2)
			if waited := time.Since(began); waited != lookupWait {
				t.Errorf("enumeration with two hung GPUs took %s, want %s", waited, lookupWait)
			}
		}
		if n := len(s.(*source).lookups); n != 2 {
			t.Errorf("%d lookups under way, want one for each hung GPU", n)
		}
		hang(false)
		synctest.Wait()
		want(0)
		hang(true)
		want(2)
		if err := s.Close(); err != nil { // ends the lookups
			t.Fatal(err)
		}
		synctest.Wait()
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		hang(false)
		want(0)
	})
}

// TestSourceHeadroomIsTheWorlds: the exporter's reader over the source comes to
// the headroom that the world has, memory included.
func TestSourceHeadroomIsTheWorlds(t *testing.T) {
	for _, m := range Models() {
		w := parseWorld(t, fmt.Sprintf(`
name: one
rows: [{name: a, inlet_celsius: 30}]
nodes: [{name: n, row: a, model: %s, gpus: 1}]
jobs: [{name: j, kind: proc, owner: o, shape: inference, gpus: [n/0]}]
`, m.Key))
		run(w, 3*time.Minute)
		_, found := openNode(t, w, "n")
		writer, err := w.Writer("n")
		if err != nil {
			t.Fatal(err)
		}
		limit, err := found[0].Device.(exporter.MemoryThresholder).MemoryThreshold()
		if m.MemoryMaxC == 0 {
			if exporter.FaultOf(err) != exporter.Unsupported {
				t.Errorf("%s: memory threshold %v, %v", m.Key, limit, err)
			}
		} else if err != nil || limit != m.MemoryMaxC {
			t.Errorf("%s: memory threshold %v, %v, want %v", m.Key, limit, err, m.MemoryMaxC)
		}
		headroom := func(want float64) {
			t.Helper()
			r := readOne(t, w, "n", 0)
			got, err := exporter.Headroom(found[0].Device)
			if again, err := writer.Headroom(found[0].UUID); err != nil || again != got {
				t.Errorf("%s: the writer reads %v, %v", m.Key, again, err)
			}
			if err != nil || math.Abs(got-want) > 1 || math.Abs(r.HeadroomC-want) > 1 {
				t.Errorf("%s: headroom %v, %v, the world's is %v, want %v", m.Key, got, err, r.HeadroomC, want)
			}
		}
		core := readOne(t, w, "n", 0).CoreC
		headroom(m.SlowdownC - float64(core))
		if m.MemoryMaxC > 0 { // the memory comes closer to its limit than the core
			g := &w.gpus[0]
			g.memoryC = m.MemoryMaxC - 3
			g.sense()
			headroom(3)
		}
		for _, f := range []Fault{FaultBlank, FaultLost} {
			if err := w.SetFault("n", 0, f, true); err != nil {
				t.Fatal(err)
			}
			if v, err := writer.Headroom(found[0].UUID); err == nil {
				t.Errorf("%s: %s, and a headroom of %v", m.Key, f, v)
			}
		}
		if v, err := writer.Headroom("GPU-none"); err == nil {
			t.Errorf("%s: headroom %v of a GPU that is not there", m.Key, v)
		}
	}
}

func TestBusySamples(t *testing.T) {
	w := loadWorld(t, "hot-row")
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w.Begin(begin)
	_, found := openNode(t, w, "a-1")
	run(w, 2*time.Second)
	samples, err := found[0].Device.BusySamples(0, nil)
	if err != nil || len(samples) != 20 {
		t.Fatalf("%d samples of 100 ms in 2 s, %v", len(samples), err)
	}
	for i, s := range samples {
		if s.Value < 0.9 || s.Value > 1 {
			t.Errorf("sample %d is %v", i, s.Value)
		}
		if i > 0 && s.Micros-samples[i-1].Micros != 100_000 {
			t.Errorf("sample %d is %d µs after the one before", i, s.Micros-samples[i-1].Micros)
		}
	}
	last := samples[len(samples)-1].Micros
	if at := time.UnixMicro(int64(last)); at.Before(begin) || at.After(begin.Add(2*time.Second)) {
		t.Errorf("the newest sample is of %v", at)
	}
	run(w, 500*time.Millisecond)
	newer, err := found[0].Device.BusySamples(last, samples[:0])
	if err != nil || len(newer) != 5 || newer[0].Micros <= last {
		t.Errorf("newer samples: %v, %v", newer, err)
	}
	run(w, time.Minute)
	if kept, err := found[0].Device.BusySamples(0, nil); err != nil || len(kept) != keepSamples {
		t.Errorf("%d samples are kept, %v", len(kept), err)
	}
	if n := testing.AllocsPerRun(100, func() { w.Step(tick) }); n != 0 {
		t.Errorf("a step with sample buffers allocates %.1f times", n)
	}
}

func TestInventory(t *testing.T) {
	w := loadWorld(t, "hot-row")
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w.Begin(begin)
	run(w, 25*time.Minute)
	inv := w.Inventory(begin.Add(25 * time.Minute))
	if inv.Source != "sim" || inv.Generation != 1 || len(inv.Nodes) != 4 || len(inv.Workloads) != 5 {
		t.Fatalf("inventory %s %d: %d nodes, %d workloads", inv.Source, inv.Generation, len(inv.Nodes), len(inv.Workloads))
	}
	n := inv.Nodes[0]
	if n.Name != "a-1" || n.Row != "a" || n.Rack != "a-r1" || n.Feed != "feed-1" || n.ExpectedGPUs != 8 || len(n.ExpectedUUIDs) != 8 || n.CoolingDomain != "a" || n.NVLinkDomain != "a-1" {
		t.Errorf("node %+v", n)
	}
	known := map[string]bool{}
	for _, n := range inv.Nodes {
		for _, u := range n.ExpectedUUIDs {
			known[u] = true
		}
	}
	refs := map[telemetry.WorkloadRef]bool{}
	for _, wl := range inv.Workloads {
		if err := wl.Ref.Check(); err != nil || refs[wl.Ref] {
			t.Errorf("reference %q: %v, twice %v", wl.Ref, err, refs[wl.Ref])
		}
		refs[wl.Ref] = true
		gpus := 0
		for _, m := range wl.Members {
			gpus += len(m.GPUs)
			for _, u := range m.GPUs {
				if !known[u] {
					t.Errorf("%s holds %s, which no node has", wl.Ref, u)
				}
				delete(known, u) // nor may two hold it
			}
			if m.ID == "" || m.Node == "" {
				t.Errorf("member %+v of %s", m, wl.Ref)
			}
		}
		if gpus != wl.Requests.GPUs || wl.State != "running" || wl.Owner == "" || !wl.Start.Equal(begin) {
			t.Errorf("workload %+v", wl)
		}
	}
	train := inv.Workloads[0]
	if train.Ref != "k8s:research/Job/llm-pretrain" || train.Gang == "" || train.GangSize != 8 || train.Priority != 200 {
		t.Errorf("training %+v", train)
	}
	if c := train.Checkpoint; c == nil || !c.Last.Equal(begin.Add(20*time.Minute)) {
		t.Errorf("last checkpoint of %+v", c)
	}
}

func TestInventoryIsSentOnChangeAndEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := parseWorld(t, `
name: churn
rows: [{name: a, inlet_celsius: 20}]
nodes: [{name: n, row: a, model: T4-16GB, gpus: 2}]
jobs:
  - {name: j, kind: proc, owner: o, shape: batch, gpus: [n/0], start: 10s, end: 20s}
  - {name: k, kind: slurm, owner: o, shape: batch, gpus: [n/1]}
`)
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx, tick)
		var mu sync.Mutex
		var got []string
		begin := time.Now()
		done := make(chan error, 1)
		go func() {
			done <- w.InventorySource().Watch(ctx, func(inv telemetry.Inventory) {
				mu.Lock()
				defer mu.Unlock()
				line := fmt.Sprintf("%.0fs generation %d", time.Since(begin).Seconds(), inv.Generation)
				for _, wl := range inv.Workloads {
					line += " " + string(wl.Ref) + " " + wl.State
				}
				got = append(got, line)
			})
		}()
		time.Sleep(130 * time.Second)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
		synctest.Wait()
		want := []string{
			"0s generation 1 proc:n/4001@1001 waiting slurm:1002 running",
			"10s generation 2 proc:n/4001@1001 running slurm:1002 running",
			"20s generation 3 slurm:1002 running",
			"80s generation 3 slurm:1002 running",
		}
		if !slices.Equal(got, want) {
			t.Errorf("sent:\n%q\nwant:\n%q", got, want)
		}
	})
}

// Many clients at once: the race detector watches.
func TestWorldIsSafeForConcurrentUse(t *testing.T) {
	w := loadWorld(t, "hot-row")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, node := range w.NodeNames() {
		_, found := openNode(t, w, node)
		writer, err := w.Writer(node)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					if _, err := f.Device.Power(); err != nil {
						t.Error(err)
						return
					}
					if _, err := f.Device.BusySamples(0, nil); err != nil {
						t.Error(err)
						return
					}
					if err := writer.SetPowerLimit(f.UUID, float64(300+i%400)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			w.Inventory(time.Unix(0, 0))
			w.Scores()
		}
	})
	for range 300 {
		w.Step(tick)
	}
	cancel()
	wg.Wait()
}
