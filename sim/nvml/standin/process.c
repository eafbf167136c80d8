/* Processes that hold memory on a GPU. */
#include "standin.h"

struct found {
	uint64_t used_bytes;
	uint32_t pid;
	uint32_t gpu_instance;
	uint32_t compute_instance;
};

/* One slot, read again when it changes hands meanwhile. */
static int read_slot(const struct ek_process *process, uint32_t kind, struct found *out)
{
	uint32_t generation;

	do {
		generation = EK_LOAD(&process->generation);
		if (EK_LOAD(&process->kind) != kind)
			return 0;
		out->used_bytes = EK_LOAD(&process->used_bytes);
		out->pid = EK_LOAD(&process->pid);
		out->gpu_instance = EK_LOAD(&process->gpu_instance);
		out->compute_instance = EK_LOAD(&process->compute_instance);
	} while (EK_LOAD(&process->generation) != generation);
	return 1;
}

/* A driver lists a process once per instance, however often it claims it. */
static unsigned int find(const struct ek_device *device, uint32_t kind, struct found *out)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < EK_PROCESSES; i++) {
		unsigned int same = 0;

		if (!read_slot(&device->processes[i], kind, &out[count]))
			continue;
		while (out[same].pid != out[count].pid ||
		       out[same].gpu_instance != out[count].gpu_instance ||
		       out[same].compute_instance != out[count].compute_instance)
			same++;
		if (same == count)
			count++;
		else
			out[same].used_bytes += out[count].used_bytes;
	}
	return count;
}

/* The needed count is written back, so that one retry is enough. */
static nvmlReturn_t collect(nvmlDevice_t handle, uint32_t kind, unsigned int *count,
			    struct found *out, const void *infos)
{
	unsigned int room, need;

	EK_DEVICE(handle, device, count);
	room = *count;
	need = find(device, kind, out);
	*count = need;
	if (need > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (need > 0 && infos == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	return NVML_SUCCESS;
}

static nvmlReturn_t list_v1(nvmlDevice_t handle, uint32_t kind, unsigned int *count,
			    nvmlProcessInfo_v1_t *infos)
{
	struct found found[EK_PROCESSES];
	nvmlReturn_t code = collect(handle, kind, count, found, infos);

	for (unsigned int i = 0; code == NVML_SUCCESS && i < *count; i++) {
		infos[i].pid = found[i].pid;
		infos[i].usedGpuMemory = found[i].used_bytes;
	}
	return code;
}

static nvmlReturn_t list(nvmlDevice_t handle, uint32_t kind, unsigned int *count,
			 nvmlProcessInfo_t *infos)
{
	struct found found[EK_PROCESSES];
	nvmlReturn_t code = collect(handle, kind, count, found, infos);

	for (unsigned int i = 0; code == NVML_SUCCESS && i < *count; i++) {
		infos[i].pid = found[i].pid;
		infos[i].usedGpuMemory = found[i].used_bytes;
		infos[i].gpuInstanceId = found[i].gpu_instance;
		infos[i].computeInstanceId = found[i].compute_instance;
	}
	return code;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned int *count,
						  nvmlProcessInfo_v1_t *infos)
{
	return list_v1(handle, EK_PROCESS_COMPUTE, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count,
						     nvmlProcessInfo_v2_t *infos)
{
	return list(handle, EK_PROCESS_COMPUTE, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
						     nvmlProcessInfo_t *infos)
{
	return list(handle, EK_PROCESS_COMPUTE, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t handle, unsigned int *count,
						   nvmlProcessInfo_v1_t *infos)
{
	return list_v1(handle, EK_PROCESS_GRAPHICS, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count,
						      nvmlProcessInfo_v2_t *infos)
{
	return list(handle, EK_PROCESS_GRAPHICS, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
						      nvmlProcessInfo_t *infos)
{
	return list(handle, EK_PROCESS_GRAPHICS, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t handle, unsigned int *count,
						     nvmlProcessInfo_v1_t *infos)
{
	return list_v1(handle, EK_PROCESS_MPS, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned int *count,
							nvmlProcessInfo_v2_t *infos)
{
	return list(handle, EK_PROCESS_MPS, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
							nvmlProcessInfo_t *infos)
{
	return list(handle, EK_PROCESS_MPS, count, infos);
}
