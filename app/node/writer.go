package node

import (
	"errors"
	"fmt"
	"sync"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// driver is the nvml.Writer as the agent uses it.
type driver interface {
	Open() error
	Close() error
	PowerLimits(uuid string) (telemetry.PowerLimits, error)
	SetPowerLimit(uuid string, watts float64) error
	Headroom(uuid string) (celsius float64, err error)
	Devices() ([]exporter.Found, error)
	Holders(uuid string) ([]exporter.Process, error)
}

// lazyWriter opens the driver when it is first needed and again after it went
// away, so that an agent can start before the driver and outlive it. A call
// that hangs keeps no other from its device.
type lazyWriter struct {
	w driver

	opening sync.Mutex // one start at a time
	mu      sync.Mutex // guards what follows; never held across a driver call
	open    bool
	calls   int // under way
}

func newLazyWriter(w driver) *lazyWriter { return &lazyWriter{w: w} }

// PowerLimits implements agent.Writer.
func (l *lazyWriter) PowerLimits(uuid string) (p telemetry.PowerLimits, err error) {
	err = l.with(func() error { p, err = l.w.PowerLimits(uuid); return err })
	return p, err
}

// SetPowerLimit implements agent.Writer.
func (l *lazyWriter) SetPowerLimit(uuid string, watts float64) error {
	return l.with(func() error { return l.w.SetPowerLimit(uuid, watts) })
}

// Headroom is the agent's way to see whether a device may lose its cap.
func (l *lazyWriter) Headroom(uuid string) (celsius float64, err error) {
	err = l.with(func() error { celsius, err = l.w.Headroom(uuid); return err })
	return celsius, err
}

// Devices implements agent.Lister. A device that does not answer has the name
// it was known by, if it has answered before.
func (l *lazyWriter) Devices() (uuids []string, err error) {
	var found []exporter.Found
	if err := l.with(func() error { found, err = l.w.Devices(); return err }); err != nil {
		return nil, err
	}
	var unnamed []error
	for _, f := range found {
		if f.UUID != "" {
			uuids = append(uuids, f.UUID)
		} else {
			unnamed = append(unnamed, fmt.Errorf("GPU %d: %w", f.Index, f.Err))
		}
	}
	return uuids, errors.Join(unnamed...)
}

// Holders implements agent.Lister.
func (l *lazyWriter) Holders(uuid string) (holders []agent.Holder, err error) {
	var list []exporter.Process
	err = l.with(func() error { list, err = l.w.Holders(uuid); return err })
	for _, p := range list {
		holders = append(holders, agent.Holder{PID: p.PID, MemoryBytes: p.MemoryBytes})
	}
	return holders, err
}

// Close releases the driver, unless a call is under way: pulled from under it,
// the library could take the process down.
func (l *lazyWriter) Close() {
	l.opening.Lock()
	defer l.opening.Unlock()
	l.mu.Lock()
	idle := l.calls == 0 && l.open
	l.open = l.open && !idle
	l.mu.Unlock()
	if idle {
		_ = l.w.Close()
	}
}

func (l *lazyWriter) with(call func() error) error {
	if err := l.enter(); err != nil {
		return err
	}
	err := call()
	l.mu.Lock()
	l.calls--
	switch exporter.FaultOf(err) {
	case exporter.NotInitialized, exporter.NotLoaded, exporter.Mismatch, exporter.NoLibrary:
		l.open = false // the next call starts it anew
	}
	l.mu.Unlock()
	return err
}

// enter counts a call in and starts the driver if it is not open. A start that
// follows a loss first lets go of what was lost, if nobody is in it.
func (l *lazyWriter) enter() error {
	if l.began() {
		return nil
	}
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.began() { // another started it meanwhile
		return nil
	}
	l.mu.Lock()
	idle := l.calls == 0
	l.mu.Unlock()
	if idle {
		_ = l.w.Close()
	}
	if err := l.w.Open(); err != nil {
		return err
	}
	l.mu.Lock()
	l.open = true
	l.calls++
	l.mu.Unlock()
	return nil
}

func (l *lazyWriter) began() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open {
		l.calls++
	}
	return l.open
}
