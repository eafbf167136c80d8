/*
 * Writes into a world file what no scenario can ask for.
 *
 *   poke FILE process GPU SLOT KIND PID BYTES INSTANCE
 *   poke FILE set GPU FIELD VALUE
 *   poke FILE link GPU KIND LINK VALUE
 *   poke FILE event GPU TYPE DATA INSTANCE
 *   poke FILE world FIELD VALUE
 *   poke FILE layout               prints where the fields are: name, place, size
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "world.h"

static unsigned long long number(const char *text)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 0);

	if (*text == '\0' || *end != '\0') {
		fprintf(stderr, "poke: %s is no number\n", text);
		exit(2);
	}
	return v;
}

static int process(struct ek_world *world, char **arg)
{
	struct ek_process *p = &world->device[number(arg[0])].processes[number(arg[1])];

	p->pid = number(arg[3]);
	p->used_bytes = number(arg[4]);
	p->gpu_instance = number(arg[5]);
	p->compute_instance = UINT32_MAX;
	__atomic_store_n(&p->kind, number(arg[2]), __ATOMIC_RELEASE);
	return 0;
}

#define FIELD(name) {#name, offsetof(struct ek_device, name), sizeof ((struct ek_device *)0)->name}

static const struct {
	const char *name;
	size_t at, size;
} fields[] = {
	FIELD(ecc_corrected_volatile), FIELD(ecc_corrected_aggregate),
	FIELD(ecc_uncorrected_volatile), FIELD(ecc_uncorrected_aggregate),
	FIELD(remapped_correctable), FIELD(remapped_uncorrectable),
	FIELD(remap_pending), FIELD(remap_failed), FIELD(recovery_action),
	FIELD(fabric_state), FIELD(nvlink_down), FIELD(pcie_replays),
	FIELD(pcie_generation), FIELD(pcie_width), FIELD(energy_mj),
	FIELD(throttle_ns), FIELD(pcie_tx_bytes), FIELD(pcie_rx_bytes),
	FIELD(nvlink_tx_bytes), FIELD(nvlink_rx_bytes), FIELD(nvlink_errors),
	FIELD(forced_code), FIELD(blank),
};

static int set(struct ek_world *world, char **arg)
{
	unsigned char *device = (unsigned char *)&world->device[number(arg[0])];

	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
		if (strcmp(fields[i].name, arg[1]) != 0)
			continue;
		if (fields[i].size == sizeof(uint32_t))
			__atomic_store_n((uint32_t *)(device + fields[i].at), number(arg[2]), __ATOMIC_RELEASE);
		else
			__atomic_store_n((uint64_t *)(device + fields[i].at), number(arg[2]), __ATOMIC_RELEASE);
		return 0;
	}
	fprintf(stderr, "poke: no field %s\n", arg[1]);
	return 2;
}

/* KIND is a number of world.h. */
static int link_errors(struct ek_world *world, char **arg)
{
	struct ek_device *device = &world->device[number(arg[0])];

	__atomic_store_n(&device->nvlink_errors[number(arg[1])][number(arg[2])], number(arg[3]), __ATOMIC_RELEASE);
	return 0;
}

/* As the world raises one; only one of them may do so at a time. */
static int event(struct ek_world *world, char **arg)
{
	uint32_t head = __atomic_load_n(&world->event_head, __ATOMIC_ACQUIRE);
	struct ek_event *e = &world->events[head % EK_EVENTS];

	e->device = number(arg[0]);
	e->type = number(arg[1]);
	e->data = number(arg[2]);
	e->gpu_instance = number(arg[3]);
	e->compute_instance = UINT32_MAX;
	__atomic_store_n(&world->event_head, head + 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &world->event_head, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	return 0;
}

static int of_world(struct ek_world *world, char **arg)
{
	uint32_t v = number(arg[1]);

	if (strcmp(arg[0], "library_hang") == 0)
		__atomic_store_n(&world->library_hang, v, __ATOMIC_RELEASE);
	else if (strcmp(arg[0], "init_code") == 0)
		__atomic_store_n(&world->init_code, (int32_t)v, __ATOMIC_RELEASE);
	else if (strcmp(arg[0], "init_delay_ms") == 0)
		__atomic_store_n(&world->init_delay_ms, v, __ATOMIC_RELEASE);
	else
		return 2;
	return 0;
}

/* Of the first device; the next lies a stride further. */
static int layout(void)
{
	printf("heartbeat %zu 8\n", offsetof(struct ek_world, heartbeat_us));
	printf("stride %zu 8\n", sizeof(struct ek_device));
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		printf("%s %zu %zu\n", fields[i].name, offsetof(struct ek_world, device) + fields[i].at, fields[i].size);
	return 0;
}

int main(int argc, char **argv)
{
	struct ek_world *world;
	int fd;

	if (argc < 3)
		return 2;
	fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (world == MAP_FAILED || world->layout != EK_LAYOUT)
		return 1;
	if (strcmp(argv[2], "process") == 0 && argc == 9)
		return process(world, argv + 3);
	if (strcmp(argv[2], "set") == 0 && argc == 6)
		return set(world, argv + 3);
	if (strcmp(argv[2], "link") == 0 && argc == 7)
		return link_errors(world, argv + 3);
	if (strcmp(argv[2], "event") == 0 && argc == 7)
		return event(world, argv + 3);
	if (strcmp(argv[2], "world") == 0 && argc == 5)
		return of_world(world, argv + 3);
	if (strcmp(argv[2], "layout") == 0 && argc == 3)
		return layout();
	fprintf(stderr, "poke: what is %s?\n", argv[2]);
	return 2;
}
