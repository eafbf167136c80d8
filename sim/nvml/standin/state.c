/* Readings of the moment: load, memory, temperature, clocks, fans. */
#include "standin.h"

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates)
{
	EK_DEVICE(handle, device, rates);
	rates->gpu = ek_u32(device, &device->utilization_gpu_percent);
	rates->memory = ek_u32(device, &device->utilization_memory_percent);
	return NVML_SUCCESS;
}

/* Version 1 counts what the driver reserves as used; version 2 does not. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
	EK_DEVICE(handle, device, memory);
	memory->total = ek_u64(device, &device->memory_total_bytes);
	memory->used = ek_u64(device, &device->memory_used_bytes);
	if (!EK_LOAD(&device->blank))
		memory->used += device->memory_reserved_bytes;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
	EK_DEVICE(handle, device, memory);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = ek_u64(device, &device->memory_total_bytes);
	memory->reserved = ek_u64(device, &device->memory_reserved_bytes);
	memory->used = ek_u64(device, &device->memory_used_bytes);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t sensor,
				      unsigned int *temperature)
{
	EK_DEVICE(handle, device, temperature);
	if (sensor != NVML_TEMPERATURE_GPU)
		return sensor < NVML_TEMPERATURE_COUNT ? NVML_ERROR_NOT_SUPPORTED
						       : NVML_ERROR_INVALID_ARGUMENT;
	*temperature = (unsigned int)ek_i32(device, &device->core_c);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_t *temperature)
{
	EK_DEVICE(handle, device, temperature);
	if (temperature->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (temperature->sensorType != NVML_TEMPERATURE_GPU)
		return temperature->sensorType < NVML_TEMPERATURE_COUNT
			       ? NVML_ERROR_NOT_SUPPORTED
			       : NVML_ERROR_INVALID_ARGUMENT;
	temperature->temperature = ek_i32(device, &device->core_c);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle,
					       nvmlTemperatureThresholds_t type,
					       unsigned int *temperature)
{
	int32_t threshold;

	EK_DEVICE(handle, device, temperature);
	switch (type) {
	case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: threshold = device->shutdown_c; break;
	case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: threshold = device->slowdown_c; break;
	case NVML_TEMPERATURE_THRESHOLD_MEM_MAX: threshold = device->memory_max_c; break;
	case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: threshold = device->gpu_max_c; break;
	case NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN:
	case NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR:
	case NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MAX:
	case NVML_TEMPERATURE_THRESHOLD_GPS_CURR: return NVML_ERROR_NOT_SUPPORTED;
	default: return NVML_ERROR_INVALID_ARGUMENT;
	}
	if (threshold == EK_ABSENT)
		return NVML_ERROR_NOT_SUPPORTED;
	*temperature = (unsigned int)threshold;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t handle, nvmlMarginTemperature_t *margin)
{
	EK_DEVICE(handle, device, margin);
	if (margin->version != nvmlMarginTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (device->slowdown_tlimit_c == EK_ABSENT)
		return NVML_ERROR_NOT_SUPPORTED;
	margin->marginTemperature = ek_i32(device, &device->margin_c);
	return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(const struct ek_device *device, nvmlClockType_t type,
			     const uint32_t *sm, const uint32_t *memory, const uint32_t *video,
			     unsigned int *clock)
{
	switch (type) {
	case NVML_CLOCK_GRAPHICS:
	case NVML_CLOCK_SM: *clock = ek_u32(device, sm); return NVML_SUCCESS;
	case NVML_CLOCK_MEM: *clock = ek_u32(device, memory); return NVML_SUCCESS;
	case NVML_CLOCK_VIDEO: *clock = ek_u32(device, video); return NVML_SUCCESS;
	default: return NVML_ERROR_INVALID_ARGUMENT;
	}
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned int *clock)
{
	EK_DEVICE(handle, device, clock);
	return clock_of(device, type, &device->clock_sm_mhz, &device->clock_memory_mhz,
			&device->clock_video_mhz, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, nvmlClockType_t type,
				       unsigned int *clock)
{
	EK_DEVICE(handle, device, clock);
	return clock_of(device, type, &device->clock_sm_max_mhz, &device->clock_memory_max_mhz,
			&device->clock_video_max_mhz, clock);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t handle, nvmlClockType_t type, nvmlClockId_t id,
				unsigned int *clock)
{
	if (id == NVML_CLOCK_ID_CURRENT)
		return nvmlDeviceGetClockInfo(handle, type, clock);
	if (id == NVML_CLOCK_ID_CUSTOMER_BOOST_MAX)
		return nvmlDeviceGetMaxClockInfo(handle, type, clock);
	EK_DEVICE(handle, device, clock);
	(void)device;
	return id < NVML_CLOCK_ID_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
	EK_DEVICE(handle, device, reasons);
	*reasons = ek_u64(device, &device->reasons);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle,
						       unsigned long long *reasons)
{
	return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t handle,
						      unsigned long long *reasons)
{
	EK_DEVICE(handle, device, reasons);
	*reasons = device->reasons_supported;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t handle,
							 unsigned long long *reasons)
{
	return nvmlDeviceGetSupportedClocksEventReasons(handle, reasons);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t handle, nvmlPstates_t *state)
{
	EK_DEVICE(handle, device, state);
	*state = (nvmlPstates_t)EK_LOAD(&device->pstate);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t handle, nvmlPstates_t *state)
{
	return nvmlDeviceGetPerformanceState(handle, state);
}

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t handle, unsigned int *fans)
{
	EK_DEVICE(handle, device, fans);
	*fans = device->fans;
	return NVML_SUCCESS;
}

/* A card without a fan of its own, cooled by the chassis, supports no speed. */
nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t handle, unsigned int fan, unsigned int *speed)
{
	EK_DEVICE(handle, device, speed);
	if (device->fans == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (fan >= device->fans)
		return NVML_ERROR_INVALID_ARGUMENT;
	*speed = ek_u32(device, &device->fan_percent);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t handle, unsigned int *speed)
{
	return nvmlDeviceGetFanSpeed_v2(handle, 0, speed);
}
