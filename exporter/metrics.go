package exporter

import (
	"errors"
	"fmt"

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
	refused  prometheus.Counter
}

func newMetrics(reg *prometheus.Registry, src Source) (*metrics, error) {
	ticks, drops := telemetry.RowOf(telemetry.SelfExporterTicks), telemetry.RowOf(telemetry.SelfFramesDropped)
	calls, refused := telemetry.RowOf(telemetry.SelfDriverCalls), telemetry.RowOf(telemetry.SelfSamplesRefused)
	m := &metrics{
		registry: reg,
		ticks:    prometheus.NewCounter(prometheus.CounterOpts{Name: ticks.Name, Help: ticks.Help}),
		drops:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: drops.Name, Help: drops.Help}, drops.Labels),
		refused:  prometheus.NewCounter(prometheus.CounterOpts{Name: refused.Name, Help: refused.Help}),
	}
	for _, why := range telemetry.DropReasons {
		m.drops.WithLabelValues(string(why))
	}
	m.drops.WithLabelValues(notSent)
	count := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: calls.Name, Help: calls.Help}, func() float64 { return float64(src.Calls()) })
	if err := errors.Join(reg.Register(m.ticks), reg.Register(m.drops), reg.Register(m.refused), reg.Register(count)); err != nil {
		return nil, fmt.Errorf("exporter metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) dropped(err error) {
	why := notSent
	if d, ok := errors.AsType[*telemetry.DropError](err); ok {
		why = string(d.Why)
	}
	m.drops.WithLabelValues(why).Inc()
}
