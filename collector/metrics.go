package collector

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// metrics is what the collector says of itself; names and help come from the
// catalogue.
type metrics struct {
	dropped map[telemetry.DropReason]prometheus.Counter
	lag     lag

	inventory *inventoryMetrics
}

func newMetrics(reg prometheus.Registerer, now func() time.Time, file bool) *metrics {
	m := &metrics{inventory: newInventoryMetrics(reg, file), dropped: make(map[telemetry.DropReason]prometheus.Counter, len(telemetry.DropReasons))}
	row := telemetry.RowOf(telemetry.SelfFramesDropped)
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)
	for _, why := range telemetry.DropReasons {
		m.dropped[why] = vec.WithLabelValues(string(why))
	}
	row = telemetry.RowOf(telemetry.SelfFrameLag)
	reg.MustRegister(vec, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: row.Name, Help: row.Help}, func() float64 {
		return m.lag.worst(now()).Seconds()
	}))
	return m
}

// registerLead says who speaks, and how often that began.
func registerLead(c *Collector) {
	leader, takeovers := telemetry.RowOf(telemetry.SelfCollectorLeader), telemetry.RowOf(telemetry.SelfCollectorTakeovers)
	labels := prometheus.Labels{leader.Labels[0]: c.opts.Partitions.String()}
	c.opts.Registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: leader.Name, Help: leader.Help, ConstLabels: labels}, func() float64 {
			if c.Active() {
				return 1
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: takeovers.Name, Help: takeovers.Help, ConstLabels: labels}, func() float64 {
			return float64(c.lead.begins.Load())
		}))
}

func (m *metrics) drop(why telemetry.DropReason, n uint64) { m.dropped[why].Add(float64(n)) }

// lag is the longest time from sample to fold of this span of ten seconds and
// the one before, so that two readers see the same and no peak is missed.
type lag struct{ spans [3]atomic.Int64 }

const (
	lagSpan  = 10 * time.Second
	lagBits  = 40 // nanoseconds: 18 minutes; longer ones are told as that
	lagLimit = 1<<lagBits - 1
)

func (l *lag) saw(now time.Time, d time.Duration) {
	span := now.UnixNano() / int64(lagSpan) & (1<<22 - 1)
	word := span<<lagBits | min(max(int64(d), 0), lagLimit)
	slot := &l.spans[span%3]
	for {
		old := slot.Load()
		if old>>lagBits == span && old >= word || slot.CompareAndSwap(old, word) {
			return
		}
	}
}

func (l *lag) worst(now time.Time) time.Duration {
	span := now.UnixNano() / int64(lagSpan) & (1<<22 - 1)
	var worst int64
	for i := range l.spans {
		if w := l.spans[i].Load(); w>>lagBits == span || w>>lagBits == span-1 {
			worst = max(worst, w&lagLimit)
		}
	}
	return time.Duration(worst)
}
