package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/app/connect"
	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/collector/store"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

// collectorParts is what one collector is made from.
type collectorParts struct {
	conn     *bus.Conn
	maxNodes int
	perLink  bool
	// inventory is the file that says what the fleet should be; empty for none.
	inventory string
	log       *slog.Logger
	share     share
	web       lifecycle.Web
	store     *store.Options // nil for none
}

// storeGC is Prometheus's own choice for a process that holds its storage: less
// memory for somewhat more work. GOGC overrides it.
const storeGC = 75

// Collector runs one collector with its page until ctx ends. file is where its
// configuration came from, or empty.
func Collector(ctx context.Context, cfg *config.Collector, file string, log *slog.Logger) error {
	ln, err := lifecycle.Listen("collector", cfg.Listen)
	if err != nil {
		return err
	}
	conn, err := connect.Bus(cfg.NATS, bus.UserCollector, log.With("component", "bus"))
	if err != nil {
		return err
	}
	defer conn.Close()
	part, err := shareOf(cfg, conn)
	if err != nil {
		return err
	}
	web, err := lifecycle.OpenWeb(cfg.WebConfig, log.With("component", "web"))
	if err != nil {
		return err
	}
	if cfg.Store.Enabled && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(storeGC)
	}
	kept, err := storeOptions(cfg, filepath.Dir(file), pageURL(web.Scheme(), ln.Addr(), os.Hostname))
	if err != nil {
		return err
	}
	p := lifecycle.New(ctx)
	p.Add("streams", func(ctx context.Context) error { return conn.KeepStreams(ctx, connect.Streams(cfg.NATS)) })
	if err := addCollector(p, collectorParts{conn: conn, maxNodes: cfg.MaxNodes, perLink: cfg.Metrics.PerLink, inventory: cfg.Inventory.File, log: log, share: part, web: web, store: kept}, ln); err != nil {
		return err
	}
	log.Info("collector started", "page", web.URL(ln), "bus", cfg.NATS.URL, "version", Version)
	return p.Run()
}

// addCollector wires the collector and, on the same address, page and API.
func addCollector(p *lifecycle.Process, c collectorParts, ln net.Listener) error {
	reg := prometheus.NewRegistry()
	if err := connect.Metrics(reg, c.conn); err != nil {
		return err
	}
	col, err := collector.New(c.share.options(collector.Options{
		Bus: c.conn, Registry: reg, Now: time.Now, Log: c.log.With("component", "collector"), MaxNodes: c.maxNodes, PerLink: c.perLink,
		Inventory: inventoryFile(c.inventory, c.conn),
	}))
	if err != nil {
		return err
	}
	p.Add("collector", col.Run)

	open, err := newStreams(reg)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	shown := ui.Options{Fleet: fleet{col}, Decisions: col, Control: col, Brakes: col, Streams: open, Version: Version, Log: c.log.With("component", "page")}
	if c.store != nil {
		s, err := openStore(*c.store, col, reg, c.log)
		if err != nil {
			return err
		}
		p.Add("store", s.Run)
		mux.Handle("/api/v1/", s.Handler())
		shown.Past, shown.Alerts = past{s.Engine(), s.Series(), s.Interval()}, ruleAlerts{s}
	}
	self, err := selfMetrics(reg)
	if err != nil {
		return err
	}
	mux.Handle("GET /metrics/self", self)
	mux.Handle("/metrics", col.Handler())
	mux.Handle("/-/", col.Handler())
	mux.Handle("/", ui.Handler(shown))
	p.ServeWeb("page", ln, mux, c.web)
	return nil
}

// fleet gives the page the collector's past in its own words: neither package
// knows the other.
type fleet struct{ *collector.Collector }

// History implements ui.Fleet.
func (f fleet) History(uuid string) []ui.Point {
	past := f.Collector.History(uuid)
	out := make([]ui.Point, len(past))
	for i, p := range past {
		out[i] = ui.Point(p)
	}
	return out
}
