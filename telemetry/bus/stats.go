package bus

import (
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrorKind sorts what the server or the client reports out of band; it is a
// label value, so the list is closed.
type ErrorKind string

// Kinds of asynchronous errors.
const (
	ErrorPermission   ErrorKind = "permission"
	ErrorSlowConsumer ErrorKind = "slow_consumer"
	ErrorAuth         ErrorKind = "auth"
	ErrorOther        ErrorKind = "other"
)

var errorKinds = [...]ErrorKind{ErrorPermission, ErrorSlowConsumer, ErrorAuth, ErrorOther}

// ErrorKinds is every kind, for pre-created series.
var ErrorKinds = errorKinds[:]

// Stats are counts since the connection began.
type Stats struct {
	Connected  bool
	Reconnects uint64
	// PublishErrors counts frames and observations that were not sent.
	PublishErrors uint64
	// AsyncErrors counts what was reported out of band, every kind present.
	AsyncErrors map[ErrorKind]uint64
	// Dropped counts messages lost here because a handler was too slow.
	Dropped uint64
	// Malformed counts stored messages that could not be decoded.
	Malformed uint64
	// OutboxQueued are events and receipts not yet stored by the server,
	// OutboxDropped those given up because the outbox was full.
	OutboxQueued  int
	OutboxDropped uint64
}

// Stats returns the counts.
func (c *Conn) Stats() Stats {
	s := Stats{
		Connected:     c.nc.IsConnected(),
		Reconnects:    c.nc.Stats().Reconnects,
		PublishErrors: c.publishErrors.Load(),
		Malformed:     c.malformed.Load(),
		AsyncErrors:   make(map[ErrorKind]uint64, len(errorKinds)),
	}
	for i, k := range errorKinds {
		s.AsyncErrors[k] = c.async[i].Load()
	}
	s.OutboxQueued, s.OutboxDropped = c.out.stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Dropped = c.goneDrops
	for sub := range c.subs {
		if n, err := sub.Dropped(); err == nil {
			s.Dropped += uint64(n)
		}
	}
	return s
}

// onAsyncError is the only place where a refused publish shows: Publish itself
// has returned nil by then.
func (c *Conn) onAsyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	kind := ErrorOther
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		kind = ErrorPermission
	case errors.Is(err, nats.ErrSlowConsumer):
		kind = ErrorSlowConsumer
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired),
		errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		kind = ErrorAuth
	}
	c.async[slices.Index(ErrorKinds, kind)].Add(1)
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	// A refused publish comes back with each frame. The count has them all.
	c.mu.Lock()
	key, now := subject+"\xff"+err.Error(), time.Now()
	said := c.lastAsync[key]
	again := !said.IsZero() && now.Sub(said) < asyncEvery
	if !again {
		if len(c.lastAsync) >= maxAsync {
			clear(c.lastAsync)
		}
		c.lastAsync[key] = now
	}
	c.mu.Unlock()
	if !again {
		c.log.Warn("bus error", "kind", kind, "subject", subject, "err", err)
	}
}

// The same error is logged again after asyncEvery; maxAsync are told apart.
const (
	asyncEvery = time.Minute
	maxAsync   = 256
)
