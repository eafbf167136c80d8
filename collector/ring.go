package collector

import (
	"sync"
	"time"
)

// arrival is a frame as it came off the bus.
type arrival struct {
	subject string
	data    []byte
	at      time.Time
}

// ring is a bounded queue between the bus and a worker. A full one drops the
// oldest frame: a late frame is worth less than a new one.
type ring struct {
	mu    sync.Mutex
	slots []arrival
	first int
	count int
	held  map[string]int // by subject
	wake  chan struct{}
}

// share is how many frames of one subject may wait. A node sends at most ten
// a second, so only one that floods has more; its frames must not push out
// those of the others.
const share = 64

func newRing(size int) *ring {
	return &ring{slots: make([]arrival, size), held: map[string]int{}, wake: make(chan struct{}, 1)}
}

// push never waits. It reports whether a frame had to go.
func (r *ring) push(a arrival) (dropped bool) {
	r.mu.Lock()
	if r.held[a.subject] >= share {
		r.mu.Unlock()
		return true
	}
	if r.count == len(r.slots) {
		r.pop()
		dropped = true
	}
	r.slots[(r.first+r.count)%len(r.slots)] = a
	r.count++
	r.held[a.subject]++
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return dropped
}

// take moves up to cap(to) frames into to, oldest first.
func (r *ring) take(to []arrival) []arrival {
	to = to[:0]
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.count > 0 && len(to) < cap(to) {
		to = append(to, r.pop())
	}
	return to
}

// pop takes the oldest frame out.
func (r *ring) pop() arrival {
	a := r.slots[r.first]
	r.slots[r.first] = arrival{}
	r.first = (r.first + 1) % len(r.slots)
	r.count--
	if n := r.held[a.subject] - 1; n > 0 {
		r.held[a.subject] = n
	} else {
		delete(r.held, a.subject)
	}
	return a
}
