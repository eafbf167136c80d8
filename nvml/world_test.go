//go:build cgo && linux

package nvml

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const quick = `
name: quick
seed: 5
physics: {time_constant: 700ms, resistance_spread: 0}
rows: [{name: a, inlet_celsius: 25}]
nodes: [{name: n, row: a, model: %s, gpus: 4}]
jobs: [{name: j, kind: proc, owner: o, shape: tensor-parallel, gpus: [n/0-2], memory_gib: 8}]
`

const h100 = "H100-SXM5-80GB"

// serve shows a world until the test ends or stop.
func serve(t *testing.T, model, events string) (path string, stop func()) {
	t.Helper()
	scenario, err := sim.ParseScenario([]byte(fmt.Sprintf(quick, model) + events))
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "world")
	return path, serveAt(t, scenario, path)
}

func serveAt(t *testing.T, scenario *sim.Scenario, path string) func() {
	t.Helper()
	return serveWorld(t, sim.ServeConfig{Scenario: scenario, Path: path})
}

func serveWorld(t *testing.T, c sim.ServeConfig) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sim.Serve(ctx, c) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(c.Path); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Error("the world is not served")
			return cancel
		}
	}
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

type limits struct {
	Step   string
	Limits telemetry.PowerLimits
	Fault  exporter.Fault
	Code   int
}

func helpWrite(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	uuid, device := found[2].UUID, found[2].Device
	w := NewWriter()
	if err := w.Open(); err != nil {
		return err
	}
	say := func(step string, err error) error {
		l := limits{Step: step, Fault: exporter.FaultOf(err)}
		var d *exporter.DriverError
		if errors.As(err, &d) {
			l.Code = d.Code
		}
		if l.Limits, err = w.PowerLimits(uuid); err != nil {
			return err
		}
		return out.Encode(l)
	}
	if err := say("start", nil); err != nil {
		return err
	}
	for _, x := range []struct {
		step  string
		uuid  string
		watts float64
	}{
		{"set", uuid, 350}, {"too low", uuid, 100}, {"too high", uuid, 701}, {"nonsense", uuid, -5}, {"unknown", "GPU-none", 350},
	} {
		if err := say(x.step, w.SetPowerLimit(x.uuid, x.watts)); err != nil {
			return err
		}
	}
	if os.Getenv("EVENKEEL_TEST_DENIED") != "" {
		return nil // nothing follows from what was refused
	}
	// The reader sees it, and the world follows.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		current, _, _, _, err := device.PowerLimits()
		if err != nil {
			return err
		}
		watts, err := device.Power()
		if err != nil {
			return err
		}
		if current == 350 && watts < 360 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("limit %g W, power %g W after 20 s", current, watts)
		}
	}
	return errors.Join(w.Close(), s.Close())
}

func TestWriter(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	list := help[limits](t, "write", standin(t), path)
	want := map[string]limits{
		"start":    {Limits: telemetry.PowerLimits{Current: 700}},
		"set":      {Limits: telemetry.PowerLimits{Current: 350}},
		"too low":  {Limits: telemetry.PowerLimits{Current: 350}, Fault: exporter.OtherFault, Code: 2},
		"too high": {Limits: telemetry.PowerLimits{Current: 350}, Fault: exporter.OtherFault, Code: 2},
		"nonsense": {Limits: telemetry.PowerLimits{Current: 350}, Fault: exporter.OtherFault},
		"unknown":  {Limits: telemetry.PowerLimits{Current: 350}, Fault: exporter.OtherFault, Code: 6},
	}
	if len(list) != len(want) {
		t.Fatalf("%d steps", len(list))
	}
	for _, l := range list {
		w := want[l.Step]
		w.Step, w.Limits.Default, w.Limits.Min, w.Limits.Max = l.Step, 700, 200, 700
		if l != w {
			t.Errorf("%s: %+v, want %+v", l.Step, l, w)
		}
	}
}

func TestWriterNeedsPermission(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "events: [{at: 0s, gpu: n/2, fault: denied}]\n")
	time.Sleep(200 * time.Millisecond)
	list := help[limits](t, "write", standin(t), path, "EVENKEEL_TEST_DENIED=1")
	if l := list[1]; l.Step != "set" || l.Fault != exporter.NoPermission || l.Limits.Current != 700 {
		t.Errorf("set: %+v", l)
	}
}

// headrooms are what a Writer reads, and what follows from single readings.
type headrooms struct {
	Celsius, Core, Memory float64 // NaN travels as -1000
	Fault                 exporter.Fault
}

func helpHeadroom(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	w := NewWriter()
	if err := w.Open(); err != nil {
		return err
	}
	or := func(v float64, err error) float64 {
		if err != nil {
			return -1000
		}
		return v
	}
	for i, uuid := range strings.Fields(os.Getenv("EVENKEEL_TEST_UUIDS")) {
		f := found[i]
		h := headrooms{Core: -1000, Memory: -1000}
		h.Celsius, err = w.Headroom(uuid)
		h.Celsius, h.Fault = or(h.Celsius, err), exporter.FaultOf(err)
		if f.Device != nil {
			d := f.Device
			if c, err := d.Temperature(); err == nil {
				limit, err := d.SlowdownThreshold()
				h.Core = or(limit-c, err)
			}
			memory := []exporter.Field{{ID: exporter.FieldMemoryTemperature}}
			if err := d.Fields(memory); err == nil && memory[0].Err == nil {
				limit, err := d.(exporter.MemoryThresholder).MemoryThreshold()
				h.Memory = or(limit-memory[0].Value, err)
			}
		}
		if err := out.Encode(h); err != nil {
			return err
		}
	}
	if _, err := w.Headroom("GPU-none"); err == nil {
		return errors.New("a GPU that is not there has a headroom")
	}
	return errors.Join(w.Close(), s.Close())
}

// uuidsOf are the names of the quick world's GPUs; the driver does not tell
// that of a lost one.
func uuidsOf(t *testing.T, model string) (uuids []string) {
	t.Helper()
	scenario, err := sim.ParseScenario([]byte(fmt.Sprintf(quick, model)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := sim.New(scenario, 0)
	if err != nil {
		t.Fatal(err)
	}
	list, err := w.ReadNode("n", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		uuids = append(uuids, r.UUID)
	}
	return uuids
}

// TestWriterHeadroom: on both thermal models the Writer reads what single
// readings of the driver come to; what is blank or lost is an error.
func TestWriterHeadroom(t *testing.T) {
	t.Parallel()
	for _, model := range []string{h100, "A100-SXM4-80GB", "T4-16GB"} {
		const events = "events: [{at: 0s, gpu: n/1, fault: blank}, {at: 0s, gpu: n/2, fault: lost}]\n"
		path, stop := serve(t, model, events)
		time.Sleep(200 * time.Millisecond)
		list := help[headrooms](t, "headroom", standin(t), path, "EVENKEEL_TEST_UUIDS="+strings.Join(uuidsOf(t, model), " "))
		stop()
		if len(list) != 4 {
			t.Fatalf("%s: %d GPUs", model, len(list))
		}
		for i, want := range []exporter.Fault{"", exporter.Unsupported, exporter.Lost, ""} {
			h := list[i]
			if h.Fault != want {
				t.Errorf("%s: GPU %d: %+v, want fault %q", model, i, h, want)
			}
			near := h.Core
			if h.Memory > -1000 {
				near = min(near, h.Memory)
			}
			// The world goes on between two readings.
			if want == "" && (h.Core == -1000 || h.Celsius < near-3 || h.Celsius > near+3) {
				t.Errorf("%s: GPU %d: %+v, want about %g", model, i, h, near)
			}
		}
	}
}

// tick is what a frame says of each GPU.
type tick struct {
	Fault string
	GPUs  []struct {
		UUID   string
		Up     bool
		Lost   bool
		Hung   string
		AgeMs  uint32
		Watts  float64
		Joules float64
	}
	Calls uint64
	// Of the first tick in which a GPU has hung for long and another is lost.
	Metrics string
}

type ticks struct {
	e    *exporter.Exporter
	told bool
	src  *Source
	out  *json.Encoder
	left int
	end  func()
	err  error
}

func (s *ticks) Frame(data []byte) error {
	var f telemetry.Frame
	if s.err = telemetry.DecodeFrame(data, &f); s.err != nil {
		s.end()
		return s.err
	}
	x := tick{Fault: f.GetDriverFault(), Calls: s.src.Calls()}
	for _, g := range f.GetGpus() {
		watts, _ := g.Value(telemetry.GPUPowerWatts)
		joules, _ := g.Value(telemetry.GPUEnergyJoules)
		x.GPUs = append(x.GPUs, struct {
			UUID   string
			Up     bool
			Lost   bool
			Hung   string
			AgeMs  uint32
			Watts  float64
			Joules float64
		}{g.GetUuid(), g.GetUp() == 1, g.GetLost(), g.GetHung().GetCall(), g.GetFastAgeMs(), watts, joules})
	}
	s.sick(&f, &x)
	if s.err = s.out.Encode(x); s.err != nil {
		s.end()
	}
	if s.left--; s.left == 0 {
		s.end()
	}
	return s.err
}

// sick adds what /metrics says once two GPUs are.
func (s *ticks) sick(f *telemetry.Frame, x *tick) {
	hung, lost := false, false
	for _, g := range f.GetGpus() {
		hung = hung || g.GetHung().GetForMs() > 1000
		lost = lost || g.GetLost()
	}
	if s.told || !hung || !lost {
		return
	}
	s.told = true
	rec := httptest.NewRecorder()
	s.e.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	x.Metrics = rec.Body.String()
}

// helpExport runs the exporter at ten ticks a second.
func helpExport(out *json.Encoder) error {
	src := New()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sink := &ticks{src: src, out: out, left: 60, end: cancel}
	if os.Getenv("EVENKEEL_TEST_LONG") != "" {
		sink.left = 150
	}
	e, err := exporter.New(exporter.Options{Node: "n", Source: src, Sink: sink, Period: exporter.MinPeriod})
	if err != nil {
		return err
	}
	sink.e = e
	return errors.Join(e.Run(ctx), sink.err)
}

// Through the real library interface, eight GPUs: one hangs, one is lost. The
// other six have no gap over one tick, and /metrics names both.
func TestFaultIsolationOverTheLibrary(t *testing.T) {
	library := standin(t) // before the world's clock runs
	eight := strings.Replace(fmt.Sprintf(quick, h100), "gpus: 4", "gpus: 8", 1)
	scenario, err := sim.ParseScenario([]byte(eight + "events: [{at: 3s, for: 3s, gpu: n/1, fault: hung}, {at: 3s, for: 3s, gpu: n/3, fault: lost}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "world")
	serveAt(t, scenario, path)
	list := help[tick](t, "export", library, path, "EVENKEEL_TEST_LONG=1")
	hung, lost, metrics := 0, 0, ""
	var missed [8]int // ticks in a row
	for i, x := range list {
		if x.Fault != "" && i > 12 {
			t.Errorf("tick %d: driver fault %q", i, x.Fault)
		}
		if metrics += x.Metrics; len(x.GPUs) != 8 {
			continue
		}
		for n, g := range x.GPUs {
			// A tick of a loaded machine may be late; a GPU that waits for
			// another would miss thirty.
			if missed[n]++; g.Up && g.AgeMs <= 100 {
				missed[n] = 0
			}
			if n != 1 && n != 3 && missed[n] > 1 {
				t.Errorf("tick %d: GPU %d has nothing new since %d ticks", i, n, missed[n])
			}
		}
		if g := x.GPUs[1]; g.Hung != "" {
			if hung++; !strings.HasPrefix(g.Hung, "nvml") {
				t.Errorf("tick %d: hung in %q", i, g.Hung)
			}
		}
		if x.GPUs[3].Lost {
			lost++
		}
	}
	if hung < 15 || lost < 15 {
		t.Errorf("hung in %d ticks and lost in %d, want about 30", hung, lost)
	}
	last := list[len(list)-1].GPUs
	for n, g := range last {
		if !g.Up || g.Hung != "" || g.Lost {
			t.Errorf("GPU %d is not back: %+v", n, g)
		}
		up, fault := 1, ""
		switch n {
		case 1:
			up, fault = 0, "hung"
		case 3:
			up, fault = 0, "lost"
		}
		if s := fmt.Sprintf("gpu_up{node=%q,uuid=%q} %d\n", "n", g.UUID, up); !strings.Contains(metrics, s) {
			t.Errorf("GPU %d: no %s", n, s)
		}
		if s := fmt.Sprintf("gpu_reader_failing{fault=%q,node=%q,reader=%q,uuid=%q} 1\n", fault, "n", "power", g.UUID); strings.Contains(metrics, s) != (fault != "") {
			t.Errorf("GPU %d: no %s", n, s)
		}
	}
}

// At most 15 driver calls a GPU and fast tick, counted at the library.
func TestDriverCallsOverTheLibrary(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	list := help[tick](t, "export", standin(t), path)
	least := uint64(1 << 60)
	for i := 1; i < len(list); i++ {
		if len(list[i].GPUs) == 4 && len(list[i-1].GPUs) == 4 {
			least = min(least, list[i].Calls-list[i-1].Calls)
		}
	}
	if least == 0 || least > 4*15 {
		t.Errorf("%d driver calls a tick for 4 GPUs, at most 60", least)
	}
	t.Logf("%d driver calls a tick for 4 GPUs", least)
}

// The driver is not there, comes, goes and comes again; the exporter follows
// without a restart.
func TestDriverGoesAndComes(t *testing.T) {
	t.Parallel()
	scenario, err := sim.ParseScenario(fmt.Appendf(nil, quick, h100))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "world")
	go func() {
		time.Sleep(time.Second)
		stop := serveAt(t, scenario, path)
		time.Sleep(4 * time.Second)
		stop()
		time.Sleep(3 * time.Second)
		serveAt(t, scenario, path)
	}()
	var states []string
	for _, x := range help[tick](t, "export", standin(t), path, "EVENKEEL_TEST_LONG=1") {
		if n := len(states); n == 0 || states[n-1] != x.Fault {
			states = append(states, x.Fault)
		}
	}
	if got := strings.Join(states, ","); got != "not_loaded,,not_loaded," && got != "not_initialized,not_loaded,,not_loaded," {
		t.Errorf("driver states %q", got)
	}
}

// helpUnplug looks a device up that is lost.
func helpUnplug(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		again, err := s.Devices()
		if err != nil {
			return err
		}
		if f := again[3]; f.Err != nil {
			return out.Encode(map[string]any{
				"fault": exporter.FaultOf(f.Err), "same": f.UUID == found[3].UUID && f.PCI == found[3].PCI && f.UUID != "",
				"others": again[0].Err == nil && again[0].Device == found[0].Device,
			})
		}
		if time.Now().After(deadline) {
			return errors.New("the GPU is not lost after 20 s")
		}
	}
}

// A GPU that is lost keeps the name it was known by.
func TestLostGPUKeepsItsName(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "events: [{at: 1s, gpu: n/3, fault: lost}]\n")
	got := help[map[string]any](t, "unplug", standin(t), path)[0]
	if got["fault"] != string(exporter.Lost) || got["same"] != true || got["others"] != true {
		t.Errorf("%v", got)
	}
}

// helpLookup opens a node one of whose GPUs hangs from the start.
func helpLookup(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	faults := []string{}
	for _, f := range found {
		faults = append(faults, string(exporter.FaultOf(f.Err)))
	}
	if exporter.FaultOf(s.Close()) != exporter.Hung {
		return errors.New("closed under a lookup")
	}
	return out.Encode(faults)
}

// A GPU that hangs in its lookup does not hide the others.
func TestHungLookup(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "events: [{at: 0s, for: 30s, gpu: n/1, fault: hung}]\n")
	time.Sleep(200 * time.Millisecond)
	got := help[[]string](t, "lookup", standin(t), path)[0]
	if strings.Join(got, ",") != ",hung,," {
		t.Errorf("lookups: %q", got)
	}
}

// helpExamine lets doctor look at the node.
func helpExamine(out *json.Encoder) error {
	var text bytes.Buffer
	severity, err := exporter.Doctor(context.Background(), New(), Facts(), &text)
	if err != nil {
		return err
	}
	return out.Encode(map[string]any{"severity": severity.String(), "text": text.String()})
}

// Products without a margin, a memory sensor or links say so and give no zeros.
func TestDoctorOverTheLibrary(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model, events, severity string
		says                    []string
	}{
		{h100, "", "ok", []string{"hopper", "driver calls a fast tick", "readers that work: utilization, busy, memory"}},
		{"T4-16GB", "", "ok", []string{"turing", "not on this device", "gpu_temperature_celsius{memory}"}},
		{h100, "events: [{at: 0s, gpu: n/1, fault: blank}]\n", "warning", []string{"not on this device: gpu_utilization_ratio", "others of this product have it"}},
		{h100, "events: [{at: 0s, gpu: n/1, fault: lost}]\n", "failure", []string{"gpu 1 nvmlDeviceGetHandleByIndex_v2: lost", "Xid 79"}},
		{h100, "events: [{at: 0s, gpu: n/1, fault: hung}]\n", "failure", []string{"gpu 1 no answer for 5.0 s: nvmlDeviceGetHandleByIndex_v2: hung"}},
	} {
		path, stop := serve(t, c.model, c.events)
		time.Sleep(200 * time.Millisecond)
		got := help[map[string]string](t, "examine", standin(t), path)[0]
		stop()
		if got["severity"] != c.severity {
			t.Errorf("%s %s: %s", c.model, c.events, got["severity"])
		}
		for _, s := range c.says {
			if !strings.Contains(strings.Join(strings.Fields(got["text"]), " "), s) {
				t.Errorf("%s %s: does not say %q:\n%s", c.model, c.events, s, got["text"])
			}
		}
	}
}
