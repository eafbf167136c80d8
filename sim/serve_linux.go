package sim

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"
)

const (
	fabricCompleted = 3
	brandNVIDIA     = 14
	brandTesla      = 2
)

// Serve runs a scenario in real time and shows one of its nodes to the NVML
// stand-in, until ctx ends. Power limits that clients write act on the world.
// When it returns, clients see a driver that is not loaded.
func Serve(ctx context.Context, c ServeConfig) error {
	if c.Scenario == nil {
		return errors.New("serve a world: no scenario")
	}
	w, err := New(c.Scenario, 0)
	if err != nil {
		return err
	}
	for w.Elapsed() < c.After {
		w.Step(defaultTick)
	}
	server, err := newServer(w, c, time.Now())
	if err != nil {
		return err
	}
	server.log.Info("world is served", "scenario", c.Scenario.Name, "node", server.node, "gpus", len(server.readings), "path", c.Path)
	if c.Events != nil {
		go server.hear(c.Scenario, c.Events) // ends with the reader, which may be after the world
	}
	follow(ctx, c.Tick, server.advance)
	return server.file.close()
}

// hear lets happen what it is told. A line that is no event is refused, and the
// world goes on.
func (s *server) hear(scenario *Scenario, events io.Reader) {
	lines := bufio.NewScanner(events)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		e, err := scenario.ParseEvent([]byte(text))
		if err != nil {
			s.log.Warn("event refused", "text", text, "error", err)
			continue
		}
		s.world.Happen(e)
		s.log.Info("event taken", "text", text)
	}
	if err := lines.Err(); err != nil {
		s.log.Error("no further events are taken", "error", err)
	}
}

// server is one world behind a shared file.
type server struct {
	world    *World
	node     string
	log      *slog.Logger
	file     *sharedFile
	readings []Reading
	requests []uint32 // seen so far
	limitMW  []uint32 // last limit of the world that clients were shown
	events   uint64   // next event of the world to raise
	sampled  time.Time
	claims   claimScan
}

func newServer(w *World, c ServeConfig, now time.Time) (*server, error) {
	s := &server{world: w, node: c.Node, log: c.Log}
	if s.node == "" {
		s.node = w.NodeNames()[0]
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if c.Path == "" {
		return nil, errors.New("serve a world: name the shared file")
	}
	var err error
	if s.readings, err = w.ReadNode(s.node, nil); err != nil {
		return nil, err
	}
	s.requests = make([]uint32, len(s.readings))
	s.limitMW = make([]uint32, len(s.readings))
	s.claims.begin(len(s.readings))
	s.file, err = createShared(c.Path, func(shared *shmWorld) {
		shared.Devices = uint32(len(s.readings))
		shared.CUDAVersion = 13000
		copy(shared.DriverVersion[:], simDriver)
		copy(shared.NVMLVersion[:], simNVML)
		for i := range s.readings {
			describe(&shared.Device[i], &s.readings[i])
			s.limitMW[i] = milli(s.readings[i].LimitW)
			shared.Device[i].PowerLimitMW = s.limitMW[i]
			show(&shared.Device[i], &s.readings[i])
		}
		shared.HeartbeatUS = uint64(now.UnixMicro())
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// advance lets the world step and shows what it came to.
func (s *server) advance(now time.Time, steps int, dt time.Duration) {
	s.takeRequests()
	s.takeClaims(now)
	for range steps {
		s.world.Step(dt)
	}
	s.publish(now)
}

// takeRequests applies the power limits that clients wrote since the last tick.
func (s *server) takeRequests() {
	for i := range s.requests {
		d := &s.file.world.Device[i]
		count := atomic.LoadUint32(&d.PowerRequests)
		if count == s.requests[i] {
			continue
		}
		writes := count - s.requests[i]
		s.requests[i] = count
		limit := atomic.LoadUint32(&d.PowerLimitMW)
		if err := s.world.SetPowerLimit(s.node, i, float64(limit)/1000); err != nil {
			s.log.Warn("power limit refused by the world", "gpu", i, "error", err)
			continue
		}
		s.limitMW[i] = limit
		s.log.Info("power limit", "node", s.node, "gpu", i, "watts", float64(limit)/1000, "writes", writes)
	}
}

// publish copies the readings of this moment into the file.
func (s *server) publish(now time.Time) {
	var err error
	if s.readings, err = s.world.ReadNode(s.node, s.readings[:0]); err != nil {
		s.log.Error("read the world", "error", err) // the node was there at the start
		return
	}
	sample := now.Sub(s.sampled) >= samplePeriod
	if sample {
		s.sampled = now
	}
	for i := range s.readings {
		r, d := &s.readings[i], &s.file.world.Device[i]
		show(d, r)
		// A limit that changed in the world itself, and only if no client wrote
		// meanwhile: its request is taken at the next tick.
		if limit := milli(r.LimitW); limit != s.limitMW[i] {
			atomic.CompareAndSwapUint32(&d.PowerLimitMW, s.limitMW[i], limit)
			s.limitMW[i] = limit
		}
		if sample {
			d.Samples[samplePower].put(now, uint64(milli(r.PowerW)))
			d.Samples[sampleGPU].put(now, uint64(percent(r.Utilization)))
			d.Samples[sampleMemory].put(now, uint64(percent(r.MemoryUtilization)))
		}
	}
	s.raiseEvents(now)
	s.file.beat(now)
}

func (s *server) raiseEvents(now time.Time) {
	s.events = s.world.eventsSince(s.node, s.events, func(slot int, e raisedEvent) {
		s.file.raise(shmEvent{
			Type: e.kind, Data: e.data, TimeUS: uint64(now.UnixMicro()), Device: uint32(slot),
			GPUInstance: gpuInstanceNone, ComputeInstance: gpuInstanceNone,
		})
		s.log.Info("event", "node", s.node, "gpu", slot, "type", e.kind, "data", e.data)
	})
}

// describe writes what does not change.
func describe(d *shmDevice, r *Reading) {
	m := r.Model
	copy(d.UUID[:], r.UUID)
	copy(d.Name[:], m.Name)
	copy(d.Serial[:], r.Serial)
	copy(d.PartNumber[:], m.BoardPartNumber)
	copy(d.VBIOS[:], m.VBIOS)
	d.MemoryTotalBytes, d.MemoryReservedBytes = m.MemoryBytes, m.ReservedBytes
	d.ReasonsSupported = reasonsSupported
	d.Minor, d.ModuleID = uint32(r.Slot), uint32(r.Slot+1)
	d.PCIBus, d.PCIDeviceID, d.PCISubsystemID = r.PCIBus, m.PCIDeviceID, m.PCIDeviceID
	d.Architecture, d.Brand = uint32(m.Architecture), brandNVIDIA
	if m.Architecture == Turing {
		d.Brand = brandTesla
	}
	d.CUDAMajor, d.CUDAMinor = m.CUDAMajor, m.CUDAMinor
	d.PCIeGenerationMax, d.PCIeWidthMax = m.PCIeGeneration, 16
	d.NVLinks, d.NVLinkVersion, d.NVLinkMBps = uint32(m.NVLinks), m.NVLinkVersion, m.NVLinkMBPerS
	if m.NVLinks > 0 && m.Architecture >= Hopper {
		d.FabricState = fabricCompleted
	}
	d.ClockSMMaxMHz, d.ClockMemoryMaxMHz, d.ClockVideoMaxMHz = uint32(m.SMClockMHz), uint32(m.MemoryClockMHz), uint32(m.VideoClockMHz)
	d.PowerMinMW, d.PowerMaxMW, d.PowerDefaultMW = milli(m.MinLimit), milli(m.MaxLimit), milli(m.DefaultLimit)
	if m.AveragePower {
		d.PowerAverageSupported = 1
	}
	d.ShutdownC, d.SlowdownC, d.GPUMaxC = int32(m.ShutdownC), int32(m.SlowdownC), int32(m.GPUMaxC)
	d.MemoryMaxC = shmAbsent
	d.ShutdownTLimitC, d.SlowdownTLimitC, d.GPUMaxTLimitC, d.MemoryMaxTLimitC = shmAbsent, shmAbsent, shmAbsent, shmAbsent
	if m.MemoryMaxC > 0 {
		d.MemoryMaxC = int32(m.MemoryMaxC)
	}
	if m.ThermalMargin {
		d.ShutdownTLimitC, d.SlowdownTLimitC, d.GPUMaxTLimitC = d.GPUMaxC-d.ShutdownC, d.GPUMaxC-d.SlowdownC, 0
		if m.MemoryMaxC > 0 {
			d.MemoryMaxTLimitC = 0
		}
	}
	d.PCIeGeneration, d.PCIeWidth = d.PCIeGenerationMax, d.PCIeWidthMax
}

// show writes what changes from step to step.
func show(d *shmDevice, r *Reading) {
	m := r.Model
	atomic.StoreUint64(&d.MemoryUsedBytes, r.MemoryUsedBytes)
	atomic.StoreUint64(&d.EnergyMJ, uint64(r.EnergyJ*1000))
	atomic.StoreUint64(&d.Reasons, r.Reasons)
	atomic.StoreUint64(&d.ThrottleNS[shmThrottlePower], uint64(r.PowerThrottledS*1e9))
	atomic.StoreUint64(&d.ThrottleNS[shmThrottleSoftThermal], uint64(r.SoftThermalThrottledS*1e9))
	atomic.StoreUint64(&d.ThrottleNS[shmThrottleHardThermal], uint64(r.HardThermalThrottledS*1e9))
	atomic.StoreUint64(&d.PCIeTxBytes, r.PCIeTxBytes)
	atomic.StoreUint64(&d.PCIeRxBytes, r.PCIeRxBytes)
	for link := range m.NVLinks {
		atomic.StoreUint64(&d.NVLinkTxBytes[link], r.NVLinkBytes/uint64(m.NVLinks))
		atomic.StoreUint64(&d.NVLinkRxBytes[link], r.NVLinkBytes/uint64(m.NVLinks))
	}
	atomic.StoreUint32(&d.UtilizationGPUPercent, percent(r.Utilization))
	atomic.StoreUint32(&d.UtilizationMemoryPercent, percent(r.MemoryUtilization))
	atomic.StoreUint32(&d.PowerMW, milli(r.PowerW))
	atomic.StoreUint32(&d.PowerAverageMW, milli(r.AverageW))
	atomic.StoreUint32(&d.ClockSMMHz, r.SMClockMHz)
	atomic.StoreUint32(&d.ClockMemoryMHz, r.MemoryClockMHz)
	atomic.StoreUint32(&d.ClockVideoMHz, r.VideoMHz)
	atomic.StoreUint32(&d.PState, r.PState)
	atomic.StoreInt32(&d.CoreC, int32(r.CoreC))
	memory := int32(shmAbsent)
	if r.HasMemorySensor() {
		memory = int32(r.MemoryC)
	}
	atomic.StoreInt32(&d.MemoryC, memory)
	atomic.StoreInt32(&d.MarginC, int32(r.MarginC))

	code := int32(0)
	if r.Lost {
		code = nvmlGPUIsLost
	}
	atomic.StoreInt32(&d.ForcedCode, code)
	atomic.StoreUint32(&d.Hang, flag(r.Hung))
	atomic.StoreUint32(&d.Blank, flag(r.Blank))
	atomic.StoreUint32(&d.NoPermission, flag(r.Denied))
}

func flag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

func milli(v float64) uint32   { return uint32(math.Round(v * 1000)) }
func percent(v float64) uint32 { return uint32(math.Round(v * 100)) }

// eventsSince calls f for the node's events from number seq on and returns the
// number that comes next.
func (w *World) eventsSince(nodeName string, seq uint64, f func(slot int, e raisedEvent)) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := &w.nodes[w.places[nodeName]]
	return w.raised.since(seq, func(e raisedEvent) {
		if e.gpu >= n.first && e.gpu < n.first+n.count {
			f(int(e.gpu-n.first), e)
		}
	})
}

// Guard: newServer lays a node's GPUs out in the file without asking for room.
var _ [shmDevices - maxGPUsPerNode]struct{}
