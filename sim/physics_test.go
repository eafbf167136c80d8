package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const tick = 50 * time.Millisecond

// oneGPU is a world of a single GPU under a steady batch load.
func oneGPU(t testing.TB, model string, activity float64) *World {
	t.Helper()
	return parseWorld(t, fmt.Sprintf(`
name: one
seed: 3
physics: {resistance_spread: 0}
rows: [{name: a, inlet_celsius: 20}]
nodes: [{name: n, row: a, model: %s, gpus: 1}]
jobs: [{name: j, kind: slurm, owner: o, shape: batch, gpus: [n/0], memory_gib: 4, activity: %g}]
`, model, activity))
}

func parseWorld(t testing.TB, text string) *World {
	t.Helper()
	s, err := ParseScenario([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func run(w *World, d time.Duration) {
	for end := w.Elapsed() + d; w.Elapsed() < end; {
		w.Step(tick)
	}
}

func readOne(t testing.TB, w *World, node string, slot int) Reading {
	t.Helper()
	r, err := w.Read(node, slot)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// meanOver averages power and temperature over a stretch of time, so that the
// wander of the load does not count.
func meanOver(w *World, d time.Duration) (powerW, coreC float64) {
	n := 0.0
	for end := w.Elapsed() + d; w.Elapsed() < end; n++ {
		w.Step(tick)
		powerW += w.gpus[0].powerW
		coreC += w.gpus[0].coreC
	}
	return powerW / n, coreC / n
}

func TestCapLowersPowerClockSpeedAndTemperature(t *testing.T) {
	for _, m := range Models() {
		t.Run(m.Key, func(t *testing.T) {
			w := oneGPU(t, m.Key, 0.95)
			beforeW, beforeC := meanOver(w, time.Minute)
			before := readOne(t, w, "n", 0)
			limit := max(m.MinLimit, 0.65*m.LoadWatts)
			if err := w.SetPowerLimit("n", 0, limit); err != nil {
				t.Fatal(err)
			}
			run(w, 8*m.TimeConstant)
			afterW, afterC := meanOver(w, time.Minute)
			after := readOne(t, w, "n", 0)
			if math.Abs(afterW-limit) > 0.01*limit {
				t.Errorf("power is %.1f W under a limit of %.1f W", afterW, limit)
			}
			wantFall := m.ResistanceCPerW * (beforeW - afterW)
			if got := beforeC - afterC; math.Abs(got-wantFall) > 0.03*wantFall+0.05 {
				t.Errorf("temperature fell by %.2f °C, want R x ΔP = %.2f °C", got, wantFall)
			}
			if after.SMClockMHz >= before.SMClockMHz || after.Speed >= before.Speed {
				t.Errorf("clock %d → %d MHz, speed %.3f → %.3f: both should fall", before.SMClockMHz, after.SMClockMHz, before.Speed, after.Speed)
			}
			if after.Reasons&reasonPower == 0 || before.Reasons&reasonPower != 0 {
				t.Errorf("reasons %#x → %#x: the power cap should show after, not before", before.Reasons, after.Reasons)
			}
		})
	}
}

func TestPowerFollowsTheCubeOfTheClock(t *testing.T) {
	for _, m := range Models() {
		for _, activity := range []float64{0.3, 0.7, 1} {
			for limit := m.MinLimit; limit <= m.MaxLimit; limit += (m.MaxLimit - m.MinLimit) / 7 {
				clock := m.clockAt(activity, limit)
				power := m.demandW(activity, clock)
				floor := m.IdleClockMHz / m.SMClockMHz
				if power > limit+1e-6 && clock > floor {
					t.Fatalf("%s: %.1f W at a clock of %.3f exceeds the limit of %.1f W", m.Key, power, clock, limit)
				}
				if clock < 1 && clock > floor && math.Abs(power-limit) > 1e-6 {
					t.Fatalf("%s: the clock %.3f leaves %.1f W of %.1f W unused", m.Key, clock, power, limit)
				}
			}
		}
	}
}

func TestModelsAreConsistent(t *testing.T) {
	for _, m := range Models() {
		if !(m.IdleWatts < m.LoadWatts && m.MinLimit < m.DefaultLimit && m.DefaultLimit <= m.MaxLimit && m.LoadWatts <= m.MaxLimit) {
			t.Errorf("%s: power limits out of order", m.Key)
		}
		if !(m.GPUMaxC < m.SlowdownC && m.SlowdownC < m.ShutdownC) {
			t.Errorf("%s: thermal thresholds out of order", m.Key)
		}
		if m.ThermalMargin != (m.Architecture >= Ada) {
			t.Errorf("%s: the thermal margin came with Ada", m.Key)
		}
		// At full load and 30 °C no product may sit at its limit.
		if hot := 30 + m.ResistanceCPerW*m.LoadWatts; hot > m.GPUMaxC {
			t.Errorf("%s reaches %.0f °C in air of 30 °C", m.Key, hot)
		}
		if got, ok := ModelByKey(m.Key); !ok || got.Name != m.Name {
			t.Errorf("%s is not found by its key", m.Key)
		}
	}
}

// The heat that goes in is either stored or carried away: for a first-order
// body of capacity tau/R the books must balance.
func TestEnergyBalance(t *testing.T) {
	w := oneGPU(t, "H100-SXM5-80GB", 0.9)
	g := &w.gpus[0]
	capacity := g.tau.Seconds() / g.resistance
	startJ, startC := g.energyJ, g.coreC
	carried := 0.0
	for i := 0; w.Elapsed() < 3*time.Minute; i++ {
		if i == 600 {
			if err := w.SetInlet("a", 35); err != nil {
				t.Fatal(err)
			}
			if err := w.SetPowerLimit("n", 0, 400); err != nil {
				t.Fatal(err)
			}
		}
		before := g.coreC
		w.Step(tick)
		carried += ((before+g.coreC)/2 - g.airC) / g.resistance * tick.Seconds()
	}
	in, stored := g.energyJ-startJ, capacity*(g.coreC-startC)
	if math.Abs(in-stored-carried) > 0.001*in {
		t.Errorf("%.1f J in, %.1f J stored, %.1f J carried away: %.1f J are missing", in, stored, carried, in-stored-carried)
	}
}

func TestTimeConstant(t *testing.T) {
	w := oneGPU(t, "H100-SXM5-80GB", 0.9)
	start, _ := w.Read("n", 0)
	if err := w.SetInlet("a", 30); err != nil {
		t.Fatal(err)
	}
	from := w.gpus[0].coreC
	run(w, start.Model.TimeConstant)
	if way := (w.gpus[0].coreC - from) / 10; math.Abs(way-(1-1/math.E)) > 0.05 {
		t.Errorf("after one time constant %.0f %% of the way is done, want 63 %%", 100*way)
	}
}

func TestSlowdownEngagesAndReleases(t *testing.T) {
	for _, m := range Models() {
		t.Run(m.Key, func(t *testing.T) {
			w := oneGPU(t, m.Key, 0.95)
			run(w, time.Second)
			if r := readOne(t, w, "n", 0); r.Reasons&(reasonSoftThermal|reasonHardThermal) != 0 {
				t.Fatalf("throttled at rest: %#x at %d °C", r.Reasons, r.CoreC)
			}
			w.gpus[0].cooling = 6 // no fan could answer this
			seen := uint64(0)
			for end := w.Elapsed() + 6*m.TimeConstant; w.Elapsed() < end; {
				w.Step(tick)
				r := readOne(t, w, "n", 0)
				seen |= r.Reasons
				if r.Reasons&reasonHardThermal != 0 && float64(r.SMClockMHz) > slowdownClock*m.SMClockMHz+15 {
					t.Fatalf("clock is %d MHz in hardware slowdown", r.SMClockMHz)
				}
				if hot := w.gpus[0].coreC >= m.SlowdownC+0.5; hot && r.Reasons&reasonHardThermal == 0 {
					t.Fatalf("no hardware slowdown at %.1f °C", w.gpus[0].coreC)
				}
			}
			if want := uint64(reasonSoftThermal | reasonHardThermal | reasonHardware); seen&want != want {
				t.Errorf("reasons seen %#x, want %#x among them", seen, want)
			}
			hot := readOne(t, w, "n", 0)
			if hot.SoftThermalThrottledS == 0 || hot.HardThermalThrottledS == 0 {
				t.Errorf("no time throttled is counted: %+v", hot)
			}
			w.gpus[0].cooling = 1
			run(w, 20*m.TimeConstant)
			if r := readOne(t, w, "n", 0); r.Reasons != 0 || float64(r.SMClockMHz) < m.SMClockMHz-15 {
				t.Errorf("reasons %#x and %d MHz long after the cooling came back", r.Reasons, r.SMClockMHz)
			}
		})
	}
}

// Air that others warmed counts: a GPU behind another, a row with more load.
func TestNeighboursWarmTheAir(t *testing.T) {
	text := `
name: row
physics: {resistance_spread: 0}
rows: [{name: a, inlet_celsius: 20, recirculation_celsius_per_kilowatt: 0.5}]
nodes:
  - {name: n, row: a, model: H100-SXM5-80GB, gpus: 8}
  - {name: m, row: a, model: H100-SXM5-80GB, gpus: 8}
jobs: [{name: j, kind: slurm, owner: o, shape: batch, gpus: [n/0-7]%s}]
`
	alone := parseWorld(t, fmt.Sprintf(text, ""))
	front, back := readOne(t, alone, "n", 0), readOne(t, alone, "n", 4)
	if got, want := back.AirC-front.AirC, defaultPreheat*front.PowerW; math.Abs(got-want) > 1e-9 {
		t.Errorf("the GPU behind breathes air %.2f °C warmer, want %.2f °C", got, want)
	}
	both := parseWorld(t, fmt.Sprintf(text, "}, {name: k, kind: slurm, owner: o, shape: batch, gpus: [m/0-7]"))
	if got := readOne(t, both, "n", 0).AirC - front.AirC; got < 1 {
		t.Errorf("a second loaded node warms the row by %.2f °C only", got)
	}
}

func TestGangGoesAtTheRateOfItsSlowest(t *testing.T) {
	text := `
name: gang
rows: [{name: a, inlet_celsius: 20}]
nodes: [{name: n, row: a, model: H100-SXM5-80GB, gpus: 4}]
jobs: [{name: j, kind: slurm, owner: o, shape: tensor-parallel, gang: %v, gpus: [n/0-3]}]
`
	for _, gang := range []bool{true, false} {
		w := parseWorld(t, fmt.Sprintf(text, gang))
		if err := w.SetPowerLimit("n", 2, 300); err != nil {
			t.Fatal(err)
		}
		run(w, time.Minute)
		free, capped := readOne(t, w, "n", 0), readOne(t, w, "n", 2)
		if gang && (free.Speed != capped.Speed || free.PowerW > 600) {
			t.Errorf("a member waits for its gang at speed %.2f and %.0f W, the slowest has %.2f", free.Speed, free.PowerW, capped.Speed)
		}
		if !gang && free.Speed <= capped.Speed {
			t.Errorf("without a gang speed is %.2f, capped %.2f", free.Speed, capped.Speed)
		}
		before := w.Scores()[0].UsefulGPUSeconds
		if err := w.SetFault("n", 1, FaultLost, true); err != nil {
			t.Fatal(err)
		}
		run(w, 10*time.Second)
		if did := w.Scores()[0].UsefulGPUSeconds - before; gang != (did == 0) {
			t.Errorf("gang %v: %.1f GPU-seconds of work after a member was lost", gang, did)
		}
	}
}

func TestPowerLimitOutOfRangeIsRefused(t *testing.T) {
	w := oneGPU(t, "A100-SXM4-80GB", 0.5)
	for _, watts := range []float64{99.9, 400.1, math.NaN(), math.Inf(1), -1} {
		if err := w.SetPowerLimit("n", 0, watts); !errors.Is(err, ErrLimitRange) {
			t.Errorf("%v W: %v", watts, err)
		}
	}
	if err := w.SetPowerLimit("n", 1, 200); err == nil {
		t.Error("a GPU that is not there took a limit")
	}
	if r := readOne(t, w, "n", 0); r.LimitW != 400 {
		t.Errorf("limit is %.0f W after refusals", r.LimitW)
	}
}

// snapshot is everything that two equal worlds must agree on.
func snapshot(w *World) string {
	text := ""
	for i := range w.gpus {
		g := w.gpus[i]
		g.model = nil
		text += fmt.Sprintf("%+v\n", g)
	}
	return text + fmt.Sprint(w.Scores(), w.elapsed)
}

func TestSameSeedSameWorld(t *testing.T) {
	build := func(seed uint64) *World {
		s, err := LoadScenario("hot-row")
		if err != nil {
			t.Fatal(err)
		}
		w, err := New(s, seed)
		if err != nil {
			t.Fatal(err)
		}
		run(w, 20*time.Second)
		if err := w.SetPowerLimit("a-1", 3, 450); err != nil {
			t.Fatal(err)
		}
		run(w, 20*time.Second)
		return w
	}
	first, second := build(42), build(42)
	if snapshot(first) != snapshot(second) {
		t.Error("the same seed made two worlds")
	}
	if snapshot(first) == snapshot(build(43)) {
		t.Error("another seed made the same world")
	}
	uuids := map[string]bool{}
	for i, id := range first.ids {
		if id.uuid != second.ids[i].uuid || uuids[id.uuid] {
			t.Fatalf("UUID %s is not stable or not unique", id.uuid)
		}
		uuids[id.uuid] = true
	}
}

// Whatever happens, counters do not fall, power stays within what the product
// can draw and temperatures within what air and power allow.
func TestPropertyWorldStaysWithinPhysics(t *testing.T) {
	faults := []Fault{FaultLost, FaultHung, FaultStuck}
	rapid.Check(t, func(t *rapid.T) {
		s, err := LoadScenario("hot-row")
		if err != nil {
			t.Fatal(err)
		}
		w, err := New(s, rapid.Uint64Min(1).Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		last := make([]Reading, len(w.gpus))
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := rapid.SampledFrom(w.NodeNames()).Draw(t, "node")
			slot := rapid.IntRange(0, 7).Draw(t, "slot")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				_ = w.SetPowerLimit(n, slot, rapid.Float64Range(100, 800).Draw(t, "watts"))
			case 1:
				_ = w.SetInlet("a", rapid.Float64Range(0, 60).Draw(t, "inlet"))
			case 2:
				_ = w.SetFault(n, slot, rapid.SampledFrom(faults).Draw(t, "fault"), rapid.Bool().Draw(t, "on"))
			case 3:
				_ = w.Claim(n, slot, Claim{
					PID: rapid.IntRange(1, 3).Draw(t, "pid"), Share: rapid.Float64Range(0, 1.1).Draw(t, "share"),
					MemoryBytes: rapid.Uint64Range(0, 60<<30).Draw(t, "memory"),
				})
			case 4:
				_ = w.Release(n, slot, rapid.IntRange(1, 3).Draw(t, "pid"), 0)
			}
			for range rapid.IntRange(1, 100).Draw(t, "ticks") {
				w.Step(rapid.SampledFrom([]time.Duration{20 * time.Millisecond, tick, time.Second}).Draw(t, "dt"))
			}
			for i := range w.gpus {
				var r Reading
				w.read(int32(i), &r)
				checkReading(t, &w.gpus[i], &last[i], &r)
				last[i] = r
			}
		}
	})
}

func checkReading(t *rapid.T, g *gpu, before, now *Reading) {
	counters := func(r *Reading) []float64 {
		return []float64{
			r.EnergyJ, r.PowerThrottledS, r.SoftThermalThrottledS, r.HardThermalThrottledS, r.BusyS,
			float64(r.PCIeTxBytes), float64(r.PCIeRxBytes), float64(r.NVLinkBytes),
		}
	}
	is, was := counters(now), counters(before)
	for i := range is {
		if is[i] < was[i] {
			t.Fatalf("counter %d of %s fell from %v to %v", i, now.UUID, was[i], is[i])
		}
	}
	m := now.Model
	if now.PowerW < m.IdleWatts-1e-9 || now.PowerW > max(now.LimitW, m.IdleWatts)+1e-6 && g.clock > m.IdleClockMHz/m.SMClockMHz {
		t.Fatalf("%s draws %.1f W under a limit of %.1f W", now.UUID, now.PowerW, now.LimitW)
	}
	if g.coreC < -1 || g.coreC > 70+m.LoadWatts*g.resistance || math.IsNaN(g.coreC) {
		t.Fatalf("%s is at %.1f °C", now.UUID, g.coreC)
	}
	if now.MemoryUsedBytes > m.MemoryBytes-m.ReservedBytes {
		t.Fatalf("%s uses %d bytes of memory", now.UUID, now.MemoryUsedBytes)
	}
	for _, ratio := range []float64{now.Activity, now.Utilization, now.MemoryUtilization, now.Speed} {
		if ratio < 0 || ratio > 1+1e-9 {
			t.Fatalf("ratio %v of %s is out of range", ratio, now.UUID)
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	s, err := LoadScenario("hot-row")
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Step(tick)
	if n := testing.AllocsPerRun(100, func() { w.Step(tick) }); n != 0 {
		t.Errorf("a step allocates %.1f times", n)
	}
	readings := make([]Reading, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		if readings, err = w.ReadNode("a-1", readings[:0]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("reading a node allocates %.1f times", n)
	}
	if !slices.IsSortedFunc(readings, func(a, b Reading) int { return a.Slot - b.Slot }) || len(readings) != 8 {
		t.Errorf("a node of 8 gave %d readings", len(readings))
	}
}

func BenchmarkStep(b *testing.B) {
	s, err := LoadScenario("hot-row")
	if err != nil {
		b.Fatal(err)
	}
	w, err := New(s, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.Step(tick)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(w.gpus)), "ns/gpu")
}
