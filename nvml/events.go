//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// registerWait bounds what one device may hold up the registration of all.
	registerWait = time.Second
	// leaveWait is how long Close waits for those that are inside the driver.
	leaveWait = 2 * earSlice
)

// ears is the event set of a Source. Everything that is inside the driver with
// the set is known: a set that is freed, or a library that is shut down, under a
// call that has not returned could take the process down.
type ears struct {
	mu      sync.Mutex // never held across a driver call
	set     nvml.EventSet
	ear     *ear
	heard   map[string]*device    // registered in set, by UUID
	pending map[string]chan error // registrations under way
	inside  int                   // calls under way that make or fill a set
	stuck   []*ear                // given up, and still in the driver
	closing bool
}

var _ exporter.Notifier = (*Source)(nil)

// kinds are the events that are listened to: what calls for somebody, and not
// what a busy device does all the time.
var kinds = [...]struct {
	bit    uint64
	kind   telemetry.EventKind
	detail string
}{
	{nvml.EventTypeXidCriticalError, telemetry.EventXid, ""},
	{nvml.EventTypeDoubleBitEccError, telemetry.EventECC, "double-bit ECC error"},
	{nvml.EventTypeSingleBitEccErrorStorm, telemetry.EventECC, "storm of single-bit ECC errors"},
	{nvml.EventTypeDramRetirementEvent, telemetry.EventECC, "a part of the memory is retired"},
	{nvml.EventTypeDramRetirementFailure, telemetry.EventECC, "a part of the memory could not be retired"},
	{nvml.EventTypeNonFatalPoisonError, telemetry.EventECC, "poisoned data, not fatal"},
	{nvml.EventTypeFatalPoisonError, telemetry.EventECC, "poisoned data, fatal"},
	{nvml.EventTypeGpuUnavailableError, telemetry.EventGPULost, "the driver says that the GPU is unavailable"},
	{nvml.EventTypeGpuRecoveryAction, telemetry.EventRecoveryAction, "the driver asks for another action"},
	{nvml.EventMigConfigChange, telemetry.EventMIGChange, ""},
}

// wanted are the bits of kinds.
var wanted = func() (bits uint64) {
	for _, k := range kinds {
		bits |= k.bit
	}
	return bits
}()

// Listen registers the devices of the last enumeration for what they support of
// kinds. Each registration is a goroutine of its own, at most one for a device:
// it touches the device, which may hang.
func (s *Source) Listen(anew ...string) error {
	for _, f := range [...]symbol{symEventSet, symEventTypes, symRegister} {
		if err := s.need(f); err != nil {
			return err
		}
	}
	if _, err := s.newest(waits); err != nil {
		return err
	}
	set, err := s.eventSet()
	if err != nil {
		return err
	}
	s.known.Lock()
	devices := make([]*device, 0, len(s.byUUID))
	for _, d := range s.byUUID {
		devices = append(devices, d)
	}
	s.known.Unlock()
	for _, uuid := range anew {
		s.ears.forget(uuid)
	}
	under := make([]chan error, len(devices))
	for i, d := range devices {
		under[i] = s.register(set, d)
	}
	var failed []error
	late := make(chan struct{}) // for all of them
	defer time.AfterFunc(registerWait, func() { close(late) }).Stop()
	for i, d := range devices {
		if under[i] == nil {
			continue
		}
		ended, err := ending(under[i], late)
		if ended {
			err = s.ears.registered(d, set, under[i], err)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s %s: %w", d.id.PCI, d.id.UUID, err))
		}
	}
	return errors.Join(failed...)
}

// ending waits for a registration until it is late; one that has ended by then
// counts.
func ending(under chan error, late chan struct{}) (ended bool, err error) {
	select {
	case err = <-under:
		return true, err
	case <-late:
	}
	select {
	case err = <-under:
		return true, err
	default:
		return false, &exporter.DriverError{Call: names[symRegister], Fault: exporter.Hung}
	}
}

// waits are the versions of the function that waits.
var waits = []symbol{symEventWait2, symEventWait}

// eventSet returns the set, a new one if there is none.
func (s *Source) eventSet() (nvml.EventSet, error) {
	e := &s.ears
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil, errNotOpen
	}
	if e.set != nil {
		return e.set, nil
	}
	if e.stuck = slices.DeleteFunc(e.stuck, (*ear).freed); len(e.stuck) > 0 {
		return nil, &exporter.DriverError{Call: names[symEventWait2], Fault: exporter.Hung}
	}
	e.inside++
	e.mu.Unlock()
	set, code := s.lib.EventSetCreate()
	e.mu.Lock()
	e.inside--
	if err := check(names[symEventSet], code); err != nil {
		return nil, err
	}
	if e.closing {
		return nil, errNotOpen // and the set goes with the library
	}
	ear, err := s.listen(set)
	if err != nil {
		return nil, err
	}
	e.set, e.ear, e.heard, e.pending = set, ear, map[string]*device{}, map[string]chan error{}
	return set, nil
}

// register begins to register a device, or joins the attempt that has not
// returned. It returns nil for one that is registered.
func (s *Source) register(set nvml.EventSet, d *device) chan error {
	e := &s.ears
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set != set || e.heard[d.id.UUID] == d {
		return nil
	}
	if under := e.pending[d.id.UUID]; under != nil {
		return under
	}
	done := make(chan error, 1)
	e.pending[d.id.UUID] = done
	e.inside++
	go func() {
		err := s.registration(set, d)
		e.mu.Lock()
		e.inside--
		e.mu.Unlock()
		done <- err
	}()
	return done
}

// registration makes the driver calls for one device.
func (s *Source) registration(set nvml.EventSet, d *device) error {
	types, code := d.handle.GetSupportedEventTypes()
	if err := check(names[symEventTypes], code); err != nil {
		return err
	}
	if types &= wanted; types == 0 {
		return nil // it tells nothing, which is no failure
	}
	s.calls.Add(1)
	err := check(names[symRegister], d.handle.RegisterEvents(types, set))
	if exporter.FaultOf(err) == exporter.Unsupported {
		return nil
	}
	return err
}

// registered notes how a registration ended.
func (e *ears) registered(d *device, set nvml.EventSet, done chan error, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set != set {
		return err
	}
	if e.pending[d.id.UUID] == done {
		delete(e.pending, d.id.UUID)
	}
	if err == nil {
		e.heard[d.id.UUID] = d
	}
	return err
}

// open lets a new start of the driver be listened to. What an earlier one had
// is given up: its set is not of this library any more.
func (s *Source) openEars() {
	e := &s.ears
	e.mu.Lock()
	defer e.mu.Unlock()
	s.drop(0)
	e.closing = false
}

func (e *ears) forget(uuid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.heard, uuid)
}

// Wait takes what the ear heard.
func (s *Source) Wait(wait time.Duration) (n exporter.Notice, ok bool, err error) {
	e := &s.ears
	e.mu.Lock()
	ear := e.ear
	e.mu.Unlock()
	if ear == nil {
		return n, false, errNotOpen
	}
	data, ok, err := ear.next(wait)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ear != ear:
		return n, false, errNotOpen // closed meanwhile
	case err == nil && ok && data.code != nvml.SUCCESS:
		err = check(names[symEventWait2], data.code)
	case err == nil && ok:
		n, ok = e.notice(&data, s.has.Load()[symEventWait2])
	}
	if err != nil {
		s.drop(earSlice / 5)
		return n, false, err
	}
	return n, ok, nil
}

// notice says what an event means, and whether it does to anyone here.
func (e *ears) notice(data *raised, instances bool) (exporter.Notice, bool) {
	n := exporter.Notice{Instance: exporter.NoInstance}
	for uuid, d := range e.heard {
		if handleOf(d.handle) == data.device {
			n.UUID = uuid
		}
	}
	if n.UUID == "" {
		return n, false
	}
	if instances {
		n.Instance = data.instance
	}
	for _, k := range kinds {
		if data.kind&k.bit != 0 {
			n.Kind, n.Detail = k.kind, k.detail
			if k.kind == telemetry.EventXid {
				n.Code = int(min(data.data, blank32))
			}
			return n, true
		}
	}
	return n, false
}

// drop gives the set up, with its lock held, and says whether nobody is inside
// the driver with it then. If so it is freed.
func (s *Source) drop(wait time.Duration) bool {
	e := &s.ears
	out := e.inside == 0
	if e.ear != nil && !e.ear.end(wait) {
		e.stuck = append(e.stuck, e.ear)
		out = false
	} else if e.ear != nil {
		e.ear.free()
	}
	if e.set != nil && out && s.need(symEventSetFree) == nil {
		_ = e.set.Free()
	}
	e.set, e.ear, e.heard, e.pending = nil, nil, nil, nil
	return out
}

// deafen ends the listening, and fails if somebody does not come out of the
// driver.
func (s *Source) deafen() error {
	e := &s.ears
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closing = true
	for end := time.Now().Add(leaveWait); e.inside > 0 && time.Now().Before(end); {
		e.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		e.mu.Lock()
	}
	out := s.drop(leaveWait)
	e.stuck = slices.DeleteFunc(e.stuck, (*ear).freed)
	if !out || len(e.stuck) > 0 {
		return &exporter.DriverError{Call: names[symEventWait2], Fault: exporter.Hung}
	}
	return nil
}
