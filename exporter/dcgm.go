package exporter

import (
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// CompatDCGM as Options.Compat also serves the families of dcgm-exporter's
// default counter file, so that what was made for them works unchanged.
const CompatDCGM = "dcgm"

// addDCGM appends their families. A device that is down has none.
func (x *exposition) addDCGM(e *Exporter) {
	for i := range telemetry.DCGMFamilies {
		d := &telemetry.DCGMFamilies[i]
		ids, less := d.Series()
		if len(ids) == 0 {
			continue
		}
		kind := dto.MetricType_GAUGE
		if d.Type == telemetry.Counter {
			kind = dto.MetricType_COUNTER
		}
		f := &dto.MetricFamily{Name: &d.Name, Help: &d.Help, Type: &kind}
		for _, g := range e.gpus {
			if m := x.dcgm(e, g, d, ids, less); m != nil {
				f.Metric = append(f.Metric, m)
			}
		}
		if len(f.Metric) > 0 {
			x.out = append(x.out, f)
		}
	}
}

// dcgm is one of their series, nil where the device does not have all that it
// is made from.
func (x *exposition) dcgm(e *Exporter, g *gpu, d *telemetry.DCGMFamily, ids []telemetry.ID, less int) *dto.Metric {
	if !g.up || !g.known {
		return nil
	}
	m := &dto.Metric{}
	pair := func(name, value string) {
		m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &value})
	}
	index, sum := strconv.Itoa(g.id.Index), 0.0
	for i, id := range ids {
		if id == telemetry.GPUXidErrors {
			code := e.events.lastXid(g.uuid)
			sum = float64(code)
			what := "none"
			if code != 0 {
				what = xidOf(code).what
			}
			pair("err_code", strconv.Itoa(code))
			pair("err_msg", what)
			continue
		}
		v, ok := g.value(int(slotOf[id]))
		if !ok {
			return nil
		}
		if i >= len(ids)-less {
			v = -v
		}
		sum += v
	}
	pair("gpu", index)
	pair("UUID", g.uuid)
	pair("pci_bus_id", g.id.PCI)
	pair("device", "nvidia"+index)
	pair("modelName", g.id.Model)
	pair("Hostname", x.node)
	pair("DCGM_FI_DRIVER_VERSION", e.state.info.Version)
	slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	v := sum / d.Unit
	if d.Type == telemetry.Counter {
		m.Counter = &dto.Counter{Value: &v}
	} else {
		m.Gauge = &dto.Gauge{Value: &v}
	}
	return m
}

// lastXid is the last Xid of a GPU, 0 for none.
func (v *events) lastXid(uuid string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	code, last := 0, uint64(0)
	for i := range v.xids {
		if c := &v.xids[i]; c.uuid == uuid && c.last > last {
			code, last = c.seen, c.last
		}
	}
	return code
}
