package sim

import (
	"cmp"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

var _ exporter.ProcessLister = (*device)(nil)

// Processes lists the processes that claim the GPU. The scenario's jobs are
// numbers in the world and no processes of this machine: they are not listed.
func (d *device) Processes(to []exporter.Process) ([]exporter.Process, error) {
	first := len(to)
	err := d.call("nvmlDeviceGetComputeRunningProcesses_v3", func(*Reading) error {
		to = d.source.world.processes(d.gpu, to)
		return nil
	})
	list := to[first:]
	slices.SortFunc(list, func(a, b exporter.Process) int { return cmp.Compare(a.PID, b.PID) })
	return to, err
}

// processes appends each process of a GPU once, with the memory of all that it
// claims there.
func (w *World) processes(gpu int32, to []exporter.Process) []exporter.Process {
	first := len(to)
	for i := range w.claims {
		h := &w.claims[i]
		if h.gpu != gpu {
			continue
		}
		same := slices.IndexFunc(to[first:], func(p exporter.Process) bool { return p.PID == h.PID })
		if same < 0 {
			to = append(to, exporter.Process{PID: h.PID, MemoryBytes: h.MemoryBytes, Instance: exporter.NoInstance})
			continue
		}
		to[first+same].MemoryBytes += h.MemoryBytes
	}
	return to
}
