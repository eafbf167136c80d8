package node

import (
	"sync"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/nvml"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// lazyWriter opens the driver when it is first needed and again after it went
// away, so that an agent can start before the driver and outlive it.
type lazyWriter struct {
	mu   sync.Mutex
	w    *nvml.Writer
	open bool
}

// PowerLimits implements agent.Writer.
func (l *lazyWriter) PowerLimits(uuid string) (p telemetry.PowerLimits, err error) {
	err = l.with(func() error { p, err = l.w.PowerLimits(uuid); return err })
	return p, err
}

// SetPowerLimit implements agent.Writer.
func (l *lazyWriter) SetPowerLimit(uuid string, watts float64) error {
	return l.with(func() error { return l.w.SetPowerLimit(uuid, watts) })
}

func (l *lazyWriter) with(call func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		if err := l.w.Open(); err != nil {
			return err
		}
		l.open = true
	}
	err := call()
	switch exporter.FaultOf(err) {
	case exporter.NotInitialized, exporter.NotLoaded, exporter.Mismatch, exporter.NoLibrary:
		_ = l.w.Close()
		l.open = false
	}
	return err
}
