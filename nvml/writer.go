//go:build cgo && linux

package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Writer changes the GPUs of this node, which it finds as a Source does. Every
// call reaches the device; no value is cached, and to change a device its handle
// is looked up by UUID each time.
type Writer struct{ *Source }

// NewWriter makes a Writer. It loads nothing before Open, which may be called
// again when the driver has gone and come.
func NewWriter(opts ...Option) *Writer { return &Writer{New(opts...)} }

// Holders lists the processes with a context on a device that Devices has
// found, by the handle found then: where one device hangs, looking another up
// could hang too.
func (w *Writer) Holders(uuid string) ([]exporter.Process, error) {
	w.known.Lock()
	d := w.byUUID[uuid]
	w.known.Unlock()
	if d == nil { // not looked for yet, or the driver was opened anew
		if _, err := w.Devices(); err != nil {
			return nil, err
		}
		w.known.Lock()
		d = w.byUUID[uuid]
		w.known.Unlock()
	}
	if d == nil {
		return nil, fmt.Errorf("GPU %q: %w", uuid, &exporter.DriverError{Call: names[symHandleByUUID], Fault: exporter.Lost})
	}
	list, err := d.Processes(nil)
	if err != nil {
		return nil, fmt.Errorf("processes of %s: %w", uuid, err)
	}
	return list, nil
}

// PowerLimits reads the limits of a device in watts. One that the device does
// not state is an error: what may be set must be known.
func (w *Writer) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	handle, err := w.device(uuid)
	if err != nil {
		return telemetry.PowerLimits{}, err
	}
	current, def, low, high, err := w.powerLimits(handle)
	if err != nil {
		return telemetry.PowerLimits{}, fmt.Errorf("power limits of %s: %w", uuid, err)
	}
	p := telemetry.PowerLimits{Current: current, Default: def, Min: low, Max: high}
	if math.IsNaN(current + def + low + high) {
		return p, fmt.Errorf("%s does not state all of its power limits (%+v): %w", uuid, p, blank(names[symLimitRange]))
	}
	return p, nil
}

// SetPowerLimit sets the limit in watts. The driver refuses what is outside the
// device's range.
func (w *Writer) SetPowerLimit(uuid string, watts float64) error {
	if !(watts > 0 && watts < 1e6) {
		return fmt.Errorf("%g W is no power limit", watts)
	}
	handle, err := w.device(uuid)
	if err != nil {
		return err
	}
	if err := w.need(symSetLimit); err != nil {
		return err
	}
	code := handle.SetPowerManagementLimit(uint32(math.Round(watts * 1000)))
	if err := check(names[symSetLimit], code); err != nil {
		return fmt.Errorf("set power limit of %s to %g W: %w", uuid, watts, err)
	}
	return nil
}

// Headroom reads how far a device is from slowing down, in celsius, by the
// thermal model that it has. What it does not state for certain is an error.
func (w *Writer) Headroom(uuid string) (celsius float64, err error) {
	handle, err := w.device(uuid)
	if err != nil {
		return 0, err
	}
	id := exporter.Identity{UUID: uuid}
	if w.need(symArchitecture) == nil {
		if arch, code := handle.GetArchitecture(); code == nvml.SUCCESS {
			id.Arch = architectures[arch]
		}
	}
	celsius, err = exporter.Headroom(&device{l: &w.library, handle: handle, id: id})
	if err != nil {
		return 0, fmt.Errorf("GPU %s: %w", uuid, err)
	}
	return celsius, nil
}

func (w *Writer) device(uuid string) (nvml.Device, error) {
	if err := w.need(symHandleByUUID); err != nil {
		return nil, err
	}
	handle, code := w.lib.DeviceGetHandleByUUID(uuid)
	if err := check(names[symHandleByUUID], code); err != nil {
		return nil, fmt.Errorf("GPU %q: %w", uuid, err)
	}
	return handle, nil
}

// powerLimits reads the limit in force and what may be set, NaN for what the
// device does not state. It fails if the device states nothing, or cannot
// answer at all.
func (l *library) powerLimits(handle nvml.Device) (current, def, low, high float64, err error) {
	def, low, high = math.NaN(), math.NaN(), math.NaN()
	known := false
	read := func(s symbol, f func() (uint32, nvml.Return)) (float64, error) {
		if err := l.need(s); err != nil {
			return math.NaN(), nil //nolint:nilerr // a limit that this driver cannot tell is not stated
		}
		mw, code := f()
		w, err := unsigned(names[s], code, mw, 1e-3)
		if err == nil {
			known = true
			return w, nil
		}
		if exporter.FaultOf(err) == exporter.Unsupported {
			return math.NaN(), nil
		}
		return math.NaN(), err
	}
	if current, err = read(symEnforcedLimit, handle.GetEnforcedPowerLimit); err != nil {
		return current, def, low, high, err
	}
	if math.IsNaN(current) {
		if current, err = read(symLimit, handle.GetPowerManagementLimit); err != nil {
			return current, def, low, high, err
		}
	}
	if def, err = read(symDefaultLimit, handle.GetPowerManagementDefaultLimit); err != nil {
		return current, def, low, high, err
	}
	high, err = read(symLimitRange, func() (uint32, nvml.Return) {
		least, most, code := handle.GetPowerManagementLimitConstraints()
		if code == nvml.SUCCESS && least != blank32 {
			low = float64(least) * 1e-3
		}
		return most, code
	})
	if err == nil && !known {
		err = blank(names[symLimit])
	}
	return current, def, low, high, err
}
