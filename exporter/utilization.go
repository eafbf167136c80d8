package exporter

import "github.com/evenkeel-gpu/evenkeel/telemetry"

func readUtilization(r *reading) error {
	var gpu, mem float64
	err := r.do(callUtilization, func() (err error) {
		gpu, mem, err = r.dev.Utilization()
		return err
	})
	if err != nil {
		return r.absent(err, telemetry.GPUUtilizationRatio, telemetry.GPUMemoryUtilizationRatio)
	}
	if r.set(telemetry.GPUUtilizationRatio, gpu) {
		r.util = gpu
	}
	r.set(telemetry.GPUMemoryUtilizationRatio, mem)
	return nil
}
