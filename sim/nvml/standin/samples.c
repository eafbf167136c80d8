/* The driver's sample buffers. */
#include "standin.h"

/*
 * Readers stay this many entries behind the oldest slot: the world may be
 * writing there.
 */
#define EK_SAMPLE_GUARD 8
#define EK_SAMPLE_READABLE (EK_SAMPLES - EK_SAMPLE_GUARD)

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, nvmlSamplingType_t type,
				  unsigned long long last_seen, nvmlValueType_t *value_type,
				  unsigned int *count, nvmlSample_t *samples)
{
	const struct ek_samples *buffer;
	uint64_t head;
	unsigned int written = 0;

	EK_DEVICE(handle, device, count);
	if (value_type == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	switch (type) {
	case NVML_TOTAL_POWER_SAMPLES: buffer = &device->samples[EK_SAMPLE_POWER]; break;
	case NVML_GPU_UTILIZATION_SAMPLES: buffer = &device->samples[EK_SAMPLE_GPU]; break;
	case NVML_MEMORY_UTILIZATION_SAMPLES: buffer = &device->samples[EK_SAMPLE_MEMORY]; break;
	default:
		return type < NVML_SAMPLINGTYPE_COUNT ? NVML_ERROR_NOT_SUPPORTED
						      : NVML_ERROR_INVALID_ARGUMENT;
	}
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;

	/* Asked for the room needed: the size of the buffer, not what is new. */
	if (samples == NULL) {
		*count = EK_SAMPLE_READABLE;
		return NVML_SUCCESS;
	}
	if (*count == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	head = EK_LOAD(&buffer->head);
	for (uint64_t i = head > EK_SAMPLE_READABLE ? head - EK_SAMPLE_READABLE : 0;
	     i < head && written < *count; i++) {
		const struct ek_sample *sample = &buffer->ring[i % EK_SAMPLES];
		uint64_t time = EK_LOAD(&sample->time_us);

		if (time <= last_seen)
			continue;
		samples[written].timeStamp = time;
		samples[written].sampleValue.ullVal = 0;
		samples[written].sampleValue.uiVal =
			EK_LOAD(&device->blank) ? UINT32_MAX : (unsigned int)EK_LOAD(&sample->value);
		written++;
	}
	if (written == 0)
		return NVML_ERROR_NOT_FOUND;
	*count = written;
	return NVML_SUCCESS;
}
