//go:build cgo && linux

package nvml

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// Source reads the GPUs of this node.
type Source struct {
	library

	mu      sync.Mutex // one enumeration at a time
	pending map[int]pending

	known   sync.Mutex // guards what follows; never held across a driver call
	opens   int
	byIndex map[int]exporter.Identity
	byUUID  map[string]*device

	outstanding atomic.Int32 // lookups under way

	ears ears
}

// lookupWait bounds what one device may hold up an enumeration. Without
// persistence a first lookup brings the device up, which takes seconds.
const lookupWait = 5 * time.Second

// pending is a lookup under way.
type pending struct {
	done  chan lookup
	since time.Time
}

// lookup is what came of looking for the device at an index.
type lookup struct {
	opens  int
	pci    string
	device *device
	err    error
}

var _ exporter.Source = (*Source)(nil)

// New makes a Source. It loads nothing before Open.
func New(opts ...Option) *Source {
	s := &Source{pending: map[int]pending{}, byIndex: map[int]exporter.Identity{}, byUUID: map[string]*device{}}
	s.path = apply(opts).path
	return s
}

// Open loads and initialises the library. It may block as long as the driver
// does.
func (s *Source) Open() error {
	if err := s.open(); err != nil {
		return err
	}
	s.known.Lock()
	defer s.known.Unlock()
	s.opens++
	clear(s.byUUID) // handles of an earlier start
	s.openEars()
	return nil
}

// Close releases the library. It leaves it open while a lookup or a wait for
// events is outstanding: pulled from under it, that could take the process down.
func (s *Source) Close() error {
	if err := s.deafen(); err != nil {
		return err
	}
	if s.outstanding.Load() > 0 {
		return &exporter.DriverError{Call: "nvmlDeviceGetHandleByIndex_v2", Fault: exporter.Hung}
	}
	return s.close()
}

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

// find waits for a device's lookup, one at a time for each index. A device
// whose lookup hangs is reported so and does not hold up the others.
func (s *Source) find(index int) exporter.Found {
	for {
		p, asked := s.pending[index]
		if !asked {
			p = pending{s.begin(index), time.Now()}
			s.pending[index] = p
		}
		select {
		case l := <-p.done:
			delete(s.pending, index)
			s.known.Lock()
			stale := l.opens != s.opens
			s.known.Unlock()
			if stale {
				continue // it began before the driver was opened anew
			}
			return s.found(index, l)
		case <-time.After(lookupWait):
			err := &exporter.DriverError{Call: "nvmlDeviceGetHandleByIndex_v2", Fault: exporter.Hung}
			return s.found(index, lookup{err: fmt.Errorf("no answer for %.1f s: %w", time.Since(p.since).Seconds(), err)})
		}
	}
}

func (s *Source) begin(index int) chan lookup {
	s.known.Lock()
	opens := s.opens
	s.known.Unlock()
	done := make(chan lookup, 1)
	s.outstanding.Add(1)
	go func() {
		l := s.lookup(index)
		l.opens = opens
		s.outstanding.Add(-1) // before it is told: who hears of it may close
		done <- l
	}()
	return done
}

// found names a device. One that does not answer has the name it was known by:
// best by its address, which does not move with the index.
func (s *Source) found(index int, l lookup) exporter.Found {
	s.known.Lock()
	defer s.known.Unlock()
	if l.err == nil {
		id := l.device.id
		s.byIndex[index], s.byUUID[id.UUID] = id, l.device
		return exporter.Found{Index: index, UUID: id.UUID, PCI: id.PCI, Device: l.device}
	}
	was := s.byIndex[index]
	if l.pci != "" && l.pci != was.PCI {
		was = exporter.Identity{PCI: l.pci}
		for _, id := range s.byIndex {
			if id.PCI == l.pci {
				was = id
			}
		}
	}
	return exporter.Found{Index: index, UUID: was.UUID, PCI: was.PCI, Err: l.err}
}

// lookup makes the driver calls of one device.
func (s *Source) lookup(index int) (l lookup) {
	s.calls.Add(1)
	handle, code := s.lib.DeviceGetHandleByIndex(index)
	if l.err = check("nvmlDeviceGetHandleByIndex_v2", code); l.err != nil {
		return l
	}
	s.calls.Add(1)
	pci, code := handle.GetPciInfo()
	if code == nvml.SUCCESS {
		l.pci = text(pci.BusId[:])
	}
	s.calls.Add(1)
	uuid, code := handle.GetUUID()
	if l.err = check("nvmlDeviceGetUUID", code); l.err != nil {
		return l
	}
	s.known.Lock()
	l.device = s.byUUID[uuid]
	s.known.Unlock()
	if d := l.device; d == nil || d.handle != handle || d.id.Index != index || d.id.PCI != l.pci {
		l.device = s.describe(handle, exporter.Identity{UUID: uuid, PCI: l.pci, Index: index})
	}
	return l
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
