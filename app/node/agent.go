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
	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Agent runs the agent until ctx ends.
func Agent(ctx context.Context, cfg *config.Agent, log *slog.Logger) error {
	ln, err := lifecycle.Listen("agent", cfg.Listen)
	if err != nil {
		return err
	}
	web, err := lifecycle.OpenWeb(cfg.WebConfig, log.With("component", "web"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Ledger), 0o711); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	conn, err := connect.Bus(cfg.NATS, telemetry.AgentUser(cfg.Node), log.With("component", "bus"))
	if err != nil {
		return err
	}
	defer conn.Close()
	writer := newLazyWriter(nvml.NewWriter(nvml.WithLibraryPath(cfg.Library)))
	defer writer.Close()

	crash, err := newCrashPoints()
	if err != nil {
		return err
	}
	opt := agent.Options{Config: agentConfig(cfg), Writer: crash.writer(writer), Lister: writer, Processes: crash.processes(process.Proc{}), Headroom: writer.Headroom, Bus: crash.bus(conn), Registry: prometheus.NewRegistry(), Log: log}
	if err := connect.Metrics(opt.Registry, conn); err != nil {
		return err
	}
	a, err := agent.New(opt)
	if err != nil {
		return err
	}
	p := lifecycle.New(ctx)
	p.Add("agent", a.Run)
	p.ServeWeb("metrics", ln, a.Handler(), web)
	log.Info("agent started", "node", cfg.Node, "allow", cfg.Allow, "metrics", web.URL(ln)+"/metrics", "bus", cfg.NATS.URL, "version", Version)
	return p.Run()
}

func agentConfig(cfg *config.Agent) agent.Config {
	c := agent.Config{
		Node: cfg.Node, TrustedKeys: cfg.TrustedKeys,
		MinPowerWatts: cfg.Limits.PowerMinWatts, MinPowerRatio: cfg.Limits.PowerMinPercent / 100, UndoHeadroomC: cfg.Limits.UndoHeadroomCelsius,
		MaxLease: time.Duration(cfg.Limits.MaxLease), RequireSync: cfg.Clock.RequireSync,
		Processes: process.Rules{Users: cfg.Processes.Users, Cgroups: cfg.Processes.Cgroups},
		Grace:     time.Duration(cfg.Limits.Grace), MaxGrace: time.Duration(cfg.Limits.MaxGrace), Notices: cfg.Notices,
		Ledger: cfg.Ledger, AcceptEpoch: cfg.AcceptEpoch,
	}
	for _, kind := range cfg.Allow {
		c.Allow = append(c.Allow, telemetry.StepKind(kind))
	}
	return c
}
