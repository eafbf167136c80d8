package connect

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// Metrics registers what a process can say of its connection to the bus. It is
// read at a scrape; every series exists from the start.
func Metrics(reg prometheus.Registerer, conn Counted) error {
	return reg.Register(&collector{
		conn:       conn,
		connected:  desc(telemetry.SelfBusConnected),
		reconnects: desc(telemetry.SelfBusReconnects),
		errors:     desc(telemetry.SelfBusErrors),
		lost:       desc(telemetry.SelfBusMessagesLost),
		pending:    desc(telemetry.SelfBusPending),
	})
}

// Counted is a connection that counts; bus.Conn is one.
type Counted interface{ Stats() bus.Stats }

type collector struct {
	conn                                         Counted
	connected, reconnects, errors, lost, pending *prometheus.Desc
}

func desc(id telemetry.ID) *prometheus.Desc {
	row := telemetry.RowOf(id)
	return prometheus.NewDesc(row.Name, row.Help, row.Labels, nil)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connected, c.reconnects, c.errors, c.lost, c.pending} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.conn.Stats()
	connected := 0.0
	if s.Connected {
		connected = 1
	}
	to <- prometheus.MustNewConstMetric(c.connected, prometheus.GaugeValue, connected)
	to <- prometheus.MustNewConstMetric(c.reconnects, prometheus.CounterValue, float64(s.Reconnects))
	for _, kind := range bus.ErrorKinds {
		to <- prometheus.MustNewConstMetric(c.errors, prometheus.CounterValue, float64(s.AsyncErrors[kind]), string(kind))
	}
	for _, l := range []struct {
		why string
		n   uint64
	}{{"not_sent", s.PublishErrors}, {"slow", s.Dropped}, {"malformed", s.Malformed}, {"outbox_full", s.OutboxDropped}} {
		to <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(l.n), l.why)
	}
	to <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(s.OutboxQueued))
}
