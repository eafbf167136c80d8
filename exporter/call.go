package exporter

import (
	"sync/atomic"
	"time"
)

// callID names a driver call for the watchdog.
type callID int32

const (
	callNone callID = iota
	callOpen
	callDriver
	callDevices
	callUtilization
	callSamples
	callMemory
	callMemoryReserved
	callTemperature
	callMargin
	callThreshold
	callMemoryThreshold
	callPower
	callPowerLimits
	callClockSM
	callClockMemory
	callClockGraphics
	callClockVideo
	callThrottle
	callFields
	callListen
	callWait
	callProcesses
	callPCIe
	callFabric
	callLinkFields
	callLinkState
	callLinkCRCFlit
	callLinkCRCData
	callLinkReplay
	callLinkRecovery
	callCount
)

// callNames are the driver functions behind the calls: what one would look for
// in the driver's documentation or a stack trace.
var callNames = [callCount]string{
	callNone:            "",
	callOpen:            "nvmlInit",
	callDriver:          "nvmlSystemGetDriverVersion",
	callDevices:         "nvmlDeviceGetHandleByIndex",
	callUtilization:     "nvmlDeviceGetUtilizationRates",
	callSamples:         "nvmlDeviceGetSamples",
	callMemoryReserved:  "nvmlDeviceGetMemoryInfo_v2",
	callMemory:          "nvmlDeviceGetMemoryInfo",
	callTemperature:     "nvmlDeviceGetTemperature",
	callMargin:          "nvmlDeviceGetMarginTemperature",
	callThreshold:       "nvmlDeviceGetTemperatureThreshold(slowdown)",
	callMemoryThreshold: "nvmlDeviceGetTemperatureThreshold(memory)",
	callPower:           "nvmlDeviceGetPowerUsage",
	callPowerLimits:     "nvmlDeviceGetPowerManagementLimit",
	callClockSM:         "nvmlDeviceGetClockInfo(sm)",
	callClockMemory:     "nvmlDeviceGetClockInfo(memory)",
	callClockGraphics:   "nvmlDeviceGetClockInfo(graphics)",
	callClockVideo:      "nvmlDeviceGetClockInfo(video)",
	callThrottle:        "nvmlDeviceGetCurrentClocksEventReasons",
	callFields:          "nvmlDeviceGetFieldValues",
	callListen:          "nvmlDeviceRegisterEvents",
	callWait:            "nvmlEventSetWait_v2",
	callProcesses:       "nvmlDeviceGetComputeRunningProcesses",
	callPCIe:            "nvmlDeviceGetCurrPcieLinkGeneration",
	callFabric:          "nvmlDeviceGetGpuFabricInfoV",
	callLinkFields:      "nvmlDeviceGetFieldValues(nvlink)",
	callLinkState:       "nvmlDeviceGetNvLinkState",
	callLinkCRCFlit:     "nvmlDeviceGetNvLinkErrorCounter(crc_flit)",
	callLinkCRCData:     "nvmlDeviceGetNvLinkErrorCounter(crc_data)",
	callLinkReplay:      "nvmlDeviceGetNvLinkErrorCounter(replay)",
	callLinkRecovery:    "nvmlDeviceGetNvLinkErrorCounter(recovery)",
}

// callMark is where a goroutine says which call it is in, for another one to
// read: a call that hangs can say nothing itself.
type callMark struct {
	id    atomic.Int32
	start atomic.Int64 // monotonic, since epoch
	epoch time.Time
}

func (m *callMark) enter(id callID) time.Time {
	now := time.Now()
	m.start.Store(int64(now.Sub(m.epoch)))
	m.id.Store(int32(id))
	return now
}

func (m *callMark) leave() { m.id.Store(int32(callNone)) }

func (m *callMark) idle() bool { return callID(m.id.Load()) == callNone }

// outstanding returns the call under way and for how long.
func (m *callMark) outstanding(now time.Time) (callID, time.Duration) {
	id := callID(m.id.Load())
	if id == callNone {
		return callNone, 0
	}
	return id, now.Sub(m.epoch) - time.Duration(m.start.Load())
}
