//go:build cgo && linux

package nvml

import "github.com/evenkeel-gpu/evenkeel/exporter"

// mandatory are the functions without which there is nothing to do. The
// binding picks the versions named here when it finds them.
var mandatory = [...]string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3",
}

// symbol is an optional function.
type symbol int

const (
	symDriverVersion symbol = iota
	symNVMLVersion
	symCUDAVersion
	symName
	symSerial
	symArchitecture
	symUtilization
	symSamples
	symMemory
	symMemory2
	symTemperature
	symThreshold
	symMargin
	symPower
	symEnforcedLimit
	symLimit
	symDefaultLimit
	symLimitRange
	symClock
	symEventReasons
	symThrottleReasons
	symFields
	symHandleByUUID
	symSetLimit
	symbols
)

var names = [symbols]string{
	symDriverVersion:   "nvmlSystemGetDriverVersion",
	symNVMLVersion:     "nvmlSystemGetNVMLVersion",
	symCUDAVersion:     "nvmlSystemGetCudaDriverVersion_v2",
	symName:            "nvmlDeviceGetName",
	symSerial:          "nvmlDeviceGetSerial",
	symArchitecture:    "nvmlDeviceGetArchitecture",
	symUtilization:     "nvmlDeviceGetUtilizationRates",
	symSamples:         "nvmlDeviceGetSamples",
	symMemory:          "nvmlDeviceGetMemoryInfo",
	symMemory2:         "nvmlDeviceGetMemoryInfo_v2",
	symTemperature:     "nvmlDeviceGetTemperature",
	symThreshold:       "nvmlDeviceGetTemperatureThreshold",
	symMargin:          "nvmlDeviceGetMarginTemperature",
	symPower:           "nvmlDeviceGetPowerUsage",
	symEnforcedLimit:   "nvmlDeviceGetEnforcedPowerLimit",
	symLimit:           "nvmlDeviceGetPowerManagementLimit",
	symDefaultLimit:    "nvmlDeviceGetPowerManagementDefaultLimit",
	symLimitRange:      "nvmlDeviceGetPowerManagementLimitConstraints",
	symClock:           "nvmlDeviceGetClockInfo",
	symEventReasons:    "nvmlDeviceGetCurrentClocksEventReasons",
	symThrottleReasons: "nvmlDeviceGetCurrentClocksThrottleReasons",
	symFields:          "nvmlDeviceGetFieldValues",
	symHandleByUUID:    "nvmlDeviceGetHandleByUUID",
	symSetLimit:        "nvmlDeviceSetPowerManagementLimit",
}

// table says which optional functions the open library has.
type table [symbols]bool

func (t *table) missing() []string {
	var list []string
	for s, has := range t {
		if !has {
			list = append(list, names[s])
		}
	}
	return list
}

// lacking are the errors for functions that are not there, made once.
var lacking = func() (list [symbols]error) {
	for s, name := range names {
		list[s] = &exporter.DriverError{Call: name, Fault: exporter.MissingSymbol}
	}
	return list
}()
