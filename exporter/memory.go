package exporter

import "github.com/evenkeel-gpu/evenkeel/telemetry"

func readMemory(r *reading) error {
	var used, total uint64
	err := r.do(callMemory, func() (err error) {
		used, total, err = r.dev.Memory()
		return err
	})
	if err != nil {
		return r.absent(err, telemetry.GPUMemoryUsedBytes, telemetry.GPUMemoryTotalBytes)
	}
	r.set(telemetry.GPUMemoryUsedBytes, float64(used))
	r.set(telemetry.GPUMemoryTotalBytes, float64(total))
	return nil
}
