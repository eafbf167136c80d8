package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// appendWithin bounds an Append whose context has no deadline.
const appendWithin = 10 * time.Second

// Append adds a record if the journal's last sequence is still expect, and
// returns the new one. telemetry.ErrConflict means that somebody else wrote.
//
// It tries again until ctx ends. The record's id makes that safe: if the
// server stored an earlier attempt and only its answer was lost, the record
// behind expect is found to be this one, and its sequence is the answer.
func (c *Conn) Append(ctx context.Context, expect uint64, r telemetry.Record) (uint64, error) {
	if r.ID == "" || r.Topic == "" {
		return 0, errors.New("journal: a record needs an id and a topic")
	}
	data, err := json.Marshal(r)
	if err != nil {
		return 0, fmt.Errorf("journal: encode record %s: %w", r.ID, err)
	}
	if limit := c.maxPayload(); int64(len(data)) > limit {
		return 0, fmt.Errorf("journal: record %s of %d bytes is over the server's max_payload of %d", r.ID, len(data), limit)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, appendWithin)
		defer cancel()
	}
	for {
		seq, err := c.appendOnce(ctx, expect, r, data)
		switch {
		case err == nil:
			return seq, nil
		case wrongSequence(err):
			ours, err := c.storedAt(ctx, expect+1, r.ID)
			if ours {
				return expect + 1, nil
			}
			if err != nil {
				return 0, fmt.Errorf("journal: record %s not confirmed: %w", r.ID, err)
			}
			return 0, fmt.Errorf("journal: record %s after %d: %w", r.ID, expect, telemetry.ErrConflict)
		case ctx.Err() != nil || !transient(err):
			return 0, fmt.Errorf("journal: record %s not confirmed: %w", r.ID, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("journal: record %s not confirmed: %w", r.ID, err)
		}
	}
}

// appendWindow bounds the records that AppendAll has on their way.
const appendWindow = 64

// AppendAll adds records in order, each only right behind the one before it,
// without waiting for one to be stored before the next is sent. stored is
// called for each in turn as it is stored. After an error those reported are
// there, and of the rest it is not known.
//
// A record is sent with the id of the one before it beside the sequence: if
// somebody else's record took the place of one of ours, none after it is taken.
func (c *Conn) AppendAll(ctx context.Context, expect uint64, rs []telemetry.Record, stored func(seq uint64)) error {
	for len(rs) > 0 {
		n := min(len(rs), appendWindow)
		if n > 1 {
			got := c.appendAhead(ctx, expect, rs[:n], stored)
			expect, rs, n = expect+uint64(got), rs[got:], n-got
		}
		// What the quick way did not confirm, perhaps for want of an answer alone,
		// goes the careful way: a record that is there already is found to be.
		for _, r := range rs[:n] {
			seq, err := c.Append(ctx, expect, r)
			if err != nil {
				return err
			}
			stored(seq)
			expect = seq
		}
		rs = rs[n:]
	}
	return nil
}

// appendAhead sends records without waiting in between, and returns how many
// of them, from the first on, are known to be stored.
func (c *Conn) appendAhead(ctx context.Context, expect uint64, rs []telemetry.Record, stored func(seq uint64)) (n int) {
	var sent []jetstream.PubAckFuture
	for i, r := range rs {
		data, err := json.Marshal(r)
		if err != nil || r.ID == "" || r.Topic == "" || int64(len(data)) > c.maxPayload() {
			break // Append says what is wrong with it
		}
		opts := []jetstream.PublishOpt{
			jetstream.WithMsgID(r.ID), jetstream.WithExpectStream(StreamJournal),
			jetstream.WithExpectLastSequence(expect + uint64(i)), jetstream.WithRetryAttempts(0),
		}
		if i > 0 {
			opts = append(opts, jetstream.WithExpectLastMsgID(rs[i-1].ID))
		}
		f, err := c.ahead.PublishAsync(telemetry.JournalSubject(r.Topic), data, opts...)
		if err != nil {
			break
		}
		sent = append(sent, f)
	}
	failed := false
	for i, f := range sent {
		// Each is waited for, also behind one that failed: a record still on its
		// way must not be sent a second time.
		select {
		case ack := <-f.Ok():
			if failed = failed || ack.Sequence != expect+uint64(i)+1; !failed {
				stored(ack.Sequence)
				n++
			}
		case <-f.Err(): //nolint:errcheck // whatever it was, what follows is not taken
			failed = true
		case <-ctx.Done():
			return n
		}
	}
	return n
}

func (c *Conn) appendOnce(ctx context.Context, expect uint64, r telemetry.Record, data []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ack, err := c.js.Publish(ctx, telemetry.JournalSubject(r.Topic), data,
		jetstream.WithMsgID(r.ID), jetstream.WithExpectStream(StreamJournal),
		jetstream.WithExpectLastSequence(expect))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// storedAt says whether the record at seq is the one with this id. It asks the
// stream's leader; a stored record never changes.
func (c *Conn) storedAt(ctx context.Context, seq uint64, id string) (bool, error) {
	s, err := c.js.Stream(ctx, StreamJournal)
	if err != nil {
		return false, err
	}
	m, err := s.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil // long gone, so not what was tried just now
	}
	if err != nil {
		return false, err
	}
	return m.Header.Get(jetstream.MsgIDHeader) == id, nil
}

// wrongSequence is the server's answer to a compare-and-write that came too
// late; a replicated stream has a code of its own for it.
func wrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// transient errors leave open whether the server has stored the message.
func transient(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.Code == 503
	}
	return !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrMaxPayload)
}

// Replay calls fn with every kept record in order and returns the last
// sequence. A record that cannot be read is an error: to act on half a journal
// is worse than not to act.
func (c *Conn) Replay(ctx context.Context, fn func(seq uint64, r telemetry.Record) error) (last uint64, err error) {
	last, err = c.replay(ctx, 0, fn)
	if err != nil {
		return last, fmt.Errorf("replay the journal: %w", err)
	}
	return last, nil
}

// Resume is Replay from the last snapshot on, which holds what came before it.
// Without one it begins at the first record.
func (c *Conn) Resume(ctx context.Context, fn func(seq uint64, r telemetry.Record) error) (last uint64, err error) {
	from, err := c.lastSnapshot(ctx)
	if err == nil {
		last, err = c.replay(ctx, from, fn)
	}
	if err != nil {
		return last, fmt.Errorf("replay the journal from its last snapshot: %w", err)
	}
	return last, nil
}

// lastSnapshot is the place of the newest snapshot, 0 if there is none.
func (c *Conn) lastSnapshot(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := c.js.Stream(ctx, StreamJournal)
	if err != nil {
		return 0, err
	}
	m, err := s.GetLastMsgForSubject(ctx, telemetry.JournalSubject(telemetry.TopicSnapshot))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.Sequence, nil
}

func (c *Conn) replay(ctx context.Context, from uint64, fn func(uint64, telemetry.Record) error) (last uint64, err error) {
	f := &follower{c: c, stream: StreamJournal, start: start{policy: jetstream.DeliverAllPolicy}, next: from}
	end, err := f.check(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// finished is told apart from a caller's end by identity.
	finished := errors.New("read to the end")
	f.fn = func(seq uint64, m jetstream.Msg) {
		if ctx.Err() != nil {
			return
		}
		var r telemetry.Record
		if err := json.Unmarshal(m.Data(), &r); err != nil {
			c.malformed.Add(1)
			cancel(fmt.Errorf("record %d: %w", seq, err))
			return
		}
		if err := fn(seq, r); err != nil {
			cancel(err)
			return
		}
		last = seq
		if seq >= end {
			cancel(finished)
		}
	}
	for last < end && ctx.Err() == nil {
		err := f.session(ctx)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errReplaced) || errors.Is(err, nats.ErrConnectionClosed) {
			return last, err
		}
		// What aged out meanwhile is no longer to be had.
		if now, err := f.rest(ctx); err == nil && now == 0 {
			return end, nil
		}
		select {
		case <-time.After(followRetry):
		case <-ctx.Done():
		}
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, finished) {
		return last, cause
	}
	return max(last, end), nil
}

// rest is how many messages are still to come.
func (f *follower) rest(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := f.c.js.Stream(ctx, f.stream)
	if err != nil {
		return 0, err
	}
	state := s.CachedInfo().State
	if state.Msgs == 0 || state.LastSeq < f.next {
		return 0, nil
	}
	return state.LastSeq - max(f.next, state.FirstSeq) + 1, nil
}

// FollowJournal calls fn with every record from the first kept one on, in
// order, until ctx ends. It survives reconnects without gap or repetition. It
// ends early only if the journal is removed and made anew.
func (c *Conn) FollowJournal(ctx context.Context, fn func(seq uint64, r telemetry.Record)) error {
	return c.follow(ctx, StreamJournal, start{policy: jetstream.DeliverAllPolicy, strict: true}, func(seq uint64, m jetstream.Msg) {
		var r telemetry.Record
		if c.decode(m, &r) {
			fn(seq, r)
		}
	})
}

// decode reads a stored message. One that cannot be read is counted and left
// out: it must not hold up those behind it.
func (c *Conn) decode(m jetstream.Msg, to any) bool {
	if err := json.Unmarshal(m.Data(), to); err != nil {
		c.malformed.Add(1)
		c.log.Warn("stored message left out", "subject", m.Subject(), "err", err)
		return false
	}
	return true
}
