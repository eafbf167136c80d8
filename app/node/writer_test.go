package node

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// library is a driver that is there, hangs or goes away as a test has it.
type library struct {
	mu            sync.Mutex
	opens, closes int
	absent        bool
	gone          bool // since it was last opened
	hang          map[string]chan struct{}
}

func lost(f exporter.Fault) error { return &exporter.DriverError{Call: "test", Fault: f} }

func (l *library) Open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.absent {
		return lost(exporter.NotLoaded)
	}
	l.opens++
	l.gone = false
	return nil
}

func (l *library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closes++
	return nil
}

func (l *library) call(uuid string) error {
	l.mu.Lock()
	hang, gone, open := l.hang[uuid], l.gone, l.opens > 0
	l.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if gone || !open {
		return lost(exporter.NotInitialized)
	}
	return nil
}

func (l *library) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	return telemetry.PowerLimits{Current: 700}, l.call(uuid)
}
func (l *library) SetPowerLimit(uuid string, _ float64) error        { return l.call(uuid) }
func (l *library) Headroom(uuid string) (celsius float64, err error) { return 20, l.call(uuid) }

func (l *library) Devices() ([]exporter.Found, error) {
	return []exporter.Found{{Index: 0, UUID: "GPU-1"}, {Index: 1, Err: lost(exporter.Lost)}, {Index: 2, UUID: "GPU-3", Err: lost(exporter.Hung)}}, l.call("")
}

func (l *library) Holders(uuid string) ([]exporter.Process, error) {
	return []exporter.Process{{PID: 41, MemoryBytes: 5, Instance: exporter.NoInstance}}, l.call(uuid)
}

func (l *library) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// TestWriterComesAndGoesWithTheDriver: no driver is an error of each call, its
// return needs nothing, and a loss is cured by the call after it.
func TestWriterComesAndGoesWithTheDriver(t *testing.T) {
	l := &library{absent: true}
	w := newLazyWriter(l)
	for range 2 {
		if _, err := w.PowerLimits("GPU-1"); exporter.FaultOf(err) != exporter.NotLoaded {
			t.Errorf("without a driver: %v", err)
		}
	}
	l.change(func() { l.absent = false })
	for range 3 {
		if c, err := w.Headroom("GPU-1"); err != nil || c != 20 {
			t.Errorf("headroom %g, %v", c, err)
		}
	}
	if l.opens != 1 {
		t.Errorf("opened %d times", l.opens)
	}
	l.change(func() { l.gone = true })
	if err := w.SetPowerLimit("GPU-1", 300); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("as the driver goes: %v", err)
	}
	if err := w.SetPowerLimit("GPU-1", 300); err != nil || l.opens != 2 {
		t.Errorf("after it: %v, opened %d times", err, l.opens)
	}
	before := l.closes
	w.Close()
	w.Close()
	if l.closes != before+1 {
		t.Errorf("closed %d times", l.closes-before)
	}
}

// TestHungCallKeepsNoOtherBack: another device is read and written while one
// hangs, also across a restart of the driver, and nothing is closed under it.
func TestHungCallKeepsNoOtherBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := &library{hang: map[string]chan struct{}{"GPU-1": release}}
		w := newLazyWriter(l)
		done := make(chan error, 1)
		go func() { done <- w.SetPowerLimit("GPU-1", 300) }()
		synctest.Wait()
		closes := l.closes
		if _, err := w.PowerLimits("GPU-2"); err != nil {
			t.Errorf("the other device: %v", err)
		}
		l.change(func() { l.gone = true })
		if _, err := w.PowerLimits("GPU-2"); err == nil {
			t.Error("a driver that is gone answers")
		}
		if _, err := w.PowerLimits("GPU-2"); err != nil {
			t.Errorf("after the driver's return: %v", err)
		}
		w.Close()
		if l.closes != closes {
			t.Error("closed under a call")
		}
		close(release)
		if err := <-done; err != nil {
			t.Errorf("the call that hung: %v", err)
		}
		w.Close()
		if l.closes != closes+1 {
			t.Error("not closed at the end")
		}
	})
}

// TestWriterNamesDevicesAndHolders: a device that has no name is an error beside
// the others, one that is known and silent keeps its name.
func TestWriterNamesDevicesAndHolders(t *testing.T) {
	l := &library{absent: true}
	w := newLazyWriter(l)
	if uuids, err := w.Devices(); len(uuids) != 0 || exporter.FaultOf(err) != exporter.NotLoaded {
		t.Errorf("without a driver: %v, %v", uuids, err)
	}
	if holders, err := w.Holders("GPU-1"); len(holders) != 0 || exporter.FaultOf(err) != exporter.NotLoaded {
		t.Errorf("without a driver: %v, %v", holders, err)
	}
	l.change(func() { l.absent = false })
	uuids, err := w.Devices()
	if !slices.Equal(uuids, []string{"GPU-1", "GPU-3"}) || exporter.FaultOf(err) != exporter.Lost || !strings.Contains(err.Error(), "GPU 1") {
		t.Errorf("%v, %v", uuids, err)
	}
	if holders, err := w.Holders("GPU-1"); err != nil || !slices.Equal(holders, []agent.Holder{{PID: 41, MemoryBytes: 5}}) {
		t.Errorf("%v, %v", holders, err)
	}
}
