//go:build cgo && linux

package nvml

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// Source reads the GPUs of this node.
type Source struct {
	library

	mu      sync.Mutex // one enumeration at a time
	byIndex map[int]exporter.Identity
	byUUID  map[string]*device
}

var _ exporter.Source = (*Source)(nil)

// New makes a Source. It loads nothing before Open.
func New(opts ...Option) *Source {
	s := &Source{byIndex: map[int]exporter.Identity{}, byUUID: map[string]*device{}}
	s.path = apply(opts).path
	return s
}

// Open loads and initialises the library. It may block as long as the driver
// does.
func (s *Source) Open() error {
	if err := s.open(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byUUID) // handles of an earlier start
	return nil
}

// Close releases the library. No call may be outstanding.
func (s *Source) Close() error { return s.close() }

// Calls is the number of driver calls made so far; a batch of fields is one.
func (s *Source) Calls() uint64 { return s.calls.Load() }

// Driver describes the driver.
func (s *Source) Driver() (exporter.Driver, error) {
	has := s.has.Load()
	if has == nil {
		return exporter.Driver{}, errNotOpen
	}
	d := exporter.Driver{Missing: has.missing()}
	if s.need(symDriverVersion) == nil {
		version, code := s.lib.SystemGetDriverVersion()
		if err := check(names[symDriverVersion], code); err != nil {
			return d, err
		}
		d.Version = version
	}
	if s.need(symNVMLVersion) == nil {
		if version, code := s.lib.SystemGetNVMLVersion(); code == nvml.SUCCESS {
			d.NVML = version
		}
	}
	if s.need(symCUDAVersion) == nil {
		if version, code := s.lib.SystemGetCudaDriverVersion_v2(); code == nvml.SUCCESS {
			d.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
		}
	}
	return d, nil
}

// Devices enumerates the GPUs.
func (s *Source) Devices() ([]exporter.Found, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has.Load() == nil {
		return nil, errNotOpen
	}
	s.calls.Add(1)
	n, code := s.lib.DeviceGetCount()
	if err := check("nvmlDeviceGetCount_v2", code); err != nil {
		return nil, err
	}
	found := make([]exporter.Found, n)
	answered := map[string]bool{}
	for i := range found {
		found[i] = s.find(i)
		if found[i].Err == nil {
			answered[found[i].UUID] = true
		}
	}
	// Indexes move when a GPU drops out: a name remembered by index is wrong if
	// the GPU of that name answers elsewhere.
	for i := range found {
		if f := &found[i]; f.Err != nil && answered[f.UUID] {
			f.UUID, f.PCI = "", ""
		}
	}
	return found, nil
}

// find opens the device at an index.
func (s *Source) find(index int) exporter.Found {
	was := s.byIndex[index]
	f := exporter.Found{Index: index, UUID: was.UUID, PCI: was.PCI}
	s.calls.Add(1)
	handle, code := s.lib.DeviceGetHandleByIndex(index)
	if f.Err = check("nvmlDeviceGetHandleByIndex_v2", code); f.Err != nil {
		return f
	}
	s.calls.Add(1)
	pci, code := handle.GetPciInfo()
	if code == nvml.SUCCESS {
		f.PCI = text(pci.BusId[:])
		// The address is the surer memory: it does not move with the index.
		for _, id := range s.byIndex {
			if id.PCI == f.PCI {
				f.UUID = id.UUID
			}
		}
	}
	s.calls.Add(1)
	uuid, code := handle.GetUUID()
	if f.Err = check("nvmlDeviceGetUUID", code); f.Err != nil {
		return f
	}
	f.UUID = uuid
	d := s.byUUID[uuid]
	if d == nil || d.handle != handle || d.id.Index != index || d.id.PCI != f.PCI {
		d = s.describe(handle, exporter.Identity{UUID: uuid, PCI: f.PCI, Index: index})
		s.byUUID[uuid] = d
	}
	s.byIndex[index] = d.id
	f.Device = d
	return f
}

// describe reads what does not change. None of it is worth losing a GPU for.
func (s *Source) describe(handle nvml.Device, id exporter.Identity) *device {
	d := &device{l: &s.library, handle: handle}
	if s.need(symName) == nil {
		if name, code := handle.GetName(); code == nvml.SUCCESS {
			id.Model = name
		}
	}
	if s.need(symSerial) == nil {
		if serial, code := handle.GetSerial(); code == nvml.SUCCESS {
			id.Serial = serial
		}
	}
	if s.need(symArchitecture) == nil {
		if arch, code := handle.GetArchitecture(); code == nvml.SUCCESS {
			id.Arch = architectures[arch]
		}
	}
	links := [1]exporter.Field{{ID: exporter.FieldNVLinkCount}}
	if d.Fields(links[:]) == nil && links[0].Err == nil {
		id.Links = int(links[0].Value)
	}
	d.id = id
	return d
}

var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER:    "kepler",
	nvml.DEVICE_ARCH_MAXWELL:   "maxwell",
	nvml.DEVICE_ARCH_PASCAL:    "pascal",
	nvml.DEVICE_ARCH_VOLTA:     "volta",
	nvml.DEVICE_ARCH_TURING:    "turing",
	nvml.DEVICE_ARCH_AMPERE:    "ampere",
	nvml.DEVICE_ARCH_ADA:       "ada",
	nvml.DEVICE_ARCH_HOPPER:    "hopper",
	nvml.DEVICE_ARCH_BLACKWELL: "blackwell",
}

// text is a C string in an array of signed bytes.
func text(b []int8) string {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}
