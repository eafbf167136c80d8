/* PCIe, NVLink and the fabric behind it. */
#include <stdio.h>
#include <string.h>

#include "standin.h"

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation)
{
	EK_DEVICE(handle, device, generation);
	*generation = device->pcie_generation_max;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation)
{
	return nvmlDeviceGetMaxPcieLinkGeneration(handle, generation);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t handle, unsigned int *width)
{
	EK_DEVICE(handle, device, width);
	*width = device->pcie_width_max;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation)
{
	EK_DEVICE(handle, device, generation);
	*generation = ek_u32(device, &device->pcie_generation);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t handle, unsigned int *width)
{
	EK_DEVICE(handle, device, width);
	*width = ek_u32(device, &device->pcie_width);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t handle, unsigned int *replays)
{
	EK_DEVICE(handle, device, replays);
	*replays = (unsigned int)ek_u64(device, &device->pcie_replays);
	return NVML_SUCCESS;
}

/* A product without NVLink supports none of it; one with knows its links. */
static nvmlReturn_t check_link(const struct ek_device *device, unsigned int link)
{
	if (device->nvlinks == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	return link < device->nvlinks ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link,
				      nvmlEnableState_t *active)
{
	nvmlReturn_t code;

	EK_DEVICE(handle, device, active);
	code = check_link(device, link);
	if (code != NVML_SUCCESS)
		return code;
	*active = (EK_LOAD(&device->nvlink_down) >> link & 1) ? NVML_FEATURE_DISABLED
							      : NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned int link,
					unsigned int *version)
{
	nvmlReturn_t code;

	EK_DEVICE(handle, device, version);
	code = check_link(device, link);
	if (code == NVML_SUCCESS)
		*version = device->nvlink_version;
	return code;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned int link,
					   nvmlNvLinkCapability_t capability, unsigned int *result)
{
	nvmlReturn_t code;

	EK_DEVICE(handle, device, result);
	if (capability >= NVML_NVLINK_CAP_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = check_link(device, link);
	if (code == NVML_SUCCESS)
		*result = capability == NVML_NVLINK_CAP_P2P_SUPPORTED ||
			  capability == NVML_NVLINK_CAP_P2P_ATOMICS ||
			  capability == NVML_NVLINK_CAP_VALID;
	return code;
}

/* Every link of the products modelled here ends at a switch. */
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned int link,
						 nvmlIntNvLinkDeviceType_t *type)
{
	nvmlReturn_t code;

	EK_DEVICE(handle, device, type);
	code = check_link(device, link);
	if (code == NVML_SUCCESS)
		*type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
	return code;
}

/* Links spread over the switches of the board, numbered on a bus of their own. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned int link,
						 nvmlPciInfo_t *pci)
{
	nvmlReturn_t code;

	EK_DEVICE(handle, device, pci);
	code = check_link(device, link);
	if (code != NVML_SUCCESS)
		return code;
	memset(pci, 0, sizeof *pci);
	pci->bus = 0xf0 + link % 4;
	pci->pciDeviceId = 0x22a310de;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, 0,
		 pci->bus, 0);
	snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0, pci->bus, 0);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t handle, unsigned int link,
					      nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t handle, unsigned int link,
					     nvmlNvLinkErrorCounter_t counter,
					     unsigned long long *value)
{
	nvmlReturn_t code;
	unsigned int kind;

	EK_DEVICE(handle, device, value);
	switch (counter) {
	case NVML_NVLINK_ERROR_DL_REPLAY: kind = EK_LINK_REPLAY; break;
	case NVML_NVLINK_ERROR_DL_RECOVERY: kind = EK_LINK_RECOVERY; break;
	case NVML_NVLINK_ERROR_DL_CRC_FLIT: kind = EK_LINK_CRC_FLIT; break;
	case NVML_NVLINK_ERROR_DL_CRC_DATA: kind = EK_LINK_CRC_DATA; break;
	case NVML_NVLINK_ERROR_DL_ECC_DATA: return NVML_ERROR_NOT_SUPPORTED;
	default: return NVML_ERROR_INVALID_ARGUMENT;
	}
	code = check_link(device, link);
	if (code == NVML_SUCCESS)
		*value = ek_u64(device, &device->nvlink_errors[kind][link]);
	return code;
}

/* Versions 2 and 3 begin alike; the caller's version says how far to write. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfoV_t *info)
{
	EK_DEVICE(handle, device, info);
	if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (EK_LOAD(&device->fabric_state) == NVML_GPU_FABRIC_STATE_NOT_SUPPORTED)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info->clusterUuid, 0, sizeof info->clusterUuid);
	info->status = NVML_SUCCESS;
	info->cliqueId = 0;
	info->state = (nvmlGpuFabricState_t)EK_LOAD(&device->fabric_state);
	info->healthMask = 0;
	if (info->version == nvmlGpuFabricInfo_v3)
		info->healthSummary = info->state == NVML_GPU_FABRIC_STATE_COMPLETED
					      ? NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
					      : NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY;
	return NVML_SUCCESS;
}
