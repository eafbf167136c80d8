package agent

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// kindOther stands for every kind this agent does not know and for orders that
// could not be read: a label value is never taken from an order.
const kindOther = "other"

type metrics struct {
	orders *prometheus.CounterVec
	caps   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "evenkeel_orders_total", Help: "Orders at the agent, by kind and result."}, []string{"kind", "result"}),
		caps:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "evenkeel_caps_active", Help: "Power caps the agent holds under a lease."}),
	}
	for _, k := range append(slices.Clone(Kinds), kindOther) {
		for _, r := range []telemetry.Result{telemetry.Done, telemetry.Refused, telemetry.Failed, telemetry.Pending} {
			m.orders.WithLabelValues(string(k), string(r))
		}
	}
	if err := errors.Join(reg.Register(m.orders), reg.Register(m.caps)); err != nil {
		return nil, fmt.Errorf("agent metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) order(k telemetry.StepKind, r telemetry.Result) {
	kind := string(k)
	if !slices.Contains(Kinds, k) {
		kind = kindOther
	}
	m.orders.WithLabelValues(kind, string(r)).Inc()
}

// Handler serves /metrics and /-/healthy.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.o.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		switch broken := a.broken.Load(); {
		case broken != nil:
			http.Error(w, "the ledger cannot be written: "+*broken, http.StatusServiceUnavailable)
		case !a.running.Load():
			http.Error(w, "not taking orders", http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte("agent takes orders\n"))
		}
	})
	return mux
}
