package ui

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// sample is a small moving fleet with first-order heat, a row whose cooling is
// weak, devices that are lost, hung and unknown, and caps on what gets hot. It
// implements Fleet and Decisions with real Views and real records.
type sample struct {
	mu        sync.Mutex
	now       time.Time
	frozen    bool // no node is heard any more
	devices   []*device
	view      *cluster.View
	decisions []*telemetry.Decision
	listeners map[chan struct{}]context.Context
	keep      int
	made      int
}

type device struct {
	node              string
	row, rack         string
	index             int
	uuid              string
	state             cluster.GPUState
	silent            bool // its node is not heard
	core, inlet       float64
	load, limit       float64
	points            []Point
	decision          *telemetry.Decision
	job               int
	heat, power       float64
	slope, clockHertz float64
}

const (
	sampleDefault  = 700.0
	sampleSlowdown = 87.0
	sampleMark     = 5.0
	sampleAim      = 9.0
)

// newSample lays out n devices, eight a node, four nodes a rack, eight racks a
// row, and lets them run for the time that history is kept.
func newSample(n int, now time.Time, past time.Duration) *sample {
	s := &sample{now: now.Add(-past), listeners: map[chan struct{}]context.Context{}, keep: int(past/time.Second) + 1}
	if n == 0 {
		s.view = cluster.NewView(now, nil, nil)
		return s
	}
	for i := range n {
		node := i / 8
		rack := node / 4
		row := rack / 8
		if n <= 64 {
			rack, row = node/2, node/2
		}
		letter := string(rune('a' + row%26))
		if row >= 26 {
			letter = string(rune('a'+row/26-1)) + letter
		}
		d := &device{
			row: letter, rack: fmt.Sprintf("%s%02d", letter, rack%8+1), node: fmt.Sprintf("gpu-%s%02d-%02d", letter, rack%8+1, node%4+1), index: i % 8,
			uuid:  fmt.Sprintf("GPU-%08x-71c5-4f1b-9c0e-%012x", 0x5a17c0de+i*2654435, 0xe7e17ee1+i*7919),
			state: cluster.GPUOK, limit: sampleDefault, job: node / 2,
			inlet: 27 + 5*noise(i, 1), load: 0.55 + 0.45*noise(node/2, 2), heat: 0.056 + 0.010*noise(i, 3),
		}
		if node%9 == 7 {
			d.load, d.job = 0, -1
		}
		if n <= 64 {
			d.load, d.inlet = math.Max(d.load, 0.8), d.inlet+float64(row)*7
		} else if row == 1 {
			d.inlet += 6 + 7*noise(rack, 4)
		}
		d.core = d.inlet + d.heat*d.load*sampleDefault*0.9
		s.devices = append(s.devices, d)
	}
	if n >= 16 {
		s.devices[3].state, s.devices[9].state = cluster.GPULost, cluster.GPUHung
	}
	if n >= 24 {
		s.devices[20].state = cluster.GPUUnknown
	}
	if n > 200 {
		for _, d := range s.devices[40:48] {
			d.silent = true
		}
	}
	for s.now.Before(now) {
		s.step(time.Second)
	}
	s.publish()
	return s
}

// noise is a fixed number in [0, 1) per pair.
func noise(a, b int) float64 {
	x := math.Sin(float64(a)*12.9898+float64(b)*78.233) * 43758.5453
	return x - math.Floor(x)
}

func (s *sample) step(dt time.Duration) {
	s.now = s.now.Add(dt)
	t := float64(s.now.Unix())
	for i, d := range s.devices {
		if d.state != cluster.GPUOK || d.silent || s.frozen {
			continue
		}
		swing := 0.04*math.Sin(t/37+float64(d.job)) + 0.03*math.Sin(t/11+float64(i))
		load := math.Min(1, math.Max(0, d.load*(1+swing)))
		d.power = math.Min(d.limit, 95+load*(sampleDefault-95))
		before := d.core
		d.core += (d.inlet + d.heat*d.power*1.18 - d.core) * dt.Seconds() / 25
		d.slope = (before - d.core) / dt.Seconds()
		d.clockHertz = 1.98e9 * math.Pow(d.power/math.Max(d.power, 95+load*(sampleDefault-95)), 0.4)
		d.points = append(d.points, Point{
			At: s.now, Headroom: cluster.Some(sampleSlowdown - d.core), Core: cluster.Some(d.core), Memory: cluster.Some(d.core + 3), Power: cluster.Some(d.power),
			Limit: cluster.Some(d.limit), Utilization: cluster.Some(load), Clock: cluster.Some(d.clockHertz),
		})
		if len(d.points) > s.keep {
			d.points = d.points[len(d.points)-s.keep:]
		}
		s.govern(d)
	}
}

// govern caps a device that comes too close to slowdown and closes the
// decision when the headroom is back.
func (s *sample) govern(d *device) {
	headroom := sampleSlowdown - d.core
	switch open := d.decision; {
	case open == nil && headroom < sampleMark:
		s.capDevice(d)
	case open != nil && open.Outcome == telemetry.OutcomeActed && s.now.Sub(open.Time) > 45*time.Second:
		done := *open
		done.Observed = &telemetry.Effect{Signal: "gpu_thermal_headroom_celsius", Unit: "celsius", Before: open.Violations[0].Value, After: headroom, At: s.now}
		done.Outcome = telemetry.OutcomeVerified
		if headroom < sampleMark {
			done.Outcome = telemetry.OutcomeIneffective
		}
		s.replace(d, &done)
	case open != nil && open.Outcome == telemetry.OutcomeVerified && s.now.Sub(open.Time) > 200*time.Second && noise(s.made, d.index) > 0.4:
		done := *open
		done.Outcome, done.Ended, done.Ending = telemetry.OutcomeUndone, s.now, "limit put back to 700 W; headroom stayed above the aim for 120 s"
		d.limit = sampleDefault
		d.inlet -= 5
		s.replace(d, &done)
		d.decision = nil
	}
}

func (s *sample) replace(d *device, next *telemetry.Decision) {
	for i := range s.decisions {
		if s.decisions[i].ID == next.ID {
			s.decisions = append([]*telemetry.Decision(nil), s.decisions...)
			s.decisions[i] = next
		}
	}
	d.decision = next
}

func (s *sample) capDevice(d *device) {
	s.made++
	found := d.limit
	d.limit = math.Max(300, math.Round((sampleSlowdown-sampleAim-d.inlet)/(d.heat*1.18)/5)*5)
	decision := fullDecision(fmt.Sprintf("d-%06d", s.made), d, s.now, found)
	s.decisions = append([]*telemetry.Decision{decision}, s.decisions...)
	d.decision = decision
}

// publish makes the View of now and tells the listeners.
func (s *sample) publish() {
	nodes := map[string]*cluster.Node{}
	var list []*cluster.Node
	jobs := map[int]*cluster.Workload{}
	var workloads []*cluster.Workload
	for place, d := range s.devices {
		n := nodes[d.node]
		if n == nil {
			n = &cluster.Node{
				Name: d.node, Cluster: "lab", BootID: "b-" + d.node, Incarnation: 1, State: cluster.NodeUp, Seen: s.now.Add(-200 * time.Millisecond), Since: s.now.Add(-time.Hour),
				Period: time.Second, Skew: 12 * time.Millisecond, ClockSynchronized: true, Expected: min(8, len(s.devices)), Rack: d.rack, Row: d.row, Feed: "feed-" + d.row,
				PowerDomain: "pdu-" + d.rack, CoolingDomain: "crac-" + d.row, NVLinkDomain: d.node, NetworkDomain: "leaf-" + d.rack, Marks: map[string]string{"pool": "train"},
			}
			if d.silent {
				n.State, n.Seen = cluster.NodeGone, s.now.Add(-4*time.Minute)
			}
			hosted(n, len(list), s.now)
			nodes[d.node], list = n, append(list, n)
		}
		g := s.gpu(d, place)
		n.GPUs = append(n.GPUs, g)
		if d.job < 0 {
			continue
		}
		w := jobs[d.job]
		if w == nil {
			w = fullWorkload(d.job, s.now)
			jobs[d.job], workloads = w, append(workloads, w)
		}
		w.GPUs = append(w.GPUs, g)
	}
	s.view = cluster.NewView(s.now, list, workloads)
	for c, ctx := range s.listeners {
		if ctx.Err() != nil {
			delete(s.listeners, c)
			continue
		}
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (s *sample) gpu(d *device, place int) *cluster.GPU {
	g := cluster.GPU{
		UUID: d.uuid, Node: d.node, PCI: fmt.Sprintf("0000:%02x:00.0", 0x17+d.index*9), Index: d.index, Model: "NVIDIA H100 80GB HBM3", Arch: "hopper", Driver: "580.95.05",
		State: d.state, Generation: 1, Health: "ok", HealthScore: 1, RCPerW: cluster.Some(d.heat), TauS: cluster.Some(25),
		MinW: cluster.Some(200), DefaultW: cluster.Some(sampleDefault), MaxW: cluster.Some(sampleDefault),
	}
	if len(d.points) == 0 { // never answered, or not for as long as is kept
		if d.state == cluster.GPUHung {
			g.HungCall, g.HungFor = "nvmlDeviceGetPowerUsage", 95*time.Second
			g.Health, g.HealthScore, g.HealthReason = cluster.HealthHung, 0, "driver call does not return"
		}
		return cluster.NewGPU(g)
	}
	p := d.points[len(d.points)-1]
	g.HeadroomC, g.SlopeCPerS, g.LimitW = p.Headroom, cluster.Some(d.slope), p.Limit
	if d.slope < -0.01 {
		g.SecondsToSlowdown = cluster.Some(p.Headroom.V / -d.slope)
	}
	if d.job < 0 {
		g.IdleSince, g.IdleCause, g.IdleEvidence = s.now.Add(-40*time.Minute), "no_process", []string{"no process on the device"}
	}
	judged(&g, d, place, s.now)
	reading := func(id telemetry.ID, v float64) cluster.Reading {
		return cluster.Reading{ID: id, V: v, At: p.At.Add(-150 * time.Millisecond), Quality: telemetry.Quality_QUALITY_OK}
	}
	hot := 0.0
	if p.Headroom.V < 0 {
		hot = 1
	}
	capping := 0.0
	if d.limit < sampleDefault && d.power > d.limit-1 {
		capping = 1
	}
	return cluster.NewGPU(g,
		reading(telemetry.GPUTemperatureCelsiusCore, p.Core.V), reading(telemetry.GPUTemperatureCelsiusMemory, p.Memory.V),
		reading(telemetry.GPUPowerWatts, p.Power.V), reading(telemetry.GPUPowerLimitWatts, p.Limit.V), reading(telemetry.GPUUtilizationRatio, p.Utilization.V),
		reading(telemetry.GPUClockHertzSM, p.Clock.V), reading(telemetry.GPUMemoryUsedBytes, 61e9*math.Ceil(d.load)), reading(telemetry.GPUMemoryTotalBytes, 80e9),
		reading(telemetry.GPUThrottleActiveSWThermal, hot), reading(telemetry.GPUThrottleActiveSWPower, capping))
}

func (s *sample) View() *cluster.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

func (s *sample) History(uuid string) []Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		if d.uuid == uuid {
			return append([]Point(nil), d.points...)
		}
	}
	return nil
}

func (s *sample) Changes(ctx context.Context) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{}, 1)
	s.listeners[c] = ctx
	return c
}

func (s *sample) Decisions() []*telemetry.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decisions
}

func (s *sample) Decision(id string) (*telemetry.Decision, bool) {
	for _, d := range s.Decisions() {
		if d.ID == id {
			return d, true
		}
	}
	return nil, false
}

// advance moves the fleet to a time and publishes it.
func (s *sample) advance(to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.now.Add(time.Second).Before(to) {
		s.step(time.Second)
	}
	if !s.frozen {
		s.publish()
	}
}

// overheat takes a device's cooling away, so that it will be capped.
func (s *sample) overheat(i int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.devices[i]
	d.inlet, d.load, d.core, d.decision = d.inlet+9, 1, sampleSlowdown-sampleMark+2, nil
	return d.uuid
}

// run moves the fleet in real time until the test ends.
func (s *sample) run(t *testing.T) {
	s.advance(time.Now())
	tick := time.NewTicker(time.Second)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-tick.C:
				s.advance(time.Now())
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() { tick.Stop(); close(done) })
}
