package collector

import (
	"math"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What is judged is exposed with its words as labels, and ends when it no longer
// holds or nobody knows.
func TestJudgedSeries(t *testing.T) {
	w, s := newWorld(t, nil), newSender("a", 2)
	for _, g := range s.gpus {
		for id, v := range map[telemetry.ID]float64{
			telemetry.GPUUtilizationRatio: 0, telemetry.GPUMemoryUtilizationRatio: 0, telemetry.GPUNVLinkLinksExpected: 2,
			telemetry.GPUNVLinkTotalBytesTx: 1e12, telemetry.GPUNVLinkTotalBytesRx: 1e12, telemetry.GPUMemoryUsedBytes: 0,
		} {
			g.SetValue(id, v)
		}
		for link := range 2 {
			g.SetLinkValue(telemetry.LinkNVLinkUp, link, 1)
			g.SetLinkValue(telemetry.LinkNVLinkErrorsReplay, link, 0)
		}
	}
	shared := s.gpus[1]
	shared.SetMembers([]*telemetry.Member{telemetry.Member_builder{Id: "1"}.Build(), telemetry.Member_builder{Id: "2"}.Build()})
	shared.SetValue(telemetry.GPUUtilizationRatio, 1)
	at, second := t0, 0
	run := func(seconds int, io float64) {
		for range seconds {
			shared.SetValue(telemetry.GPUNVLinkTotalBytesTx, 1e12+float64(second)*10e9)
			shared.SetLinkValue(telemetry.LinkNVLinkErrorsReplay, 1, float64(second*4))
			shared.SetValue(telemetry.GPUThermalHeadroomCelsius, 100-float64(second)/2)
			w.send(at, s, func(f *telemetry.Frame) {
				f.SetHasLinkPart(true)
				f.SetSamples([]*telemetry.Sample{
					telemetry.Sample_builder{Id: uint32(telemetry.NodeReaderSuccess), Value: 1, Labels: []string{"members"}}.Build(),
					telemetry.Sample_builder{Id: uint32(telemetry.NodeHostPressureRatio), Value: io, Labels: []string{"io"}}.Build(),
				})
			})
			at, second = at.Add(time.Second), second+1
		}
	}
	check := func(name string, want float64, labels ...string) {
		t.Helper()
		_, body := w.get("/metrics")
		got, ok := value(t, parse(t, body), name, labels...)
		if ok == math.IsNaN(want) || ok && math.Abs(got-want) > 0.02*math.Abs(want)+1e-9 {
			t.Errorf("%s%v = %g (%v), want %g", name, labels, got, ok, want)
		}
	}
	run(61, 0.9)
	check("gpu_idle_seconds", 59, "uuid", "GPU-a-0", "cause", "no_process")
	check("gpu_idle_seconds", math.NaN(), "uuid", "GPU-a-1")
	check("gpu_contention_ratio", 1, "uuid", "GPU-a-1", "kind", "noisy_neighbour")
	check("gpu_contention_ratio", math.NaN(), "uuid", "GPU-a-0")
	check("gpu_nvlink_saturation_ratio", 10/(2*26.5625), "uuid", "GPU-a-1")
	check("gpu_nvlink_errors_per_second", 4, "uuid", "GPU-a-1")
	check("gpu_nvlink_links_up", 2, "uuid", "GPU-a-0")
	check("gpu_thermal_headroom_slope_celsius_per_second", -0.5, "uuid", "GPU-a-1")
	check("gpu_time_to_slowdown_seconds", 140, "uuid", "GPU-a-1")
	check("gpu_health_score", 0.7, "uuid", "GPU-a-1") // replays
	check("node_host_verdict", 1, "verdict", "storage_stalled")
	check("node_host_verdict", math.NaN(), "verdict", "cpu_starved") // not known
	run(30, 0.1)
	check("node_host_verdict", 0, "verdict", "storage_stalled")
	s.gpus[0].ClearValue(telemetry.GPUMemoryUtilizationRatio)
	run(5, 0.1)
	check("gpu_idle_seconds", math.NaN(), "uuid", "GPU-a-0")
	// Frames cease: what was judged of them ends with the values.
	w.clock.set(at.Add(5 * time.Second))
	for _, name := range []string{"gpu_contention_ratio", "gpu_nvlink_saturation_ratio", "gpu_thermal_headroom_slope_celsius_per_second"} {
		check(name, math.NaN(), "uuid", "GPU-a-1")
	}
}
