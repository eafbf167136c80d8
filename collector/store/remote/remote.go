package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Store is what is read; *tsdb.DB is one.
type Store interface {
	Querier(mint, maxt int64) (storage.Querier, error)
	// StartTime is the oldest time that is held, in milliseconds.
	StartTime() (int64, error)
	Dir() string
}

// Options is what remotes need. Store, Registry and Log are required.
type Options struct {
	Store    Store
	Config   []*config.RemoteWriteConfig
	External labels.Labels
	// Active says whether this process speaks for the fleet; a standby sends
	// nothing. Nil: always.
	Active func() bool
	// After is the time up to which another collector has spoken: it sends what
	// lies there. Nil: none has.
	After    func() time.Time
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Remote sends to the remotes, one sender each.
type Remote struct {
	opts    Options
	senders []*sender
	stop    context.CancelFunc
	parts   sync.WaitGroup

	mu     sync.Mutex
	newest int64         // of what was committed
	held   map[*hold]int // commits on their way, by their time
}

type hold struct{ at int64 }

// Open begins to send. A remote that has no mark begins with what is committed
// from now on, as Prometheus does; its first mark is written before Open returns.
func Open(opts Options) (*Remote, error) {
	if opts.Active == nil {
		opts.Active = func() bool { return true }
	}
	if opts.After == nil {
		opts.After = func() time.Time { return time.Time{} }
	}
	m, err := newMetrics(opts.Registry)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Remote{opts: opts, stop: stop, held: map[*hold]int{}}
	if r.newest, err = newest(ctx, opts.Store, time.Now().UnixMilli()); err != nil {
		stop()
		m.unregister(opts.Registry)
		return nil, fmt.Errorf("read the store: %w", err)
	}
	err = Check(opts.Config)
	for _, c := range opts.Config {
		var s *sender
		if err == nil {
			if s, err = newSender(r, c, m); err != nil {
				err = fmt.Errorf("remote_write %s: %w", c.URL.Redacted(), err)
			}
		}
		if err != nil {
			stop()
			m.unregister(opts.Registry)
			return nil, err
		}
		r.senders = append(r.senders, s)
	}
	for _, s := range r.senders {
		r.parts.Go(func() { s.run(ctx) })
	}
	go func() { <-ctx.Done(); m.unregister(opts.Registry) }()
	return r, nil
}

// Check says what Open would refuse of the remotes.
func Check(all []*config.RemoteWriteConfig) error {
	names := map[string]bool{}
	for _, c := range all {
		_, err := newClient(c)
		if err == nil && names[nameOf(c)] {
			err = errors.New("two remotes of this name; give each a name of its own")
		}
		if err != nil {
			return fmt.Errorf("remote_write %s: %w", c.URL.Redacted(), err)
		}
		names[nameOf(c)] = true
	}
	return nil
}

// newest is the newest time that an earlier process can have committed: now, or
// later where the clock was ahead then.
func newest(ctx context.Context, store Store, now int64) (int64, error) {
	q, err := store.Querier(now, math.MaxInt64)
	if err != nil {
		return 0, err
	}
	defer func() { _ = q.Close() }()
	set := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	for set.Next() {
		it := set.At().Iterator(nil)
		for it.Next() != chunkenc.ValNone {
			now = max(now, it.AtT())
		}
	}
	return now, set.Err()
}

// Hold says that samples of this time are about to be committed. Nothing from
// it on is passed over until release is called, after the commit.
func (r *Remote) Hold(at time.Time) (release func()) {
	h := &hold{at.UnixMilli()}
	r.mu.Lock()
	r.held[h] = 1
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		delete(r.held, h)
		r.mu.Unlock()
		r.wake()
	}
}

// Took says that n samples of this time were committed.
func (r *Remote) Took(n int, at time.Time) {
	if n == 0 {
		return
	}
	t := at.UnixMilli()
	r.mu.Lock()
	r.newest = max(r.newest, t)
	for _, s := range r.senders {
		s.took(t)
	}
	r.mu.Unlock()
	r.wake()
}

// Close ends sending. What is not acknowledged is sent after the next Open.
func (r *Remote) Close() {
	r.stop()
	r.parts.Wait()
}

func (r *Remote) wake() {
	for _, s := range r.senders {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	}
}

// reach is the time up to which a sender may read now and call it complete, and
// notes it as passed for that sender in the same moment, so that a later commit
// below it is known to be late.
func (r *Remote) reach(s *sender, now time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := min(r.newest, now.Add(-s.settle).UnixMilli())
	for h := range r.held {
		t = min(t, h.at-1)
	}
	s.passed = max(s.passed, t)
	return t
}

// metrics of all remotes.
type metrics struct {
	acked, sent, refused, retries, lost, late telemetryVec
}

type telemetryVec struct {
	gauge   *prometheus.GaugeVec
	counter *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	gauge := func(id telemetry.ID) telemetryVec {
		row := telemetry.RowOf(id)
		return telemetryVec{gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: row.Name, Help: row.Help}, row.Labels)}
	}
	counter := func(id telemetry.ID) telemetryVec {
		row := telemetry.RowOf(id)
		return telemetryVec{counter: prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)}
	}
	m := &metrics{
		acked: gauge(telemetry.SelfRemoteAcked), sent: counter(telemetry.SelfRemoteSamplesSent),
		refused: counter(telemetry.SelfRemoteSamplesRefused), retries: counter(telemetry.SelfRemoteRetries),
		lost: counter(telemetry.SelfRemoteLost), late: counter(telemetry.SelfRemoteLate),
	}
	for _, c := range m.all() {
		if err := reg.Register(c); err != nil {
			m.unregister(reg)
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.acked.gauge, m.sent.counter, m.refused.counter, m.retries.counter, m.lost.counter, m.late.counter}
}

func (m *metrics) unregister(reg prometheus.Registerer) {
	for _, c := range m.all() {
		reg.Unregister(c)
	}
}

// round is all samples of one time.
type round struct {
	at      int64
	samples []sample
}

// read is what the store holds of a span, in the order of time.
func (s *sender) read(ctx context.Context, from, to int64) ([]round, error) {
	q, err := s.of.opts.Store.Querier(from, to)
	if err != nil {
		return nil, err
	}
	defer func() { _ = q.Close() }()
	set := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	times := map[int64]*round{}
	for set.Next() {
		if err := s.collect(set.At(), times); err != nil {
			return nil, err
		}
	}
	if err := set.Err(); err != nil {
		return nil, err
	}
	rounds := make([]round, 0, len(times))
	for _, r := range times {
		rounds = append(rounds, *r)
	}
	slices.SortFunc(rounds, func(a, b round) int { return int(max(min(a.at-b.at, 1), -1)) })
	return rounds, nil
}

const never = math.MinInt64
