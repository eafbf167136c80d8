/*
 * Calls every function of the stand-in that takes a versioned struct, once with
 * each version it must know and once with one it cannot know. Prints one line
 * per call that answers otherwise than it should; the exit status counts them.
 */
#include <dlfcn.h>
#include <nvml.h>
#include <stdio.h>
#include <string.h>

static void *library;
static nvmlDevice_t device;
static int wrong;

static void expect(const char *what, nvmlReturn_t got, nvmlReturn_t want)
{
	if (got == want)
		return;
	printf("%s: got %d, want %d\n", what, got, want);
	wrong++;
}

#define FIND(function) __typeof__(function) *call = dlsym(library, #function)

#define CHECK(function, type, good)                                                     \
	do {                                                                            \
		FIND(function);                                                         \
		type argument;                                                          \
		memset(&argument, 0, sizeof argument);                                  \
		argument.version = (good);                                              \
		expect(#function " with " #good, call(device, &argument), NVML_SUCCESS); \
		memset(&argument, 0, sizeof argument);                                  \
		argument.version = (good) + (1u << 24);                                 \
		expect(#function " with a version unknown", call(device, &argument),    \
		       NVML_ERROR_ARGUMENT_VERSION_MISMATCH);                           \
		expect(#function " with NULL", call(device, NULL),                      \
		       NVML_ERROR_INVALID_ARGUMENT);                                    \
	} while (0)

int main(int argc, char **argv)
{
	if (argc != 2 || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
		fprintf(stderr, "usage: versions LIBRARY: %s\n", dlerror());
		return 100;
	}
	{
		FIND(nvmlDeviceGetHandleByIndex_v2);
		expect("a call before Init", call(0, &device), NVML_ERROR_UNINITIALIZED);
	}
	{
		FIND(nvmlInit_v2);
		expect("Init", call(), NVML_SUCCESS);
	}
	{
		FIND(nvmlDeviceGetHandleByIndex_v2);
		expect("handle", call(0, &device), NVML_SUCCESS);
	}
	CHECK(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, nvmlMemory_v2);
	CHECK(nvmlDeviceGetTemperatureV, nvmlTemperature_t, nvmlTemperature_v1);
	CHECK(nvmlDeviceGetMarginTemperature, nvmlMarginTemperature_t, nvmlMarginTemperature_v1);
	CHECK(nvmlDeviceGetPciInfoExt, nvmlPciInfoExt_t, nvmlPciInfoExt_v1);
	CHECK(nvmlDeviceGetGpuFabricInfoV, nvmlGpuFabricInfoV_t, nvmlGpuFabricInfo_v3);
	{
		FIND(nvmlDeviceGetGpuFabricInfoV);
		nvmlGpuFabricInfoV_t info;
		memset(&info, 0xaa, sizeof info);
		info.version = nvmlGpuFabricInfo_v2;
		expect("fabric info version 2", call(device, &info), NVML_SUCCESS);
		if (info.healthSummary != 0xaa) {
			printf("fabric info version 2 wrote beyond its struct\n");
			wrong++;
		}
	}
	{
		FIND(nvmlDeviceSetPowerManagementLimit_v2);
		nvmlPowerValue_v2_t value = {.version = nvmlPowerValue_v2, .powerValueMw = 400000};
		expect("power limit", call(device, &value), NVML_SUCCESS);
		value.powerScope = NVML_POWER_SCOPE_MODULE;
		expect("power limit of a module", call(device, &value), NVML_ERROR_NOT_SUPPORTED);
		value.version++;
		expect("power limit with a version unknown", call(device, &value),
		       NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	}
	{
		FIND(nvmlDeviceGetHandleByUUIDV);
		nvmlUUID_t uuid = {.version = nvmlUUID_v1, .type = NVML_UUID_TYPE_ASCII};
		strcpy(uuid.value.str, "GPU-5717a11d-0000-4000-8000-000000000005");
		expect("handle by UUID", call(&uuid, &device), NVML_SUCCESS);
		uuid.version++;
		expect("handle by UUID with a version unknown", call(&uuid, &device),
		       NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	}
	{
		FIND(nvmlDeviceGetIndex);
		unsigned int index = 0;
		nvmlDevice_t nobody = {.handle = (void *)&wrong};
		expect("index", call(device, &index), NVML_SUCCESS);
		if (index != 5) {
			printf("the handle by UUID is that of GPU %u\n", index);
			wrong++;
		}
		expect("a handle of nobody", call(nobody, &index), NVML_ERROR_INVALID_ARGUMENT);
	}
	return wrong;
}
