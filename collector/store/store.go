package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"

	"github.com/evenkeel-gpu/evenkeel/collector/store/remote"
)

// As in Prometheus.
const (
	lookback     = 5 * time.Minute
	subqueryStep = time.Minute
	maxSamples   = 50_000_000
	queryTimeout = 2 * time.Minute
	concurrency  = 20
)

func (o *Options) defaults() error {
	for _, d := range []struct {
		v    *time.Duration
		when time.Duration
	}{{&o.Interval, 15 * time.Second}, {&o.Retention, 15 * 24 * time.Hour}, {&o.Query.Timeout, queryTimeout}} {
		if *d.v <= 0 {
			*d.v = d.when
		}
	}
	if o.Query.MaxSamples <= 0 {
		o.Query.MaxSamples = maxSamples
	}
	if o.Query.Concurrency <= 0 {
		o.Query.Concurrency = concurrency
	}
	if o.Series == "" {
		o.Series = Auto
	}
	if o.Ready == nil {
		o.Ready = func() bool { return true }
	}
	if o.Active == nil {
		o.Active = func() bool { return true }
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Dir == "" || o.Source == nil {
		return errors.New("store: Dir and Source are required")
	}
	return nil
}

// Store keeps the fleet's series and what follows from them.
type Store struct {
	o       Options
	conf    *config.Config
	db      *database
	engine  *promql.Engine
	ruler   *ruler
	sampler *sampler
	metrics *metrics
	api     http.Handler
	log     *slog.Logger
	down    bool // the last round was not kept
	// remotes is nil until the folder is open for the first time, and where there
	// are none.
	remotes atomic.Pointer[remote.Remote]
}

// Open checks everything that people can get wrong, and opens the folder for
// the first time in Run, as a large one takes a while to read.
func Open(o Options) (*Store, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	conf, set, err := o.read()
	if err != nil {
		return nil, err
	}
	f, err := newFolder(o)
	if err != nil {
		return nil, err
	}
	// A folder in use is said at once, not in a log later.
	if err := f.alone(func() error { return nil }); err != nil {
		return nil, err
	}
	s := &Store{o: o, conf: conf, log: o.Log.With("component", "store"), metrics: newMetrics(o.Registry, f.dir)}
	s.db = newDatabase(f, o.Registry, s.log)
	s.db.took = s.took
	s.engine = newEngine(o.Query, set.parser, o.Registry, s.log)
	s.sampler = newSampler(o.Source, s.db, newChoice(o, set.reads()), s.log, s.metrics.lost)
	// The metrics of an engine have no name for which it is of.
	forRules := newEngine(QueryLimits{Timeout: o.Query.Timeout, MaxSamples: o.Query.MaxSamples}, set.parser, nil, s.log)
	s.ruler, err = newRuler(rulerOptions{
		set: set, conf: conf, db: s.db, engine: forRules, interval: o.Interval, active: o.Active, url: o.ExternalURL,
		registry: o.Registry, log: o.Log, hold: s.hold,
	})
	if err != nil {
		return nil, err
	}
	s.api = newAPI(s)
	return s, nil
}

// Check reports what Open would refuse of the document and the rule files. It
// neither needs a source nor touches the folder.
func Check(o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	conf, _, err := o.read()
	if err != nil {
		return err
	}
	// What files of secrets and certificates hold shows when clients are made.
	n, err := newNotifications(conf, func() bool { return false }, prometheus.NewRegistry(), o.Log)
	if err != nil {
		return err
	}
	n.stop()
	return nil
}

// read reads the document and every rule file.
func (o Options) read() (*config.Config, *ruleSet, error) {
	conf, err := readDocument(o.Prometheus, o.Log)
	if err != nil {
		return nil, nil, err
	}
	if o.Folder != "" {
		conf.SetDirectory(o.Folder)
	}
	// What /api/v1/status/config shows.
	conf.GlobalConfig.ScrapeInterval, conf.GlobalConfig.EvaluationInterval = model.Duration(o.Interval), model.Duration(o.Interval)
	if err := remote.Check(conf.RemoteWriteConfigs); err != nil {
		return nil, nil, err
	}
	set, err := loadRules(o.Rules, conf.RuleFiles, o.Log)
	if err != nil {
		return nil, nil, err
	}
	return conf, set, nil
}

// Run samples, evaluates and alerts until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	if err := s.db.ensure(); err != nil && !errors.Is(err, errFull) {
		return fmt.Errorf("store: %w", err)
	}
	fleet := make(chan struct{})
	var parts sync.WaitGroup
	parts.Go(func() { _ = s.ruler.run(ctx, fleet) })
	s.rounds(ctx, sync.OnceFunc(func() { close(fleet) }))
	parts.Wait()
	if r := s.remotes.Load(); r != nil {
		r.Close()
	}
	s.db.close(errClosed)
	return nil
}

// openRemotes begins to write to remotes, once the database can be read and
// before anything is added to it.
func (s *Store) openRemotes() error {
	if len(s.conf.RemoteWriteConfigs) == 0 || s.remotes.Load() != nil || !s.db.sound() {
		return nil
	}
	r, err := remote.Open(remote.Options{
		Store: s.db, Config: s.conf.RemoteWriteConfigs, External: s.conf.GlobalConfig.ExternalLabels,
		Active: s.o.Active, After: s.o.After, Registry: s.o.Registry, Log: s.log,
	})
	if err != nil {
		return err
	}
	s.remotes.Store(r)
	return nil
}

// hold says that samples of a time are about to be committed, until release.
func (s *Store) hold(at time.Time) (release func()) {
	if r := s.remotes.Load(); r != nil {
		return r.Hold(at)
	}
	return func() {}
}

func (s *Store) took(n int, newest int64) {
	if r := s.remotes.Load(); r != nil {
		r.Took(n, time.UnixMilli(newest))
	}
}

// rounds samples each interval. there is called once the fleet's series are.
func (s *Store) rounds(ctx context.Context, there func()) {
	tick := time.NewTicker(s.o.Interval)
	defer tick.Stop()
	for {
		if s.o.Ready() {
			s.round(ctx, time.Now())
			if s.db.sound() {
				there()
			}
		}
		if !s.wait(ctx, tick) {
			return
		}
	}
}

// wait waits for the next round; for the first one, only until the source is
// ready.
func (s *Store) wait(ctx context.Context, tick *time.Ticker) bool {
	soon := time.NewTicker(100 * time.Millisecond)
	defer soon.Stop()
	waited := !s.o.Ready()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			return true
		case <-soon.C:
			if waited && s.o.Ready() {
				return true
			}
		}
	}
}

func (s *Store) round(ctx context.Context, now time.Time) {
	begun := time.Now()
	samples := 0
	err := s.db.ensure()
	if err == nil {
		err = s.openRemotes()
	}
	defer s.hold(now)()
	if err == nil {
		samples, err = s.sampler.sample(ctx, now)
	} else {
		s.metrics.lost(refusedUnwritten, s.sampler.expected())
	}
	s.metrics.round(samples, time.Since(begun), err)
	switch {
	case err != nil && !s.down:
		s.log.Error("the fleet's series are not kept; frames, page and rebalancer do not need them", "err", err)
	case err == nil && s.down:
		s.log.Info("the fleet's series are kept again")
	}
	s.down = err != nil
}

// Handler answers Prometheus's API below /api/v1/.
func (s *Store) Handler() http.Handler { return s.api }

// Engine evaluates queries of people, within their bounds, over Series.
func (s *Store) Engine() promql.QueryEngine { return s.engine }

// Series is what is kept.
func (s *Store) Series() storage.Queryable { return s.db }

// Interval is how often the fleet is sampled.
func (s *Store) Interval() time.Duration { return s.o.Interval }

// AlertingRules are the rules with the alerts of each.
func (s *Store) AlertingRules() []*rules.AlertingRule { return s.ruler.AlertingRules() }
