package store

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

const (
	// outageTolerance is the longest outage after which an alert goes on where
	// it was.
	outageTolerance = time.Hour
	// resendDelay is how often an alert that goes on is sent again. The notifier
	// does not repeat what failed: this does.
	resendDelay = time.Minute
	// watchActive is how often is looked whether this process speaks for the
	// fleet now.
	watchActive = 250 * time.Millisecond
)

// series is what rules need of the storage.
type series interface {
	storage.Queryable
	storage.AppendableV2
}

// ruler evaluates the rules of a store and sends their alerts. It is the rules
// retriever and the Alertmanager retriever of the API.
type ruler struct {
	set         *ruleSet
	manager     *rules.Manager
	notify      *notifications
	send        rules.NotifyFunc
	active      func() bool
	spoke       atomic.Bool
	interval    time.Duration
	resend      time.Duration
	externalURL string
	labels      config.GlobalConfig
	log         *slog.Logger
}

// rulerOptions are the parts of the store that a ruler works on.
type rulerOptions struct {
	set      *ruleSet
	conf     *config.Config
	db       series
	engine   promql.QueryEngine
	interval time.Duration
	resend   time.Duration // zero: resendDelay
	active   func() bool
	url      string
	registry prometheus.Registerer
	log      *slog.Logger
	// hold is told of each evaluation's time until it is over; nil if nobody asks.
	hold func(at time.Time) (release func())
}

func newRuler(o rulerOptions) (*ruler, error) {
	external, err := url.Parse(o.url)
	if err != nil {
		return nil, fmt.Errorf("external URL: %w", err)
	}
	if o.resend == 0 {
		o.resend = resendDelay
	}
	if o.active == nil {
		o.active = func() bool { return true }
	}
	r := &ruler{
		set: o.set, active: o.active, interval: o.interval, resend: o.resend, externalURL: o.url,
		labels: o.conf.GlobalConfig, log: o.log.With("component", "rules"),
	}
	if r.notify, err = newNotifications(o.conf, o.active, o.registry, o.log); err != nil {
		return nil, err
	}
	r.send = rules.SendAlerts(r.notify.manager, o.url)
	r.manager = rules.NewManager(&rules.ManagerOptions{
		ExternalURL: external,
		QueryFunc:   rules.EngineQueryFunc(o.engine, o.db),
		NotifyFunc: func(ctx context.Context, expr string, alerts ...*rules.Alert) {
			if r.active() {
				r.send(ctx, expr, alerts...)
			}
		},
		Context:      context.Background(), // ends with Stop, not in the middle of a group
		AppendableV2: o.db,
		Queryable:    o.db,
		Logger:       r.log,
		Registerer:   o.registry,
		// Without a grace period a `for` of any length goes on after a restart:
		// with Prometheus's ten minutes those of ours would begin anew.
		OutageTolerance: outageTolerance,
		ForGracePeriod:  0,
		ResendDelay:     o.resend,
		GroupLoader:     o.set,
	})
	if err := r.manager.Update(o.interval, o.set.names, r.labels.ExternalLabels, o.url, evaluation(o.hold)); err != nil {
		return nil, fmt.Errorf("rules: %w", err) // they were checked: not expected
	}
	return r, nil
}

// evaluation is Prometheus's, held.
func evaluation(hold func(time.Time) func()) rules.GroupEvalIterationFunc {
	if hold == nil {
		return rules.DefaultEvalIterationFunc
	}
	return func(ctx context.Context, g *rules.Group, at time.Time) {
		defer hold(at)()
		rules.DefaultEvalIterationFunc(ctx, g, at)
	}
}

// run evaluates from when the series of the fleet are there until ctx ends.
// Alerts take up their past in the second evaluation, and only those that are
// active then: so a restart must not be evaluated before the fleet is back. One
// more sample, so that rates and windows have something to stand on.
func (r *ruler) run(ctx context.Context, fleet <-chan struct{}) error {
	var parts sync.WaitGroup
	parts.Go(func() { r.notify.run(ctx) })
	select {
	case <-ctx.Done():
	case <-fleet:
		select {
		case <-ctx.Done():
		case <-time.After(r.interval):
		}
	}
	// Run also where ctx has ended: Stop waits for groups, and they for Run.
	parts.Go(r.manager.Run)
	r.takeOver(ctx)
	r.manager.Stop()
	parts.Wait()
	return nil
}

// takeOver sends what fires whenever this process becomes the one that speaks;
// the rule manager would wait for its next time to send again.
func (r *ruler) takeOver(ctx context.Context) {
	tick := time.NewTicker(watchActive)
	defer tick.Stop()
	r.spoke.Store(r.active())
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := r.active(); r.spoke.Swap(now) != now && now {
			n := r.sendFiring(ctx, time.Now())
			r.log.Info("this collector speaks for the fleet now", "alerts", n)
		}
	}
}

func (r *ruler) sendFiring(ctx context.Context, now time.Time) int {
	sent := 0
	for _, rule := range r.manager.AlertingRules() {
		var firing []*rules.Alert
		for _, a := range rule.ActiveAlerts() {
			if a.State == rules.StateFiring {
				a.ValidUntil = now.Add(4 * max(r.interval, r.resend))
				firing = append(firing, a)
			}
		}
		if len(firing) > 0 {
			r.send(ctx, rule.Query().String(), firing...)
			sent += len(firing)
		}
	}
	return sent
}

// RuleGroups implements the API's retriever of rules.
func (r *ruler) RuleGroups() []*rules.Group { return r.manager.RuleGroups() }

// AlertingRules implements the API's retriever of rules.
func (r *ruler) AlertingRules() []*rules.AlertingRule { return r.manager.AlertingRules() }

// Alertmanagers implements the API's retriever of Alertmanagers.
func (r *ruler) Alertmanagers() []*url.URL { return r.notify.manager.Alertmanagers() }

// DroppedAlertmanagers implements the API's retriever of Alertmanagers.
func (r *ruler) DroppedAlertmanagers() []*url.URL { return r.notify.manager.DroppedAlertmanagers() }
