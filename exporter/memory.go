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
	if r.due.slow {
		return readMemoryReserved(r)
	}
	return nil
}

// MemoryReserver is a Device that tells what its driver keeps for itself. One
// driver call.
type MemoryReserver interface {
	MemoryReserved() (bytes uint64, err error)
}

func readMemoryReserved(r *reading) error {
	dev, ok := r.dev.(MemoryReserver)
	if !ok {
		return nil
	}
	var reserved uint64
	err := r.do(callMemoryReserved, func() (err error) {
		reserved, err = dev.MemoryReserved()
		return err
	})
	if err != nil {
		return r.absent(err, telemetry.GPUMemoryReservedBytes)
	}
	r.set(telemetry.GPUMemoryReservedBytes, float64(reserved))
	return nil
}
