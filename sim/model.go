package sim

import "time"

// Architecture is a GPU generation, numbered as NVML does.
type Architecture uint32

// The generations that the world knows.
const (
	Turing    Architecture = 6
	Ampere    Architecture = 7
	Ada       Architecture = 8
	Hopper    Architecture = 9
	Blackwell Architecture = 10
)

// String returns the generation's name in lower case.
func (a Architecture) String() string {
	switch a {
	case Turing:
		return "turing"
	case Ampere:
		return "ampere"
	case Ada:
		return "ada"
	case Hopper:
		return "hopper"
	case Blackwell:
		return "blackwell"
	}
	return "unknown"
}

// Model is a GPU product: what it draws, how it warms up, where it slows down
// and what its driver can tell. Limits and clocks are those of the data sheets
// and of drivers in the field; resistance and time constant are those of a
// server with its fans at work.
type Model struct {
	Key          string // name in scenarios
	Name         string // product name as the driver says it
	Architecture Architecture

	IdleWatts    float64 // no work, clocks down
	LoadWatts    float64 // full activity at the highest clock
	MinLimit     float64 // watts
	DefaultLimit float64
	MaxLimit     float64

	ResistanceCPerW float64       // core above its air, per watt
	TimeConstant    time.Duration // of the core

	// ThermalMargin says that the driver tells a margin to the highest operating
	// temperature (T.Limit, Ada and later) and slowdown and shutdown as offsets
	// from it. Without it only the absolute thresholds are known.
	ThermalMargin bool
	GPUMaxC       float64 // software lowers the clock from here on
	SlowdownC     float64 // hardware halves the clock from here on
	ShutdownC     float64
	MemoryMaxC    float64 // software lowers the clock; 0: no memory sensor

	SMClockMHz      float64 // highest
	IdleClockMHz    float64
	MemoryClockMHz  float64
	VideoClockMHz   float64
	IdlePState      uint32
	MemoryBytes     uint64
	ReservedBytes   uint64
	NVLinks         int
	NVLinkVersion   uint32 // nvmlNvlinkVersion_t
	NVLinkMBPerS    uint32 // one link, one direction
	PCIeGeneration  uint32
	CUDAMajor       uint32
	CUDAMinor       uint32
	PCIDeviceID     uint32
	BoardPartNumber string
	VBIOS           string

	// AveragePower: the driver serves a one-second average (not on GA100, nor
	// before Ampere). RowRemap: spare memory rows exist (Ampere and later).
	AveragePower bool
	RowRemap     bool
}

const mib = 1 << 20

// Models lists the products that scenarios may name.
func Models() []Model {
	return []Model{a100, h100, h200, b200, l40s, t4}
}

// ModelByKey returns the product with a key, and whether there is one.
func ModelByKey(key string) (Model, bool) {
	for _, m := range Models() {
		if m.Key == key {
			return m, true
		}
	}
	return Model{}, false
}

var a100 = Model{
	Key: "A100-SXM4-80GB", Name: "NVIDIA A100-SXM4-80GB", Architecture: Ampere,
	IdleWatts: 55, LoadWatts: 400, MinLimit: 100, DefaultLimit: 400, MaxLimit: 400,
	ResistanceCPerW: 0.105, TimeConstant: 22 * time.Second,
	GPUMaxC: 85, SlowdownC: 89, ShutdownC: 92, MemoryMaxC: 95,
	SMClockMHz: 1410, IdleClockMHz: 210, MemoryClockMHz: 1593, VideoClockMHz: 1290,
	MemoryBytes: 81920 * mib, ReservedBytes: 869 * mib,
	NVLinks: 12, NVLinkVersion: 4, NVLinkMBPerS: 25000,
	PCIeGeneration: 4, CUDAMajor: 8, PCIDeviceID: 0x20b210de,
	BoardPartNumber: "692-2G506-0210-002", VBIOS: "92.00.36.00.02", RowRemap: true,
}

var h100 = Model{
	Key: "H100-SXM5-80GB", Name: "NVIDIA H100 80GB HBM3", Architecture: Hopper,
	IdleWatts: 70, LoadWatts: 700, MinLimit: 200, DefaultLimit: 700, MaxLimit: 700,
	ResistanceCPerW: 0.068, TimeConstant: 25 * time.Second,
	ThermalMargin: true, GPUMaxC: 87, SlowdownC: 89, ShutdownC: 95, MemoryMaxC: 95,
	SMClockMHz: 1980, IdleClockMHz: 345, MemoryClockMHz: 2619, VideoClockMHz: 1545,
	MemoryBytes: 81559 * mib, ReservedBytes: 551 * mib,
	NVLinks: 18, NVLinkVersion: 6, NVLinkMBPerS: 26562,
	PCIeGeneration: 5, CUDAMajor: 9, PCIDeviceID: 0x233010de,
	BoardPartNumber: "692-2G520-0200-000", VBIOS: "96.00.89.00.01",
	AveragePower: true, RowRemap: true,
}

var h200 = Model{
	Key: "H200-SXM5-141GB", Name: "NVIDIA H200", Architecture: Hopper,
	IdleWatts: 75, LoadWatts: 700, MinLimit: 200, DefaultLimit: 700, MaxLimit: 700,
	ResistanceCPerW: 0.066, TimeConstant: 26 * time.Second,
	ThermalMargin: true, GPUMaxC: 87, SlowdownC: 89, ShutdownC: 95, MemoryMaxC: 95,
	SMClockMHz: 1980, IdleClockMHz: 345, MemoryClockMHz: 3201, VideoClockMHz: 1545,
	MemoryBytes: 143771 * mib, ReservedBytes: 640 * mib,
	NVLinks: 18, NVLinkVersion: 6, NVLinkMBPerS: 26562,
	PCIeGeneration: 5, CUDAMajor: 9, PCIDeviceID: 0x233510de,
	BoardPartNumber: "692-2G520-0280-000", VBIOS: "96.00.A5.00.03",
	AveragePower: true, RowRemap: true,
}

var b200 = Model{
	Key: "B200-SXM6-180GB", Name: "NVIDIA B200", Architecture: Blackwell,
	IdleWatts: 140, LoadWatts: 1000, MinLimit: 200, DefaultLimit: 1000, MaxLimit: 1000,
	ResistanceCPerW: 0.052, TimeConstant: 30 * time.Second,
	ThermalMargin: true, GPUMaxC: 88, SlowdownC: 91, ShutdownC: 97, MemoryMaxC: 98,
	SMClockMHz: 1965, IdleClockMHz: 120, MemoryClockMHz: 3996, VideoClockMHz: 1575,
	MemoryBytes: 183359 * mib, ReservedBytes: 768 * mib,
	NVLinks: 18, NVLinkVersion: 7, NVLinkMBPerS: 50000,
	PCIeGeneration: 5, CUDAMajor: 10, PCIDeviceID: 0x290110de,
	BoardPartNumber: "692-2G525-0220-000", VBIOS: "97.00.82.00.05",
	AveragePower: true, RowRemap: true,
}

var l40s = Model{
	Key: "L40S-48GB", Name: "NVIDIA L40S", Architecture: Ada,
	IdleWatts: 33, LoadWatts: 350, MinLimit: 100, DefaultLimit: 350, MaxLimit: 350,
	ResistanceCPerW: 0.13, TimeConstant: 28 * time.Second,
	ThermalMargin: true, GPUMaxC: 88, SlowdownC: 90, ShutdownC: 93,
	SMClockMHz: 2520, IdleClockMHz: 210, MemoryClockMHz: 9001, VideoClockMHz: 1965, IdlePState: 8,
	MemoryBytes: 46068 * mib, ReservedBytes: 610 * mib,
	PCIeGeneration: 4, CUDAMajor: 8, CUDAMinor: 9, PCIDeviceID: 0x26b910de,
	BoardPartNumber: "900-2G133-0080-000", VBIOS: "95.02.66.00.02",
	AveragePower: true, RowRemap: true,
}

var t4 = Model{
	Key: "T4-16GB", Name: "Tesla T4", Architecture: Turing,
	IdleWatts: 10, LoadWatts: 70, MinLimit: 60, DefaultLimit: 70, MaxLimit: 70,
	ResistanceCPerW: 0.58, TimeConstant: 30 * time.Second,
	GPUMaxC: 85, SlowdownC: 93, ShutdownC: 96,
	SMClockMHz: 1590, IdleClockMHz: 300, MemoryClockMHz: 5001, VideoClockMHz: 1470, IdlePState: 8,
	MemoryBytes: 15360 * mib, ReservedBytes: 421 * mib,
	PCIeGeneration: 3, CUDAMajor: 7, CUDAMinor: 5, PCIDeviceID: 0x1eb810de,
	BoardPartNumber: "900-2G183-0000-001", VBIOS: "90.04.96.00.02",
}
