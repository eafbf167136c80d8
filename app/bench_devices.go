package app

import (
	"errors"
	"sync"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// memoryDevices is the driver of a node: a Writer to the agent, values to the
// frames.
type memoryDevices struct {
	mu     sync.Mutex
	uuids  []string
	limits map[string]telemetry.PowerLimits
}

func newMemoryDevices(uuids []string) *memoryDevices {
	d := &memoryDevices{uuids: uuids, limits: map[string]telemetry.PowerLimits{}}
	for _, uuid := range uuids {
		d.limits[uuid] = telemetry.PowerLimits{Current: 700, Default: 700, Min: 350, Max: 700}
	}
	return d
}

var errNoDevice = errors.New("no such device")

func (d *memoryDevices) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.limits[uuid]
	if !ok {
		return l, errNoDevice
	}
	return l, nil
}

func (d *memoryDevices) SetPowerLimit(uuid string, watts float64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.limits[uuid]
	if !ok {
		return errNoDevice
	}
	l.Current = watts
	d.limits[uuid] = l
	return nil
}

// capped counts the devices below their default.
func (d *memoryDevices) capped() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.limits {
		if l.Current < l.Default {
			n++
		}
	}
	return n
}
