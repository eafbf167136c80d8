package agent

import (
	"sync"

	"go.etcd.io/bbolt"
)

// group lets changes that come while one is being synced share the next sync:
// a node whose GPUs all get hot has an order for each at once.
type group struct {
	mu    sync.Mutex
	queue []*change
	busy  bool
}

// change is a function of a transaction and whoever waits for its end.
type change struct {
	fn  func(*bbolt.Tx) error
	err chan error
}

// update makes a change and returns when it is on disk. fn may be called more
// than once; what it leaves outside the transaction must be that of the last
// call.
func (l *ledger) update(fn func(*bbolt.Tx) error) error {
	c := &change{fn, make(chan error, 1)}
	l.group.mu.Lock()
	l.group.queue = append(l.group.queue, c)
	first := !l.group.busy
	l.group.busy = true
	l.group.mu.Unlock()
	if first && l.commitQueued() {
		go func() { // others came meanwhile; this caller's change is done
			for l.commitQueued() {
			}
		}()
	}
	return <-c.err
}

// commitQueued commits what waits and says whether more has come.
func (l *ledger) commitQueued() (more bool) {
	l.group.mu.Lock()
	cs := l.group.queue
	l.group.queue = nil
	l.group.mu.Unlock()
	l.commit(cs)
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	l.group.busy = len(l.group.queue) > 0
	return l.group.busy
}

// commit makes all changes in one transaction, or, if one of them refuses,
// each in its own.
func (l *ledger) commit(cs []*change) {
	refused := false
	err := l.db.Update(func(tx *bbolt.Tx) error {
		for _, c := range cs {
			if err := c.fn(tx); err != nil {
				refused = true
				return err
			}
		}
		return nil
	})
	for _, c := range cs {
		if refused && len(cs) > 1 {
			c.err <- l.db.Update(c.fn)
			continue
		}
		c.err <- err
	}
}
