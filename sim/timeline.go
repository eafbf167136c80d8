package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrLimitRange says that a power limit is outside the product's range.
var ErrLimitRange = errors.New("power limit out of range")

// Xids that the world raises.
const (
	xidFallenOff    = 79
	eventTypeXid    = 0x8
	eventsRemember  = 256
	gpuInstanceNone = 1<<32 - 1
)

// action is one end of an event: its beginning or, with undo, its reversal.
type action struct {
	at    time.Duration
	event Event
	undo  bool
}

// timelineOf orders a scenario's events by time; events of the same time keep
// the scenario's order.
func timelineOf(s *Scenario) []action {
	var list []action
	for _, e := range s.Events {
		list = append(list, e.actions(0)...)
	}
	slices.SortStableFunc(list, action.compare)
	return list
}

func (a action) compare(b action) int { return cmp.Compare(a.at, b.at) }

// actions are the ends of an event whose times count from some moment.
func (e Event) actions(from time.Duration) []action {
	at := from + time.Duration(e.At)
	list := []action{{at: at, event: e, undo: e.Over}}
	if e.For > 0 {
		list = append(list, action{at: at + time.Duration(e.For), event: e, undo: true})
	}
	return list
}

// Happen adds an event, as ParseEvent gave it, to those of the scenario. Its
// time counts from now, and without one it happens at the next step.
func (w *World) Happen(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeline = append(w.timeline, e.actions(w.elapsed)...)
	slices.SortStableFunc(w.timeline[w.next:], action.compare)
}

// fire applies every action whose time has come.
func (w *World) fire() {
	for ; w.next < len(w.timeline) && w.timeline[w.next].at <= w.elapsed; w.next++ {
		w.act(w.timeline[w.next])
	}
}

// act applies an action. Undoing restores what the scenario began with, also
// where two events overlap.
func (w *World) act(a action) {
	e := a.event
	if e.InletCelsius != nil {
		for i := range w.rows {
			if r := &w.rows[i]; r.Name == e.Row {
				r.inletC = *e.InletCelsius
				if a.undo {
					r.inletC = r.InletCelsius
				}
			}
		}
		return
	}
	place, err := parsePlace(e.GPU)
	if err != nil {
		return
	}
	i, err := w.find(place.node, place.first)
	if err != nil {
		return
	}
	switch {
	case e.Cooling != nil && a.undo:
		w.gpus[i].cooling = 1
	case e.Cooling != nil:
		w.gpus[i].cooling = *e.Cooling
	default:
		w.fault(i, e.Fault, !a.undo)
	}
}

// fault begins or ends a fault.
func (w *World) fault(i int32, fault Fault, on bool) {
	g := &w.gpus[i]
	w.faulted.Broadcast()
	switch fault {
	case FaultLost:
		if on && !g.lost {
			w.raised.add(raisedEvent{at: w.elapsed, gpu: i, kind: eventTypeXid, data: xidFallenOff})
		}
		g.lost = on
	case FaultHung:
		g.hung = on
	case FaultStuck:
		g.stuck = on
	case FaultBlank:
		g.blank = on
	case FaultDenied:
		g.denied = on
	}
}

// SetFault begins or ends a fault outside the scenario's timeline.
func (w *World) SetFault(nodeName string, slot int, fault Fault, on bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, slot)
	if err != nil {
		return err
	}
	if !slices.Contains(Faults(), fault) {
		return fmt.Errorf("fault %q is not known: one of %v", fault, Faults())
	}
	w.fault(i, fault, on)
	return nil
}

// SetInlet changes a row's inlet temperature outside the timeline.
func (w *World) SetInlet(rowName string, celsius float64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.rows {
		if w.rows[i].Name == rowName {
			w.rows[i].inletC = celsius
			return nil
		}
	}
	return fmt.Errorf("row %q is not in the world", rowName)
}

// raisedEvent is something that the driver reports when it happens.
type raisedEvent struct {
	at   time.Duration
	gpu  int32
	kind uint64 // nvmlEventType bit
	data uint64 // the Xid
}

// eventLog keeps the last events, numbered from 0.
type eventLog struct {
	count uint64
	ring  [eventsRemember]raisedEvent
}

func (l *eventLog) add(e raisedEvent) {
	l.ring[l.count%eventsRemember] = e
	l.count++
}

// since calls f for every event from number seq on that is still kept, and
// returns the number that comes next.
func (l *eventLog) since(seq uint64, f func(raisedEvent)) uint64 {
	if l.count > eventsRemember {
		seq = max(seq, l.count-eventsRemember)
	}
	for ; seq < l.count; seq++ {
		f(l.ring[seq%eventsRemember])
	}
	return seq
}
