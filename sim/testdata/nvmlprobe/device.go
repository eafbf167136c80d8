package main

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func device(d nvml.Device, words []string, number func(int) int) answer {
	switch words[0] {
	case "identity":
		return identity(d)
	case "read":
		return read(d)
	case "limits":
		return limits(d)
	case "links":
		return links(d)
	case "setlimit":
		return answer{"ret": d.SetPowerManagementLimit(uint32(number(2)))}
	case "setlimit2":
		v := nvml.PowerValue_v2{PowerValueMw: uint32(number(2))}
		v.Version = nvml.STRUCT_VERSION(v, 2)
		return answer{"ret": d.SetPowerManagementLimit_v2(&v)}
	case "invalid":
		return invalid(d)
	case "samples":
		return samples(d, nvml.SamplingType(number(2)), uint64(number(3)))
	case "field":
		return fields(d, number)
	case "register":
		return answer{"ret": d.RegisterEvents(uint64(number(3)), sets[number(2)])}
	case "processes":
		infos, ret := d.GetComputeRunningProcesses()
		pids, bytes := []int{}, []uint64{}
		for _, p := range infos {
			pids, bytes = append(pids, int(p.Pid)), append(bytes, p.UsedGpuMemory)
		}
		return answer{"ret": ret, "pids": pids, "bytes": bytes}
	case "byuuid":
		uuid, _ := d.GetUUID()
		again, ret := library.DeviceGetHandleByUUID(uuid)
		index := -1
		if ret == nvml.SUCCESS {
			index, _ = again.GetIndex()
		}
		return answer{"ret": ret, "index": index}
	case "bypci":
		pci, _ := d.GetPciInfo()
		again, ret := library.DeviceGetHandleByPciBusId(text(pci.BusId[:]))
		index := -1
		if ret == nvml.SUCCESS {
			index, _ = again.GetIndex()
		}
		return answer{"ret": ret, "index": index}
	}
	return answer{"error": "unknown command"}
}

func text(chars []int8) string {
	out := ""
	for _, c := range chars {
		if c == 0 {
			break
		}
		out += string(rune(c))
	}
	return out
}

func identity(d nvml.Device) answer {
	uuid, r1 := d.GetUUID()
	name, r2 := d.GetName()
	serial, r3 := d.GetSerial()
	pci, r4 := d.GetPciInfo()
	index, r5 := d.GetIndex()
	minor, r6 := d.GetMinorNumber()
	arch, r7 := d.GetArchitecture()
	brand, r8 := d.GetBrand()
	major, minorCC, r9 := d.GetCudaComputeCapability()
	persistence, r10 := d.GetPersistenceMode()
	compute, r11 := d.GetComputeMode()
	mig, _, migRet := d.GetMigMode()
	vbios, r12 := d.GetVbiosVersion()
	ext, r13 := d.GetPciInfoExt()
	return answer{
		"ret":  first(r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13),
		"uuid": uuid, "name": name, "serial": serial, "bus_id": text(pci.BusId[:]), "ext_bus_id": text(ext.BusId[:]),
		"index": index, "minor": minor, "arch": arch, "brand": brand, "cc": []int{major, minorCC},
		"persistence": persistence, "compute": compute, "mig": mig, "mig_ret": migRet, "vbios": vbios,
	}
}

func read(d nvml.Device) answer {
	util, r1 := d.GetUtilizationRates()
	memory, r2 := d.GetMemoryInfo()
	memory2, r3 := d.GetMemoryInfo_v2()
	temperature, r4 := d.GetTemperature(nvml.TEMPERATURE_GPU)
	power, r5 := d.GetPowerUsage()
	enforced, r6 := d.GetEnforcedPowerLimit()
	energy, r7 := d.GetTotalEnergyConsumption()
	sm, r8 := d.GetClockInfo(nvml.CLOCK_SM)
	reasons, r9 := d.GetCurrentClocksEventReasons()
	old, r10 := d.GetCurrentClocksThrottleReasons()
	pstate, r11 := d.GetPerformanceState()
	margin, marginRet := d.GetMarginTemperature()
	violation, r12 := d.GetViolationStatus(nvml.PERF_POLICY_POWER)
	return answer{
		"ret":  first(r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12),
		"util": util.Gpu, "memory_util": util.Memory,
		"used": memory.Used, "total": memory.Total, "free": memory.Free,
		"used2": memory2.Used, "reserved2": memory2.Reserved,
		"temperature": temperature, "margin": margin.MarginTemperature, "margin_ret": marginRet,
		"power": power, "enforced": enforced, "energy": energy, "sm": sm,
		"reasons": reasons, "old_reasons": old, "pstate": pstate, "violation": violation.ViolationTime,
	}
}

func limits(d nvml.Device) answer {
	low, high, r1 := d.GetPowerManagementLimitConstraints()
	def, r2 := d.GetPowerManagementDefaultLimit()
	limit, r3 := d.GetPowerManagementLimit()
	slowdown, slowdownRet := d.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
	fans, r4 := d.GetNumFans()
	_, fanRet := d.GetFanSpeed()
	maxSM, r5 := d.GetMaxClockInfo(nvml.CLOCK_SM)
	return answer{
		"ret": first(r1, r2, r3, r4, r5), "min": low, "max": high, "default": def, "limit": limit,
		"slowdown": slowdown, "slowdown_ret": slowdownRet, "fans": fans, "fan_ret": fanRet, "max_sm": maxSM,
	}
}

func links(d nvml.Device) answer {
	state, stateRet := d.GetNvLinkState(0)
	_, beyondRet := d.GetNvLinkState(36)
	kind, kindRet := d.GetNvLinkRemoteDeviceType(0)
	_, remoteRet := d.GetNvLinkRemotePciInfo(0)
	errors, errorsRet := d.GetNvLinkErrorCounter(0, nvml.NVLINK_ERROR_DL_REPLAY)
	generation, r1 := d.GetCurrPcieLinkGeneration()
	width, r2 := d.GetMaxPcieLinkWidth()
	replays, r3 := d.GetPcieReplayCounter()
	fabric, fabricRet := d.GetGpuFabricInfoV().V3()
	_, fabric2Ret := d.GetGpuFabricInfoV().V2()
	ecc, r4 := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	_, _, _, _, remapRet := d.GetRemappedRows()
	return answer{
		"ret": first(r1, r2, r3, r4), "state": state, "state_ret": stateRet, "beyond_ret": beyondRet,
		"kind": kind, "kind_ret": kindRet, "remote_ret": remoteRet, "errors": errors, "errors_ret": errorsRet,
		"generation": generation, "width": width, "replays": replays,
		"fabric": fabric.State, "fabric_ret": fabricRet, "fabric2_ret": fabric2Ret,
		"ecc": ecc, "remap_ret": remapRet,
	}
}

// invalid calls functions with arguments that no driver takes.
func invalid(d nvml.Device) answer {
	_, threshold := d.GetTemperatureThreshold(nvml.TemperatureThresholds(99))
	_, clock := d.GetClockInfo(nvml.ClockType(99))
	_, link := d.GetNvLinkState(99)
	_, _, kind := d.GetSamples(nvml.SamplingType(99), 0)
	_, beyond := library.DeviceGetHandleByIndex(99)
	_, uuid := library.DeviceGetHandleByUUID("GPU-nobody")
	return answer{"threshold": threshold, "clock": clock, "link": link, "samples": kind, "beyond": beyond, "uuid": uuid}
}

func samples(d nvml.Device, kind nvml.SamplingType, since uint64) answer {
	valueType, list, ret := d.GetSamples(kind, since)
	times, values := []uint64{}, []uint32{}
	for _, s := range list {
		times = append(times, s.TimeStamp)
		values = append(values, binary.NativeEndian.Uint32(s.SampleValue[:4]))
	}
	return answer{"ret": ret, "type": valueType, "times": times, "values": values}
}

// fields reads one batch: words from the second on are FIELD SCOPE pairs.
func fields(d nvml.Device, number func(int) int) answer {
	var batch []nvml.FieldValue
	for i := 2; number(i) != 0; i += 2 {
		scope := number(i + 1)
		if scope < 0 {
			scope = math.MaxUint32
		}
		batch = append(batch, nvml.FieldValue{FieldId: uint32(number(i)), ScopeId: uint32(scope)})
	}
	ret := d.GetFieldValues(batch)
	values, returns := []float64{}, []int{}
	for _, v := range batch {
		returns = append(returns, int(int32(v.NvmlReturn)))
		switch nvml.ValueType(v.ValueType) {
		case nvml.VALUE_TYPE_UNSIGNED_INT:
			values = append(values, float64(binary.NativeEndian.Uint32(v.Value[:4])))
		case nvml.VALUE_TYPE_SIGNED_INT:
			values = append(values, float64(int32(binary.NativeEndian.Uint32(v.Value[:4]))))
		default:
			values = append(values, float64(binary.NativeEndian.Uint64(v.Value[:])))
		}
	}
	return answer{"ret": ret, "values": values, "returns": returns}
}
