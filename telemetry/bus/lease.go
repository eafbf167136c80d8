package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Lease is a leadership that one holder at a time has, for as long as it
// renews it. It is a key that the server removes when its time is over.
//
// Only the results of writes count, since a read may come from a follower: to
// acquire is to create the key, to renew is to write it again behind the
// revision last written. The plain update of a key would drop its time limit
// and make the lease eternal, so a renewal is a publish with the limit.
type Lease struct {
	c    *Conn
	name string
	ttl  time.Duration
	said bool // those who wait say so
}

// Names of the leases, which are also the users that may write them.
const (
	LeaseRebalancer = UserRebalancer
	LeaseCollector  = UserCollector
)

// CollectorLease is the lease of the collectors of a share of the fleet.
func CollectorLease(share telemetry.PartitionSet) string {
	if share == telemetry.AllPartitions {
		return LeaseCollector
	}
	return LeaseCollector + "." + share.Token()
}

// Lease returns the lease of a name. The server counts in whole seconds, so
// ttl is one second at least.
func (c *Conn) Lease(name string, ttl time.Duration) *Lease {
	return &Lease{c: c, name: name, ttl: max(ttl.Truncate(time.Second), time.Second)}
}

// Announced makes whoever waits for the lease say so, which the holder is told:
// a holder that is alone may go on, without the lease, where one that is not
// must stop. Each process needs a holder's name of its own then.
func (l *Lease) Announced() *Lease {
	l.said = true
	return l
}

// tenure is one unbroken hold of the lease.
type tenure struct {
	epoch    telemetry.Epoch
	revision uint64    // last written
	until    time.Time // by the monotonic clock, counted from before the write
	others   bool      // another was seen to wait
}

func (t *tenure) held() telemetry.Leadership {
	return telemetry.Leadership{Held: true, Epoch: t.epoch, Until: t.until, Others: t.others}
}

// Hold tries to acquire and then renew the lease until ctx ends, calling
// changed on every change and every renewal. The epoch stays the same through
// a tenure and grows from one to the next. When ctx ends, changed is called
// with Held false and must return only when its holder has stopped acting:
// then the lease is given back, and another may have it at once.
func (l *Lease) Hold(ctx context.Context, holder string, changed func(telemetry.Leadership)) error {
	warned := ""
	wait := waiting{l: l, holder: holder, changed: changed}
	for ctx.Err() == nil {
		t, err := l.acquire(ctx, holder)
		switch {
		case err == nil:
			warned = ""
			t.others = l.others(ctx, holder, false)
			l.keep(ctx, holder, t, changed)
			wait = waiting{l: l, holder: holder, changed: changed}
			continue // who has it now is to be known at once
		case errors.Is(err, jetstream.ErrKeyExists):
			warned = "" // held by another
			if l.said {
				wait.look(ctx)
			}
		case errors.Is(err, nats.ErrConnectionClosed):
			return fmt.Errorf("lease %s: %w", l.name, err)
		case ctx.Err() == nil && warned != err.Error():
			warned = err.Error()
			l.c.log.Warn("lease not to be had", "lease", l.name, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(l.ttl / 6):
		}
	}
	return ctx.Err()
}

func (l *Lease) acquire(ctx context.Context, holder string) (*tenure, error) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl)
	defer cancel()
	kv, err := l.c.js.KeyValue(ctx, BucketLease)
	if err != nil {
		return nil, err
	}
	bucket, err := l.c.js.Stream(ctx, streamLease)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	revision, err := kv.Create(ctx, l.name, []byte(holder), jetstream.KeyTTL(l.ttl))
	if err != nil {
		return nil, err
	}
	// The time of its making tells one life of the bucket from the next: a new
	// bucket counts revisions from one again.
	incarnation := strconv.FormatInt(bucket.CachedInfo().Created.UnixNano(), 36)
	return &tenure{epoch: telemetry.Epoch{Incarnation: incarnation, Revision: revision}, revision: revision, until: sent.Add(l.ttl)}, nil
}

// keep renews until the lease is lost or ctx ends.
func (l *Lease) keep(ctx context.Context, holder string, t *tenure, changed func(telemetry.Leadership)) {
	changed(t.held())
	for {
		select {
		case <-time.After(time.Until(t.until.Add(-2 * l.ttl / 3))):
		case <-ctx.Done():
			changed(telemetry.Leadership{Epoch: t.epoch, Others: t.others})
			l.giveBack(t)
			return
		}
		if err := l.renew(ctx, holder, t); err != nil {
			if ctx.Err() != nil {
				continue // given back above
			}
			l.c.log.Warn("lease lost", "lease", l.name, "err", err)
			changed(telemetry.Leadership{Epoch: t.epoch, Others: t.others})
			return
		}
		changed(t.held())
		if others := l.others(ctx, holder, t.others); others != t.others {
			t.others = others
			changed(t.held())
		}
	}
}

// waiting is one unbroken wait for a lease whose waiters say so.
type waiting struct {
	l       *Lease
	holder  string
	changed func(telemetry.Leadership)
	said    time.Time // when that was last said
	told    bool
}

// look says that somebody waits, and tells who waits that another holds. The
// key may still be its own, of a tenure that it has lost, or a write whose
// answer did not come: then it is nobody's.
func (w *waiting) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.l.ttl/4)
	defer cancel()
	kv, err := w.l.c.js.KeyValue(ctx, BucketLease)
	if err != nil {
		return
	}
	has, err := kv.Get(ctx, w.l.name)
	if err != nil || string(has.Value()) == w.holder {
		return
	}
	if time.Since(w.said) >= w.l.ttl {
		_, err := w.l.c.js.PublishMsg(ctx, &nats.Msg{Subject: leaseKey(waitingPrefix + w.l.name), Data: []byte(w.holder)},
			jetstream.WithMsgTTL(waitingTTLs*w.l.ttl), jetstream.WithRetryAttempts(0))
		if err == nil {
			w.said = time.Now()
		}
	}
	if !w.told {
		w.told = true
		w.changed(telemetry.Leadership{Others: true, Holder: string(has.Value())})
	}
}

// others says whether another was seen to wait lately; last if that cannot be
// known now. The read may be old, which is why it only ever restrains.
func (l *Lease) others(ctx context.Context, holder string, last bool) bool {
	if !l.said {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl/4)
	defer cancel()
	kv, err := l.c.js.KeyValue(ctx, BucketLease)
	if err != nil {
		return last
	}
	who, err := kv.Get(ctx, waitingPrefix+l.name)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return false
	case err != nil:
		return last
	}
	return string(who.Value()) != holder
}

// Who waits writes the key of its lease with this before it, for as many times
// the lease.
const (
	waitingPrefix = "waiting."
	waitingTTLs   = 3
)

// renew tries until it has succeeded, the server has refused, or the lease is
// over. The message id is the same for every try, so that one whose answer was
// lost is known as ours; the new end counts from before the first of them.
func (l *Lease) renew(ctx context.Context, holder string, t *tenure) error {
	ctx, cancel := context.WithDeadline(ctx, t.until)
	defer cancel()
	id, sent := rand.Text(), time.Now()
	for {
		ack, err := l.write(ctx, holder, t.revision, id)
		switch {
		case err == nil:
			t.revision, t.until = ack, sent.Add(l.ttl)
			return nil
		case wrongSequence(err):
			if revision, ours := l.written(ctx, id); ours {
				t.revision, t.until = revision, sent.Add(l.ttl)
				return nil
			}
			return fmt.Errorf("it ended, or another has it: %w", err)
		}
		select {
		case <-time.After(l.ttl / 20):
		case <-ctx.Done():
			return fmt.Errorf("not renewed in time: %w", err)
		}
	}
}

func (l *Lease) write(ctx context.Context, holder string, revision uint64, id string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, max(l.ttl/4, 200*time.Millisecond))
	defer cancel()
	ack, err := l.c.js.PublishMsg(ctx, &nats.Msg{Subject: l.subject(), Data: []byte(holder)},
		jetstream.WithMsgTTL(l.ttl), jetstream.WithExpectLastSequencePerSubject(revision),
		jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// written looks for the write of this id as the last one of the key. This read
// may be old, but then it only misses the write, and the lease is given up.
func (l *Lease) written(ctx context.Context, id string) (revision uint64, ours bool) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/4)
	defer cancel()
	s, err := l.c.js.Stream(ctx, streamLease)
	if err != nil {
		return 0, false
	}
	m, err := s.GetLastMsgForSubject(ctx, l.subject())
	if err != nil || m.Header.Get(jetstream.MsgIDHeader) != id {
		return 0, false
	}
	return m.Sequence, true
}

// giveBack removes the key if it is still ours.
func (l *Lease) giveBack(t *tenure) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	kv, err := l.c.js.KeyValue(ctx, BucketLease)
	if err == nil {
		err = kv.Delete(ctx, l.name, jetstream.LastRevision(t.revision))
	}
	if err != nil {
		l.c.log.Info("lease not given back; it ends by itself", "lease", l.name, "err", err)
	}
}

func (l *Lease) subject() string { return leaseKey(l.name) }

func leaseKey(key string) string { return strings.Join([]string{"$KV", BucketLease, key}, ".") }
