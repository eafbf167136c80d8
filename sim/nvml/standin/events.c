/* Event sets: readers of the ring that the world raises events into. */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

#define EK_EVENT_TYPES                                                                \
	((uint64_t)(nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | \
		    nvmlEventTypeXidCriticalError | nvmlEventTypeGpuUnavailableError |    \
		    nvmlEventTypeGpuRecoveryAction))

/* A waiter looks whether the world still lives at least this often. */
#define EK_EVENT_SLICE_US 1000000LL

/*
 * Each set reads at its own position and sees nothing that was raised before a
 * GPU was registered, as with the real library.
 */
struct nvmlEventSet_st {
	struct ek_world *world;
	uint32_t position;
	uint32_t since[EK_DEVICES];
	uint64_t types[EK_DEVICES];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	struct ek_world *world;
	nvmlReturn_t code;

	if (set == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	code = ek_enter(&world);
	if (code != NVML_SUCCESS)
		return code;
	set->handle = calloc(1, sizeof *set->handle);
	if (set->handle == NULL)
		return NVML_ERROR_MEMORY;
	set->handle->world = world;
	set->handle->position = EK_LOAD(&world->event_head);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	if (set.handle == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(set.handle);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
	EK_DEVICE(handle, device, types);
	(void)device;
	*types = EK_EVENT_TYPES;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types,
				      nvmlEventSet_t set)
{
	uint32_t index;

	EK_DEVICE(handle, device, set.handle);
	(void)device;
	index = handle.handle->index;
	if (types & ~(unsigned long long)nvmlEventTypeAll)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~EK_EVENT_TYPES)
		return NVML_ERROR_NOT_SUPPORTED;
	if (set.handle->types[index] == 0)
		set.handle->since[index] = EK_LOAD(&set.handle->world->event_head);
	set.handle->types[index] |= types;
	return NVML_SUCCESS;
}

/* Takes the next event that the set asked for. Returns whether there was one. */
static int take(struct nvmlEventSet_st *set, nvmlEventData_t *data)
{
	uint32_t head = EK_LOAD(&set->world->event_head);

	/* A reader that fell behind the ring loses the oldest, as the driver does. */
	if (head - set->position > EK_EVENTS)
		set->position = head - EK_EVENTS;
	while (set->position != head) {
		uint32_t number = set->position++;
		const struct ek_event *event = &set->world->events[number % EK_EVENTS];

		if (event->device >= EK_DEVICES || !(set->types[event->device] & event->type) ||
		    (int32_t)(number - set->since[event->device]) < 0)
			continue;
		data->device.handle = &ek_handles[event->device];
		data->eventType = event->type;
		data->eventData = event->data;
		data->gpuInstanceId = event->gpu_instance;
		data->computeInstanceId = event->compute_instance;
		return 1;
	}
	return 0;
}

/* A set does not outlive a GPU that it listens to. */
static int lost(const struct nvmlEventSet_st *set)
{
	for (uint32_t i = 0; i < EK_DEVICES; i++)
		if (set->types[i] != 0 &&
		    EK_LOAD(&set->world->device[i].forced_code) == NVML_ERROR_GPU_IS_LOST)
			return 1;
	return 0;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	struct ek_world *world;
	int64_t deadline = ek_now_us() + (int64_t)timeout_ms * 1000;
	nvmlReturn_t code;

	if (set.handle == NULL || data == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		int64_t left;
		struct timespec wait;

		code = ek_enter(&world);
		if (code == NVML_SUCCESS)
			code = ek_alive(set.handle->world);
		if (code != NVML_SUCCESS)
			return code;
		if (take(set.handle, data))
			return NVML_SUCCESS;
		if (lost(set.handle))
			return NVML_ERROR_GPU_IS_LOST;
		left = deadline - ek_now_us();
		if (left <= 0)
			return NVML_ERROR_TIMEOUT;
		if (left > EK_EVENT_SLICE_US)
			left = EK_EVENT_SLICE_US;
		wait.tv_sec = left / 1000000;
		wait.tv_nsec = left % 1000000 * 1000;
		/* Not the private kind of futex: the waker is another process. */
		syscall(SYS_futex, &set.handle->world->event_head, FUTEX_WAIT,
			set.handle->position, &wait, NULL, 0);
	}
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
