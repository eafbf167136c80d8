package exporter

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// lineMeasurement is how Telegraf's own readers of Prometheus name what they
// read, so that its outputs give the metrics their names again.
const lineMeasurement = "prometheus"

// WriteLines writes families in Influx's line protocol, a line for each series,
// for Telegraf's inputs.execd.
func WriteLines(to io.Writer, families []*dto.MetricFamily, now time.Time) error {
	w := bufio.NewWriter(to)
	at := strconv.FormatInt(now.UnixNano(), 10)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			v, ok := lineValue(m)
			if !ok {
				continue // NaN is none of the protocol's numbers, a histogram none of ours
			}
			_, _ = w.WriteString(lineMeasurement)
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" { // an empty tag is an error of the protocol
					_, _ = w.WriteString("," + lineKey(l.GetName()) + "=" + lineKey(l.GetValue()))
				}
			}
			_, _ = w.WriteString(" " + lineKey(f.GetName()) + "=" + strconv.FormatFloat(v, 'g', -1, 64) + " " + at + "\n")
		}
	}
	return w.Flush()
}

func lineValue(m *dto.Metric) (v float64, ok bool) {
	switch {
	case m.Gauge != nil:
		v = m.GetGauge().GetValue()
	case m.Counter != nil:
		v = m.GetCounter().GetValue()
	default:
		return 0, false
	}
	return v, v-v == 0
}

var lineEscapes = strings.NewReplacer(",", `\,`, "=", `\=`, " ", `\ `, "\n", `\n`, "\t", `\ `)

// lineKey escapes a tag or a key. A backslash at its end would escape what
// follows.
func lineKey(s string) string {
	s = lineEscapes.Replace(s)
	if strings.HasSuffix(s, `\`) {
		s += "?"
	}
	return s
}
