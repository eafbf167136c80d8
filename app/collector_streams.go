package app

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

// streams counts the readers of the API's stream.
type streams struct {
	open  prometheus.Gauge
	ended map[ui.StreamEnded]prometheus.Counter
}

func newStreams(reg prometheus.Registerer) (*streams, error) {
	row := telemetry.RowOf(telemetry.SelfStreams)
	s := &streams{open: prometheus.NewGauge(prometheus.GaugeOpts{Name: row.Name, Help: row.Help}), ended: map[ui.StreamEnded]prometheus.Counter{}}
	row = telemetry.RowOf(telemetry.SelfStreamsEnded)
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)
	for _, why := range ui.StreamEndings {
		s.ended[why] = ended.WithLabelValues(string(why))
	}
	return s, errors.Join(reg.Register(s.open), reg.Register(ended))
}

// Open implements ui.Streams.
func (s *streams) Open(n int) { s.open.Set(float64(n)) }

// Ended implements ui.Streams.
func (s *streams) Ended(why ui.StreamEnded) { s.ended[why].Inc() }
