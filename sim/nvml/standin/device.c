/* Enumeration and what does not change: identity, PCI, product limits. */
#include <stdio.h>
#include <string.h>

#include "standin.h"

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	struct ek_world *world;
	nvmlReturn_t code;

	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code == NVML_SUCCESS)
		*count = world->devices;
	return code;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

/* Looking a GPU up initialises it, so a bad GPU fails here and not in Init. */
static nvmlReturn_t open_index(uint32_t index, nvmlDevice_t *handle)
{
	nvmlDevice_t opened = {.handle = &ek_handles[index]};
	struct ek_device *device;
	nvmlReturn_t code = ek_enter_device(opened, &device);

	if (code == NVML_SUCCESS)
		*handle = opened;
	return code;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
	struct ek_world *world;
	nvmlReturn_t code;

	if (handle == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code != NVML_SUCCESS)
		return code;
	if (index >= world->devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	return open_index(index, handle);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *handle)
{
	return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
	struct ek_world *world;
	nvmlReturn_t code;

	if (uuid == NULL || handle == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code != NVML_SUCCESS)
		return code;
	for (uint32_t i = 0; i < world->devices; i++)
		if (strcmp(uuid, world->device[i].uuid) == 0)
			return open_index(i, handle);
	return NVML_ERROR_NOT_FOUND;
}

/* Only the ASCII form: the simulated UUIDs have no other source. */
nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *handle)
{
	if (uuid == NULL || handle == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (uuid->version != nvmlUUID_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (uuid->type != NVML_UUID_TYPE_ASCII ||
	    memchr(uuid->value.str, '\0', sizeof uuid->value.str) == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	return nvmlDeviceGetHandleByUUID(uuid->value.str, handle);
}

/* Accepts domain:bus:device[.function] and bus:device.function, in hex. */
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle)
{
	struct ek_world *world;
	unsigned int domain = 0, bus, slot, function;
	nvmlReturn_t code;

	if (bus_id == NULL || handle == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code != NVML_SUCCESS)
		return code;
	if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) != 3)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (uint32_t i = 0; i < world->devices; i++) {
		const struct ek_device *device = &world->device[i];

		if (device->pci_domain == domain && device->pci_bus == bus &&
		    device->pci_device == slot)
			return open_index(i, handle);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *handle)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *handle)
{
	struct ek_world *world;
	nvmlReturn_t code;

	if (serial == NULL || handle == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code != NVML_SUCCESS)
		return code;
	for (uint32_t i = 0; i < world->devices; i++)
		if (strcmp(serial, world->device[i].serial) == 0)
			return open_index(i, handle);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index)
{
	EK_DEVICE(handle, device, index);
	*index = (unsigned int)(device - ek_world()->device);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
	EK_DEVICE(handle, device, name);
	return ek_copy(name, length, device->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
	EK_DEVICE(handle, device, uuid);
	return ek_copy(uuid, length, device->uuid);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned int length)
{
	EK_DEVICE(handle, device, serial);
	return ek_copy(serial, length, device->serial);
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t handle, char *number, unsigned int length)
{
	EK_DEVICE(handle, device, number);
	return ek_copy(number, length, device->part_number);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char *version, unsigned int length)
{
	EK_DEVICE(handle, device, version);
	return ek_copy(version, length, device->vbios);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned int *minor)
{
	EK_DEVICE(handle, device, minor);
	*minor = device->minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t handle, unsigned int *module)
{
	EK_DEVICE(handle, device, module);
	*module = device->module_id;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, nvmlDeviceArchitecture_t *architecture)
{
	EK_DEVICE(handle, device, architecture);
	*architecture = device->architecture;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t handle, nvmlBrandType_t *brand)
{
	EK_DEVICE(handle, device, brand);
	*brand = (nvmlBrandType_t)device->brand;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
	EK_DEVICE(handle, device, major);
	if (minor == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)device->cuda_major;
	*minor = (int)device->cuda_minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	EK_DEVICE(handle, device, pci);
	pci->domain = device->pci_domain;
	pci->bus = device->pci_bus;
	pci->device = device->pci_device;
	pci->pciDeviceId = device->pci_device_id;
	pci->pciSubSystemId = device->pci_subsystem_id;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
		 pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
	snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT,
		 NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(handle, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(handle, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_t *pci)
{
	EK_DEVICE(handle, device, pci);
	if (pci->version != nvmlPciInfoExt_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	pci->domain = device->pci_domain;
	pci->bus = device->pci_bus;
	pci->device = device->pci_device;
	pci->pciDeviceId = device->pci_device_id;
	pci->pciSubSystemId = device->pci_subsystem_id;
	pci->baseClass = 0x03; /* display controller */
	pci->subClass = 0x02;  /* 3D */
	snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT,
		 NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, nvmlEnableState_t *mode)
{
	EK_DEVICE(handle, device, mode);
	(void)device;
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, nvmlComputeMode_t *mode)
{
	EK_DEVICE(handle, device, mode);
	(void)device;
	*mode = NVML_COMPUTEMODE_DEFAULT;
	return NVML_SUCCESS;
}

/* Instances cannot be created yet, so the mode is off wherever it exists. */
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *now, unsigned int *pending)
{
	EK_DEVICE(handle, device, now);
	if (pending == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (device->architecture < NVML_DEVICE_ARCH_AMPERE ||
	    device->architecture == NVML_DEVICE_ARCH_ADA)
		return NVML_ERROR_NOT_SUPPORTED;
	*now = NVML_DEVICE_MIG_DISABLE;
	*pending = NVML_DEVICE_MIG_DISABLE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_mig)
{
	EK_DEVICE(handle, device, is_mig);
	(void)device;
	*is_mig = 0;
	return NVML_SUCCESS;
}
