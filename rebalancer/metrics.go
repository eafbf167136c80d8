package rebalancer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Metrics are what the rebalancer says of itself. Every label value exists
// from the start.
type Metrics struct {
	decisions *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	effect    *prometheus.GaugeVec
	breaker   prometheus.Gauge
	leader    prometheus.Gauge
	pass      prometheus.Gauge
	lastPass  prometheus.Gauge
	actAge    *prometheus.GaugeVec
	pending   prometheus.Gauge
	acts      []telemetry.ActKind // that the policies may take
}

// NewMetrics registers the metrics of an engine with these policies.
func NewMetrics(reg prometheus.Registerer, policies []Policy) *Metrics {
	gauge := func(name string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help(name)})
		reg.MustRegister(g)
		return g
	}
	gauges := func(name string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help(name)}, labels)
		reg.MustRegister(g)
		return g
	}
	counters := func(name string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help(name)}, labels)
		reg.MustRegister(c)
		return c
	}
	m := &Metrics{
		decisions: counters("evenkeel_decisions_total", "policy", "act", "outcome"),
		refusals:  counters("evenkeel_refusals_total", "reason"),
		effect:    gauges("evenkeel_effect", "signal", "kind"),
		breaker:   gauge("evenkeel_breaker_open"),
		leader:    gauge("evenkeel_leader"),
		pass:      gauge("evenkeel_pass_seconds"),
		lastPass:  gauge("evenkeel_last_pass_timestamp_seconds"),
		actAge:    gauges("evenkeel_act_age_seconds", "act"),
		pending:   gauge("evenkeel_journal_pending"),
	}
	for _, r := range telemetry.RefusalReasons {
		m.refusals.WithLabelValues(string(r))
	}
	for _, p := range policies {
		s := p.Spec()
		m.effect.WithLabelValues(s.Signal, "predicted")
		m.effect.WithLabelValues(s.Signal, "observed")
		for _, act := range s.Ladder {
			m.actAge.WithLabelValues(string(act))
			m.acts = append(m.acts, act)
			for _, o := range telemetry.Outcomes {
				m.decisions.WithLabelValues(s.Type, string(act), string(o))
			}
		}
	}
	return m
}

// help is the catalogue's text, so that a metric is described in one place.
func help(name string) string {
	for _, r := range telemetry.Catalog {
		if r.Name == name {
			return r.Help
		}
	}
	return name
}

// recorded counts a decision that was written with another outcome than before.
func (m *Metrics) recorded(before, after *telemetry.Decision) {
	if before != nil && before.Outcome == after.Outcome {
		return
	}
	m.decisions.WithLabelValues(after.Policy, string(after.Kind), string(after.Outcome)).Inc()
	if after.Observed != nil && after.Predicted != nil && (before == nil || before.Observed == nil) {
		m.effect.WithLabelValues(after.Predicted.Signal, "predicted").Set(after.Predicted.Change())
		m.effect.WithLabelValues(after.Observed.Signal, "observed").Set(after.Observed.Change())
	}
}

func (m *Metrics) passed(now time.Time, took time.Duration, mem *Memory) {
	m.pass.Set(took.Seconds())
	m.lastPass.Set(float64(now.UnixMilli()) / 1000)
	m.breaker.Set(flag(mem.Breaker.Open))
	oldest := map[telemetry.ActKind]float64{}
	for _, d := range mem.Decisions {
		oldest[d.Kind] = max(oldest[d.Kind], 0)
		if inFlight(d) {
			oldest[d.Kind] = max(oldest[d.Kind], now.Sub(d.Time).Seconds())
		}
	}
	for _, act := range m.acts {
		m.actAge.WithLabelValues(string(act)).Set(oldest[act])
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
