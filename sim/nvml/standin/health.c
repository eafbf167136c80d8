/* Memory errors and remapped rows. */
#include "standin.h"

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, nvmlEnableState_t *now,
				  nvmlEnableState_t *pending)
{
	EK_DEVICE(handle, device, now);
	(void)device;
	if (pending == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*now = NVML_FEATURE_ENABLED;
	*pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, nvmlMemoryErrorType_t type,
					 nvmlEccCounterType_t counter, unsigned long long *count)
{
	const uint64_t *field;

	EK_DEVICE(handle, device, count);
	if (type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (type == NVML_MEMORY_ERROR_TYPE_CORRECTED)
		field = counter == NVML_VOLATILE_ECC ? &device->ecc_corrected_volatile
						     : &device->ecc_corrected_aggregate;
	else
		field = counter == NVML_VOLATILE_ECC ? &device->ecc_uncorrected_volatile
						     : &device->ecc_uncorrected_aggregate;
	*count = ek_u64(device, field);
	return NVML_SUCCESS;
}

/* All simulated errors are in device memory. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, nvmlMemoryErrorType_t type,
					     nvmlEccCounterType_t counter,
					     nvmlMemoryLocation_t location,
					     unsigned long long *count)
{
	nvmlReturn_t code = nvmlDeviceGetTotalEccErrors(handle, type, counter, count);

	if (code != NVML_SUCCESS)
		return code;
	switch (location) {
	case NVML_MEMORY_LOCATION_DRAM: return NVML_SUCCESS;
	case NVML_MEMORY_LOCATION_SRAM: *count = 0; return NVML_SUCCESS;
	default:
		return location < NVML_MEMORY_LOCATION_COUNT ? NVML_ERROR_NOT_SUPPORTED
							     : NVML_ERROR_INVALID_ARGUMENT;
	}
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned int *correctable,
				       unsigned int *uncorrectable, unsigned int *pending,
				       unsigned int *failed)
{
	EK_DEVICE(handle, device, correctable);
	if (uncorrectable == NULL || pending == NULL || failed == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (device->architecture < NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	*correctable = ek_u32(device, &device->remapped_correctable);
	*uncorrectable = ek_u32(device, &device->remapped_uncorrectable);
	*pending = ek_u32(device, &device->remap_pending);
	*failed = ek_u32(device, &device->remap_failed);
	return NVML_SUCCESS;
}
