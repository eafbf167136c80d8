package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// followStall is the silence after which a follower asks whether it misses
	// something: a consumer can stop for good when its stream changes leader.
	followStall = 10 * time.Second
	followRetry = 200 * time.Millisecond
	followMost  = 5 * time.Second
)

// errReplaced means that the stream was made anew under a follower.
var errReplaced = errors.New("the stream was removed and made again; what was followed before is gone, start anew")

// start says where a follower begins.
type start struct {
	policy jetstream.DeliverPolicy
	since  time.Time
	// strict followers end when the stream was made anew; the others begin again.
	strict bool
}

// follower reads one stream in order, each message once, for as long as its
// context lives, whatever happens to the connection or the server.
type follower struct {
	c       *Conn
	stream  string
	start   start
	fn      func(seq uint64, m jetstream.Msg)
	next    uint64 // 0 until the first message
	created time.Time
	warned  string
}

func (c *Conn) follow(ctx context.Context, stream string, s start, fn func(seq uint64, m jetstream.Msg)) error {
	f := &follower{c: c, stream: stream, start: s, fn: fn}
	pause := followRetry
	for ctx.Err() == nil {
		before := f.next
		err := f.session(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errReplaced):
			if s.strict {
				return fmt.Errorf("follow %s: %w", stream, err)
			}
			f.next, f.created = 0, time.Time{}
		case errors.Is(err, nats.ErrConnectionClosed):
			return fmt.Errorf("follow %s: %w", stream, err)
		case !c.nc.IsConnected():
			// The connection says so itself.
		case err != nil && err.Error() != f.warned:
			f.warned = err.Error()
			c.log.Info("follower starts again", "stream", stream, "next", f.next, "err", err)
		}
		if f.next != before {
			pause, f.warned = followRetry, ""
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, followMost)
	}
	return ctx.Err()
}

// session reads until something goes wrong.
func (f *follower) session(ctx context.Context) error {
	reconnected := f.c.reconnection()
	if _, err := f.check(ctx); err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	config := f.config()
	config.Name = rand.Text() // known here even if the answer is not waited for
	cons, err := f.c.js.CreateConsumer(opening, f.stream, config)
	if err == nil || opening.Err() != nil {
		defer f.remove(config.Name)
	}
	if err != nil {
		return err
	}
	it, err := cons.Messages(jetstream.PullMaxMessages(256), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(5*time.Second))
	if err != nil {
		return err
	}
	defer it.Stop()
	reading, done := context.WithCancel(ctx)
	defer done()
	go func() {
		select {
		case <-reconnected: // the consumer may be gone; a new one goes on at once
		case <-reading.Done():
		}
		it.Stop()
	}()
	for delivered := uint64(1); ; delivered++ {
		m, err := f.wait(ctx, it)
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("message without place: %w", err)
		}
		if meta.Sequence.Consumer != delivered {
			return fmt.Errorf("message %d lost on the way", delivered)
		}
		if seq := meta.Sequence.Stream; seq >= f.next {
			f.fn(seq, m)
			f.next = seq + 1
		}
	}
}

// wait returns the next message. In a long silence it asks the stream whether
// there is one that did not come.
func (f *follower) wait(ctx context.Context, it jetstream.MessagesContext) (jetstream.Msg, error) {
	for {
		m, err := it.Next(jetstream.NextMaxWait(followStall))
		if !errors.Is(err, nats.ErrTimeout) {
			return m, err
		}
		last, err := f.check(ctx)
		if err != nil {
			return nil, err
		}
		if f.next > 0 && last >= f.next {
			return nil, fmt.Errorf("consumer stalled before %d of %d", f.next, last)
		}
	}
}

// check returns the last sequence of the stream and notices a new one of the
// same name.
func (f *follower) check(ctx context.Context) (last uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := f.c.js.Stream(ctx, f.stream)
	if err != nil {
		return 0, err
	}
	info := s.CachedInfo()
	if f.created.IsZero() {
		f.created = info.Created
	}
	if !info.Created.Equal(f.created) || info.State.LastSeq+1 < f.next {
		return 0, errReplaced
	}
	return info.State.LastSeq, nil
}

func (f *follower) config() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MaxDeliver: 1, MemoryStorage: true, Replicas: 1,
		InactiveThreshold: time.Minute, DeliverPolicy: f.start.policy,
	}
	switch {
	case f.next > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.next
	case f.start.policy == jetstream.DeliverByStartTimePolicy:
		cfg.OptStartTime = &f.start.since
	}
	return cfg
}

// remove spares the server a consumer that would idle for a minute.
func (f *follower) remove(name string) {
	if !f.c.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := f.c.js.DeleteConsumer(ctx, f.stream, name); err != nil {
		f.c.log.Debug("consumer not removed; it ends by itself", "stream", f.stream, "err", err)
	}
}

// background runs a follower until stop is called.
func (c *Conn) background(ctx context.Context, stream string, s start, fn func(seq uint64, m jetstream.Msg)) (stop func(), err error) {
	if c.nc.IsClosed() {
		return nil, fmt.Errorf("follow %s: %w", stream, nats.ErrConnectionClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.follow(ctx, stream, s, fn); err != nil && ctx.Err() == nil && !c.nc.IsClosed() {
			c.log.Error("follower ended", "stream", stream, "err", err)
		}
	}()
	return func() { cancel(); <-done }, nil
}
