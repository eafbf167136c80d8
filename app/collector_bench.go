package app

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// selfMetrics serves what the process says of itself without the fleet's
// series, whose scrape costs more than all else it does in that second; and adds
// to it what the process uses of the machine.
func selfMetrics(reg *prometheus.Registry) (http.Handler, error) {
	if err := reg.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return nil, err
	}
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4}), nil
}
