package collector

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Lease is the leadership among the collectors of the same partitions: one
// speaks, the others are warm.
type Lease interface {
	// Hold tries to acquire and then renew the lease until ctx ends, calling
	// changed on every change and every renewal. When ctx ends it calls changed
	// with Held false and gives the lease back.
	Hold(ctx context.Context, holder string, changed func(telemetry.Leadership)) error
}

// leaseMargin is how long before the end of its lease a collector falls silent,
// for what is under way by then.
const leaseMargin = 500 * time.Millisecond

// lead is where this collector stands among those of its partitions.
//
// Two questions are asked. Whether it leads goes by the lease and its time
// alone: what is published is fenced by it. Whether it speaks, on /metrics and
// to Alertmanagers and remotes, goes on without the lease for one that is alone:
// a bus that is away must not take the fleet from the page of its only
// collector. One that is not alone falls silent in time, since another may have
// the lease.
type lead struct {
	now    func() time.Time
	name   string // of this collector, over its restarts
	state  atomic.Pointer[standing]
	told   func(bool) // what it does on a change of who speaks
	mu     sync.Mutex
	spoke  bool
	waited bool // another was seen to have the lease, and not this one's own last run
	begins atomic.Uint64
}

type standing struct {
	held   bool      // the lease is held, or was last held by this collector
	until  time.Time // when it stops acting; zero without end
	others bool
	since  time.Time // when it began to speak
	after  bool      // another spoke before
}

// newLead is one that leads for good if there is no lease.
func newLead(name string, lease Lease, now func() time.Time, told func(bool)) *lead {
	l := &lead{now: now, name: name, told: told}
	l.state.Store(&standing{held: lease == nil})
	return l
}

// hold holds the lease until ctx ends.
func (l *lead) hold(ctx context.Context, lease Lease) error {
	return lease.Hold(ctx, l.name+"/"+rand.Text(), func(s telemetry.Leadership) { l.changed(ctx, s) })
}

func (l *lead) changed(ctx context.Context, now telemetry.Leadership) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.state.Load()
	next := &standing{others: now.Others, since: last.since, after: last.after}
	switch {
	case now.Held:
		next.held, next.until = true, now.Until.Add(-leaseMargin)
		if !last.held {
			next.since, next.after = l.now(), l.waited
			l.begins.Add(1)
		}
		l.waited = false
	case ctx.Err() != nil:
		// It is about to be given back.
	case now.Others:
		instance := now.Holder[:max(strings.LastIndexByte(now.Holder, '/'), 0)]
		l.waited = l.waited || now.Holder == "" || instance != l.name
	case last.held:
		next.held, next.until = true, last.until // alone, it goes on
	}
	l.state.Store(next)
	if spoke := next.held; spoke != l.spoke {
		l.spoke = spoke
		l.told(spoke)
	}
}

// leads says whether what is published now is published by the holder.
func (l *lead) leads() bool {
	s := l.state.Load()
	return s.held && (s.until.IsZero() || l.now().Before(s.until))
}

// speaks says whether this collector speaks for its partitions.
func (l *lead) speaks() bool {
	s := l.state.Load()
	return s.held && (!s.others || l.now().Before(s.until))
}

// after says since when this collector speaks in place of another.
func (l *lead) after() (since time.Time, yes bool) {
	s := l.state.Load()
	return s.since, s.held && s.after
}

// Active says whether this collector speaks for its partitions: publishes, is
// scraped, alerts, writes to remotes. A standby does none of it.
func (c *Collector) Active() bool { return c.lead.speaks() }

// After is when this collector began to speak in place of another; zero if none
// spoke before.
func (c *Collector) After() time.Time {
	if since, yes := c.lead.after(); yes {
		return since
	}
	return time.Time{}
}
