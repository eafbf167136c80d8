package collector

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// takeInventory folds a snapshot. One that is refused leaves the last word of
// its source.
func (c *Collector) takeInventory(inv telemetry.Inventory) {
	now := c.opts.Now()
	if err := c.state.Inventory(now, inv); err != nil {
		c.metrics.inventory.refuse(telemetry.WhyDropped(err))
		c.metrics.inventory.refused.Do(now, func() {
			c.log.Warn("inventory refused; the last one of its source stays", "source", inv.Source, "generation", inv.Generation, "err", err)
		})
		return
	}
	if c.file != nil && inv.Source == telemetry.SourceFile {
		c.file.heard(&inv)
	}
	c.changes.notify()
}

// inventoryMetrics is what the collector says of where its inventory comes
// from. What depends on the fleet is read at a scrape.
type inventoryMetrics struct {
	dropped map[telemetry.DropReason]prometheus.Counter
	loads   map[bool]prometheus.Counter
	good    prometheus.Gauge

	refused, unsent seldom
}

// seldom lets a thing be said now and then.
type seldom struct {
	mu   sync.Mutex
	next time.Time
}

const seldomEvery = 10 * time.Second

// Do calls fn if it was not called a while ago.
func (s *seldom) Do(now time.Time, fn func()) {
	s.mu.Lock()
	say := !now.Before(s.next)
	if say {
		s.next = now.Add(seldomEvery)
	}
	s.mu.Unlock()
	if say {
		fn()
	}
}

func newInventoryMetrics(reg prometheus.Registerer, file bool) *inventoryMetrics {
	m := &inventoryMetrics{dropped: map[telemetry.DropReason]prometheus.Counter{}, loads: map[bool]prometheus.Counter{}}
	row := telemetry.RowOf(telemetry.SelfInventoryRefused)
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)
	for _, why := range telemetry.InventoryDropReasons {
		m.dropped[why] = vec.WithLabelValues(string(why))
	}
	reg.MustRegister(vec)
	row = telemetry.RowOf(telemetry.SelfInventoryFileLoads)
	loads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)
	m.loads[true], m.loads[false] = loads.WithLabelValues("taken"), loads.WithLabelValues("refused")
	row = telemetry.RowOf(telemetry.SelfInventoryFileGood)
	m.good = prometheus.NewGauge(prometheus.GaugeOpts{Name: row.Name, Help: row.Help})
	if file {
		reg.MustRegister(loads, m.good)
	}
	return m
}

// refuse counts under malformed what has no series of its own.
func (m *inventoryMetrics) refuse(why telemetry.DropReason) {
	c, ok := m.dropped[why]
	if !ok {
		c = m.dropped[telemetry.DropMalformed]
	}
	c.Inc()
}

// file counts a content of the file.
func (m *inventoryMetrics) file(taken bool) {
	m.loads[taken].Inc()
	m.good.Set(0)
	if taken {
		m.good.Set(1)
	}
}

// fleetMetrics reads at a scrape what inventory says of the fleet as a whole.
type fleetMetrics struct {
	c                                              *Collector
	age, generation, nodes, budget, expected, seen *prometheus.Desc
}

func newFleetMetrics(c *Collector) *fleetMetrics {
	return &fleetMetrics{
		c: c, age: descOf(telemetry.SelfInventoryAge), generation: descOf(telemetry.SelfInventoryGeneration),
		nodes: descOf(telemetry.SelfInventoryNodes), budget: descOf(telemetry.SelfPowerBudget),
		expected: descOf(telemetry.SelfGpusExpected), seen: descOf(telemetry.SelfGpusFresh),
	}
}

func descOf(id telemetry.ID) *prometheus.Desc {
	row := telemetry.RowOf(id)
	return prometheus.NewDesc(row.Name, row.Help, row.Labels, nil)
}

// Describe implements prometheus.Collector.
func (m *fleetMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.age, m.generation, m.nodes, m.budget, m.expected, m.seen} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *fleetMetrics) Collect(to chan<- prometheus.Metric) {
	now := m.c.opts.Now()
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range m.c.state.Sources() {
		put(m.age, max(now.Sub(s.Told).Seconds(), 0), s.Name)
		put(m.generation, float64(s.Generation), s.Name)
		put(m.nodes, float64(s.Nodes), s.Name)
	}
	for _, b := range m.c.state.Budgets() {
		put(m.budget, b.Watts, b.Domain)
	}
	if m.c.ready.at(now) {
		seen := m.c.state.View(now).Coverage(now)
		put(m.expected, float64(seen.Expected))
		put(m.seen, float64(seen.Fresh))
	}
}
