//go:build cgo && linux

package nvml

import (
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// counterRow is a row of a counter file.
type counterRow struct {
	name string
	kind dto.MetricType
	lack string // products that have no such value, or all of them
}

// dcgmDefault is what stands in etc/default-counters.csv of dcgm-exporter
// 4.5.3-4.8.2 and is not commented out, without its one label.
var dcgmDefault = []counterRow{
	{"DCGM_FI_DEV_SM_CLOCK", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_MEM_CLOCK", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_MEMORY_TEMP", dto.MetricType_GAUGE, "l40s t4"},
	{"DCGM_FI_DEV_GPU_TEMP", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_POWER_USAGE", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", dto.MetricType_COUNTER, ""},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", dto.MetricType_COUNTER, ""},
	{"DCGM_FI_DEV_GPU_UTIL", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_ENC_UTIL", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_DEV_DEC_UTIL", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_DEV_XID_ERRORS", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_FB_FREE", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_FB_USED", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_FB_RESERVED", dto.MetricType_GAUGE, ""},
	{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", dto.MetricType_COUNTER, "l40s t4"},
	{"DCGM_FI_DEV_VGPU_LICENSE_STATUS", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", dto.MetricType_COUNTER, "t4"},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", dto.MetricType_COUNTER, "t4"},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", dto.MetricType_GAUGE, "t4"},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_PROF_DRAM_ACTIVE", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", dto.MetricType_GAUGE, "all"},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", dto.MetricType_GAUGE, "all"},
}

func parsed(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// Each family of dcgm-exporter's default counter file that the product can give
// is served with its type and labels, and the others are absent and named.
func TestDCGMCompatible(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if telemetry.DCGMVersion != "4.5.3-4.8.2" || len(telemetry.DCGMFamilies) != len(dcgmDefault) {
		t.Errorf("the table follows %s with %d families", telemetry.DCGMVersion, len(telemetry.DCGMFamilies))
	}
	labels := []string{"DCGM_FI_DRIVER_VERSION", "Hostname", "UUID", "device", "gpu", "modelName", "pci_bus_id"}
	for _, p := range products {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			families := parsed(t, exposition(t, p.model, "EVENKEEL_TEST_COMPAT=dcgm"))
			served := 0
			for _, want := range dcgmDefault {
				f := families[want.name]
				if lacks := p.model == "" || want.lack == "all" || slices.Contains(strings.Fields(want.lack), p.name); lacks {
					if f != nil {
						t.Errorf("%s is served: %v", want.name, f)
					}
					if want.lack == "all" && !strings.Contains(string(doc), "| `"+want.name+"` | gauge | not served: ") {
						t.Errorf("docs/metrics.md does not say that %s is not served", want.name)
					}
					continue
				}
				if f == nil || f.GetType() != want.kind || len(f.Metric) != 2 {
					t.Errorf("%s: %v", want.name, f)
					continue
				}
				served++
				has := slices.Clone(labels)
				if want.name == "DCGM_FI_DEV_XID_ERRORS" {
					has = append(has, "err_code", "err_msg")
				}
				slices.Sort(has)
				for i, m := range f.Metric {
					var names []string
					for _, l := range m.Label {
						names = append(names, l.GetName())
						if l.GetName() == "gpu" && l.GetValue() != []string{"0", "1"}[i] {
							t.Errorf("%s: gpu %s in place %d", want.name, l.GetValue(), i)
						}
					}
					slices.Sort(names)
					if !slices.Equal(names, has) {
						t.Errorf("%s has labels %v, want %v", want.name, names, has)
					}
				}
			}
			for name := range families {
				if strings.HasPrefix(name, "DCGM_") && !slices.ContainsFunc(dcgmDefault, func(d counterRow) bool { return d.name == name }) {
					t.Errorf("%s is not of the file", name)
				}
			}
			if p.model != "" && served < 12 {
				t.Errorf("%d families", served)
			}
		})
	}
}

// Their units: a value of theirs times its unit is ours.
func TestDCGMUnits(t *testing.T) {
	t.Parallel()
	families := parsed(t, exposition(t, h100, "EVENKEEL_TEST_COMPAT=dcgm"))
	// ours sums the series of the first GPU that have the label.
	ours := func(name, label, value string) (sum float64) {
		uuid := ""
		for _, m := range families["gpu_info"].GetMetric() {
			for _, l := range m.Label {
				if l.GetName() == "uuid" && uuid == "" {
					uuid = l.GetValue()
				}
			}
		}
		for _, m := range families[name].GetMetric() {
			mine, fits := false, label == ""
			for _, l := range m.Label {
				mine = mine || l.GetName() == "uuid" && l.GetValue() == uuid
				fits = fits || l.GetName() == label && l.GetValue() == value
			}
			if mine && fits {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return sum
	}
	free := families["DCGM_FI_DEV_FB_FREE"].GetMetric()[0].GetGauge().GetValue() * (1 << 20)
	if want := ours("gpu_memory_total_bytes", "", "") - ours("gpu_memory_used_bytes", "", "") - ours("gpu_memory_reserved_bytes", "", ""); free != want || free <= 0 {
		t.Errorf("%v bytes free, want %v", free, want)
	}
	for _, c := range []struct {
		theirs, name, label, value string
		unit                       float64
	}{
		{"DCGM_FI_DEV_SM_CLOCK", "gpu_clock_hertz", "domain", "sm", 1e6},
		{"DCGM_FI_DEV_MEM_CLOCK", "gpu_clock_hertz", "domain", "memory", 1e6},
		{"DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", "sensor", "core", 1},
		{"DCGM_FI_DEV_MEMORY_TEMP", "gpu_temperature_celsius", "sensor", "memory", 1},
		{"DCGM_FI_DEV_POWER_USAGE", "gpu_power_watts", "", "", 1},
		{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu_energy_joules_total", "", "", 1e-3},
		{"DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_ratio", "", "", 0.01},
		{"DCGM_FI_DEV_MEM_COPY_UTIL", "gpu_memory_utilization_ratio", "", "", 0.01},
		{"DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", "", "", 1 << 20},
		{"DCGM_FI_DEV_FB_RESERVED", "gpu_memory_reserved_bytes", "", "", 1 << 20},
		{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gpu_nvlink_total_bytes_total", "", "", 1_024_000},
	} {
		m := families[c.theirs].GetMetric()[0]
		got, want := (m.GetGauge().GetValue()+m.GetCounter().GetValue())*c.unit, ours(c.name, c.label, c.value)
		if want == 0 || got < want*(1-1e-9) || got > want*(1+1e-9) {
			t.Errorf("%s is %v of ours, which says %v", c.theirs, got, want)
		}
	}
}
