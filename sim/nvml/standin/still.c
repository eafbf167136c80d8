/*
 * The world without a world: eight H100 under steady load, whose readings stand
 * still. It serves a first look and tests that need no physics. A power limit
 * is kept and read back, and nothing follows from it.
 */
#include <stdio.h>

#include "standin.h"

#define GPUS 8
#define GIB (1024ULL * 1024 * 1024)
#define MIB (1024ULL * 1024)

static void fill_identity(struct ek_device *device, uint32_t index)
{
	snprintf(device->uuid, sizeof device->uuid, "GPU-5717a11d-0000-4000-8000-%012x", index);
	snprintf(device->name, sizeof device->name, "NVIDIA H100 80GB HBM3");
	snprintf(device->serial, sizeof device->serial, "16500230%05u", index);
	snprintf(device->part_number, sizeof device->part_number, "692-2G520-0200-000");
	snprintf(device->vbios, sizeof device->vbios, "96.00.89.00.01");
	device->minor = index;
	device->module_id = index + 1;
	device->pci_bus = 0x18 + index * 0x14;
	device->pci_device_id = 0x233010de;
	device->pci_subsystem_id = 0x16c110de;
	device->architecture = NVML_DEVICE_ARCH_HOPPER;
	device->brand = NVML_BRAND_NVIDIA;
	device->cuda_major = 9;
}

static void fill_limits(struct ek_device *device)
{
	device->memory_total_bytes = 81559 * MIB;
	device->memory_reserved_bytes = 551 * MIB;
	device->reasons_supported = nvmlClocksEventReasonGpuIdle | nvmlClocksEventReasonSwPowerCap |
				    nvmlClocksThrottleReasonHwSlowdown |
				    nvmlClocksEventReasonSyncBoost |
				    nvmlClocksEventReasonSwThermalSlowdown |
				    nvmlClocksThrottleReasonHwThermalSlowdown |
				    nvmlClocksThrottleReasonHwPowerBrakeSlowdown;
	device->pcie_generation_max = 5;
	device->pcie_width_max = 16;
	device->nvlinks = EK_LINKS;
	device->nvlink_version = NVML_NVLINK_VERSION_4_0;
	device->nvlink_mbps = 26562;
	device->clock_sm_max_mhz = 1980;
	device->clock_memory_max_mhz = 2619;
	device->clock_video_max_mhz = 1545;
	device->power_min_mw = 200000;
	device->power_max_mw = 700000;
	device->power_default_mw = 700000;
	device->power_average_supported = 1;
	device->shutdown_c = 95;
	device->slowdown_c = 89;
	device->gpu_max_c = 87;
	device->memory_max_c = 95;
	device->shutdown_tlimit_c = -8;
	device->slowdown_tlimit_c = -2;
	device->gpu_max_tlimit_c = 0;
	device->memory_max_tlimit_c = 0;
}

/* A little apart from GPU to GPU, so that a mix-up of two shows. */
static void fill_readings(struct ek_device *device, uint32_t index, uint64_t now_us)
{
	const uint32_t percent[EK_SAMPLE_KINDS] = {[EK_SAMPLE_GPU] = 90 + index,
						   [EK_SAMPLE_MEMORY] = 40 + index};

	device->memory_used_bytes = (60 + index) * GIB;
	device->energy_mj = 1000000000ULL + index * 1000000;
	device->pcie_tx_bytes = (100 + index) * GIB;
	device->pcie_rx_bytes = (200 + index) * GIB;
	for (uint32_t link = 0; link < device->nvlinks; link++) {
		device->nvlink_tx_bytes[link] = (300 + index) * GIB;
		device->nvlink_rx_bytes[link] = (400 + index) * GIB;
	}
	device->fabric_state = NVML_GPU_FABRIC_STATE_COMPLETED;
	device->utilization_gpu_percent = percent[EK_SAMPLE_GPU];
	device->utilization_memory_percent = percent[EK_SAMPLE_MEMORY];
	device->power_mw = 500000 + index * 1000;
	device->power_average_mw = device->power_mw;
	device->power_limit_mw = device->power_default_mw;
	device->clock_sm_mhz = device->clock_sm_max_mhz;
	device->clock_memory_mhz = device->clock_memory_max_mhz;
	device->clock_video_mhz = device->clock_video_max_mhz;
	device->pcie_generation = device->pcie_generation_max;
	device->pcie_width = device->pcie_width_max;
	device->core_c = 60 + (int32_t)index;
	device->memory_c = device->core_c + 5;
	device->margin_c = device->gpu_max_c - device->core_c;

	for (uint32_t kind = 0; kind < EK_SAMPLE_KINDS; kind++) {
		struct ek_samples *samples = &device->samples[kind];

		for (uint32_t i = 0; i < EK_SAMPLES; i++) {
			samples->ring[i].time_us = now_us - (EK_SAMPLES - 1 - i) * 100000ULL;
			samples->ring[i].value = kind == EK_SAMPLE_POWER ? device->power_mw
									 : percent[kind];
		}
		samples->head = EK_SAMPLES;
	}
}

void ek_fill_still(struct ek_world *world)
{
	uint64_t now_us = (uint64_t)ek_now_us();

	world->layout = EK_LAYOUT;
	world->devices = GPUS;
	world->cuda_version = 13000;
	snprintf(world->driver_version, sizeof world->driver_version, "580.95.05");
	snprintf(world->nvml_version, sizeof world->nvml_version, "13.580.95.05");
	for (uint32_t i = 0; i < GPUS; i++) {
		fill_identity(&world->device[i], i);
		fill_limits(&world->device[i]);
		fill_readings(&world->device[i], i, now_us);
	}
	EK_STORE(&world->magic, EK_MAGIC);
}
