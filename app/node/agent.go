package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/app/connect"
	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/nvml"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Agent runs the agent until ctx ends.
func Agent(ctx context.Context, cfg *config.Agent, log *slog.Logger) error {
	ln, err := lifecycle.Listen("agent", cfg.Listen)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Ledger), 0o700); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	conn, err := connect.Bus(cfg.NATS, telemetry.AgentUser(cfg.Node), log.With("component", "bus"))
	if err != nil {
		return err
	}
	defer conn.Close()
	writer := newLazyWriter(nvml.NewWriter(nvml.WithLibraryPath(cfg.Library)))
	defer writer.Close()

	opt := agent.Options{Config: agentConfig(cfg), Writer: writer, Headroom: writer.Headroom, Bus: conn, Registry: prometheus.NewRegistry(), Log: log}
	if err := connect.Metrics(opt.Registry, conn); err != nil {
		return err
	}
	a, err := agent.New(opt)
	if err != nil {
		return err
	}
	p := lifecycle.New(ctx)
	p.Add("agent", a.Run)
	p.Serve("metrics", ln, a.Handler())
	log.Info("agent started", "node", cfg.Node, "allow", cfg.Allow, "metrics", "http://"+ln.Addr().String()+"/metrics", "bus", cfg.NATS.URL, "version", Version)
	return p.Run()
}

func agentConfig(cfg *config.Agent) agent.Config {
	c := agent.Config{
		Node: cfg.Node, TrustedKeys: cfg.TrustedKeys,
		MinPowerWatts: cfg.Limits.PowerMinWatts, MinPowerRatio: cfg.Limits.PowerMinPercent / 100, UndoHeadroomC: cfg.Limits.UndoHeadroomCelsius,
		MaxLease: time.Duration(cfg.Limits.MaxLease), RequireSync: cfg.Clock.RequireSync,
		Ledger: cfg.Ledger, AcceptEpoch: cfg.AcceptEpoch,
	}
	for _, kind := range cfg.Allow {
		c.Allow = append(c.Allow, telemetry.StepKind(kind))
	}
	return c
}
