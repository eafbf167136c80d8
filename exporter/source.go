package exporter

import (
	"errors"
	"fmt"
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
	FieldNVLinkTxKiB          FieldID = 138
	FieldNVLinkRxKiB          FieldID = 139
	FieldNVLinkCount          FieldID = 91
	FieldTLimitShutdown       FieldID = 193
	FieldTLimitSlowdown       FieldID = 194
	FieldTLimitMemoryMax      FieldID = 195
	FieldTLimitGPUMax         FieldID = 196
	// AllLinks as a scope asks for the sum over all links.
	AllLinks uint32 = 0xFFFFFFFF
)

// Field is one element of a batch: ID and Scope in, Value and Err out.
type Field struct {
	ID    FieldID
	Scope uint32
	Value float64
	Err   error
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

// Sink takes what the node says. It must not block: a tick waits for nobody.
type Sink interface {
	// Frame sends an encoded frame; the buffer is reused after the call.
	Frame(data []byte) error
}
