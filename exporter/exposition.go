package exporter

import (
	"bytes"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// exposition is a kept tree of metric families that a scrape fills from the
// last tick. A scrape never calls the driver.
type exposition struct {
	node     string
	scrape   sync.Mutex // one scrape at a time holds the tree
	families []*family  // by name
	bySlot   [maxSlots]*family
	byLink   [linkKinds + 1]*family // each count, then the state
	devices  map[string]*[maxSlots]*dto.Metric
	links    map[string]*linkMetrics
	out      []*dto.MetricFamily
}

type family struct {
	row *telemetry.Row
	mf  *dto.MetricFamily
}

// labelled are the rows whose label values are not a closed list.
var labelled = []telemetry.ID{
	telemetry.GPUInfo, telemetry.GPUSampleInvalid, telemetry.NodeReaderSuccess, telemetry.NodeReaderDuration,
	telemetry.NodeDriverUp, telemetry.NodeDriverCallHung, telemetry.GPUXidErrors, telemetry.GPUReaderFailing,
	telemetry.GPUProcesses, telemetry.ProcessMemoryBytes,
	telemetry.LinkNVLinkBytesTx, telemetry.LinkNVLinkErrorsCRCFlit, telemetry.LinkNVLinkUp,
}

func (x *exposition) init(node string) {
	x.node = node
	x.devices, x.links = map[string]*[maxSlots]*dto.Metric{}, map[string]*linkMetrics{}
	for i := range slots {
		x.bySlot[i] = x.add(slots[i].row)
	}
	for _, id := range labelled {
		x.add(telemetry.RowOf(id))
	}
	for k := range linkCounts {
		x.byLink[k] = x.family(linkCounts[k].id)
	}
	x.byLink[linkKinds] = x.family(telemetry.LinkNVLinkUp)
	slices.SortFunc(x.families, func(a, b *family) int { return strings.Compare(a.row.Name, b.row.Name) })
}

func (x *exposition) add(row *telemetry.Row) *family {
	if i := slices.IndexFunc(x.families, func(f *family) bool { return f.row == row }); i >= 0 {
		return x.families[i]
	}
	kind := dto.MetricType_GAUGE
	if row.Type == telemetry.Counter {
		kind = dto.MetricType_COUNTER
	}
	f := &family{row, &dto.MetricFamily{Name: &row.Name, Help: &row.Help, Type: &kind}}
	x.families = append(x.families, f)
	return f
}

func (x *exposition) family(id telemetry.ID) *family {
	row := telemetry.RowOf(id)
	return x.families[slices.IndexFunc(x.families, func(f *family) bool { return f.row == row })]
}

// metric makes one series of a family, labels in the order that Prometheus
// sorts them.
func (x *exposition) metric(f *family, uuid string, values ...string) *dto.Metric {
	m := &dto.Metric{}
	pair := func(name, value string) {
		m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &value})
	}
	pair("node", x.node)
	if uuid != "" {
		pair("uuid", uuid)
	}
	for i, name := range f.row.Labels {
		pair(name, values[i])
	}
	slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	if f.row.Type == telemetry.Counter {
		m.Counter = &dto.Counter{Value: new(float64)}
	} else {
		m.Gauge = &dto.Gauge{Value: new(float64)}
	}
	return m
}

func (f *family) put(m *dto.Metric, v float64) {
	if m.Counter != nil {
		*m.Counter.Value = v
	} else {
		*m.Gauge.Value = v
	}
	f.mf.Metric = append(f.mf.Metric, m)
}

// fill brings the tree up to the last tick.
func (x *exposition) fill(e *Exporter) {
	for _, f := range x.families {
		f.mf.Metric = f.mf.Metric[:0]
	}
	for i := range slots {
		for _, g := range e.gpus {
			if v, ok := g.value(i); ok {
				x.bySlot[i].put(x.device(g.uuid, i), v)
			}
		}
	}
	for _, g := range e.gpus {
		if g.up {
			x.fillLinks(g)
		}
	}
	info, invalid := x.family(telemetry.GPUInfo), x.family(telemetry.GPUSampleInvalid)
	hung := x.family(telemetry.NodeDriverCallHung)
	for _, g := range e.gpus {
		if g.known {
			labels := [...]string{strconv.Itoa(g.id.Index), g.id.PCI, g.id.Model, e.state.info.Version, g.id.Arch}
			info.put(x.metric(info, g.uuid, labels[:]...), 1)
		}
		g.front.dropped(func(metric string, w why, n float64) {
			invalid.put(x.metric(invalid, g.uuid, metric, whyNames[w]), n)
		})
		if g.hung != callNone {
			hung.put(x.metric(hung, "", g.uuid, callNames[g.hung]), g.hungFor.Seconds())
		}
	}
	for _, m := range [...]struct {
		call *callMark
		fine time.Duration
	}{{&e.driver.call, patience}, {&e.listener.call, noticeWait + patience}, {&e.listener.stuck, 0}} {
		if id, since := m.call.outstanding(time.Now()); id != callNone && since > m.fine {
			hung.put(x.metric(hung, "", "", callNames[id]), since.Seconds())
			break
		}
	}
	xids := x.family(telemetry.GPUXidErrors)
	e.events.xidCounts(func(uuid string, n float64, xid, action string) { xids.put(x.metric(xids, uuid, xid, action), n) })
	x.fillReaders(e)
	e.sourced(func(row *telemetry.Row, _ telemetry.ID, uuid string, v float64, labels []string) {
		f := x.add(row)
		f.put(x.metric(f, uuid, labels...), v)
	})
	up := x.family(telemetry.NodeDriverUp)
	up.put(x.metric(up, "", string(e.state.fault)), boolean(e.state.up))
}

func (x *exposition) fillReaders(e *Exporter) {
	failing := x.family(telemetry.GPUReaderFailing)
	success, duration := x.family(telemetry.NodeReaderSuccess), x.family(telemetry.NodeReaderDuration)
	for i := range readers {
		if r := readerResult(e.gpus, i); r.ran {
			success.put(x.metric(success, "", readers[i].name), boolean(r.ok()))
			duration.put(x.metric(duration, "", readers[i].name), r.duration.Seconds())
		}
		for _, g := range e.gpus {
			if err := g.readerErr(i); err != nil {
				failing.put(x.metric(failing, g.uuid, readers[i].name, string(FaultOf(err))), 1)
			}
		}
	}
	if m := e.opt.Members; m != nil {
		success.put(x.metric(success, "", readerMembers), boolean(m.Err() == nil))
	}
	x.fillProcesses(e)
}

// value is what a GPU's series shows now. A GPU that is down has gpu_up alone.
func (g *gpu) value(slot int) (float64, bool) {
	if slots[slot].id == telemetry.GPUUp {
		return boolean(g.up), true
	}
	if !g.up {
		return 0, false
	}
	for _, part := range [...]*values{&g.front.fast, &g.front.link.values} {
		if v, ok := part.get(slot); ok {
			return v, true
		}
	}
	return g.front.slow.get(slot)
}

func (x *exposition) device(uuid string, slot int) *dto.Metric {
	list := x.devices[uuid]
	if list == nil {
		list = new([maxSlots]*dto.Metric)
		x.devices[uuid] = list
	}
	if list[slot] == nil {
		f := x.bySlot[slot]
		_, series, _ := telemetry.Lookup(slots[slot].id)
		list[slot] = x.metric(f, uuid, series.Values...)
	}
	return list[slot]
}

// linkMetrics are the series of one GPU's links, as in exposition.byLink.
type linkMetrics [linkKinds + 1][telemetry.MaxLinks]*dto.Metric

func (x *exposition) fillLinks(g *gpu) {
	l := &g.front.links
	for link := range bits.Len64(l.up | l.down) {
		for k := range linkKinds {
			if isIn(l.has[k], link) {
				x.link(g.uuid, k, linkCounts[k].id, link, l.v[k][link])
			}
		}
		if l.stated && isIn(l.up|l.down, link) {
			x.link(g.uuid, linkKinds, telemetry.LinkNVLinkUp, link, boolean(isIn(l.up, link)))
		}
	}
}

func (x *exposition) link(uuid string, k linkKind, id telemetry.ID, link int, v float64) {
	list := x.links[uuid]
	if list == nil {
		list = new(linkMetrics)
		x.links[uuid] = list
	}
	f, m := x.byLink[k], list[k][link]
	if m == nil {
		_, series, _ := telemetry.Lookup(id)
		values := []string{strconv.Itoa(link)}
		if len(series.Values) > 1 {
			values = append(values, series.Values[1:]...)
		}
		m = x.metric(f, uuid, values...)
		list[k][link] = m
	}
	f.put(m, v)
}

// gather returns every family, by name.
func (e *Exporter) gather() ([]*dto.MetricFamily, error) {
	self, err := e.metrics.registry.Gather()
	x := &e.expo
	x.out = append(x.out[:0], self...)
	e.mu.Lock()
	x.fill(e)
	if e.opt.Compat == CompatDCGM {
		x.addDCGM(e)
	}
	e.mu.Unlock()
	for _, f := range x.families {
		if len(f.mf.Metric) > 0 {
			x.out = append(x.out, f.mf)
		}
	}
	slices.SortFunc(x.out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return x.out, err
}

// Gather implements the transactional gatherer: the tree is one scrape's until
// its text is made.
func (x *transaction) Gather() ([]*dto.MetricFamily, func(), error) {
	x.e.expo.scrape.Lock()
	families, err := x.e.gather()
	return families, x.e.expo.scrape.Unlock, err
}

type transaction struct{ e *Exporter }

var _ prometheus.TransactionalGatherer = (*transaction)(nil)

// Handler serves /metrics, /-/healthy and /-/ready.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	text := promhttp.HandlerForTransactional(&transaction{e}, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 0,
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		// The text is made in memory first, so that a slow reader does not keep
		// the tree from others.
		b := &buffered{header: w.Header(), status: http.StatusOK}
		text.ServeHTTP(b, r)
		w.WriteHeader(b.status)
		_, _ = w.Write(b.body.Bytes())
	})
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		// Whether the driver answers does not matter here: a restart cures no driver.
		silent := time.Since(e.start) - time.Duration(e.alive.Load())
		if silent > max(5*e.opt.Period, 10*time.Second) {
			http.Error(w, "no tick for "+silent.Round(time.Second).String(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if s := e.driver.now(time.Now()); !s.up {
			http.Error(w, "GPU driver: "+string(s.fault), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	return mux
}

// buffered is a response held in memory.
type buffered struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (b *buffered) Header() http.Header         { return b.header }
func (b *buffered) WriteHeader(status int)      { b.status = status }
func (b *buffered) Write(p []byte) (int, error) { return b.body.Write(p) }
