package sim

import "math"

// What the simulated driver says of itself.
const (
	simDriver = "580.95.05"
	simNVML   = "13.580.95.05"
	simCUDA   = "13.0"
)

// Reading is what the driver of one GPU says at a moment, as a copy.
type Reading struct {
	UUID, Serial string
	Node         string
	Slot         int
	PCIBus       uint32
	Model        *Model // never changed
	Job          string // "" when no job holds the GPU

	Lost, Hung, Blank, Denied bool

	CoreC, MemoryC int // as the sensors show them; MemoryC only with a sensor
	MarginC        int // only with Model.ThermalMargin
	HeadroomC      float64
	AirC           float64

	PowerW, AverageW, LimitW             float64
	EnergyJ                              float64
	SMClockMHz, MemoryClockMHz, VideoMHz uint32
	PState                               uint32
	Reasons                              uint64 // clock event reasons, NVML's bits
	PowerThrottledS                      float64
	SoftThermalThrottledS                float64
	HardThermalThrottledS                float64

	Activity          float64 // of the work units
	Utilization       float64 // share of the time with a kernel running
	MemoryUtilization float64
	BusyS             float64
	MemoryUsedBytes   uint64
	PCIeTxBytes       uint64
	PCIeRxBytes       uint64
	NVLinkBytes       uint64 // each direction, all links together
	Speed             float64
}

// HasMemorySensor says whether MemoryC means anything.
func (r *Reading) HasMemorySensor() bool { return r.Model.MemoryMaxC > 0 }

// Read returns the reading of one GPU.
func (w *World) Read(nodeName string, slot int) (Reading, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, slot)
	if err != nil {
		return Reading{}, err
	}
	var r Reading
	w.read(i, &r)
	return r, nil
}

// ReadNode appends the readings of a node's GPUs to dst, taken at one moment.
func (w *World) ReadNode(nodeName string, dst []Reading) ([]Reading, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.find(nodeName, 0); err != nil {
		return dst, err
	}
	n := &w.nodes[w.places[nodeName]]
	for slot := range n.count {
		dst = append(dst, Reading{})
		w.read(n.first+slot, &dst[len(dst)-1])
	}
	return dst, nil
}

func (w *World) read(i int32, r *Reading) {
	g, id := &w.gpus[i], &w.ids[i]
	m := g.model
	*r = Reading{
		UUID: id.uuid, Serial: id.serial, PCIBus: id.pciBus,
		Node: w.nodes[g.node].Name, Slot: int(g.slot), Model: m,
		Lost: g.lost, Hung: g.hung, Blank: g.blank, Denied: g.denied,
		CoreC: round(g.readCoreC), MemoryC: round(g.readMemoryC),
		HeadroomC: g.headroomC(), AirC: g.airC,
		PowerW: g.powerW, AverageW: g.averageW, LimitW: g.limitW, EnergyJ: g.energyJ,
		SMClockMHz:     15 * uint32(math.Round(g.clock*m.SMClockMHz/15)),
		MemoryClockMHz: uint32(m.MemoryClockMHz), VideoMHz: uint32(m.VideoClockMHz),
		Reasons:               g.reasons,
		PowerThrottledS:       g.throttledS[throttlePower],
		SoftThermalThrottledS: g.throttledS[throttleSoftThermal],
		HardThermalThrottledS: g.throttledS[throttleHardThermal],
		Activity:              g.activity * g.rate / max(g.speed, 1e-9),
		Utilization:           g.busyRatio, MemoryUtilization: g.memoryBusy * g.rate,
		BusyS: g.busyS, MemoryUsedBytes: g.memoryBytes,
		PCIeTxBytes: uint64(g.pcieTx), PCIeRxBytes: uint64(g.pcieRx), NVLinkBytes: uint64(g.nvlink),
		Speed: g.rate,
	}
	r.MarginC = round(m.GPUMaxC) - r.CoreC
	if g.activity <= 0 {
		r.PState = m.IdlePState
		r.VideoMHz = uint32(m.IdleClockMHz)
	}
	if g.job >= 0 && w.jobs[g.job].running {
		r.Job = w.jobs[g.job].spec.Name
	}
}

func round(v float64) int { return int(math.Round(v)) }
