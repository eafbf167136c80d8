/* Initialisation, the system's versions and the names of the error codes. */
#include <pthread.h>
#include <time.h>

#include "standin.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int init_count;

nvmlReturn_t ek_enter(struct ek_world **world)
{
	if (EK_LOAD(&init_count) == 0)
		return NVML_ERROR_UNINITIALIZED;
	*world = ek_world();
	while (EK_LOAD(&(*world)->library_hang) && ek_alive(*world) == NVML_SUCCESS)
		ek_nap();
	return ek_alive(*world);
}

static nvmlReturn_t attach_and_wait(void)
{
	struct ek_world *world;
	struct timespec delay;
	uint32_t milliseconds;
	nvmlReturn_t code = ek_attach();

	if (code != NVML_SUCCESS)
		return code;
	world = ek_world();
	milliseconds = EK_LOAD(&world->init_delay_ms);
	delay.tv_sec = milliseconds / 1000;
	delay.tv_nsec = (long)(milliseconds % 1000) * 1000000;
	nanosleep(&delay, NULL);
	while (EK_LOAD(&world->library_hang) && ek_alive(world) == NVML_SUCCESS)
		ek_nap();
	return (nvmlReturn_t)EK_LOAD(&world->init_code);
}

/* The lock is held while Init is slow or hangs, as the driver's own is. */
nvmlReturn_t nvmlInit_v2(void)
{
	nvmlReturn_t code;

	pthread_mutex_lock(&init_lock);
	code = attach_and_wait();
	if (code == NVML_SUCCESS)
		EK_STORE(&init_count, init_count + 1);
	pthread_mutex_unlock(&init_lock);
	return code;
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	if (flags & ~(unsigned int)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH |
				    NVML_INIT_FLAG_FORCE_INIT))
		return NVML_ERROR_INVALID_ARGUMENT;
	return nvmlInit_v2();
}

/* Always possible, so that a client can leave a world that died. */
nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t code = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&init_lock);
	if (init_count > 0) {
		EK_STORE(&init_count, init_count - 1);
		code = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&init_lock);
	return code;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	struct ek_world *world;
	nvmlReturn_t code = ek_enter(&world);

	return code == NVML_SUCCESS ? ek_copy(version, length, world->driver_version) : code;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	struct ek_world *world;
	nvmlReturn_t code = ek_enter(&world);

	return code == NVML_SUCCESS ? ek_copy(version, length, world->nvml_version) : code;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	struct ek_world *world;
	nvmlReturn_t code;

	if (version == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code == NVML_SUCCESS)
		*version = world->cuda_version;
	return code;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

/*
 * The one function that does not return a code, so it has no generated body.
 * The wording is our own.
 */
const char *nvmlErrorString(nvmlReturn_t code)
{
	switch (code) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Not initialised";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not supported";
	case NVML_ERROR_NO_PERMISSION: return "No permission";
	case NVML_ERROR_ALREADY_INITIALIZED: return "Already initialised";
	case NVML_ERROR_NOT_FOUND: return "Not found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient size";
	case NVML_ERROR_INSUFFICIENT_POWER: return "Power cables not attached";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver not loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_IRQ_ISSUE: return "Interrupt issue";
	case NVML_ERROR_LIBRARY_NOT_FOUND: return "Library not found";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function not found";
	case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU needs a reset";
	case NVML_ERROR_OPERATING_SYSTEM: return "Blocked by the operating system";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver and library versions differ";
	case NVML_ERROR_IN_USE: return "In use";
	case NVML_ERROR_MEMORY: return "Insufficient memory";
	case NVML_ERROR_NO_DATA: return "No data";
	case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: return "vGPU not supported with ECC";
	case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient resources";
	case NVML_ERROR_FREQ_NOT_SUPPORTED: return "Frequency not supported";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case NVML_ERROR_DEPRECATED: return "Deprecated";
	case NVML_ERROR_NOT_READY: return "Not ready";
	case NVML_ERROR_GPU_NOT_FOUND: return "No GPU found";
	case NVML_ERROR_INVALID_STATE: return "Invalid state";
	case NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: return "Reset type not supported";
	case NVML_ERROR_UNKNOWN: return "Unknown error";
	}
	return "Unknown error code";
}
