package collector

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// exposition serves the fleet's families from a tree of messages that is kept
// between scrapes: labels are made once per device, a scrape writes numbers.
// The View is the source, so the series of what is gone end.
type exposition struct {
	c        *Collector
	mu       sync.Mutex // held from Gather to its done
	families []*dto.MetricFamily
	of       [1000]int // place of an id's family, one more; zero if it is not served
	nodes    map[string]*nodeBlock
	round    uint64
	out      []*dto.MetricFamily
}

// part is what of everything a gathering is about: of the fleet the nodes of
// one shard, or none, and the collector's own families.
type part struct {
	shard, of  int // by partition
	fleet, own bool
}

var everything = part{shard: 0, of: 1, fleet: true, own: true}

// parted is a Gatherer of a part.
type parted struct {
	x    *exposition
	part part
}

func (x *exposition) part(p part) prometheus.TransactionalGatherer { return parted{x, p} }

// Gather implements prometheus.TransactionalGatherer.
func (p parted) Gather() ([]*dto.MetricFamily, func(), error) { return p.x.gather(p.part) }

// servedHere lists the rows that the collector serves: what nodes send and what
// is judged. Processes are the node exporter's; its own rows are in a registry.
func servedHere(row *telemetry.Row, perLink bool) bool {
	switch {
	case row.Per == telemetry.PerProcess, row.Origin == telemetry.FromSelf:
		return false
	case row.Per == telemetry.PerLink:
		return perLink
	}
	return true
}

func newExposition(c *Collector) *exposition {
	x := &exposition{c: c, nodes: map[string]*nodeBlock{}}
	var rows []*telemetry.Row
	for i := range telemetry.Catalog {
		if servedHere(&telemetry.Catalog[i], c.opts.PerLink) {
			rows = append(rows, &telemetry.Catalog[i])
		}
	}
	slices.SortFunc(rows, func(a, b *telemetry.Row) int { return strings.Compare(a.Name, b.Name) })
	for i, row := range rows {
		kind := dto.MetricType_GAUGE
		if row.Type == telemetry.Counter {
			kind = dto.MetricType_COUNTER
		}
		x.families = append(x.families, &dto.MetricFamily{Name: new(row.Name), Help: new(row.Help), Type: kind.Enum()})
		for _, s := range row.Series {
			x.of[s.ID] = i + 1
		}
	}
	return x
}

// Gather implements prometheus.TransactionalGatherer with everything.
func (x *exposition) Gather() ([]*dto.MetricFamily, func(), error) { return x.gather(everything) }

// gather brings the families to the present. The tree is the caller's until it
// calls done.
func (x *exposition) gather(p part) (_ []*dto.MetricFamily, done func(), err error) {
	x.mu.Lock()
	handed := false
	defer func() {
		if !handed {
			x.mu.Unlock()
		}
	}()
	var own []*dto.MetricFamily
	if p.own {
		own, err = x.c.opts.Registry.Gather()
	}
	now := x.c.opts.Now()
	x.out = x.out[:0]
	if ready := x.c.ready.at(now); ready && p.fleet {
		x.fill(now, p)
		for _, f := range x.families {
			if len(f.Metric) > 0 {
				x.out = append(x.out, f)
			}
		}
	}
	x.out = append(x.out, own...)
	slices.SortFunc(x.out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	handed = true
	return x.out, x.mu.Unlock, err
}

// fill brings the tree to the present, and the families to the part's nodes.
func (x *exposition) fill(now time.Time, p part) {
	for _, f := range x.families {
		f.Metric = f.Metric[:0]
	}
	x.round++
	v := x.c.state.View(now)
	for n := range v.Nodes() {
		b := x.nodes[n.Name]
		if b == nil {
			b = newNodeBlock(n.Name)
			x.nodes[n.Name] = b
		}
		b.round = x.round
		if b.partition%p.of == p.shard {
			b.fill(x, v, n, now)
		}
	}
	for name, b := range x.nodes {
		if b.round != x.round {
			delete(x.nodes, name)
		}
	}
}

// add puts a metric into the family of an id.
func (x *exposition) add(id telemetry.ID, m *dto.Metric) {
	if i := x.of[id]; i > 0 {
		f := x.families[i-1]
		f.Metric = append(f.Metric, m)
	}
}

// series is a metric that is made on first use and then written to.
type series struct{ m *dto.Metric }

// set writes the value, with labels made by the function if the metric is new.
func (s *series) set(x *exposition, id telemetry.ID, v float64, labels func() []*dto.LabelPair) {
	if s.m == nil {
		s.m = newMetric(telemetry.RowOf(id), labels())
	}
	if s.m.Counter != nil {
		*s.m.Counter.Value = v
	} else {
		*s.m.Gauge.Value = v
	}
	x.add(id, s.m)
}

// newMetric makes a metric in one piece, as a scrape reads every one of them
// and waits for memory more than for anything else.
func newMetric(row *telemetry.Row, labels []*dto.LabelPair) *dto.Metric {
	type common struct {
		metric dto.Metric
		value  float64
		labels [4]*dto.LabelPair
	}
	var c *common
	if row.Type == telemetry.Counter {
		x := new(struct {
			common
			counter dto.Counter
		})
		c, x.metric.Counter, x.counter.Value = &x.common, &x.counter, &x.value
	} else {
		x := new(struct {
			common
			gauge dto.Gauge
		})
		c, x.metric.Gauge, x.gauge.Value = &x.common, &x.gauge, &x.value
	}
	c.metric.Label = append(c.labels[:0], labels...)
	slices.SortFunc(c.metric.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return &c.metric
}

// pair makes a label in one piece, too. Its name is the one string that all
// labels of that name share.
func pair(name, value string) *dto.LabelPair {
	x := new(struct {
		pair  dto.LabelPair
		value string
	})
	x.value = value
	x.pair.Name, x.pair.Value = labelName(name), &x.value
	return &x.pair
}

var labelNames = func() map[string]*string {
	names := map[string]*string{"node": new("node"), "uuid": new("uuid")}
	for i := range telemetry.Catalog {
		for _, name := range telemetry.Catalog[i].Labels {
			names[name] = new(name)
		}
	}
	return names
}()

func labelName(name string) *string {
	if shared, ok := labelNames[name]; ok {
		return shared
	}
	return new(name)
}

// info is a metric whose labels are its value; it is made anew when they change.
type info struct {
	key string
	m   *dto.Metric
}

func (i *info) set(x *exposition, id telemetry.ID, base []*dto.LabelPair, values ...string) {
	key := strings.Join(values, "\xff")
	if i.m == nil || i.key != key {
		row := telemetry.RowOf(id)
		labels := slices.Clone(base)
		for k, name := range row.Labels {
			labels = append(labels, pair(name, values[k]))
		}
		i.key, i.m = key, newMetric(row, labels)
		*i.m.Gauge.Value = 1
	}
	x.add(id, i.m)
}

// usable says whether a reading may be shown: ok or suspect, and not stale.
func usable(r cluster.Reading, n *cluster.Node, now time.Time) bool {
	return (r.Quality == telemetry.Quality_QUALITY_OK || r.Quality == telemetry.Quality_QUALITY_SUSPECT) &&
		now.Sub(r.At) <= cluster.StaleAfter(r.ID, n.Period)
}
