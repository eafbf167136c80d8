package connect

import (
	"context"
	"log/slog"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// Sink sends what a node's exporter says: frames at most once, events until
// they are stored.
type Sink struct {
	*bus.FrameSink
	conn *bus.Conn
}

var (
	_ exporter.Sink      = (*Sink)(nil)
	_ exporter.EventSink = (*Sink)(nil)
)

// NodeSink starts the sink of a node. The connection is still the caller's.
func NodeSink(conn *bus.Conn, node string) *Sink {
	return &Sink{conn.FrameSink(node), conn}
}

// Event keeps an event until the server has it. It waits for nobody.
func (s *Sink) Event(e telemetry.Event) error { return s.conn.PublishEvent(e) }

// flushWait is how long an end waits for a server.
const flushWait = 2 * time.Second

// End sends what is still here, as far as the server takes it in a moment.
func (s *Sink) End(log *slog.Logger) {
	s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), flushWait)
	defer cancel()
	if err := s.conn.Flush(ctx); err != nil {
		log.Warn("ended with something not sent", "err", err)
	}
}
