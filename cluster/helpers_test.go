package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 250e6, time.UTC)

// node is a sender of frames: its clocks, its sequence and its devices.
type node struct {
	name    string
	boot    string
	start   time.Time
	seq     uint64
	period  time.Duration
	skew    time.Duration // wall clock minus true time
	born    time.Duration // what it was when the process began
	noMono  bool
	fault   string
	devices []*telemetry.GPU
}

func newNode(name string, gpus int) *node {
	n := &node{name: name, boot: "boot-1", start: t0.Add(-time.Hour), period: time.Second}
	for i := range gpus {
		n.devices = append(n.devices, newGPU(fmt.Sprintf("GPU-%s-%d", name, i), i))
	}
	return n
}

func newGPU(uuid string, index int) *telemetry.GPU {
	g := &telemetry.GPU{}
	g.SetUuid(uuid)
	g.SetDescription(telemetry.Description_builder{Index: uint32(index), Pci: fmt.Sprintf("0000:%02x:00.0", index), Model: "NVIDIA H100 80GB HBM3", Driver: "570.1", Arch: "hopper"}.Build())
	set(g, map[telemetry.ID]float64{
		telemetry.GPUUtilizationRatio: 0.9, telemetry.GPUTemperatureCelsiusCore: 60, telemetry.GPUPowerWatts: 500,
		telemetry.GPUThermalHeadroomCelsius: 27, telemetry.GPUClockHertzSM: 1.98e9, telemetry.GPUUp: 1,
		telemetry.GPUThrottleActiveSWPower: 0, telemetry.GPUEnergyJoules: 1e6,
		telemetry.GPUPowerLimitWatts: 700, telemetry.GPUPowerLimitDefaultWatts: 700, telemetry.GPUPowerLimitMinWatts: 200, telemetry.GPUPowerLimitMaxWatts: 700,
	})
	return g
}

func set(g *telemetry.GPU, values map[telemetry.ID]float64) {
	for id, v := range values {
		if !g.SetValue(id, v) {
			panic(fmt.Sprintf("id %d does not hold %g", id, v))
		}
	}
}

// frame is what the node says at a time; slow values are in every frame.
func (n *node) frame(at time.Time) *telemetry.Frame {
	n.seq++
	mono := int64(at.Sub(n.start))
	if n.noMono {
		mono = 0
	}
	return telemetry.Frame_builder{
		Schema: telemetry.Schema, Cluster: "test", Node: n.name, BootId: n.boot, Incarnation: uint64(n.start.Add(n.born).UnixNano()), Sequence: n.seq,
		SampleTimeUnixNano: at.Add(n.skew).UnixNano(), SendTimeUnixNano: at.Add(n.skew).UnixNano(), MonotonicNano: mono,
		PeriodNano: uint64(n.period), ClockSynchronized: true, Gpus: n.devices, DriverFault: n.fault, HasSlowPart: true,
	}.Build()
}

func (n *node) restart(at time.Time) {
	n.start, n.seq, n.born = at, 0, n.skew
}

// rig is a judge with what it said.
type rig struct {
	*testing.T
	j *Judge
	n *node
}

func newRig(t *testing.T, n *node) *rig { return &rig{t, NewJudge(n.name, false), n} }

// hear judges a frame that was sampled and arrived at the same time.
func (r *rig) hear(at time.Time) *telemetry.Observation { return r.hearLate(at, at) }

func (r *rig) hearLate(sampled, arrived time.Time) *telemetry.Observation {
	r.Helper()
	o, err := r.j.Frame(arrived, r.n.frame(sampled))
	if err != nil {
		r.Fatalf("frame refused: %v", err)
	}
	return o
}

// seconds hears one frame a second and returns the last observation.
func (r *rig) seconds(from time.Time, count int) (o *telemetry.Observation, next time.Time) {
	r.Helper()
	for i := range count {
		if x := r.hear(from.Add(time.Duration(i) * time.Second)); x != nil {
			o = x
		}
	}
	return o, from.Add(time.Duration(count) * time.Second)
}

func gpuOf(t *testing.T, o *telemetry.Observation, uuid string) *telemetry.GPUObservation {
	t.Helper()
	for _, g := range o.GetGpus() {
		if g.GetUuid() == uuid {
			return g
		}
	}
	t.Fatalf("observation has no GPU %s", uuid)
	return nil
}

func valueOf(g *telemetry.GPUObservation, id telemetry.ID) *telemetry.Value {
	for _, v := range g.GetValues() {
		if telemetry.ID(v.GetId()) == id {
			return v
		}
	}
	return nil
}

func wantDrop(t *testing.T, err error, why telemetry.DropReason) {
	t.Helper()
	var d *telemetry.DropError
	if !errors.As(err, &d) || d.Why != why {
		t.Errorf("error %v, want refusal %s", err, why)
	}
}
