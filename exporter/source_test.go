package exporter

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// world is an in-memory Source: a driver with GPUs whose readings follow the
// clock, and faults by call.
type world struct {
	calls atomic.Uint64
	opens atomic.Int32
	ends  atomic.Int32

	mu      sync.Mutex
	openErr error
	hang    chan struct{} // Open and Devices wait until it is closed
	gpus    []*device
	missing []string

	notices  chan Notice
	listened [][]string // what each Listen named
	waits    int
	deaf     error         // of Listen
	waitErr  error         // of Wait
	hasty    bool          // Wait returns at once
	waitHang chan struct{} // Wait returns when it is closed
	shut     chan struct{} // closed by Close
}

// Listen and Wait make the world a Notifier. They are not counted as calls.
func (w *world) Listen(anew ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listened = append(w.listened, anew)
	return w.deaf
}

func (w *world) Wait(wait time.Duration) (n Notice, ok bool, err error) {
	w.mu.Lock()
	w.waits++
	hang, hasty, failed, shut := w.waitHang, w.hasty, w.waitErr, w.shut
	w.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if failed != nil {
		return n, false, failed
	}
	if hasty {
		wait = 0
	}
	select {
	case n = <-w.notices:
		return n, true, nil
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case n = <-w.notices:
		return n, true, nil
	case <-timer.C:
		return n, false, nil
	case <-shut:
		return n, false, gone(NotInitialized)
	}
}

// ears changes how the world tells of events.
func (w *world) ears(f func(w *world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w)
}

// device is one GPU of the world.
type device struct {
	w       *world
	id      Identity
	calls   atomic.Uint64
	inside  atomic.Int32 // calls outstanding
	most    atomic.Int32 // the most there ever were
	born    time.Time
	samples int // driver samples a second, 0: none
	slow    time.Duration

	mu         sync.Mutex
	findErr    error
	err        map[string]error
	hang       map[string]chan struct{}
	count      map[string]int // calls by name
	util       float64
	core, hbm  float64
	margin     float64
	offset     float64 // of slowdown; NaN: absolute model
	threshold  float64 // NaN: not stated
	memLimit   float64 // NaN: not stated
	watts      float64
	limit      float64
	used       uint64
	reasons    Reasons
	throttleNs map[FieldID]float64
	energyBase float64 // millijoules
	fields     map[FieldID]error
	plain      map[FieldID]float64 // fields that are what they are
	words      bool                // counters have 32 bits
	pcie       PCIeLink
	fabric     int
	links      wires
	processes  []Process
}

func newWorld(n int) *world {
	w := &world{notices: make(chan Notice, 10_000)}
	for i := range n {
		w.gpus = append(w.gpus, &device{
			w: w, born: time.Now(), samples: 10,
			id: Identity{
				UUID: fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i), PCI: fmt.Sprintf("00000000:%02X:00.0", 0x18+i),
				Index: i, Model: "NVIDIA H100 80GB HBM3", Serial: fmt.Sprint(1000 + i), Arch: "hopper", Links: 18,
			},
			err: map[string]error{}, hang: map[string]chan struct{}{}, count: map[string]int{}, fields: map[FieldID]error{},
			util: 0.5, core: 60, hbm: 70, margin: 27, offset: -2, threshold: 89, memLimit: 95,
			watts: 400, limit: 700, used: 10 << 30,
			throttleNs: map[FieldID]float64{
				FieldThrottlePowerNs: 1e9, FieldThrottleSWThermalNs: 2e9, FieldThrottleHWThermalNs: 3e9,
				FieldThrottlePowerBrakeNs: 4e9, FieldThrottleSyncBoostNs: 5e9,
			},
			energyBase: 1e9,
			plain: map[FieldID]float64{
				FieldECCCorrectedVolatile: 1, FieldECCUncorrectedVolatile: 0, FieldECCCorrectedAggregate: 3, FieldECCUncorrectedAggregate: 0,
				FieldRemapCorrectable: 5, FieldRemapUncorrectable: 0, FieldRemapPending: 0, FieldRemapFailed: 0,
				FieldPCIeTxBytes: 7e9, FieldPCIeRxBytes: 8e9, FieldPCIeReplays: 9, FieldRecoveryAction: 0,
			},
			pcie: PCIeLink{5, 16, 5, 16}, fabric: 3, links: newWires(i),
		})
	}
	return w
}

func (w *world) Open() error {
	w.calls.Add(1)
	w.mu.Lock()
	err, hang := w.openErr, w.hang
	w.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if err == nil {
		w.opens.Add(1)
		w.mu.Lock()
		w.shut = make(chan struct{})
		w.mu.Unlock()
	}
	return err
}

func (w *world) Close() error {
	w.ends.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shut != nil {
		close(w.shut)
		w.shut = nil
	}
	return nil
}

func (w *world) Driver() (Driver, error) {
	w.calls.Add(1)
	return Driver{Version: "580.95.05", NVML: "13.580.95.05", CUDA: "13.0", Missing: w.missing}, nil
}

func (w *world) Calls() uint64 { return w.calls.Load() }

func (w *world) Devices() ([]Found, error) {
	w.calls.Add(1)
	w.mu.Lock()
	hang, gpus := w.hang, w.gpus
	w.mu.Unlock()
	if hang != nil {
		<-hang
	}
	var found []Found
	for i, d := range gpus {
		d.mu.Lock()
		f := Found{Index: i, PCI: d.id.PCI, UUID: d.id.UUID, Err: d.findErr}
		d.mu.Unlock()
		if f.Err == nil {
			f.Device = d
		}
		found = append(found, f)
	}
	return found, nil
}

func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.openErr = err
}

// set changes a GPU under its lock.
func (d *device) set(f func(d *device)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

// enter is what every call passes: it counts, hangs and fails.
func (d *device) enter(call string) error {
	d.w.calls.Add(1)
	d.calls.Add(1)
	if n := d.inside.Add(1); n > d.most.Load() {
		d.most.Store(n)
	}
	defer d.inside.Add(-1)
	d.mu.Lock()
	d.count[call]++
	err, hang := d.err[call], d.hang[call]
	if err == nil {
		err = d.err["*"]
	}
	slow := d.slow
	d.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	if hang != nil {
		<-hang
	}
	return err
}

func read[T any](d *device, call string, f func() T) (v T, err error) {
	if err := d.enter(call); err != nil {
		return v, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return f(), nil
}

func (d *device) Identity() Identity { return d.id }

func (d *device) Utilization() (gpu, mem float64, err error) {
	gpu, err = read(d, "Utilization", func() float64 { return d.util })
	return gpu, gpu / 2, err
}

func (d *device) BusySamples(since uint64, to []Sample) ([]Sample, error) {
	if err := d.enter("BusySamples"); err != nil {
		return to, err
	}
	d.calls.Add(1) // as the real one, which asks for the room first
	d.w.calls.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.samples == 0 {
		return to, gone(Unsupported)
	}
	step := time.Second / time.Duration(d.samples)
	now := time.Now()
	for t := now.Add(-120 * step).Truncate(step); !t.After(now); t = t.Add(step) {
		if us := uint64(t.UnixMicro()); us > since {
			to = append(to, Sample{us, d.util})
		}
	}
	return to, nil
}

func (d *device) Memory() (used, total uint64, err error) {
	used, err = read(d, "Memory", func() uint64 { return d.used })
	return used, 80 << 30, err
}

func (d *device) MemoryReserved() (uint64, error) {
	return read(d, "MemoryReserved", func() uint64 { return 600 << 20 })
}

func (d *device) Temperature() (float64, error) {
	return read(d, "Temperature", func() float64 { return d.core })
}

func (d *device) Margin() (float64, error) {
	return read(d, "Margin", func() float64 { return d.margin })
}

func (d *device) stated(call string, get func() float64) (float64, error) {
	v, err := read(d, call, get)
	if err == nil && math.IsNaN(v) {
		err = gone(Unsupported)
	}
	return v, err
}

func (d *device) SlowdownThreshold() (float64, error) {
	return d.stated("SlowdownThreshold", func() float64 { return d.threshold })
}

func (d *device) MemoryThreshold() (float64, error) {
	return d.stated("MemoryThreshold", func() float64 { return d.memLimit })
}

func (d *device) Power() (float64, error) {
	return read(d, "Power", func() float64 { return d.watts })
}

func (d *device) PowerLimits() (current, def, low, high float64, err error) {
	d.calls.Add(2)
	d.w.calls.Add(2)
	current, err = read(d, "PowerLimits", func() float64 { return d.limit })
	return current, 700, 200, 700, err
}

func (d *device) Clock(c Domain) (float64, error) {
	return read(d, "Clock", func() float64 { return [...]float64{1980e6, 2619e6, 1980e6, 1545e6}[c] })
}

func (d *device) ThrottleReasons() (Reasons, error) {
	return read(d, "ThrottleReasons", func() Reasons { return d.reasons })
}

func (d *device) Processes(to []Process) ([]Process, error) {
	d.calls.Add(2) // as the real one, which has three lists
	d.w.calls.Add(2)
	list, err := read(d, "Processes", func() []Process { return d.processes })
	return append(to, list...), err
}

func (d *device) Fields(fields []Field) error {
	if err := d.enter("Fields"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range fields {
		f := &fields[i]
		f.Err = d.fields[f.ID]
		if v, ok := d.plain[f.ID]; ok {
			f.Value, f.Word = v, d.words
			continue
		}
		if d.links.field(f) {
			continue
		}
		switch f.ID {
		case FieldMemoryTemperature:
			f.Value = d.hbm
		case FieldEnergyMillijoules:
			f.Value = d.energyBase + d.watts*1000*time.Since(d.born).Seconds()
		case FieldTLimitSlowdown:
			if f.Value = d.offset; math.IsNaN(d.offset) && f.Err == nil {
				f.Err = gone(Unsupported)
			}
		case fieldPowerLimit:
			f.Value = d.limit * 1000
		default:
			v, ok := d.throttleNs[f.ID]
			if f.Value = v; !ok && f.Err == nil {
				f.Err = gone(Unsupported)
			}
		}
	}
	return nil
}

func (d *device) PCIeLink() (PCIeLink, error) {
	d.calls.Add(3) // as the real one, which has four values
	d.w.calls.Add(3)
	return read(d, "PCIeLink", func() PCIeLink { return d.pcie })
}

func (d *device) FabricState() (int, error) {
	return read(d, "FabricState", func() int { return d.fabric })
}

func gone(f Fault) error { return &DriverError{Call: "test", Fault: f} }
