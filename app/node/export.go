package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/evenkeel-gpu/evenkeel/app/connect"
	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution"
	"github.com/evenkeel-gpu/evenkeel/nvml"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Export runs the exporter until ctx ends.
func Export(ctx context.Context, cfg *config.Exporter, log *slog.Logger) error {
	ln, err := lifecycle.Listen("exporter", cfg.Listen)
	if err != nil {
		return err
	}
	web, err := lifecycle.OpenWeb(cfg.WebConfig, log.With("component", "web"))
	if err != nil {
		return err
	}
	p := lifecycle.New(ctx)
	opt := exporterOptions(cfg, members(cfg, log), log)
	around, err := hostReaders(cfg, log)
	if err != nil {
		return err
	}
	if around != nil {
		opt.Samples = append(opt.Samples, around)
		p.Add("host", around.Run)
	}

	// Without a bus the exporter still serves /metrics.
	if cfg.NATS.URL != "" {
		conn, err := connect.Bus(cfg.NATS, telemetry.ExporterUser(cfg.Node), log.With("component", "bus"))
		if err != nil {
			return err
		}
		defer conn.Close()
		sink := connect.NodeSink(conn, cfg.Node)
		defer sink.End(log)
		opt.Sink, opt.Registry = sink, prometheus.NewRegistry()
		if err := connect.Metrics(opt.Registry, conn); err != nil {
			return err
		}
		if cfg.Spool.Dir != "" {
			keep, err := newSpooled(cfg, conn, sink, opt.Registry, log)
			if err != nil {
				return err
			}
			opt.Sink = keep
			p.Add("spool", keep.frames.Run)
		}
	}

	exp, err := exporter.New(opt)
	if err != nil {
		return err
	}
	p.Add("exporter", exp.Run)
	p.ServeWeb("metrics", ln, exp.Handler(), web)
	log.Info("exporter started", "node", cfg.Node, "metrics", web.URL(ln)+"/metrics", "bus", cfg.NATS.URL, "version", Version)
	return p.Run()
}

func exporterOptions(cfg *config.Exporter, m *attribution.Attribution, log *slog.Logger) exporter.Options {
	return exporter.Options{
		Node: cfg.Node, Cluster: cfg.Cluster, Period: time.Duration(cfg.Tick),
		Source:  nvml.New(nvml.WithLibraryPath(cfg.Library)),
		Members: m, Samples: []exporter.SampleSource{m},
		Compat: cfg.MetricsCompat,
		Log:    log,
	}
}

// ExportOnce reads every GPU one time and prints it as Prometheus text or as
// the frame in JSON.
func ExportOnce(ctx context.Context, cfg *config.Exporter, format string, w io.Writer, log *slog.Logger) error {
	who := members(cfg, log)
	exp, err := exporter.New(exporterOptions(cfg, who, log))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	who.Ask(ctx)
	frame, err := exp.Once(ctx)
	if err != nil {
		return err
	}
	switch format {
	case "prom":
		families, err := exp.Gatherer().Gather()
		if err != nil {
			return err
		}
		enc := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
		for _, f := range families {
			if err := enc.Encode(f); err != nil {
				return err
			}
		}
	case "json":
		data, err := protojson.Marshal(frame)
		if err != nil {
			return err
		}
		// protojson varies its spacing on purpose; scripts compare.
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			return err
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return err
		}
	default:
		return fmt.Errorf("output %q; want prom or json", format)
	}
	if fault := frame.GetDriverFault(); fault != "" {
		return fmt.Errorf("no GPU was read: %s; `evenkeel-node doctor` says more", fault)
	}
	return nil
}
