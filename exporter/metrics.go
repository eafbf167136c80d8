package exporter

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// notSent is why a frame is dropped that the sink did not take and gave no
// reason of its own for.
const notSent = "not_sent"

// metrics are what the exporter says of itself, beside the devices.
type metrics struct {
	registry *prometheus.Registry
	ticks    prometheus.Counter
	drops    *prometheus.CounterVec
}

func newMetrics(src Source) *metrics {
	ticks, drops := telemetry.RowOf(telemetry.SelfExporterTicks), telemetry.RowOf(telemetry.SelfFramesDropped)
	calls := telemetry.RowOf(telemetry.SelfDriverCalls)
	m := &metrics{
		registry: prometheus.NewRegistry(),
		ticks:    prometheus.NewCounter(prometheus.CounterOpts{Name: ticks.Name, Help: ticks.Help}),
		drops:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: drops.Name, Help: drops.Help}, drops.Labels),
	}
	for _, why := range telemetry.DropReasons {
		m.drops.WithLabelValues(string(why))
	}
	m.drops.WithLabelValues(notSent)
	m.registry.MustRegister(m.ticks, m.drops, prometheus.NewCounterFunc(
		prometheus.CounterOpts{Name: calls.Name, Help: calls.Help},
		func() float64 { return float64(src.Calls()) }))
	return m
}

func (m *metrics) dropped(err error) {
	why := notSent
	if d, ok := errors.AsType[*telemetry.DropError](err); ok {
		why = string(d.Why)
	}
	m.drops.WithLabelValues(why).Inc()
}
