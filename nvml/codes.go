//go:build cgo && linux

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// faults maps every code of the library. A code that is not here is newer than
// this program.
var faults = map[nvml.Return]exporter.Fault{
	nvml.ERROR_UNINITIALIZED:             exporter.NotInitialized,
	nvml.ERROR_INVALID_ARGUMENT:          exporter.OtherFault,
	nvml.ERROR_NOT_SUPPORTED:             exporter.Unsupported,
	nvml.ERROR_NO_PERMISSION:             exporter.NoPermission,
	nvml.ERROR_ALREADY_INITIALIZED:       exporter.OtherFault,
	nvml.ERROR_NOT_FOUND:                 exporter.OtherFault,
	nvml.ERROR_INSUFFICIENT_SIZE:         exporter.OtherFault,
	nvml.ERROR_INSUFFICIENT_POWER:        exporter.OtherFault,
	nvml.ERROR_DRIVER_NOT_LOADED:         exporter.NotLoaded,
	nvml.ERROR_TIMEOUT:                   exporter.OtherFault,
	nvml.ERROR_IRQ_ISSUE:                 exporter.OtherFault,
	nvml.ERROR_LIBRARY_NOT_FOUND:         exporter.NoLibrary,
	nvml.ERROR_FUNCTION_NOT_FOUND:        exporter.MissingSymbol,
	nvml.ERROR_CORRUPTED_INFOROM:         exporter.OtherFault,
	nvml.ERROR_GPU_IS_LOST:               exporter.Lost,
	nvml.ERROR_RESET_REQUIRED:            exporter.ResetRequired,
	nvml.ERROR_OPERATING_SYSTEM:          exporter.NoPermission, // the device is blocked by a cgroup
	nvml.ERROR_LIB_RM_VERSION_MISMATCH:   exporter.Mismatch,
	nvml.ERROR_IN_USE:                    exporter.OtherFault,
	nvml.ERROR_MEMORY:                    exporter.OtherFault,
	nvml.ERROR_NO_DATA:                   exporter.OtherFault,
	nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:    exporter.Unsupported,
	nvml.ERROR_INSUFFICIENT_RESOURCES:    exporter.OtherFault,
	nvml.ERROR_FREQ_NOT_SUPPORTED:        exporter.Unsupported,
	nvml.ERROR_ARGUMENT_VERSION_MISMATCH: exporter.Unsupported, // a struct this driver does not know
	nvml.ERROR_DEPRECATED:                exporter.Unsupported,
	nvml.ERROR_NOT_READY:                 exporter.OtherFault,
	nvml.ERROR_GPU_NOT_FOUND:             exporter.NoGPU,
	nvml.ERROR_INVALID_STATE:             exporter.OtherFault,
	nvml.ERROR_RESET_TYPE_NOT_SUPPORTED:  exporter.Unsupported,
	nvml.ERROR_UNKNOWN:                   exporter.OtherFault,
}

// check makes the error of a call, nil for success.
func check(call string, code nvml.Return) error {
	if code == nvml.SUCCESS {
		return nil
	}
	fault, known := faults[code]
	if !known {
		fault = exporter.OtherFault
	}
	return &exporter.DriverError{Call: call, Fault: fault, Code: int(code)}
}

// blank32 and blank64 are what the library puts where it has no value.
const (
	blank32 = 1<<32 - 1
	blank64 = 1<<64 - 1
)

func blank(call string) error {
	return &exporter.DriverError{Call: call, Fault: exporter.Unsupported}
}
