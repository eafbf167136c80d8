package exporter

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// beside is a SampleSource that tells what it is given.
type beside []besideSample

type besideSample struct {
	id     telemetry.ID
	uuid   string
	v      float64
	labels []string
}

func (b beside) Samples(put func(id telemetry.ID, uuid string, v float64, labels ...string)) {
	for _, s := range b {
		put(s.id, s.uuid, s.v, append([]string(nil), s.labels...)...)
	}
}

// attributed is what attribution tells of a device.
func attributed(uuid string) beside {
	return beside{
		{telemetry.GPUAllocationInfo, uuid, 1, []string{"", "pod", "ml/train-0/main", "ml"}},
		{telemetry.GPUAllocations, uuid, 1, nil},
		{telemetry.GPUUseState, uuid, 1, []string{"allocated_used"}},
		{telemetry.GPUSharedBy, uuid, 1, nil},
		{telemetry.GPUSharingInfo, uuid, 1, []string{"exclusive"}},
		{telemetry.ProcessMemberInfo, uuid, 1, []string{"4711.0", "step", "slurm:4711", "alice", "train", "", ""}},
		{telemetry.NodeAttributionAge, "", 3, []string{"kubelet"}},
		{telemetry.NodeAttributionUnmatched, "", 0, []string{"kubelet"}},
	}
}

func startBeside(t *testing.T, w *world, b beside) (*Exporter, *recorder) {
	t.Helper()
	sink := &recorder{t: t}
	e, err := New(Options{Node: "node-1", Cluster: "lab", Source: w, Sink: sink, Samples: []SampleSource{b}})
	if err != nil {
		t.Fatal(err)
	}
	return e, runs(t, e, sink)
}

// A job's name is whatever its user likes: what could break the frame, the
// exposition or a terminal is replaced, and the devices' values go on. What is
// not as the catalogue has it is refused and counted.
func TestHostileNamesCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		uuid := w.gpus[0].id.UUID
		e, sink := startBeside(t, w, beside{
			{telemetry.ProcessMemberInfo, uuid, 1, []string{"7.0", "step", "slurm:7", "bob", "a\"} 1\ngpu_up 0\x1b[31m\xff", "", strings.Repeat("ü", 4000)}},
			{telemetry.GPUAllocationInfo, uuid, 1, []string{"", "step", "8\xc3\x28", "bob\n"}},
			{telemetry.GPUPowerWatts, uuid, 999, nil},
			{telemetry.GPUPowerWatts, "AMD-1", 250, nil},
			{telemetry.GPUSharedBy, uuid, math.NaN(), nil},
			{telemetry.GPUSharedBy, uuid, -1, nil},
			{telemetry.GPUUseState, uuid, 1, nil},                        // a label is missing
			{telemetry.GPUUseState, "", 1, []string{"free"}},             // of no device
			{telemetry.GPUHealth, uuid, 1, []string{"sound"}},            // the collector's to say
			{telemetry.ID(99999), uuid, 1, nil},                          // unknown
			{telemetry.NodeAttributionAge, uuid, 1, []string{"kubelet"}}, // not a device's
		})
		ticks(3)
		if v, ok := series(t, e, `gpu_power_watts{node="node-1",uuid="`+uuid+`"}`); ok && v == 999 {
			t.Error("another's word on a device goes before the driver's")
		}
		if v, ok := series(t, e, `gpu_power_watts{node="node-1",uuid="AMD-1"}`); !ok || v != 250 {
			t.Errorf("a device without NVML draws %v, %v", v, ok)
		}
		var told int
		for _, frame := range sink.all() {
			if len(frame.GetGpus()) != 1 {
				t.Errorf("a frame of %d GPUs", len(frame.GetGpus()))
			}
			for _, s := range frame.GetSamples() {
				for _, l := range s.GetLabels() {
					if !utf8.ValidString(l) || len(l) > maxLabel || strings.ContainsAny(l, "\n\x1b") {
						t.Errorf("label %q", l)
					}
				}
				if s.GetId() == uint32(telemetry.GPUAllocationInfo) {
					told++
				}
				if id := telemetry.ID(s.GetId()); id == telemetry.ProcessMemberInfo || id == telemetry.GPUPowerWatts {
					t.Errorf("%d is in the frame", id)
				}
			}
		}
		if told == 0 {
			t.Error("no frame tells of the allocation")
		}
		if up, ok := series(t, e, `gpu_up{node="node-1",uuid="`+uuid+`"}`); !ok || up != 1 {
			t.Errorf("gpu_up is %v, %v", up, ok)
		}
		if n, ok := series(t, e, "evenkeel_samples_refused_total"); !ok || n < 7 {
			t.Errorf("%v refused, want 7 at least", n)
		}
		_, text := get(t, e.Handler(), "/metrics")
		if !strings.Contains(text, `name="a\"} 1?gpu_up 0?[31m?"`) || strings.Contains(text, "\ngpu_up 0") {
			t.Errorf("the name is not told as text:\n%s", text)
		}
	})
}

func TestCleanLabelIsAlwaysALabel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got := CleanLabel(string(rapid.SliceOf(rapid.Byte()).Draw(t, "text")))
		if !utf8.ValidString(got) || len(got) > maxLabel || CleanLabel(got) != got {
			t.Fatalf("%q", got)
		}
	})
}
