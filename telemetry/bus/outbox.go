package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// outbox sends messages until the server has stored them, in order. It is
// bounded: when it is full the oldest goes, and is counted.
type outbox struct {
	c      *Conn
	limit  int
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	queue   []*letter
	dropped uint64
	wake    chan struct{}
	waiting []chan struct{} // flushes
}

type letter struct {
	subject, id string
	data        []byte
	stored      func()
}

func newOutbox(c *Conn, limit int) *outbox {
	o := &outbox{c: c, limit: limit, wake: make(chan struct{}, 1)}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.done.Go(o.run)
	return o
}

func (o *outbox) put(l *letter) error {
	if limit := o.c.maxPayload(); int64(len(l.data)) > limit {
		return fmt.Errorf("%s: message of %d bytes is over the server's max_payload of %d", l.subject, len(l.data), limit)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", l.subject, nats.ErrConnectionClosed)
	}
	if len(o.queue) >= o.limit {
		o.c.log.Warn("outbox full, the oldest message is given up", "subject", o.queue[0].subject, "id", o.queue[0].id)
		o.queue = o.queue[1:]
		o.dropped++
	}
	o.queue = append(o.queue, l)
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return nil
}

func (o *outbox) head() *letter {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil
	}
	return o.queue[0]
}

// remove takes l off the queue, if it was not given up in the meantime.
func (o *outbox) remove(l *letter, lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 0 && o.queue[0] == l {
		o.queue[0] = nil
		o.queue = o.queue[1:]
		if lost {
			o.dropped++
		}
	}
	if len(o.queue) == 0 {
		for _, w := range o.waiting {
			close(w)
		}
		o.waiting = nil
	}
}

func (o *outbox) run() {
	const first, most = 100 * time.Millisecond, 5 * time.Second
	pause := first
	for o.ctx.Err() == nil {
		l := o.head()
		if l == nil {
			select {
			case <-o.wake:
			case <-o.ctx.Done():
			}
			continue
		}
		err := o.send(l)
		if err == nil {
			if l.stored != nil {
				l.stored()
			}
			o.remove(l, false)
			pause = first
			continue
		}
		if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) {
			o.c.log.Error("message given up: the server will never take it", "subject", l.subject, "id", l.id, "err", err)
			o.remove(l, true)
			continue
		}
		o.c.log.Debug("message not stored yet", "subject", l.subject, "id", l.id, "err", err)
		select {
		case <-time.After(pause):
		case <-o.ctx.Done():
		}
		pause = min(2*pause, most)
	}
}

func (o *outbox) send(l *letter) error {
	ctx, cancel := context.WithTimeout(o.ctx, 5*time.Second)
	defer cancel()
	_, err := o.c.js.Publish(ctx, l.subject, l.data, jetstream.WithMsgID(l.id), jetstream.WithRetryAttempts(0))
	return err
}

func (o *outbox) flush(ctx context.Context) error {
	o.mu.Lock()
	if len(o.queue) == 0 {
		o.mu.Unlock()
		return nil
	}
	w := make(chan struct{})
	o.waiting = append(o.waiting, w)
	o.mu.Unlock()
	select {
	case <-w:
		return nil
	case <-ctx.Done():
		n, _ := o.stats()
		return fmt.Errorf("%d events or receipts are not stored yet: %w", n, ctx.Err())
	}
}

func (o *outbox) stats() (queued int, dropped uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue), o.dropped
}

func (o *outbox) close() {
	o.cancel()
	o.done.Wait()
}

// maxPayload is the server's limit, or the protocol's highest before the first
// connection has told it.
func (c *Conn) maxPayload() int64 {
	if n := c.nc.MaxPayload(); n > 0 {
		return n
	}
	return 64 << 20
}
