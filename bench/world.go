package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// maxTemplates is how many nodes of the simulated world lend their frames.
const maxTemplates = 32

// The parts that a frame may have, each with all of those before it.
const (
	partFast = iota
	partLink
	partSlow
	parts
)

// world is the small simulated world, and the frames of its exporters.
type world struct {
	sim    *sim.World
	nodes  []*template
	period time.Duration
	rng    *rand.Rand
}

// template is one node of the world. Its frames carry marker in the place of
// the number of the node that borrows them.
type template struct {
	name     string
	frames   [parts]*telemetry.Frame
	readings []sim.Reading
	wear     []wear
	bodies   [parts]*body // of the last tick
}

// wear is what the simulated devices do not have: errors that come now and then.
type wear struct{ corrected, replays uint64 }

// newWorld makes as many nodes as lend their frames, in equilibrium.
func newWorld(ctx context.Context, o *Options) (*world, error) {
	count := min(maxTemplates, o.Nodes)
	s := scenario(count, o.GPUs, o.Model, o.Steady)
	w := &world{period: o.Period, rng: rand.New(rand.NewPCG(o.Seed, 1))}
	var err error
	if w.sim, err = sim.New(s, o.Seed); err != nil {
		return nil, err
	}
	w.sim.Step(time.Second)
	for _, name := range w.sim.NodeNames() {
		t, err := w.template(ctx, o, name)
		if err != nil {
			return nil, fmt.Errorf("a frame of the simulated node %s: %w", name, err)
		}
		w.nodes = append(w.nodes, t)
	}
	return w, nil
}

// scenario is a row of nodes at work: most train on all their GPUs, some share
// theirs, one in eight has nothing to do.
func scenario(nodes, gpus int, model string, steady bool) *sim.Scenario {
	s := &sim.Scenario{Name: "bench", Cluster: "bench", Rows: []sim.Row{
		{Name: "cool", InletCelsius: 22, RecirculationCPerKW: 0.01},
		{Name: "warm", InletCelsius: 27, RecirculationCPerKW: 0.01},
	}}
	shapes := []string{"tensor-parallel", "data-parallel", "inference", "batch"}
	for i := range nodes {
		name := fmt.Sprintf("t%02d", i)
		s.Nodes = append(s.Nodes, sim.Node{Name: name, Rack: "r", Row: s.Rows[i%2].Name, Feed: "f", Model: model, GPUs: gpus})
		if i%8 == 7 {
			continue
		}
		full := sim.Duration(time.Duration(20+i) * time.Second)
		j := sim.Job{
			Name: "job-" + name, Kind: "proc", Owner: "u" + name, Shape: shapes[i%len(shapes)], MemoryGiB: 12,
			GPUs:   []string{fmt.Sprintf("%s/0-%d", name, gpus-1)},
			Phases: []sim.Phase{{For: full, Activity: 0.9}, {For: 4 * sim.Duration(time.Second), Activity: 0.2}},
		}
		if steady {
			j.Phases = nil
		}
		s.Jobs = append(s.Jobs, j)
	}
	return s
}

// template takes a whole frame of a node from the real exporter and makes from
// it those that carry only some parts.
func (w *world) template(ctx context.Context, o *Options, name string) (*template, error) {
	source, err := w.sim.Source(name)
	if err != nil {
		return nil, err
	}
	x, err := exporter.New(exporter.Options{Node: o.Prefix + marker, Cluster: o.Cluster, Source: source, Period: o.Period})
	if err != nil {
		return nil, err
	}
	whole, err := x.Once(ctx)
	if err != nil {
		return nil, err
	}
	if len(whole.GetGpus()) != o.GPUs {
		return nil, fmt.Errorf("it has %d GPUs, want %d: %s", len(whole.GetGpus()), o.GPUs, whole.GetDriverFault())
	}
	t := &template{name: name, wear: make([]wear, o.GPUs)}
	if t.readings, err = w.sim.ReadNode(name, nil); err != nil {
		return nil, err
	}
	t.dress(whole, o)
	data, err := telemetry.AppendFrame(nil, whole)
	if err != nil {
		return nil, err
	}
	for part := range t.frames {
		f := new(telemetry.Frame)
		if err := telemetry.DecodeFrame(data, f); err != nil {
			return nil, err
		}
		strip(f, part)
		t.frames[part] = f
	}
	return t, nil
}

// dress gives a whole frame what is the node's own: names with the marker in
// them, and the processes that hold the devices.
func (t *template) dress(f *telemetry.Frame, o *Options) {
	boot := bootID(marker)
	f.SetBootId(boot)
	uuids := map[string]string{}
	for i, g := range f.GetGpus() {
		uuid := deviceUUID(marker, i, o.Seed)
		uuids[g.GetUuid()] = uuid
		g.SetUuid(uuid)
		g.SetFastAgeMs(1)
		g.SetLinkAgeMs(1)
		g.SetSlowAgeMs(1)
		if t.readings[i].Job == "" {
			continue
		}
		m := new(telemetry.Member)
		m.SetId(fmt.Sprintf("%d@%d+%s", 4210+i, 90310+i, boot))
		m.SetKind("proc")
		m.SetUuid(uuid)
		m.SetMemoryBytes(t.readings[i].MemoryUsedBytes)
		m.SetWorkload("proc:" + o.Prefix + marker + "/4200@90210")
		m.SetOwner("u-" + t.name)
		m.SetName("python3")
		g.SetMembers([]*telemetry.Member{m})
	}
	for _, s := range f.GetSamples() {
		if s.GetUuid() != "" {
			s.SetUuid(uuids[s.GetUuid()])
		}
	}
}

// strip takes away what a frame with these parts does not carry.
func strip(f *telemetry.Frame, part int) {
	f.SetHasLinkPart(part >= partLink)
	f.SetHasSlowPart(part == partSlow)
	if part < partSlow {
		f.SetSamples(nil)
	}
	for _, g := range f.GetGpus() {
		if part < partLink {
			g.SetMembers(nil)
			g.SetLinkAgeMs(2500) // half its period, as it is in the mean
		}
		if part < partSlow {
			g.ClearDescription()
			g.SetSlowAgeMs(7500)
			g.SetQualityIds(nil)
			g.SetQualities(nil)
		}
		for i := range telemetry.Catalog {
			row := &telemetry.Catalog[i]
			for _, s := range row.Series {
				if rate := telemetry.RateOf(s.ID); row.Wire.Kind == telemetry.NoWire || rate == telemetry.Fast || rate == telemetry.Link && part >= partLink || part == partSlow {
					continue
				}
				if row.Per == telemetry.PerGPU {
					g.ClearValue(s.ID)
				}
			}
		}
		if part < partLink {
			clearLinks(g)
		}
	}
}

func clearLinks(g *telemetry.GPU) {
	g.SetLinkMask(0)
	g.SetLinkDownMask(0)
	g.SetNvlinkUp(nil)
	for _, set := range []func([]uint64){g.SetNvlinkBytesTx, g.SetNvlinkBytesRx, g.SetNvlinkErrorsCrcFlit, g.SetNvlinkErrorsCrcData, g.SetNvlinkErrorsReplay, g.SetNvlinkErrorsRecovery} {
		set(nil)
	}
}

// step lets a period pass and encodes the frames of every template.
func (w *world) step() (*tick, error) {
	w.sim.Step(w.period)
	k := &tick{bodies: make([][parts]*body, len(w.nodes))}
	for i, t := range w.nodes {
		if err := t.move(w); err != nil {
			return nil, err
		}
		k.bodies[i] = t.bodies
	}
	return k, nil
}

// tick is what the templates say at one moment; it does not change any more.
type tick struct{ bodies [][parts]*body }

// move brings the values of a template's frames up to the world.
func (t *template) move(w *world) error {
	var err error
	if t.readings, err = w.sim.ReadNode(t.name, t.readings[:0]); err != nil {
		return err
	}
	for i := range t.wear {
		if w.rng.Float64() < 1e-4 {
			t.wear[i].corrected++
		}
		if w.rng.Float64() < 1e-4 {
			t.wear[i].replays++
		}
	}
	for part, f := range t.frames {
		for i, g := range f.GetGpus() {
			setValues(g, &t.readings[i], &t.wear[i], part)
		}
		b, err := newBody(f)
		if err != nil {
			return fmt.Errorf("frame of %s: %w", t.name, err)
		}
		if b != nil { // else a value looks like the marker, and the last tick's stands in
			t.bodies[part] = b
		}
	}
	return nil
}

// setValues writes what moves, where the frame has it.
func setValues(g *telemetry.GPU, r *sim.Reading, w *wear, part int) {
	for _, v := range [...]struct {
		id telemetry.ID
		v  float64
	}{
		{telemetry.GPUUtilizationRatio, r.Utilization},
		{telemetry.GPUMemoryUtilizationRatio, r.MemoryUtilization},
		{telemetry.GPUBusySeconds, r.BusyS},
		{telemetry.GPUMemoryUsedBytes, float64(r.MemoryUsedBytes)},
		{telemetry.GPUTemperatureCelsiusCore, float64(r.CoreC)},
		{telemetry.GPUTemperatureCelsiusMemory, float64(r.MemoryC)},
		{telemetry.GPUThermalHeadroomCelsius, r.HeadroomC},
		{telemetry.GPUPowerWatts, r.AverageW},
		{telemetry.GPUClockHertzSM, float64(r.SMClockMHz) * 1e6},
		{telemetry.GPUClockHertzMemory, float64(r.MemoryClockMHz) * 1e6},
		{telemetry.GPUClockHertzGraphics, float64(r.SMClockMHz) * 1e6},
		{telemetry.GPUClockHertzVideo, float64(r.VideoMHz) * 1e6},
		{telemetry.GPUEnergyJoules, r.EnergyJ},
		{telemetry.GPUNVLinkTotalBytesTx, float64(r.NVLinkBytes)},
		{telemetry.GPUNVLinkTotalBytesRx, float64(r.NVLinkBytes)},
		{telemetry.GPUThrottleSecondsSWPower, r.PowerThrottledS},
		{telemetry.GPUThrottleSecondsSWThermal, r.SoftThermalThrottledS},
		{telemetry.GPUThrottleSecondsHWThermal, r.HardThermalThrottledS},
		{telemetry.GPUPCIeBytesTx, float64(r.PCIeTxBytes)},
		{telemetry.GPUPCIeBytesRx, float64(r.PCIeRxBytes)},
		{telemetry.GPUPCIeReplays, float64(w.replays)},
		{telemetry.GPUECCErrorsCorrectedVolatile, float64(w.corrected)},
		{telemetry.GPUECCErrorsCorrectedAggregate, float64(w.corrected)},
	} {
		if _, has := g.Value(v.id); has {
			g.SetValue(v.id, v.v)
		}
	}
	if links := r.Model.NVLinks; part >= partLink && links > 0 {
		for link := range links {
			g.SetLinkValue(telemetry.LinkNVLinkBytesTx, link, float64(r.NVLinkBytes/uint64(links)))
			g.SetLinkValue(telemetry.LinkNVLinkBytesRx, link, float64(r.NVLinkBytes/uint64(links)))
		}
	}
}

// models are what a fleet can be made of.
func models() string {
	var names []string
	for _, m := range sim.Models() {
		names = append(names, m.Key)
	}
	return strings.Join(names, ", ")
}
