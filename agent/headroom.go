package agent

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// A cap whose lease is over is undone when its device is cool enough. None
// outlives its lease for ever: what cannot be read, or stays hot whatever is
// done, is given back all the same, and the device's own slowdown protects it.
const (
	unknownAtMost = 10 * time.Minute
	hotAtMost     = 24 * time.Hour
	// readingLasts is how old a headroom may be that lets a cap go.
	readingLasts = 3 * time.Second
)

var errNoAnswer = errors.New("the device has not answered")

// wait is what is known of a device whose lease is over.
type wait struct {
	since   time.Time // the lease is over, as far as this process knows
	reading bool      // a read is under way
	at      time.Time // of the last answer
	known   time.Time // of the last answer with a number
	celsius float64   // NaN: unknown
	err     error
	told    bool
}

// mayUndo says whether a device may lose its cap now. It blocks on no device:
// it judges the last answer and asks for the next.
func (a *Agent) mayUndo(h hold, now time.Time) bool {
	if a.o.Headroom == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.waits[h.UUID]
	if w == nil {
		w = &wait{since: now, celsius: math.NaN(), err: errNoAnswer}
		if h.Until.Before(now) { // also across a restart of the agent
			w.since = h.Until
		}
		a.waits[h.UUID] = w
	}
	if !w.reading {
		w.reading = true
		go a.readHeadroom(h.UUID, w)
	}
	fresh := !w.at.IsZero() && now.Sub(w.at) <= readingLasts
	switch {
	case fresh && w.celsius >= a.cfg.UndoHeadroomC:
		return true
	case fresh && !math.IsNaN(w.celsius):
		a.tell(h, w, fmt.Sprintf("headroom is %.0f °C, wanted are %.0f °C; at most for %s", w.celsius, a.cfg.UndoHeadroomC, hotAtMost))
		return now.Sub(w.since) >= hotAtMost
	}
	since := w.since
	if w.known.After(since) {
		since = w.known
	}
	if unknown := now.Sub(since); unknown < unknownAtMost {
		if unknown > readingLasts {
			a.tell(h, w, fmt.Sprintf("headroom is not known (%v); at most for %s", w.err, unknownAtMost))
		}
		return false
	}
	return true
}

// tell says once why a cap stays beyond its lease.
func (a *Agent) tell(h hold, w *wait, why string) {
	if !w.told {
		w.told = true
		a.log.Warn("lease is over and the cap stays for now", "uuid", h.UUID, "step", h.Step, "why", why)
	}
}

// readHeadroom is not waited for: a call that never returns must not keep the
// agent from its end.
func (a *Agent) readHeadroom(uuid string, w *wait) {
	celsius, err := headroom(a.o.Headroom, uuid)
	if err != nil {
		celsius = math.NaN()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w.reading, w.at, w.celsius, w.err = false, time.Now(), celsius, err
	if !math.IsNaN(celsius) {
		w.known = w.at
	}
}

func headroom(read func(string) (float64, error), uuid string) (celsius float64, err error) {
	defer recovered(&err)
	return read(uuid)
}
