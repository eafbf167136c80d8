package exporter

import (
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Each series is one line that Telegraf reads, whatever its labels hold.
func TestLinesForTelegraf(t *testing.T) {
	name, label, value, empty := "gpu_power_watts", "name", `a job, b=c\`, ""
	gauge := func(v float64, labels ...*dto.LabelPair) *dto.Metric {
		return &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: &v}}
	}
	f := &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{
		gauge(250.5, &dto.LabelPair{Name: &label, Value: &value}),
		gauge(1, &dto.LabelPair{Name: &label, Value: &empty}),
		gauge(math.NaN()), gauge(math.Inf(1)), {},
	}}
	var out strings.Builder
	if err := WriteLines(&out, []*dto.MetricFamily{f}, time.Unix(1, 5)); err != nil {
		t.Fatal(err)
	}
	want := `prometheus,name=a\ job\,\ b\=c\? gpu_power_watts=250.5 1000000005` + "\n" + `prometheus gpu_power_watts=1 1000000005` + "\n"
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
