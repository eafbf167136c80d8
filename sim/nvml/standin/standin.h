/* What the files of the stand-in share. See world.h for the shared file. */
#ifndef EVENKEEL_STANDIN_H
#define EVENKEEL_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#include <nvml.h>

#include "world.h"

#define EK_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define EK_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

/*
 * A device handle points here and not into the mapping, so that it stays a
 * valid pointer when the world behind it is replaced.
 */
struct nvmlDevice_st {
	uint32_t index;
};

extern struct nvmlDevice_st ek_handles[EK_DEVICES];

/* The world now mapped, or NULL before the first Init. */
struct ek_world *ek_world(void);

/* Maps the world that the environment names, or the still one. */
nvmlReturn_t ek_attach(void);

/* SUCCESS while the world behind the library answers. */
nvmlReturn_t ek_alive(const struct ek_world *world);

/* Fills the world that is served when no file is named. */
void ek_fill_still(struct ek_world *world);

/* Microseconds since 1970. */
int64_t ek_now_us(void);

/* Sleeps one hang poll interval. */
void ek_nap(void);

/* Checks that NVML is initialised and waits out a hang of the whole library. */
nvmlReturn_t ek_enter(struct ek_world **world);

/*
 * Begins a call on a device: everything that a driver call passes before it
 * reads a value. *device is set only with SUCCESS. Calls that hang return when
 * the fault clears or the world dies.
 */
nvmlReturn_t ek_enter_device(nvmlDevice_t handle, struct ek_device **device);

/* ek_enter_device for calls that change the device. */
nvmlReturn_t ek_enter_write(nvmlDevice_t handle, struct ek_device **device);

/* A reading, or all ones while the device has the blank-value fault. */
uint32_t ek_u32(const struct ek_device *device, const uint32_t *field);
uint64_t ek_u64(const struct ek_device *device, const uint64_t *field);
int32_t ek_i32(const struct ek_device *device, const int32_t *field);

/* Copies a string with its NUL, or INSUFFICIENT_SIZE. */
nvmlReturn_t ek_copy(char *to, unsigned int length, const char *from);

/*
 * Leaves the enclosing function unless the call is free to go on. An invalid
 * pointer is reported before the device is looked at, as NVML does.
 */
#define EK_DEVICE(handle, device, pointer)                                 \
	struct ek_device *device;                                          \
	if ((pointer) == NULL)                                             \
		return NVML_ERROR_INVALID_ARGUMENT;                        \
	do {                                                               \
		nvmlReturn_t entered = ek_enter_device((handle), &device); \
		if (entered != NVML_SUCCESS)                               \
			return entered;                                    \
	} while (0)

#endif
