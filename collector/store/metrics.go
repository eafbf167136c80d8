package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// metrics is what the store says of itself; names and help come from the
// catalogue. Prometheus's packages add their own.
type metrics struct {
	refused *prometheus.CounterVec
	series  prometheus.Gauge
	up      prometheus.Gauge
	took    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, dir string) *metrics {
	gauge := func(id telemetry.ID) prometheus.Gauge {
		row := telemetry.RowOf(id)
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: row.Name, Help: row.Help})
	}
	row := telemetry.RowOf(telemetry.SelfStoreSamplesRefused)
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels),
		series:  gauge(telemetry.SelfStoreSeries), up: gauge(telemetry.SelfStoreUp), took: gauge(telemetry.SelfStoreSample),
	}
	for _, why := range refusals {
		m.refused.WithLabelValues(why)
	}
	row = telemetry.RowOf(telemetry.SelfStoreFreeRatio)
	reg.MustRegister(m.refused, m.series, m.up, m.took, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: row.Name, Help: row.Help}, func() float64 {
		free, total, err := disk(dir)
		if err != nil || total == 0 {
			return 0
		}
		return float64(free) / float64(total)
	}))
	return m
}

func (m *metrics) lost(why string, n int) { m.refused.WithLabelValues(why).Add(float64(n)) }

func (m *metrics) round(samples int, took time.Duration, err error) {
	m.took.Set(took.Seconds())
	if err != nil {
		m.up.Set(0)
		return
	}
	m.up.Set(1)
	m.series.Set(float64(samples))
}
