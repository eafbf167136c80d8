package node

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/app/connect"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter/spool"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// spooled sends events at once and keeps frames that cannot be sent.
type spooled struct {
	*connect.Sink
	frames *spool.Spool
}

// Frame implements exporter.Sink.
func (s spooled) Frame(data []byte) error { return s.frames.Frame(data) }

func newSpooled(cfg *config.Exporter, conn *bus.Conn, sink *connect.Sink, reg prometheus.Registerer, log *slog.Logger) (spooled, error) {
	s, err := spool.New(spool.Options{
		Dir: cfg.Spool.Dir, Max: int64(cfg.Spool.MaxMiB) << 20, Live: sink,
		Backfill: func(data []byte) error { return conn.PublishBackfill(cfg.Node, data) },
		Registry: reg, Log: log,
	})
	return spooled{sink, s}, err
}
