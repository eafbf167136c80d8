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
	symCompute
	symCompute2
	symCompute3
	symMPS
	symMPS2
	symMPS3
	symGraphics
	symGraphics2
	symGraphics3
	symPCIeGeneration
	symPCIeWidth
	symPCIeMaxGeneration
	symPCIeMaxWidth
	symFabricV
	symFabric
	symLinkState
	symLinkErrors
	symEventSet
	symEventSetFree
	symEventTypes
	symRegister
	symEventWait
	symEventWait2
	symHandleByUUID
	symSetLimit
	symbols
)

var names = [symbols]string{
	symDriverVersion:     "nvmlSystemGetDriverVersion",
	symNVMLVersion:       "nvmlSystemGetNVMLVersion",
	symCUDAVersion:       "nvmlSystemGetCudaDriverVersion_v2",
	symName:              "nvmlDeviceGetName",
	symSerial:            "nvmlDeviceGetSerial",
	symArchitecture:      "nvmlDeviceGetArchitecture",
	symUtilization:       "nvmlDeviceGetUtilizationRates",
	symSamples:           "nvmlDeviceGetSamples",
	symMemory:            "nvmlDeviceGetMemoryInfo",
	symMemory2:           "nvmlDeviceGetMemoryInfo_v2",
	symTemperature:       "nvmlDeviceGetTemperature",
	symThreshold:         "nvmlDeviceGetTemperatureThreshold",
	symMargin:            "nvmlDeviceGetMarginTemperature",
	symPower:             "nvmlDeviceGetPowerUsage",
	symEnforcedLimit:     "nvmlDeviceGetEnforcedPowerLimit",
	symLimit:             "nvmlDeviceGetPowerManagementLimit",
	symDefaultLimit:      "nvmlDeviceGetPowerManagementDefaultLimit",
	symLimitRange:        "nvmlDeviceGetPowerManagementLimitConstraints",
	symClock:             "nvmlDeviceGetClockInfo",
	symEventReasons:      "nvmlDeviceGetCurrentClocksEventReasons",
	symThrottleReasons:   "nvmlDeviceGetCurrentClocksThrottleReasons",
	symFields:            "nvmlDeviceGetFieldValues",
	symCompute:           "nvmlDeviceGetComputeRunningProcesses",
	symCompute2:          "nvmlDeviceGetComputeRunningProcesses_v2",
	symCompute3:          "nvmlDeviceGetComputeRunningProcesses_v3",
	symMPS:               "nvmlDeviceGetMPSComputeRunningProcesses",
	symMPS2:              "nvmlDeviceGetMPSComputeRunningProcesses_v2",
	symMPS3:              "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	symGraphics:          "nvmlDeviceGetGraphicsRunningProcesses",
	symGraphics2:         "nvmlDeviceGetGraphicsRunningProcesses_v2",
	symGraphics3:         "nvmlDeviceGetGraphicsRunningProcesses_v3",
	symPCIeGeneration:    "nvmlDeviceGetCurrPcieLinkGeneration",
	symPCIeWidth:         "nvmlDeviceGetCurrPcieLinkWidth",
	symPCIeMaxGeneration: "nvmlDeviceGetMaxPcieLinkGeneration",
	symPCIeMaxWidth:      "nvmlDeviceGetMaxPcieLinkWidth",
	symFabricV:           "nvmlDeviceGetGpuFabricInfoV",
	symFabric:            "nvmlDeviceGetGpuFabricInfo",
	symLinkState:         "nvmlDeviceGetNvLinkState",
	symLinkErrors:        "nvmlDeviceGetNvLinkErrorCounter",
	symEventSet:          "nvmlEventSetCreate",
	symEventSetFree:      "nvmlEventSetFree",
	symEventTypes:        "nvmlDeviceGetSupportedEventTypes",
	symRegister:          "nvmlDeviceRegisterEvents",
	symEventWait:         "nvmlEventSetWait",
	symEventWait2:        "nvmlEventSetWait_v2",
	symHandleByUUID:      "nvmlDeviceGetHandleByUUID",
	symSetLimit:          "nvmlDeviceSetPowerManagementLimit",
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
