package agent

import (
	"syscall"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Writer is what the agent may do to devices. Every call reads or writes the
// device itself; nothing is cached.
type Writer interface {
	// PowerLimits reads the limits of a device back from the driver. An unknown
	// uuid is an error.
	PowerLimits(uuid string) (telemetry.PowerLimits, error)
	// SetPowerLimit sets the limit in watts. The driver refuses what is outside
	// the device's range.
	SetPowerLimit(uuid string, watts float64) error
}

// Lister says who holds the devices. Its calls may block for as long as the
// driver does; they are made beside each other.
type Lister interface {
	// Devices names every device. Those that cannot be named are in err, beside
	// the others.
	Devices() (uuids []string, err error)
	// Holders are the processes with a context on a device, as the device says.
	Holders(uuid string) ([]Holder, error)
}

// Holder is a process that holds a device.
type Holder struct {
	PID int
	// MemoryBytes is 0 where the driver does not tell.
	MemoryBytes uint64
}

// Processes are those of the node; process.Proc implements it.
type Processes interface {
	Snapshot() (process.Table, error)
	// Open takes hold of exactly the process named, or returns process.ErrGone.
	Open(process.ID) (*process.Handle, process.Info, error)
	Signal(*process.Handle, syscall.Signal) error
	// Say writes a line on a process's terminal, without waiting for it.
	Say(i process.Info, line string) error
}
