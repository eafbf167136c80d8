/* Power, energy and the one thing a client may change: the power limit. */
#include "standin.h"

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t handle, nvmlEnableState_t *mode)
{
	EK_DEVICE(handle, device, mode);
	(void)device;
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

/* One-second average where the product has one, else the power of the moment. */
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *power)
{
	EK_DEVICE(handle, device, power);
	*power = ek_u32(device, device->power_average_supported ? &device->power_average_mw
								: &device->power_mw);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *energy)
{
	EK_DEVICE(handle, device, energy);
	*energy = ek_u64(device, &device->energy_mj);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned int *limit)
{
	EK_DEVICE(handle, device, limit);
	*limit = ek_u32(device, &device->power_limit_mw);
	return NVML_SUCCESS;
}

/* The stored request is what is enforced, from the write on. */
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned int *limit)
{
	return nvmlDeviceGetPowerManagementLimit(handle, limit);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned int *min,
							  unsigned int *max)
{
	EK_DEVICE(handle, device, min);
	if (max == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*min = device->power_min_mw;
	*max = device->power_max_mw;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t handle, unsigned int *limit)
{
	EK_DEVICE(handle, device, limit);
	*limit = device->power_default_mw;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t handle, unsigned int limit)
{
	struct ek_device *device;
	nvmlReturn_t code = ek_enter_write(handle, &device);

	if (code != NVML_SUCCESS)
		return code;
	if (limit < device->power_min_mw || limit > device->power_max_mw)
		return NVML_ERROR_INVALID_ARGUMENT;
	EK_STORE(&device->power_limit_mw, limit);
	__atomic_fetch_add(&device->power_requests, 1, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t handle, nvmlPowerValue_v2_t *value)
{
	if (value == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (value->version != nvmlPowerValue_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (value->powerScope != NVML_POWER_SCOPE_GPU)
		return value->powerScope < NVML_POWER_SCOPE_COUNT ? NVML_ERROR_NOT_SUPPORTED
								  : NVML_ERROR_INVALID_ARGUMENT;
	return nvmlDeviceSetPowerManagementLimit(handle, value->powerValueMw);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t handle, nvmlPerfPolicyType_t policy,
					  nvmlViolationTime_t *time)
{
	EK_DEVICE(handle, device, time);
	switch (policy) {
	case NVML_PERF_POLICY_POWER:
		time->violationTime = ek_u64(device, &device->throttle_ns[EK_THROTTLE_SW_POWER]);
		break;
	case NVML_PERF_POLICY_THERMAL:
		time->violationTime = ek_u64(device, &device->throttle_ns[EK_THROTTLE_SW_THERMAL]);
		break;
	case NVML_PERF_POLICY_SYNC_BOOST:
		time->violationTime = ek_u64(device, &device->throttle_ns[EK_THROTTLE_SYNC_BOOST]);
		break;
	case NVML_PERF_POLICY_BOARD_LIMIT:
		time->violationTime = ek_u64(device, &device->throttle_ns[EK_THROTTLE_BOARD_LIMIT]);
		break;
	case NVML_PERF_POLICY_LOW_UTILIZATION:
		time->violationTime =
			ek_u64(device, &device->throttle_ns[EK_THROTTLE_LOW_UTILIZATION]);
		break;
	case NVML_PERF_POLICY_RELIABILITY:
		time->violationTime = ek_u64(device, &device->throttle_ns[EK_THROTTLE_RELIABILITY]);
		break;
	case NVML_PERF_POLICY_TOTAL_APP_CLOCKS:
	case NVML_PERF_POLICY_TOTAL_BASE_CLOCKS: return NVML_ERROR_NOT_SUPPORTED;
	default: return NVML_ERROR_INVALID_ARGUMENT;
	}
	time->referenceTime = (unsigned long long)ek_now_us();
	return NVML_SUCCESS;
}
