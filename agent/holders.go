package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
)

const (
	// findWait and listWait bound how long the devices are looked for, and how
	// long one may take to say who holds it.
	findWait = 8 * time.Second
	listWait = 2 * time.Second
	// findLasts is how long what was found counts: devices do not come and go.
	findLasts = time.Minute
)

var errSilent = errors.New("the device does not answer")

// holding is who holds what at one time.
type holding struct {
	of      map[string][]Holder // by uuid, of the devices that answered
	unknown map[string]error    // why it is not known of the others
}

// lists asks devices who holds them, each beside the others, and none twice at
// a time: one that never answers costs one goroutine.
type lists struct {
	from Lister

	mu      sync.Mutex
	asked   map[string]*answer // by uuid; "" looks for the devices
	devices []string           // as they were last found
	unnamed error              // why not all were
	found   time.Time
}

// answer is what a device says, once ready is closed.
type answer struct {
	ready   chan struct{}
	uuids   []string
	holders []Holder
	err     error
}

func newLists(from Lister) *lists { return &lists{from: from, asked: map[string]*answer{}} }

// ask waits for an answer that was asked for after now.
func (l *lists) ask(uuid string, within time.Duration) (*answer, bool) {
	t := time.NewTimer(within)
	defer t.Stop()
	for {
		l.mu.Lock()
		a, before := l.asked[uuid]
		if !before {
			a = &answer{ready: make(chan struct{})}
			l.asked[uuid] = a
			go l.answer(a, uuid)
		}
		l.mu.Unlock()
		select {
		case <-a.ready:
			if !before {
				return a, true
			}
		case <-t.C:
			return nil, false
		}
	}
}

func (l *lists) answer(a *answer, uuid string) {
	func() {
		defer recovered(&a.err)
		if uuid == "" {
			a.uuids, a.err = l.from.Devices()
		} else {
			a.holders, a.err = l.from.Holders(uuid)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asked, uuid)
	close(a.ready)
}

// find returns the devices, those of the last time if that was lately or if they
// cannot be looked for in time.
func (l *lists) find() (uuids []string, err error) {
	l.mu.Lock()
	uuids, err = l.devices, l.unnamed
	lately := !l.found.IsZero() && time.Since(l.found) < findLasts
	l.mu.Unlock()
	if lately {
		return uuids, err
	}
	a, ok := l.ask("", findWait)
	switch {
	case ok && (a.err == nil || len(a.uuids) > 0):
		l.mu.Lock()
		defer l.mu.Unlock()
		l.devices, l.unnamed, l.found = a.uuids, a.err, time.Now()
		return a.uuids, a.err
	case len(uuids) > 0:
		return uuids, err
	case ok:
		return nil, a.err
	}
	return nil, fmt.Errorf("the driver does not name its devices within %s", findWait)
}

// look asks every device. The error says that nothing at all is known.
func (l *lists) look() (holding, error) {
	uuids, err := l.find()
	if err != nil && len(uuids) == 0 {
		return holding{}, err
	}
	h := l.of(uuids)
	if err != nil {
		h.unknown["a device without a name"] = err
	}
	return h, nil
}

// of asks some devices.
func (l *lists) of(uuids []string) holding {
	h := holding{of: map[string][]Holder{}, unknown: map[string]error{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, uuid := range uuids {
		wg.Go(func() {
			a, ok := l.ask(uuid, listWait)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !ok:
				h.unknown[uuid] = errSilent
			case a.err != nil:
				h.unknown[uuid] = a.err
			default:
				h.of[uuid] = a.holders
			}
		})
	}
	wg.Wait()
	return h
}

// holds is one process on one device.
type holds struct {
	UUID   string     `json:"uuid"`
	ID     process.ID `json:"id"`
	Memory uint64     `json:"memory,omitempty"`
}

// by returns what some processes hold. A device knows a pid alone, so where it
// is another process's by now, that one is meant.
func (h holding) by(ids []process.ID, t process.Table) (all []holds) {
	of := map[int]process.ID{}
	for _, id := range ids {
		if i, there := t[id.PID]; !there || i.ID == id {
			of[id.PID] = id
		}
	}
	for uuid, holders := range h.of {
		for _, x := range holders {
			if id, ok := of[x.PID]; ok {
				all = append(all, holds{uuid, id, x.MemoryBytes})
			}
		}
	}
	slices.SortFunc(all, func(a, b holds) int { return cmp.Or(cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.ID.PID, b.ID.PID)) })
	return all
}

// notKnown names the devices of which it is not known who holds them, among
// some of them or all.
func (h holding) notKnown(among []string) string {
	var parts []string
	for _, uuid := range slices.Sorted(maps.Keys(h.unknown)) {
		if among == nil || slices.Contains(among, uuid) {
			parts = append(parts, fmt.Sprintf("%s (%v)", uuid, h.unknown[uuid]))
		}
	}
	return strings.Join(parts, ", ")
}

// devicesOf lists the devices in what is held, each once.
func devicesOf(all []holds) (uuids []string) {
	for _, h := range all {
		uuids = append(uuids, h.UUID)
	}
	return slices.Compact(uuids) // they are sorted
}

// holdsText says in words who holds what.
func holdsText(all []holds) string {
	var parts []string
	for _, h := range all {
		part := fmt.Sprintf("%s by %d", h.UUID, h.ID.PID)
		if h.Memory > 0 {
			part += fmt.Sprintf(" (%.1f GiB)", float64(h.Memory)/(1<<30))
		}
		parts = append(parts, part)
	}
	return some(parts)
}

// some joins the first few of a list and counts the others.
func some(parts []string) string {
	const most = 6
	if len(parts) <= most {
		return strings.Join(parts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(parts[:most], ", "), len(parts)-most)
}
