//go:build cgo && linux

package nvml

import (
	"cmp"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

var _ exporter.ProcessLister = (*device)(nil)

// Processes lists who has a context on the device. It is a call for each of
// three lists, and one more for each list of two or more.
func (d *device) Processes(to []exporter.Process) ([]exporter.Process, error) {
	return d.l.processes(d.handle, to)
}

// processLists are the library's lists, each with its versions, newest first.
// The binding calls the newest that there is, and asks again with more room
// where the driver has more to tell.
var processLists = [...]struct {
	versions [3]symbol
	read     func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
}{
	{[...]symbol{symCompute3, symCompute2, symCompute}, nvml.Device.GetComputeRunningProcesses},
	{[...]symbol{symMPS3, symMPS2, symMPS}, nvml.Device.GetMPSComputeRunningProcesses},
	{[...]symbol{symGraphics3, symGraphics2, symGraphics}, nvml.Device.GetGraphicsRunningProcesses},
}

// processes appends every process with a context on a device, each once, in the
// order of their pids. It is unsupported only if no list can be read.
func (l *library) processes(handle nvml.Device, to []exporter.Process) ([]exporter.Process, error) {
	from, some := len(to), false
	var none error
	for i := range processLists {
		list := &processLists[i]
		call, err := l.newest(list.versions[:])
		if err != nil {
			none = cmp.Or(none, err)
			continue
		}
		infos, code := list.read(handle)
		if len(infos) > 1 {
			l.calls.Add(1) // the binding asked with room for one
		}
		if err := check(names[call], code); err != nil {
			if f := exporter.FaultOf(err); f == exporter.Unsupported {
				none = cmp.Or(none, err)
				continue
			}
			return to[:from], err
		}
		if to, err = appendProcesses(to, infos, names[call]); err != nil {
			return to[:from], err
		}
		some = true
	}
	if !some {
		return to[:from], none
	}
	return to[:from+len(onceEach(to[from:]))], nil
}

// newest counts a call of the newest version that the library has.
func (l *library) newest(versions []symbol) (s symbol, err error) {
	for _, s = range versions {
		if err = l.need(s); err == nil {
			return s, nil
		}
	}
	return s, err
}

// maxPID is the kernel's own bound. Some drivers fill a struct that is laid out
// otherwise than their version says; what then stands where a pid should be must
// not be taken for one.
const maxPID = 1 << 22

func appendProcesses(to []exporter.Process, infos []nvml.ProcessInfo, call string) ([]exporter.Process, error) {
	for i := range infos {
		p := &infos[i]
		if p.Pid == 0 || p.Pid > maxPID {
			return to, &exporter.DriverError{Call: call, Fault: exporter.OutOfRange}
		}
		used := p.UsedGpuMemory
		if used == blank64 {
			used = 0
		}
		to = append(to, exporter.Process{PID: int(p.Pid), MemoryBytes: used, Instance: p.GpuInstanceId})
	}
	return to, nil
}

// onceEach sorts by pid and merges what a process has in several lists.
func onceEach(list []exporter.Process) []exporter.Process {
	slices.SortStableFunc(list, func(a, b exporter.Process) int { return cmp.Compare(a.PID, b.PID) })
	out := list[:0]
	for _, p := range list {
		if n := len(out); n > 0 && out[n-1].PID == p.PID {
			out[n-1].MemoryBytes = max(out[n-1].MemoryBytes, p.MemoryBytes)
			continue
		}
		out = append(out, p)
	}
	return out
}
