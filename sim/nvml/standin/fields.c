/* nvmlDeviceGetFieldValues: many readings in one driver call. */
#include <string.h>

#include "standin.h"

#define ALL_LINKS UINT32_MAX

static nvmlReturn_t put_u32(const struct ek_device *device, nvmlFieldValue_t *out,
			    const uint32_t *field)
{
	out->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	out->value.uiVal = ek_u32(device, field);
	return NVML_SUCCESS;
}

static nvmlReturn_t put_u64(const struct ek_device *device, nvmlFieldValue_t *out,
			    const uint64_t *field)
{
	out->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	out->value.ullVal = ek_u64(device, field);
	return NVML_SUCCESS;
}

static nvmlReturn_t put_i32(const struct ek_device *device, nvmlFieldValue_t *out,
			    const int32_t *field)
{
	if (EK_LOAD(field) == EK_ABSENT)
		return NVML_ERROR_NOT_SUPPORTED;
	out->valueType = NVML_VALUE_TYPE_SIGNED_INT;
	out->value.siVal = ek_i32(device, field);
	return NVML_SUCCESS;
}

static nvmlReturn_t put_constant(nvmlFieldValue_t *out, uint32_t value)
{
	out->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	out->value.uiVal = value;
	return NVML_SUCCESS;
}

/* One link's counter, or the sum over all where the field allows it. */
static nvmlReturn_t put_link(const struct ek_device *device, nvmlFieldValue_t *out,
			     const uint64_t *links, uint32_t link, uint64_t unit)
{
	uint64_t sum = 0;

	if (device->nvlinks == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (link == ALL_LINKS)
		for (uint32_t i = 0; i < device->nvlinks; i++)
			sum += EK_LOAD(&links[i]);
	else if (link < device->nvlinks)
		sum = EK_LOAD(&links[link]);
	else
		return NVML_ERROR_INVALID_ARGUMENT;
	out->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	out->value.ullVal = EK_LOAD(&device->blank) ? UINT64_MAX : sum / unit;
	return NVML_SUCCESS;
}

static int has_nvlink5(const struct ek_device *device)
{
	return device->nvlink_version >= NVML_NVLINK_VERSION_5_0;
}

/* Raw traffic carries about an eighth more than the data: packet headers. */
static nvmlReturn_t put_raw(const struct ek_device *device, nvmlFieldValue_t *out,
			    const uint64_t *links)
{
	nvmlReturn_t code = put_link(device, out, links, out->scopeId, 1024);

	if (code == NVML_SUCCESS && !EK_LOAD(&device->blank))
		out->value.ullVal += out->value.ullVal / 8;
	return code;
}

static nvmlReturn_t ecc_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	switch (out->fieldId) {
	case NVML_FI_DEV_ECC_CURRENT:
	case NVML_FI_DEV_ECC_PENDING: return put_constant(out, 1);
	case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
	case NVML_FI_DEV_ECC_SBE_VOL_DEV:
		return put_u64(device, out, &device->ecc_corrected_volatile);
	case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
	case NVML_FI_DEV_ECC_DBE_VOL_DEV:
		return put_u64(device, out, &device->ecc_uncorrected_volatile);
	case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
	case NVML_FI_DEV_ECC_SBE_AGG_DEV:
		return put_u64(device, out, &device->ecc_corrected_aggregate);
	case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
	case NVML_FI_DEV_ECC_DBE_AGG_DEV:
		return put_u64(device, out, &device->ecc_uncorrected_aggregate);
	default: return NVML_ERROR_NOT_SUPPORTED;
	}
}

/* Row remapping came with Ampere, the recovery action with drivers of its time. */
static nvmlReturn_t remap_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	if (device->architecture < NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	switch (out->fieldId) {
	case NVML_FI_DEV_REMAPPED_COR: return put_u32(device, out, &device->remapped_correctable);
	case NVML_FI_DEV_REMAPPED_UNC: return put_u32(device, out, &device->remapped_uncorrectable);
	case NVML_FI_DEV_REMAPPED_PENDING: return put_u32(device, out, &device->remap_pending);
	case NVML_FI_DEV_REMAPPED_FAILURE: return put_u32(device, out, &device->remap_failed);
	default: return put_u32(device, out, &device->recovery_action);
	}
}

static nvmlReturn_t thermal_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	switch (out->fieldId) {
	case NVML_FI_DEV_MEMORY_TEMP:
		if (EK_LOAD(&device->memory_c) == EK_ABSENT)
			return NVML_ERROR_NOT_SUPPORTED;
		return put_u32(device, out, (const uint32_t *)&device->memory_c);
	case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT:
		return put_i32(device, out, &device->shutdown_tlimit_c);
	case NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT:
		return put_i32(device, out, &device->slowdown_tlimit_c);
	case NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT:
		return put_i32(device, out, &device->memory_max_tlimit_c);
	default: return put_i32(device, out, &device->gpu_max_tlimit_c);
	}
}

/* Only the GPU itself is metered: a module scope exists on Grace boards alone. */
static nvmlReturn_t power_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	if (out->scopeId != NVML_POWER_SCOPE_GPU)
		return out->scopeId < NVML_POWER_SCOPE_COUNT ? NVML_ERROR_NOT_SUPPORTED
							     : NVML_ERROR_INVALID_ARGUMENT;
	switch (out->fieldId) {
	case NVML_FI_DEV_POWER_AVERAGE:
		if (!device->power_average_supported)
			return NVML_ERROR_NOT_SUPPORTED;
		return put_u32(device, out, &device->power_average_mw);
	case NVML_FI_DEV_POWER_INSTANT: return put_u32(device, out, &device->power_mw);
	case NVML_FI_DEV_POWER_MIN_LIMIT: return put_u32(device, out, &device->power_min_mw);
	case NVML_FI_DEV_POWER_MAX_LIMIT: return put_u32(device, out, &device->power_max_mw);
	case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
		return put_u32(device, out, &device->power_default_mw);
	default: return put_u32(device, out, &device->power_limit_mw);
	}
}

static nvmlReturn_t throttle_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	unsigned int kind;

	switch (out->fieldId) {
	case NVML_FI_DEV_PERF_POLICY_POWER: kind = EK_THROTTLE_SW_POWER; break;
	case NVML_FI_DEV_PERF_POLICY_THERMAL:
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
		kind = EK_THROTTLE_SW_THERMAL;
		break;
	case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: kind = EK_THROTTLE_SYNC_BOOST; break;
	case NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT: kind = EK_THROTTLE_BOARD_LIMIT; break;
	case NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION: kind = EK_THROTTLE_LOW_UTILIZATION; break;
	case NVML_FI_DEV_PERF_POLICY_RELIABILITY: kind = EK_THROTTLE_RELIABILITY; break;
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: kind = EK_THROTTLE_HW_THERMAL; break;
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
		kind = EK_THROTTLE_POWER_BRAKE;
		break;
	default: return NVML_ERROR_NOT_SUPPORTED;
	}
	return put_u64(device, out, &device->throttle_ns[kind]);
}

static nvmlReturn_t pcie_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	switch (out->fieldId) {
	case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
		return put_u64(device, out, &device->pcie_replays);
	case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: return put_u64(device, out, &device->pcie_tx_bytes);
	default: return put_u64(device, out, &device->pcie_rx_bytes);
	}
}

/* Traffic: KiB up to NVLink 4, bytes and per link only from NVLink 5 on. */
static nvmlReturn_t nvlink_traffic(const struct ek_device *device, nvmlFieldValue_t *out)
{
	int old = out->fieldId <= NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX;

	if (old == has_nvlink5(device))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!old && out->scopeId == ALL_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	switch (out->fieldId) {
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
		return put_link(device, out, device->nvlink_tx_bytes, out->scopeId, 1024);
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
		return put_link(device, out, device->nvlink_rx_bytes, out->scopeId, 1024);
	case NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX:
		return put_raw(device, out, device->nvlink_tx_bytes);
	case NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX:
		return put_raw(device, out, device->nvlink_rx_bytes);
	case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES:
		return put_link(device, out, device->nvlink_tx_bytes, out->scopeId, 1);
	default: return put_link(device, out, device->nvlink_rx_bytes, out->scopeId, 1);
	}
}

static nvmlReturn_t nvlink_errors(const struct ek_device *device, nvmlFieldValue_t *out)
{
	uint32_t link = out->scopeId;
	unsigned int kind;

	switch (out->fieldId) {
	case NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL:
		kind = EK_LINK_CRC_FLIT;
		link = ALL_LINKS;
		break;
	case NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL:
		kind = EK_LINK_CRC_DATA;
		link = ALL_LINKS;
		break;
	case NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL:
		kind = EK_LINK_REPLAY;
		link = ALL_LINKS;
		break;
	case NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
		kind = EK_LINK_RECOVERY;
		link = ALL_LINKS;
		break;
	case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: kind = EK_LINK_REPLAY; break;
	case NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: kind = EK_LINK_RECOVERY; break;
	default: kind = EK_LINK_CRC_FLIT; break;
	}
	if (has_nvlink5(device))
		return NVML_ERROR_NOT_SUPPORTED;
	return put_link(device, out, device->nvlink_errors[kind], link, 1);
}

/* NVLink 5 counts packets received with errors and recoveries of the link. */
static nvmlReturn_t nvlink5_errors(const struct ek_device *device, nvmlFieldValue_t *out)
{
	int recoveries = out->fieldId != NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS;

	if (!has_nvlink5(device))
		return NVML_ERROR_NOT_SUPPORTED;
	if (out->scopeId == ALL_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	return put_link(device, out,
			device->nvlink_errors[recoveries ? EK_LINK_RECOVERY : EK_LINK_CRC_FLIT],
			out->scopeId, 1);
}

static nvmlReturn_t nvlink_state(const struct ek_device *device, nvmlFieldValue_t *out)
{
	if (device->nvlinks == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (out->fieldId == NVML_FI_DEV_NVLINK_LINK_COUNT)
		return put_u32(device, out, &device->nvlinks);
	if (out->fieldId == NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
		return put_u32(device, out, &device->nvlink_mbps);
	if (out->scopeId >= device->nvlinks)
		return NVML_ERROR_INVALID_ARGUMENT;
	switch (out->fieldId) {
	case NVML_FI_DEV_NVLINK_GET_SPEED: return put_u32(device, out, &device->nvlink_mbps);
	case NVML_FI_DEV_NVLINK_GET_VERSION: return put_u32(device, out, &device->nvlink_version);
	default:
		return put_constant(out, (EK_LOAD(&device->nvlink_down) >> out->scopeId & 1)
						 ? NVML_NVLINK_STATE_INACTIVE
						 : NVML_NVLINK_STATE_ACTIVE);
	}
}

static nvmlReturn_t read_field(const struct ek_device *device, nvmlFieldValue_t *out)
{
	switch (out->fieldId) {
	case 1 ... 28: return ecc_field(device, out);
	case NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL:
	case NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL:
	case NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL:
	case NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
	case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY ... NVML_FI_DEV_NVLINK_ERROR_DL_CRC:
		return nvlink_errors(device, out);
	case NVML_FI_DEV_PERF_POLICY_POWER ... NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS:
	case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN ...
		NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
		return throttle_field(device, out);
	case NVML_FI_DEV_MEMORY_TEMP:
	case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT ... NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT:
		return thermal_field(device, out);
	case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
	case NVML_FI_DEV_ENERGY: return put_u64(device, out, &device->energy_mj);
	case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
	case NVML_FI_DEV_NVLINK_LINK_COUNT:
	case NVML_FI_DEV_NVLINK_GET_SPEED ... NVML_FI_DEV_NVLINK_GET_VERSION:
		return nvlink_state(device, out);
	case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
	case NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
	case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: return pcie_field(device, out);
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ... NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX:
	case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES:
	case NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES: return nvlink_traffic(device, out);
	case NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS:
	case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS:
	case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: return nvlink5_errors(device, out);
	case NVML_FI_DEV_REMAPPED_COR ... NVML_FI_DEV_REMAPPED_FAILURE:
	case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: return remap_field(device, out);
	case NVML_FI_DEV_POWER_AVERAGE ... NVML_FI_DEV_POWER_CURRENT_LIMIT:
	case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return power_field(device, out);
	default:
		return out->fieldId < NVML_FI_MAX ? NVML_ERROR_NOT_SUPPORTED
						  : NVML_ERROR_INVALID_ARGUMENT;
	}
}

/* The whole call succeeds: what a single field cannot give is said there. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
	long long now;

	EK_DEVICE(handle, device, values);
	if (count <= 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	now = ek_now_us();
	for (int i = 0; i < count; i++) {
		memset(&values[i].value, 0, sizeof values[i].value);
		values[i].timestamp = now;
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = read_field(device, &values[i]);
	}
	return NVML_SUCCESS;
}
