/*
 * The shared file between a simulated world and this stand-in for
 * libnvidia-ml.so.1.
 *
 * One process (the world) owns the file, steps the physics and writes every
 * reading; any number of client processes map it through the library. Values
 * that change are single aligned words, read and written atomically, so no
 * lock crosses a process boundary and a world that dies can block nobody.
 *
 * The world creates the file under another name, fills it, writes the magic
 * last and renames it into place. It never shrinks or truncates it: that would
 * kill every client that maps it. A world that ends leaves a heartbeat that
 * grows old, and the library then answers as a driver that is not loaded.
 *
 * The Go side mirrors these structs (sim/shared_linux.go); a test compares every
 * offset. A change of layout needs a new EK_LAYOUT.
 */
#ifndef EVENKEEL_WORLD_H
#define EVENKEEL_WORLD_H

#include <stdint.h>

#define EK_MAGIC 0x31304c4d564e4b45ULL /* "EKNVML01" in memory order */
#define EK_LAYOUT 1u

#define EK_DEVICES 16   /* GPUs in one world file */
#define EK_LINKS 18     /* NVLinks of one GPU */
#define EK_SAMPLES 128  /* entries of one driver sample buffer */
#define EK_PROCESSES 64 /* processes known to one GPU */
#define EK_EVENTS 256   /* events kept for slow readers */

#define EK_HEARTBEAT_MAX_US 2000000LL

/* A threshold or reading that this GPU does not have. Absent is not zero. */
#define EK_ABSENT INT32_MIN

/* Driver sample buffers: power in mW, utilisations in percent. */
enum { EK_SAMPLE_POWER, EK_SAMPLE_GPU, EK_SAMPLE_MEMORY, EK_SAMPLE_KINDS };

/* Reasons for a lower clock whose time the driver counts. */
enum {
	EK_THROTTLE_SW_POWER,
	EK_THROTTLE_SW_THERMAL,
	EK_THROTTLE_HW_THERMAL,
	EK_THROTTLE_POWER_BRAKE,
	EK_THROTTLE_SYNC_BOOST,
	EK_THROTTLE_BOARD_LIMIT,
	EK_THROTTLE_LOW_UTILIZATION,
	EK_THROTTLE_RELIABILITY,
	EK_THROTTLE_KINDS
};

enum { EK_LINK_CRC_FLIT, EK_LINK_CRC_DATA, EK_LINK_REPLAY, EK_LINK_RECOVERY, EK_LINK_ERRORS };

enum { EK_PROCESS_COMPUTE = 1, EK_PROCESS_GRAPHICS = 2, EK_PROCESS_MPS = 3 };

struct ek_sample {
	uint64_t time_us; /* CPU clock, microseconds since 1970, as NVML's */
	uint64_t value;
};

/* Ring of samples: head counts every sample ever written. */
struct ek_samples {
	uint64_t head;
	struct ek_sample ring[EK_SAMPLES];
};

/*
 * A process is in the table while kind is one of the above. Claimers and the
 * world change kind by compare-and-swap alone:
 *
 *   0 -> EK_PROCESS_WRITING | claimer -> kind   by the claimer, the slot's owner
 *                                               in between
 *   kind -> 0                                   by the world, process gone
 *   EK_PROCESS_WRITING | claimer -> 0           by the claimer, or by the world
 *                                               once the claimer is gone
 *
 * claimer is its pid << 9 with the low 9 bits of its start_ticks. generation
 * grows with each claim, so that a reader knows when the slot has changed hands
 * while it read.
 */
#define EK_PROCESS_WRITING 0x80000000u

struct ek_process {
	uint64_t used_bytes;
	uint64_t start_ticks; /* from /proc/PID/stat, tells a reused pid apart */
	uint32_t pid;
	uint32_t kind;
	uint32_t share_permille; /* of the GPU's activity */
	uint32_t gpu_instance;   /* UINT32_MAX without MIG */
	uint32_t compute_instance;
	uint32_t generation;
};

struct ek_event {
	uint64_t type; /* nvmlEventType bit */
	uint64_t data; /* the Xid */
	uint64_t time_us;
	uint32_t device; /* index */
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint32_t reserved;
};

struct ek_device {
	/* Identity and limits of the product: written once, before the magic. */
	char uuid[48];
	char name[64];
	char serial[32];
	char part_number[32];
	char vbios[32];
	uint64_t memory_total_bytes;
	uint64_t memory_reserved_bytes;
	uint64_t reasons_supported;
	uint32_t minor;
	uint32_t module_id;
	uint32_t pci_domain;
	uint32_t pci_bus;
	uint32_t pci_device;
	uint32_t pci_device_id;
	uint32_t pci_subsystem_id;
	uint32_t architecture;
	uint32_t brand;
	uint32_t cuda_major;
	uint32_t cuda_minor;
	uint32_t fans;
	uint32_t pcie_generation_max;
	uint32_t pcie_width_max;
	uint32_t nvlinks;
	uint32_t nvlink_version; /* nvmlNvlinkVersion_t */
	uint32_t nvlink_mbps;    /* MB/s of one link and direction */
	uint32_t clock_sm_max_mhz;
	uint32_t clock_memory_max_mhz;
	uint32_t clock_video_max_mhz;
	uint32_t power_min_mw;
	uint32_t power_max_mw;
	uint32_t power_default_mw;
	uint32_t power_average_supported; /* not on GA100 and before Ampere */
	/* Absolute thresholds in degrees Celsius, EK_ABSENT where there is none. */
	int32_t shutdown_c;
	int32_t slowdown_c;
	int32_t gpu_max_c;
	int32_t memory_max_c;
	/* The same as T.Limit offsets: 0 is the highest operating temperature. */
	int32_t shutdown_tlimit_c;
	int32_t slowdown_tlimit_c;
	int32_t gpu_max_tlimit_c;
	int32_t memory_max_tlimit_c;

	/* Readings, written by the world at each step. */
	uint64_t memory_used_bytes;
	uint64_t energy_mj;
	uint64_t reasons; /* nvmlClocksEventReasons */
	uint64_t throttle_ns[EK_THROTTLE_KINDS];
	uint64_t pcie_tx_bytes;
	uint64_t pcie_rx_bytes;
	uint64_t pcie_replays;
	uint64_t nvlink_tx_bytes[EK_LINKS];
	uint64_t nvlink_rx_bytes[EK_LINKS];
	uint64_t nvlink_errors[EK_LINK_ERRORS][EK_LINKS];
	uint64_t ecc_corrected_volatile;
	uint64_t ecc_corrected_aggregate;
	uint64_t ecc_uncorrected_volatile;
	uint64_t ecc_uncorrected_aggregate;
	uint32_t remapped_correctable;
	uint32_t remapped_uncorrectable;
	uint32_t remap_pending;
	uint32_t remap_failed;
	uint32_t recovery_action; /* nvmlDeviceGpuRecoveryAction_t */
	uint32_t fabric_state;    /* NVML_GPU_FABRIC_STATE_* */
	uint32_t nvlink_down;     /* one bit per link that is not active */
	uint32_t utilization_gpu_percent;
	uint32_t utilization_memory_percent;
	uint32_t power_mw;
	uint32_t power_average_mw;
	uint32_t clock_sm_mhz;
	uint32_t clock_memory_mhz;
	uint32_t clock_video_mhz;
	uint32_t pstate;
	uint32_t pcie_generation;
	uint32_t pcie_width;
	uint32_t fan_percent;
	int32_t core_c;
	int32_t memory_c;
	int32_t margin_c; /* T.Limit margin */

	/* Written by clients. The world takes the limit when the count moves. */
	uint32_t power_limit_mw;
	uint32_t power_requests;

	/* Faults, written by the world or a test. */
	int32_t forced_code;     /* nvmlReturn_t of every call on this GPU, 0 = none */
	uint32_t hang;           /* every call on this GPU waits while this is set */
	uint32_t no_permission;  /* writes are refused */
	uint32_t blank;          /* calls succeed with all bits of the value set */
	uint32_t reserved;

	uint64_t calls; /* driver calls on this GPU, counted by the library */

	struct ek_samples samples[EK_SAMPLE_KINDS];
	struct ek_process processes[EK_PROCESSES];
};

struct ek_world {
	uint64_t magic;        /* written last */
	uint64_t heartbeat_us; /* CPU clock, microseconds since 1970 */
	uint32_t layout;
	uint32_t devices;
	int32_t init_code;     /* nvmlReturn_t of Init, 0 = none */
	uint32_t init_delay_ms;
	uint32_t library_hang; /* every call of the library waits while set */
	int32_t cuda_version;  /* 1000 x major + 10 x minor */
	char driver_version[80];
	char nvml_version[80];

	uint32_t event_head; /* events ever raised, and the futex of the waiters */
	uint32_t reserved;
	struct ek_event events[EK_EVENTS];

	struct ek_device device[EK_DEVICES];
};

#endif
