package exporter

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Rhythm of the driver's care.
const (
	backOffMin   = time.Second
	backOffMax   = 30 * time.Second
	rescanEvery  = time.Minute
	rescanAtMost = 10 * time.Second // apart, when asked for
	settleFor    = 2 * time.Second  // for outstanding calls before handles are closed
	patience     = 5 * time.Second  // after which a call of the whole driver counts as hung
)

// driverState is what the tick knows of the driver.
type driverState struct {
	up      bool
	fault   Fault
	err     error
	info    Driver
	found   []Found
	opens   uint64 // grows with each new start of the driver
	version uint64 // grows with each change
}

// driver opens the source, keeps the list of devices and opens it anew when
// the driver goes and comes. It works on a goroutine of its own, because any of
// this may take as long as the driver likes.
type driver struct {
	src    Source
	log    *slog.Logger
	call   callMark
	rescan chan struct{}
	reopen chan Fault // what the devices say of the driver

	mu    sync.Mutex // guards what follows; never held across a driver call
	state driverState
	// busy counts outstanding rounds on handles of this driver.
	busy func() int
}

func newDriver(src Source, log *slog.Logger, epoch time.Time, busy func() int) *driver {
	d := &driver{src: src, log: log, rescan: make(chan struct{}, 1), reopen: make(chan Fault, 1), busy: busy}
	d.call.epoch = epoch
	d.state = driverState{fault: NotInitialized, version: 1}
	return d
}

// run keeps the driver open until ctx ends.
func (d *driver) run(ctx context.Context) {
	wait := backOffMin
	for ctx.Err() == nil {
		err := d.open()
		if err == nil {
			wait = backOffMin
			err = d.watch(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		d.down(err)
		d.close()
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, backOffMax)
	}
	d.stop()
}

// stop ends for good.
func (d *driver) stop() {
	d.mu.Lock()
	d.state.up = false
	d.mu.Unlock()
	d.close()
}

// open starts the driver and enumerates its devices.
func (d *driver) open() error {
	d.call.enter(callOpen)
	err := d.src.Open()
	d.call.leave()
	if err != nil {
		return err
	}
	d.call.enter(callDriver)
	info, err := d.src.Driver()
	d.call.leave()
	if err != nil {
		return err
	}
	found, err := d.enumerate()
	if err != nil {
		return err
	}
	// What was asked for before this start is answered by it.
	drain(d.rescan)
	drain(d.reopen)
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.state
	s.up, s.fault, s.err, s.info, s.found = true, "", nil, info, found
	s.opens++
	s.version++
	d.log.Info("GPU driver is up", "driver", info.Version, "nvml", info.NVML, "gpus", len(found), "missing_functions", len(info.Missing))
	return nil
}

func (d *driver) enumerate() ([]Found, error) {
	d.call.enter(callDevices)
	found, err := d.src.Devices()
	d.call.leave()
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &DriverError{Call: callNames[callDevices], Fault: NoGPU}
	}
	return found, nil
}

// watch enumerates again from time to time, and returns why the driver has to
// be opened anew.
func (d *driver) watch(ctx context.Context) error {
	last := time.Now()
	timer := time.NewTimer(rescanEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-d.reopen:
			return fmt.Errorf("devices report that the driver is gone: %w", &DriverError{Call: "device", Fault: f})
		case <-d.rescan:
			timer.Reset(max(0, rescanAtMost-time.Since(last)))
			continue
		case <-timer.C:
		}
		found, err := d.enumerate()
		if err != nil {
			return err
		}
		last = time.Now()
		timer.Reset(rescanEvery)
		d.mu.Lock()
		d.state.found = found
		d.state.version++
		d.mu.Unlock()
	}
}

// down stops new calls on devices.
func (d *driver) down(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.state
	fault := FaultOf(err)
	if s.up || s.fault != fault {
		d.log.Warn("GPU driver is down", "fault", string(fault), "err", err)
	}
	s.up, s.fault, s.err = false, fault, err
	s.version++
}

// close releases the handles, unless a call is outstanding on one: pulled from
// under it, it could take the process down. Such a call is left to itself.
func (d *driver) close() {
	for end := time.Now().Add(settleFor); d.busy() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			d.log.Warn("driver left open: a call has not returned", "outstanding", d.busy())
			return
		}
	}
	if err := d.src.Close(); err != nil {
		d.log.Debug("close driver", "err", err)
	}
}

// give runs f, which hands a job to a worker, only while the driver is up and
// in the same start as the job's device.
func (d *driver) give(opens uint64, f func() bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.up && d.state.opens == opens && f()
}

// now returns the state; a driver that does not come out of a call is hung.
func (d *driver) now(at time.Time) driverState {
	d.mu.Lock()
	s := d.state
	d.mu.Unlock()
	if id, since := d.call.outstanding(at); !s.up && id != callNone && since > patience {
		s.fault = Hung
		s.err = &DriverError{Call: callNames[id], Fault: Hung}
	}
	return s
}

// ask requests a new enumeration or a new start, once for many.
func ask[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

func drain[T any](c chan T) {
	select {
	case <-c:
	default:
	}
}

// driverGone are faults that concern the driver and not the one device.
func driverGone(f Fault) bool {
	return f == NotInitialized || f == NotLoaded || f == Mismatch || f == NoLibrary
}
