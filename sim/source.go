package sim

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// samplePeriod is how often the driver's own buffers get a sample.
const samplePeriod = 100 * time.Millisecond

// keepSamples is how many samples a driver buffer holds.
const keepSamples = 120

// lookupWait bounds what GPUs that hang may hold up an enumeration.
const lookupWait = 5 * time.Second

// Source returns the devices of a node as its driver would show them. A call
// fails, hangs or says nothing as the GPU's faults have it. Several sources may
// read one world.
func (w *World) Source(nodeName string) (exporter.Source, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.find(nodeName, 0); err != nil {
		return nil, err
	}
	return &source{world: w, node: w.places[nodeName]}, nil
}

// source is one client of a node's simulated driver.
type source struct {
	world *World
	node  int32
	open  bool // under world.mu
	calls atomic.Uint64
	buf   *sampler

	one sync.Mutex // one enumeration at a time
	// lookups are those under way, by slot, under world.mu: a GPU that hangs has
	// one, however often it is asked for.
	lookups map[int32]chan error

	// Of the events, under world.mu: the GPUs that are listened to, each from an
	// event on, and the next event to look at.
	heard map[int32]uint64
	next  uint64
}

const callHandle = "nvmlDeviceGetHandleByIndex_v2"

// Open begins to keep samples, as a driver does for its clients.
func (s *source) Open() error {
	w := s.world
	w.mu.Lock()
	defer w.mu.Unlock()
	s.calls.Add(1)
	s.buf = w.samplerOf(s.node)
	s.open = true
	return nil
}

// Close also ends every call that hangs.
func (s *source) Close() error {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.open = false
	s.lookups, s.heard = nil, nil
	s.world.faulted.Broadcast()
	return nil
}

func (s *source) Driver() (exporter.Driver, error) {
	s.calls.Add(3)
	return exporter.Driver{Version: simDriver, NVML: simNVML, CUDA: simCUDA}, nil
}

func (s *source) Calls() uint64 { return s.calls.Load() }

// Devices looks every GPU of the node up, all at once. As with a real driver
// that touches the GPU: a lost one fails. One that hangs is reported so after a
// while and does not keep the others from being found.
func (s *source) Devices() ([]exporter.Found, error) {
	s.one.Lock()
	defer s.one.Unlock()
	n := &s.world.nodes[s.node]
	devices := make([]*device, n.count)
	answers := make([]chan error, n.count)
	for slot := range n.count {
		devices[slot] = s.device(slot)
		answers[slot] = s.lookup(slot, devices[slot])
	}
	late := make(chan struct{})
	defer time.AfterFunc(lookupWait, func() { close(late) }).Stop()
	found := make([]exporter.Found, n.count)
	for slot, d := range devices {
		f := exporter.Found{Index: slot, PCI: d.identity.PCI, UUID: d.identity.UUID}
		if f.Err = s.await(int32(slot), answers[slot], late); f.Err == nil {
			f.Device = d
		} else if exporter.FaultOf(f.Err) == exporter.NotInitialized {
			return nil, f.Err
		}
		found[slot] = f
	}
	return found, nil
}

func (s *source) device(slot int32) *device {
	n := &s.world.nodes[s.node]
	id := &s.world.ids[n.first+slot]
	return &device{
		source: s, gpu: n.first + slot,
		identity: exporter.Identity{
			UUID: id.uuid, PCI: fmt.Sprintf("00000000:%02X:00.0", id.pciBus), Index: int(slot),
			Model: n.model.Name, Serial: id.serial, Arch: n.model.Architecture.String(), Links: n.model.NVLinks,
		},
	}
}

// lookup begins to look a GPU up, or joins the lookup that still hangs.
func (s *source) lookup(slot int32, d *device) chan error {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if under := s.lookups[slot]; under != nil {
		return under
	}
	answer := make(chan error, 1)
	if s.lookups == nil {
		s.lookups = map[int32]chan error{}
	}
	s.lookups[slot] = answer
	go func() { answer <- d.call(callHandle, func(*Reading) error { return nil }) }()
	return answer
}

// await takes a lookup's answer, or says that the GPU hangs once the wait for
// all of them is over.
func (s *source) await(slot int32, answer chan error, late <-chan struct{}) error {
	var err error
	select {
	case err = <-answer:
	default:
		select {
		case err = <-answer:
		case <-late:
			return fault(callHandle, exporter.Hung, 0)
		}
	}
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if s.lookups[slot] == answer {
		delete(s.lookups, slot)
	}
	return err
}

// device is one GPU of a source.
type device struct {
	source   *source
	gpu      int32
	identity exporter.Identity
}

func fault(call string, f exporter.Fault, code int) error {
	return &exporter.DriverError{Call: call, Fault: f, Code: code}
}

func unsupported(call string) error { return fault(call, exporter.Unsupported, nvmlNotSupported) }

// Codes of NVML that the simulated driver answers with.
const (
	nvmlUninitialized   = 1
	nvmlInvalidArgument = 2
	nvmlNotSupported    = 3
	nvmlNoPermission    = 4
	nvmlGPUIsLost       = 15
)

// call makes one driver call: it waits out a hang, fails where the GPU is lost
// and hands a reading of this moment to read. The world does not move meanwhile.
func (d *device) call(name string, read func(*Reading) error) error {
	d.source.calls.Add(1)
	w := d.source.world
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &w.gpus[d.gpu]
	for d.source.open && g.hung {
		w.faulted.Wait()
	}
	if !d.source.open {
		return fault(name, exporter.NotInitialized, nvmlUninitialized)
	}
	if g.lost {
		return fault(name, exporter.Lost, nvmlGPUIsLost)
	}
	var r Reading
	w.read(d.gpu, &r)
	return read(&r)
}

// value is call for readings, which a blank GPU does not have.
func (d *device) value(name string, read func(*Reading) error) error {
	return d.call(name, func(r *Reading) error {
		if r.Blank {
			return unsupported(name)
		}
		return read(r)
	})
}

var (
	_ exporter.MemoryThresholder = (*device)(nil)
	_ exporter.PCIeLinker        = (*device)(nil)
	_ exporter.FabricTeller      = (*device)(nil)
	_ exporter.LinkTeller        = (*device)(nil)
)

func (d *device) Identity() exporter.Identity { return d.identity }

func (d *device) Utilization() (gpu, memory float64, err error) {
	err = d.value("nvmlDeviceGetUtilizationRates", func(r *Reading) error {
		gpu, memory = wholePercent(r.Utilization), wholePercent(r.MemoryUtilization)
		return nil
	})
	return gpu, memory, err
}

func (d *device) BusySamples(since uint64, to []exporter.Sample) ([]exporter.Sample, error) {
	err := d.value("nvmlDeviceGetSamples", func(r *Reading) error {
		to = d.source.buf.since(r.Slot, since, to)
		return nil
	})
	return to, err
}

func (d *device) Memory() (used, total uint64, err error) {
	err = d.value("nvmlDeviceGetMemoryInfo_v2", func(r *Reading) error {
		used, total = r.MemoryUsedBytes, r.Model.MemoryBytes
		return nil
	})
	return used, total, err
}

func (d *device) MemoryReserved() (bytes uint64, err error) {
	err = d.value("nvmlDeviceGetMemoryInfo_v2", func(r *Reading) error {
		bytes = r.Model.ReservedBytes
		return nil
	})
	return bytes, err
}

func (d *device) Temperature() (celsius float64, err error) {
	err = d.value("nvmlDeviceGetTemperature", func(r *Reading) error {
		celsius = float64(r.CoreC)
		return nil
	})
	return celsius, err
}

func (d *device) Margin() (celsius float64, err error) {
	const name = "nvmlDeviceGetMarginTemperature"
	err = d.value(name, func(r *Reading) error {
		if !r.Model.ThermalMargin {
			return unsupported(name)
		}
		celsius = float64(r.MarginC)
		return nil
	})
	return celsius, err
}

func (d *device) SlowdownThreshold() (celsius float64, err error) {
	err = d.value("nvmlDeviceGetTemperatureThreshold", func(r *Reading) error {
		celsius = r.Model.SlowdownC
		return nil
	})
	return celsius, err
}

// MemoryThreshold is the memory temperature above which the driver lowers the
// clock; products without a memory sensor have none.
func (d *device) MemoryThreshold() (celsius float64, err error) {
	const name = "nvmlDeviceGetTemperatureThreshold"
	err = d.value(name, func(r *Reading) error {
		if !r.HasMemorySensor() {
			return unsupported(name)
		}
		celsius = r.Model.MemoryMaxC
		return nil
	})
	return celsius, err
}

func (d *device) Power() (watts float64, err error) {
	err = d.value("nvmlDeviceGetPowerUsage", func(r *Reading) error {
		watts = r.PowerW
		if r.Model.AveragePower {
			watts = r.AverageW
		}
		return nil
	})
	return watts, err
}

func (d *device) PowerLimits() (current, def, low, high float64, err error) {
	d.source.calls.Add(2) // one for each of limit, default and range
	err = d.value("nvmlDeviceGetPowerManagementLimit", func(r *Reading) error {
		current, def, low, high = r.LimitW, r.Model.DefaultLimit, r.Model.MinLimit, r.Model.MaxLimit
		return nil
	})
	return current, def, low, high, err
}

func (d *device) Clock(domain exporter.Domain) (hertz float64, err error) {
	const name = "nvmlDeviceGetClockInfo"
	err = d.value(name, func(r *Reading) error {
		switch domain {
		case exporter.ClockSM, exporter.ClockGraphics:
			hertz = float64(r.SMClockMHz) * 1e6
		case exporter.ClockMemory:
			hertz = float64(r.MemoryClockMHz) * 1e6
		case exporter.ClockVideo:
			hertz = float64(r.VideoMHz) * 1e6
		default:
			return fault(name, exporter.OtherFault, nvmlInvalidArgument)
		}
		return nil
	})
	return hertz, err
}

// reasonOrder holds NVML's bits in the order of telemetry.ThrottleReasons.
var reasonOrder = [...]uint64{reasonPower, reasonSoftThermal, reasonHardThermal, reasonHardware, reasonPowerBrake, reasonSyncBoost, reasonIdle}

func (d *device) ThrottleReasons() (set exporter.Reasons, err error) {
	err = d.value("nvmlDeviceGetCurrentClocksEventReasons", func(r *Reading) error {
		for i, bit := range reasonOrder {
			if r.Reasons&bit != 0 {
				set |= 1 << i
			}
		}
		return nil
	})
	return set, err
}

// PCIeLink is always at its best.
func (d *device) PCIeLink() (l exporter.PCIeLink, err error) {
	d.source.calls.Add(3) // one for each value
	err = d.value("nvmlDeviceGetCurrPcieLinkGeneration", func(r *Reading) error {
		g := float64(r.Model.PCIeGeneration)
		l = exporter.PCIeLink{Generation: g, Width: pcieLanes, MaxGeneration: g, MaxWidth: pcieLanes}
		return nil
	})
	return l, err
}

// fabricRegistered is the last state of the registration.
const fabricRegistered = 3

// pcieLanes is what every product here has.
const pcieLanes = 16

// FabricState is that of a device that has registered, where there is a fabric.
func (d *device) FabricState() (state int, err error) {
	const name = "nvmlDeviceGetGpuFabricInfoV"
	err = d.value(name, func(r *Reading) error {
		if r.Model.NVLinks == 0 || r.Model.Architecture < Hopper {
			return unsupported(name)
		}
		state = fabricRegistered
		return nil
	})
	return state, err
}

// LinkUp is true of every link that the product has.
func (d *device) LinkUp(link int) (up bool, err error) {
	const name = "nvmlDeviceGetNvLinkState"
	err = d.call(name, func(r *Reading) error {
		if up = link >= 0 && link < r.Model.NVLinks; !up {
			return unsupported(name)
		}
		return nil
	})
	return up, err
}

// LinkErrors are none.
func (d *device) LinkErrors(link int, _ exporter.LinkError) (n float64, err error) {
	const name = "nvmlDeviceGetNvLinkErrorCounter"
	err = d.value(name, func(r *Reading) error {
		if link < 0 || link >= r.Model.NVLinks || r.Model.Architecture >= Blackwell {
			return unsupported(name)
		}
		return nil
	})
	return n, err
}

// wholePercent is a ratio as a driver says it, in whole percent.
func wholePercent(ratio float64) float64 { return float64(round(ratio*100)) / 100 }
