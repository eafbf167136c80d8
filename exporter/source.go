package exporter

import (
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Source finds the devices of a node. Its calls may block for as long as the
// driver likes; the exporter makes them off its main path.
type Source interface {
	// Open loads the driver's library and initialises it. It is called again
	// without Close when a call on an old handle has not returned.
	Open() error
	// Close releases every handle. No device may be used afterwards.
	Close() error
	// Driver describes the driver.
	Driver() (Driver, error)
	// Devices enumerates the devices. One that cannot be opened is in the list
	// with its error; the others are not affected by it.
	Devices() ([]Found, error)
	// Calls is the number of driver calls made so far.
	Calls() uint64
}

// Driver describes the driver.
type Driver struct {
	Version string
	NVML    string
	CUDA    string
	// Missing lists optional functions that this driver lacks.
	Missing []string
}

// Found is one place in the enumeration.
type Found struct {
	Index  int
	PCI    string
	UUID   string // known from an earlier enumeration even if Err is set
	Device Device
	Err    error
}

// Identity is what does not change while a device is open. Everything is keyed
// by UUID and PCI address; the index moves when a device drops out.
type Identity struct {
	UUID   string
	PCI    string
	Index  int
	Model  string
	Serial string
	Arch   string // turing, ampere, ada, hopper, blackwell
	Links  int    // NVLinks the device has
}

// Device is one GPU. Each method is one driver call unless it says otherwise.
// Values are in base units; a value that the driver marks as not available is
// an error of kind Unsupported, never a number.
type Device interface {
	Identity() Identity
	// Utilization is the share of the driver's last window with a kernel
	// running, and with device memory in use.
	Utilization() (gpu, memory float64, err error)
	// BusySamples appends the driver's own utilisation samples newer than
	// since, oldest first.
	BusySamples(since uint64, to []Sample) ([]Sample, error)
	Memory() (used, total uint64, err error)
	Temperature() (celsius float64, err error)
	// Margin is the T.Limit margin: distance to the driver's own limit.
	Margin() (celsius float64, err error)
	// SlowdownThreshold is the slowdown temperature on the absolute model.
	SlowdownThreshold() (celsius float64, err error)
	Power() (watts float64, err error)
	// PowerLimits needs up to three calls; it belongs to the slow part.
	PowerLimits() (current, def, min, max float64, err error)
	Clock(d Domain) (hertz float64, err error)
	ThrottleReasons() (Reasons, error)
	// Fields reads a batch in one call. Each element has its own error, so one
	// field cannot spoil the others.
	Fields(fields []Field) error
}

// Process is a process with a context on a device, as the driver lists it.
type Process struct {
	PID int
	// MemoryBytes is 0 where the driver does not tell.
	MemoryBytes uint64
	// Instance is the MIG GPU instance, NoInstance without MIG.
	Instance uint32
}

// NoInstance says that a process holds the whole device.
const NoInstance uint32 = 0xFFFFFFFF

// ProcessLister is a Device that lists its processes.
type ProcessLister interface {
	// Processes appends every process with a compute, MPS or graphics context,
	// each once, in the order of their pids.
	Processes(to []Process) ([]Process, error)
}

// Notice is something that the driver says between readings.
type Notice struct {
	UUID     string
	Kind     telemetry.EventKind // xid, ecc, recovery_action, mig_change, gpu_lost
	Code     int                 // the Xid
	Instance uint32              // NoInstance if it is the device's
	Detail   string              // what the kind does not say
}

// Notifier is a Source that reports what happens between readings. What
// happened before Listen is not reported.
type Notifier interface {
	// Listen registers every device that can be; the others are named in err,
	// and the rest are listened to all the same. It may be called again: for
	// devices that have come since, for those that came back, which anew names,
	// and for all after Wait failed.
	Listen(anew ...string) error
	// Wait returns the next notice, or ok false when wait has passed without,
	// which may also be sooner. After an error there is nothing to wait for
	// until Listen.
	Wait(wait time.Duration) (n Notice, ok bool, err error)
}

// PCIeLinker is a Device that tells its PCIe link, in up to four calls. NaN is
// what it does not state; that it states nothing is an error.
type PCIeLinker interface {
	PCIeLink() (PCIeLink, error)
}

// PCIeLink is generation and lanes in use, and what device and slot can do.
type PCIeLink struct {
	Generation, Width, MaxGeneration, MaxWidth float64
}

// FabricTeller is a Device that tells how far it is with registering at the
// NVLink fabric: 1 not started, 2 in progress, 3 completed.
type FabricTeller interface {
	FabricState() (int, error)
}

// LinkTeller is a Device that tells of one NVLink in calls of their own, for
// what its driver has no field for.
type LinkTeller interface {
	LinkUp(link int) (bool, error)
	LinkErrors(link int, kind LinkError) (float64, error)
}

// LinkError is a kind of error of an NVLink.
type LinkError int

// Kinds of errors of an NVLink.
const (
	LinkCRCFlit LinkError = iota
	LinkCRCData
	LinkReplay
	LinkRecovery
)

// Sample is one of the driver's buffered samples.
type Sample struct {
	Micros uint64  // driver time stamp, microseconds
	Value  float64 // ratio
}

// Domain is a clock domain.
type Domain int

// Clock domains.
const (
	ClockSM Domain = iota
	ClockMemory
	ClockGraphics
	ClockVideo
)

// Reasons is a set of throttle reasons, a bit for each of
// telemetry.ThrottleReasons in their order.
type Reasons uint32

// FieldID is an NVML field number; their meaning and units are the driver's.
type FieldID uint32

// Fields that the exporter reads. Units as the driver gives them: celsius,
// millijoules, nanoseconds, KiB, milliwatts.
const (
	FieldMemoryTemperature    FieldID = 82
	FieldEnergyMillijoules    FieldID = 83
	FieldThrottlePowerNs      FieldID = 74
	FieldThrottleSyncBoostNs  FieldID = 76
	FieldThrottleSWThermalNs  FieldID = 269
	FieldThrottleHWThermalNs  FieldID = 270
	FieldThrottlePowerBrakeNs FieldID = 271
	FieldNVLinkCount          FieldID = 91
	FieldTLimitShutdown       FieldID = 193
	FieldTLimitSlowdown       FieldID = 194
	FieldTLimitMemoryMax      FieldID = 195
	FieldTLimitGPUMax         FieldID = 196
	FieldPCIeTxBytes          FieldID = 197
	FieldPCIeRxBytes          FieldID = 198
	FieldPCIeReplays          FieldID = 94
	FieldRecoveryAction       FieldID = 230

	FieldECCCorrectedVolatile    FieldID = 3
	FieldECCUncorrectedVolatile  FieldID = 4
	FieldECCCorrectedAggregate   FieldID = 5
	FieldECCUncorrectedAggregate FieldID = 6
	FieldRemapCorrectable        FieldID = 142
	FieldRemapUncorrectable      FieldID = 143
	FieldRemapPending            FieldID = 144
	FieldRemapFailed             FieldID = 145

	// Of one link each, named by the scope. Those up to NVLink 4, then those
	// from NVLink 5 on, then what both have.
	FieldNVLinkTxKiB      FieldID = 138
	FieldNVLinkRxKiB      FieldID = 139
	FieldNVLinkReplays    FieldID = 161
	FieldNVLinkRecoveries FieldID = 162
	FieldNVLinkCRCErrors  FieldID = 163

	FieldNVLink5TxBytes    FieldID = 202
	FieldNVLink5RxBytes    FieldID = 204
	FieldNVLink5RxErrors   FieldID = 208
	FieldNVLink5Recoveries FieldID = 215

	FieldNVLinkState FieldID = 165 // 0 inactive, 1 active, 2 asleep, 3 no traffic

	// AllLinks as a scope asks for the sum over all links.
	AllLinks uint32 = 0xFFFFFFFF
)

// Field is one element of a batch: ID and Scope in, the others out.
type Field struct {
	ID    FieldID
	Scope uint32
	Value float64
	Word  bool // the driver's number has 32 bits, so that a counter wraps
	Err   error
}

// wrap is the number at which a counter begins anew, 0 for never.
func (f *Field) wrap() float64 {
	if f.Word {
		return 1 << 32
	}
	return 0
}

// Fault classifies what went wrong in the driver; it is a label value, so the
// list is closed.
type Fault string

// Faults, from a function that a device lacks to a driver that is not there.
const (
	Unsupported    Fault = "unsupported"     // this device has no such value
	MissingSymbol  Fault = "missing_symbol"  // this driver has no such function
	NoPermission   Fault = "no_permission"   //
	Lost           Fault = "lost"            // the GPU fell off the bus
	ResetRequired  Fault = "reset_required"  //
	Hung           Fault = "hung"            // the call has not returned
	NoLibrary      Fault = "no_library"      // libnvidia-ml.so.1 is not installed
	NotLoaded      Fault = "not_loaded"      // the kernel driver is not loaded
	Mismatch       Fault = "mismatch"        // library and kernel driver differ
	NoGPU          Fault = "no_gpu"          // the driver is there and finds no GPU
	NotInitialized Fault = "not_initialized" // the library was shut down
	OutOfRange     Fault = "out_of_range"    // a value that cannot be
	OtherFault     Fault = "other"
)

// Faults is every fault, for pre-created series.
var Faults = []Fault{Unsupported, MissingSymbol, NoPermission, Lost, ResetRequired, Hung, NoLibrary, NotLoaded, Mismatch, NoGPU, NotInitialized, OutOfRange, OtherFault}

// DriverError is a failed driver call.
type DriverError struct {
	Call  string // the NVML function
	Fault Fault
	Code  int // the driver's own code; 0 if there is none
}

func (e *DriverError) Error() string {
	if e.Code != 0 {
		return fmt.Sprintf("%s: %s (code %d)", e.Call, e.Fault, e.Code)
	}
	return fmt.Sprintf("%s: %s", e.Call, e.Fault)
}

// FaultOf returns the fault within err, OtherFault if it has none, and "" for nil.
func FaultOf(err error) Fault {
	if err == nil {
		return ""
	}
	if d, ok := errors.AsType[*DriverError](err); ok {
		return d.Fault
	}
	return OtherFault
}

// EventSink is a Sink that takes events too, and keeps them until they are
// stored. It is called on a goroutine of its own.
type EventSink interface {
	Event(e telemetry.Event) error
}

// Sink takes what the node says. It must not block: a tick waits for nobody.
type Sink interface {
	// Frame sends an encoded frame; the buffer is reused after the call.
	Frame(data []byte) error
}
