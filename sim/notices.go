package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var _ exporter.Notifier = (*source)(nil)

const (
	callRegister = "nvmlDeviceRegisterEvents"
	callWait     = "nvmlEventSetWait_v2"
)

// Listen registers every GPU that answers. As with a real driver, what happened
// before is not told.
func (s *source) Listen(...string) error {
	w := s.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if !s.open {
		return fault(callRegister, exporter.NotInitialized, nvmlUninitialized)
	}
	if s.heard == nil {
		s.heard, s.next = map[int32]uint64{}, w.raised.count
	}
	n := &w.nodes[s.node]
	var failed []error
	for i := n.first; i < n.first+n.count; i++ {
		s.calls.Add(1)
		_, known := s.heard[i]
		switch g := &w.gpus[i]; {
		case g.hung:
			failed = append(failed, fmt.Errorf("%s: %w", w.ids[i].uuid, fault(callRegister, exporter.Hung, 0)))
		case g.lost:
			delete(s.heard, i)
			failed = append(failed, fmt.Errorf("%s: %w", w.ids[i].uuid, fault(callRegister, exporter.Lost, nvmlGPUIsLost)))
		case !known:
			s.heard[i] = w.raised.count
		}
	}
	return errors.Join(failed...)
}

// Wait takes the next event of a GPU that is registered.
func (s *source) Wait(wait time.Duration) (n exporter.Notice, ok bool, err error) {
	w := s.world
	s.calls.Add(1)
	over := false
	defer time.AfterFunc(wait, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		over = true
		w.faulted.Broadcast()
	}).Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if !s.open || s.heard == nil {
			return n, false, fault(callWait, exporter.NotInitialized, nvmlUninitialized)
		}
		if n, ok = s.take(); ok || over {
			return n, ok, nil
		}
		w.faulted.Wait()
	}
}

// take finds the next event that is for this source.
func (s *source) take() (n exporter.Notice, ok bool) {
	log := &s.world.raised
	if log.count > eventsRemember {
		s.next = max(s.next, log.count-eventsRemember) // as a driver, it keeps so many
	}
	for s.next < log.count {
		number := s.next
		s.next++
		e := log.ring[number%eventsRemember]
		since, heard := s.heard[e.gpu]
		if heard && number >= since && e.kind == eventTypeXid {
			return exporter.Notice{
				UUID: s.world.ids[e.gpu].uuid, Kind: telemetry.EventXid, Code: int(e.data), Instance: exporter.NoInstance,
			}, true
		}
	}
	return n, false
}
