/* Finding, mapping and entering the world. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

struct nvmlDevice_st ek_handles[EK_DEVICES];

static struct ek_world *current;
static struct ek_world still;

struct ek_world *ek_world(void)
{
	return EK_LOAD(&current);
}

int64_t ek_now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void ek_nap(void)
{
	struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
	nanosleep(&nap, NULL);
}

nvmlReturn_t ek_alive(const struct ek_world *world)
{
	if (world == &still)
		return NVML_SUCCESS;
	if (ek_now_us() - (int64_t)EK_LOAD(&world->heartbeat_us) > EK_HEARTBEAT_MAX_US)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	return NVML_SUCCESS;
}

static struct ek_world *map_file(const char *path)
{
	struct stat status;
	struct ek_world *world;
	int file = open(path, O_RDWR | O_CLOEXEC);

	if (file < 0)
		return NULL;
	if (fstat(file, &status) != 0 || status.st_size < (off_t)sizeof *world) {
		close(file);
		return NULL;
	}
	world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (world == MAP_FAILED)
		return NULL;
	if (EK_LOAD(&world->magic) != EK_MAGIC || world->layout != EK_LAYOUT ||
	    world->devices > EK_DEVICES) {
		munmap(world, sizeof *world);
		return NULL;
	}
	return world;
}

/*
 * A world that is alive is kept, a dead one is looked up again under its path.
 * The old mapping is left in place: a call that hangs may still be inside.
 */
nvmlReturn_t ek_attach(void)
{
	const char *path = getenv("EVENKEEL_STANDIN_SHM");
	struct ek_world *world = ek_world();

	for (uint32_t i = 0; i < EK_DEVICES; i++)
		ek_handles[i].index = i;
	if (path == NULL || *path == '\0') {
		if (still.magic != EK_MAGIC)
			ek_fill_still(&still);
		EK_STORE(&current, &still);
		return NVML_SUCCESS;
	}
	if (world == NULL || world == &still || ek_alive(world) != NVML_SUCCESS)
		world = map_file(path);
	if (world == NULL || ek_alive(world) != NVML_SUCCESS)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	EK_STORE(&current, world);
	return NVML_SUCCESS;
}

nvmlReturn_t ek_enter_device(nvmlDevice_t handle, struct ek_device **device)
{
	struct ek_world *world;
	struct ek_device *found;
	nvmlReturn_t code = ek_enter(&world);

	if (code != NVML_SUCCESS)
		return code;
	if (handle.handle < ek_handles || handle.handle >= ek_handles + world->devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	found = &world->device[handle.handle->index];
	__atomic_fetch_add(&found->calls, 1, __ATOMIC_RELAXED);
	while (EK_LOAD(&found->hang)) {
		if (ek_alive(world) != NVML_SUCCESS)
			return NVML_ERROR_DRIVER_NOT_LOADED;
		ek_nap();
	}
	code = (nvmlReturn_t)EK_LOAD(&found->forced_code);
	if (code != NVML_SUCCESS)
		return code;
	*device = found;
	return NVML_SUCCESS;
}

nvmlReturn_t ek_enter_write(nvmlDevice_t handle, struct ek_device **device)
{
	nvmlReturn_t code = ek_enter_device(handle, device);

	if (code == NVML_SUCCESS && EK_LOAD(&(*device)->no_permission))
		return NVML_ERROR_NO_PERMISSION;
	return code;
}

uint32_t ek_u32(const struct ek_device *device, const uint32_t *field)
{
	return EK_LOAD(&device->blank) ? UINT32_MAX : EK_LOAD(field);
}

uint64_t ek_u64(const struct ek_device *device, const uint64_t *field)
{
	return EK_LOAD(&device->blank) ? UINT64_MAX : EK_LOAD(field);
}

int32_t ek_i32(const struct ek_device *device, const int32_t *field)
{
	return EK_LOAD(&device->blank) ? -1 : EK_LOAD(field);
}

nvmlReturn_t ek_copy(char *to, unsigned int length, const char *from)
{
	size_t need = strlen(from) + 1;

	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length < need)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, from, need);
	return NVML_SUCCESS;
}
