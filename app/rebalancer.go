package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/evenkeel-gpu/evenkeel/app/connect"
	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	nodeactuator "github.com/evenkeel-gpu/evenkeel/rebalancer/actuator/node"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// rebalancerLease is how long a leader may be silent.
const rebalancerLease = 9 * time.Second

// rebalancerParts is what one rebalancer is made from.
type rebalancerParts struct {
	name     string
	conn     *bus.Conn
	signer   *telemetry.Signer
	policies []rebalancer.PolicySpec
	sources  []rebalancer.InventorySource
	nats     config.NATS
	web      lifecycle.Web
	log      *slog.Logger
}

// Rebalancer runs one rebalancer until ctx ends.
func Rebalancer(ctx context.Context, cfg *config.Rebalancer, log *slog.Logger) error {
	ln, err := lifecycle.Listen("rebalancer", cfg.Listen)
	if err != nil {
		return err
	}
	signer, made, err := signingKey(cfg.SigningKey)
	if err != nil {
		return err
	}
	if made {
		log.Info("signing key made", "file", cfg.SigningKey)
	}
	log.Info("agents must trust this key", "trusted_keys", signer.KeyID())
	specs, err := policySpecs(telemetry.Mode(cfg.Mode), cfg.Policies)
	if err != nil {
		return err
	}
	web, err := lifecycle.OpenWeb(cfg.WebConfig, log.With("component", "web"))
	if err != nil {
		return err
	}
	conn, err := connect.Bus(cfg.NATS, bus.UserRebalancer, log.With("component", "bus"))
	if err != nil {
		return err
	}
	defer conn.Close()
	p := lifecycle.New(ctx)
	if err := addRebalancer(ctx, p, rebalancerParts{name: cfg.Name, conn: conn, signer: signer, policies: specs, nats: cfg.NATS, web: web, log: log}, ln); err != nil {
		return err
	}
	log.Info("rebalancer started", "name", cfg.Name, "metrics", web.URL(ln)+"/metrics", "bus", cfg.NATS.URL, "version", Version)
	return p.Run()
}

// addRebalancer wires one rebalancer: what it hears, what it may do, who it is.
// ln may be nil: then its metrics are not served.
func addRebalancer(ctx context.Context, p *lifecycle.Process, r rebalancerParts, ln net.Listener) error {
	reg := prometheus.NewRegistry()
	if err := connect.Metrics(reg, r.conn); err != nil {
		return err
	}

	// Without streams there is no lease, and without a lease nothing is decided.
	p.Add("streams", func(ctx context.Context) error { return r.conn.KeepStreams(ctx, connect.Streams(r.nats)) })
	policies, err := policy.New(r.policies)
	if err != nil {
		return err
	}
	crash, err := newCrashPoints()
	if err != nil {
		return err
	}
	hands := nodeactuator.New(crash.orders(r.conn), r.signer, time.Now)
	lease := &ledBy{Lease: r.conn.Lease(bus.LeaseRebalancer, rebalancerLease), conn: r.conn, log: r.log}
	engine, err := rebalancer.New(rebalancer.Config{
		Holder: r.name, Policies: policies, Actuators: []rebalancer.Actuator{crash.actuator(hands)},
		Journal: crash.journal(r.conn), Lease: crash.lease(lease), Metrics: rebalancer.NewMetrics(reg, policies),
		Log: r.log.With("component", "engine"), Now: time.Now,
	})
	if err != nil {
		return err
	}
	lease.answer = engine.Control

	// What it hears only enqueues.
	feed := rebalancer.NewFeed(time.Now, r.log.With("component", "feed"))
	feed.Register(reg)
	if _, err := r.conn.Observations(feed.Observation); err != nil {
		return fmt.Errorf("hear observations: %w", err)
	}
	if _, err := r.conn.Receipts(func(subject string, receipt telemetry.Receipt) {
		if err := telemetry.CheckReceipt(subject, &receipt); err != nil {
			r.log.Warn("receipt refused", "subject", subject, "err", err)
			return
		}
		feed.Receipt(receipt)
		hands.Receipt(receipt)
		engine.Receipt(receipt)
	}); err != nil {
		return fmt.Errorf("hear receipts: %w", err)
	}
	if _, err := r.conn.Inventories(ctx, feed.Inventory); err != nil {
		return fmt.Errorf("hear inventories: %w", err)
	}
	p.Add("feed", func(ctx context.Context) error { return feed.Run(ctx, engine.Update) })
	for _, source := range r.sources {
		p.Add("inventory", func(ctx context.Context) error {
			return source.Watch(ctx, func(inv telemetry.Inventory) {
				if err := r.conn.PublishInventory(ctx, inv); err != nil && ctx.Err() == nil {
					r.log.Warn("inventory not sent", "source", inv.Source, "err", err)
				}
			})
		})
	}
	p.Add("engine", engine.Run)
	if ln != nil {
		mux := http.NewServeMux()
		mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 8}))
		mux.HandleFunc("/-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
		p.ServeWeb("rebalancer metrics", ln, mux, r.web)
	}
	return nil
}

// ledBy answers people's questions while, and only while, this process leads.
type ledBy struct {
	rebalancer.Lease
	conn   *bus.Conn
	answer func(verb string, body []byte) ([]byte, error)
	log    *slog.Logger
}

// Hold implements rebalancer.Lease.
func (l *ledBy) Hold(ctx context.Context, holder string, changed func(rebalancer.Leadership)) error {
	stop := func() {}
	serving := false
	defer func() { stop() }()
	return l.Lease.Hold(ctx, holder, func(now rebalancer.Leadership) {
		changed(now)
		switch {
		case now.Held && !serving:
			s, err := l.conn.ServeControl(func(_ context.Context, verb string, body []byte) ([]byte, error) { return l.answer(verb, body) })
			if err != nil {
				l.log.Warn("questions cannot be answered", "err", err)
				return
			}
			stop, serving = s, true
		case !now.Held && serving:
			go stop() // it waits for answers under way
			stop, serving = func() {}, false
		}
	})
}

// signingKey reads the key or, at the first start, makes it, readable by its
// owner only.
func signingKey(path string) (signer *telemetry.Signer, made bool, err error) {
	seed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if seed, err = telemetry.NewSeed(); err != nil {
			return nil, false, err
		}
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = os.WriteFile(path, seed, 0o600)
		}
		made = true
	}
	if err != nil {
		return nil, false, fmt.Errorf("signing key: %w", err)
	}
	signer, err = telemetry.NewSigner(seed)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", path, err)
	}
	return signer, made, nil
}

// policySpecs are the embedded policies in the given mode, each replaced by the
// file of its type if there is one.
func policySpecs(mode telemetry.Mode, files []string) ([]rebalancer.PolicySpec, error) {
	specs := policy.Defaults()
	for i := range specs {
		specs[i].Mode = mode
	}
	for _, path := range files {
		spec, err := ReadPolicy(path)
		if err != nil {
			return nil, err
		}
		for i := range specs {
			if specs[i].Type == spec.Type {
				specs[i] = spec
			}
		}
	}
	return specs, nil
}

// ReadPolicy reads and checks one policy file.
func ReadPolicy(path string) (rebalancer.PolicySpec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return rebalancer.PolicySpec{}, err
	}
	var f rebalancer.PolicyFile
	if err := config.Parse(path, "Policy", data, &f); err != nil {
		return rebalancer.PolicySpec{}, err
	}
	if _, err := policy.New([]rebalancer.PolicySpec{f.Spec}); err != nil {
		return rebalancer.PolicySpec{}, fmt.Errorf("%s: %w", path, err)
	}
	return f.Spec, nil
}

// DefaultPolicies is the policy file of a fresh install.
func DefaultPolicies() []byte { return policy.DefaultsYAML }
