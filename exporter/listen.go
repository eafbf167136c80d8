package exporter

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	noticeWait = 5 * time.Second        // for one notice; each wait that ends costs a wake-up
	noticePace = 100 * time.Millisecond // at least, between two waits that bring nothing
	noDriver   = time.Second            // between two looks for a driver
	heardLong  = 10 * time.Second       // without an error, so that the next is news
)

// listener hears what the driver says between readings, on a goroutine of its
// own: a wait, a registration or the whole library may hang.
type listener struct {
	src    Notifier
	events *events
	driver *driver
	log    *slog.Logger
	call   callMark
	stuck  callMark // since the source said that its wait hangs
	// heard is told of each notice before its event is made, and returns the
	// address of its GPU, and whether there is to be an event.
	heard func(*Notice) (pci string, tell bool)

	mu     sync.Mutex
	again  bool     // Listen is asked for
	anew   []string // GPUs that came back
	logged string
}

// listen asks for devices to be registered; anew names those that were gone.
func (l *listener) listen(anew ...string) {
	if l.src == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again, l.anew = true, append(l.anew, anew...)
}

func (l *listener) asked() (bool, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	again, anew := l.again, l.anew
	l.again, l.anew = false, nil
	return again, anew
}

// run listens until ctx ends. Whatever fails, the next attempt is a while away
// and longer each time.
func (l *listener) run(ctx context.Context) {
	wait := backOffMin
	for ctx.Err() == nil {
		s := l.driver.now(time.Now())
		if !s.up {
			pause(ctx, noDriver)
			continue
		}
		heard, err := l.hear(ctx, s.opens)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.report("events are not heard: " + err.Error())
		}
		if heard {
			wait = backOffMin
			continue // at once: what happens meanwhile is not told
		}
		pause(ctx, wait)
		wait = min(2*wait, backOffMax)
	}
}

// hear registers the devices and takes notices until something fails or the
// driver is gone. It says whether it heard for long.
func (l *listener) hear(ctx context.Context, opens uint64) (heard bool, err error) {
	l.asked() // what was asked for before is done now
	missing := l.register(nil)
	if isUnsupported(missing) {
		return false, missing
	}
	retry, next := backOffMin, time.Now().Add(backOffMin)
	began := time.Now()
	for ctx.Err() == nil {
		if s := l.driver.now(time.Now()); !s.up || s.opens != opens {
			return false, nil
		}
		again, anew := l.asked()
		if now := time.Now(); again || missing != nil && !now.Before(next) {
			if again {
				retry = backOffMin
			}
			missing = l.register(anew)
			retry = min(2*retry, backOffMax)
			next = now.Add(retry)
		}
		if err := l.wait(ctx); err != nil {
			return time.Since(began) > heardLong, err
		}
	}
	return false, nil
}

// register has the devices listened to, and returns which are not.
func (l *listener) register(anew []string) error {
	l.call.enter(callListen)
	err := l.src.Listen(anew...)
	l.call.leave()
	what := ""
	if err != nil {
		what = "events of some GPUs are not heard: " + err.Error()
	}
	l.report(what)
	return err
}

// wait takes one notice.
func (l *listener) wait(ctx context.Context) error {
	start := l.call.enter(callWait)
	n, ok, err := l.src.Wait(noticeWait)
	l.call.leave()
	now := time.Now()
	switch {
	case FaultOf(err) == Hung:
		if l.stuck.idle() {
			l.stuck.enter(callWait)
		}
	case err != nil:
	case ok:
		if pci, tell := l.heard(&n); tell {
			l.events.notice(&n, pci, now)
		}
	case now.Sub(start) < noticePace:
		pause(ctx, noticePace) // a driver may return at once with nothing
	}
	if err == nil {
		l.stuck.leave()
	}
	l.events.flush(now)
	return err
}

// report logs what is new.
func (l *listener) report(what string) {
	if what == l.logged {
		return
	}
	if l.logged = what; what == "" {
		l.log.Info("events of all GPUs are heard")
		return
	}
	l.log.Warn(what)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// heard says what becomes of a notice: one that a reading tells better only has
// it read.
func (e *Exporter) heard(n *Notice) (pci string, tell bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.gpus {
		if g.uuid != n.UUID {
			continue
		}
		recovery := n.Kind == telemetry.EventRecoveryAction || n.Kind == telemetry.EventXid && n.Code == xidRecovery
		if recovery || n.Kind == telemetry.EventMIGChange {
			g.nudged = true
		}
		if n.Kind == telemetry.EventGPULost {
			if g.told.kind == telemetry.EventGPULost {
				return "", false
			}
			g.told = condition{kind: telemetry.EventGPULost, since: time.Now(), what: n.Detail}
		}
		_, field := g.value(int(slotOf[telemetry.GPURecoveryAction]))
		return g.id.PCI, n.Kind != telemetry.EventRecoveryAction || !field
	}
	return "", true
}
