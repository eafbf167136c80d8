//go:build cgo && linux

package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// reading is all that a device says, by name; absent values are faults.
type reading struct {
	ID     exporter.Identity
	Values map[string]float64
	Faults map[string]exporter.Fault
	Driver exporter.Driver
	Calls  uint64
}

func readAll(d exporter.Device) reading {
	r := reading{ID: d.Identity(), Values: map[string]float64{}, Faults: map[string]exporter.Fault{}}
	put := func(name string, v float64, err error) {
		switch {
		case err != nil:
			r.Faults[name] = exporter.FaultOf(err)
		case !math.IsNaN(v):
			r.Values[name] = v
		}
	}
	gpu, mem, err := d.Utilization()
	put("util", gpu, err)
	put("mem_util", mem, err)
	used, total, err := d.Memory()
	put("used", float64(used), err)
	put("total", float64(total), err)
	for name, f := range map[string]func() (float64, error){
		"temp": d.Temperature, "margin": d.Margin, "slowdown": d.SlowdownThreshold, "power": d.Power,
		"mem_limit": d.(exporter.MemoryThresholder).MemoryThreshold,
	} {
		v, err := f()
		put(name, v, err)
	}
	current, def, low, high, err := d.PowerLimits()
	put("limit", current, err)
	put("default", def, err)
	put("min", low, err)
	put("max", high, err)
	for c, name := range []string{"sm", "memory", "graphics", "video"} {
		hz, err := d.Clock(exporter.Domain(c))
		put("clock_"+name, hz, err)
	}
	reasons, err := d.ThrottleReasons()
	put("reasons", float64(reasons), err)
	samples, err := d.BusySamples(0, nil)
	put("samples", float64(len(samples)), err)
	if err == nil && len(samples) > 0 {
		last := samples[len(samples)-1]
		put("last_sample", last.Value, nil)
		newer, err := d.BusySamples(last.Micros, nil)
		put("newer_samples", float64(len(newer)), err)
	}
	processes, err := d.(exporter.ProcessLister).Processes(nil)
	put("processes", float64(len(processes)), err)
	batch := []exporter.Field{
		{ID: exporter.FieldMemoryTemperature}, {ID: exporter.FieldEnergyMillijoules}, {ID: 190},
		{ID: exporter.FieldTLimitSlowdown}, {ID: exporter.FieldThrottlePowerNs}, {ID: 9999},
		{ID: exporter.FieldNVLinkTxKiB, Scope: exporter.AllLinks},
	}
	batchErr := d.Fields(batch)
	for _, f := range batch {
		put(fmt.Sprint("field", f.ID), f.Value, errors.Join(batchErr, f.Err))
	}
	return r
}

// opened opens a Source on the library that the environment names.
func opened() (*Source, []exporter.Found, error) {
	s := New()
	if err := s.Open(); err != nil {
		return nil, nil, err
	}
	found, err := s.Devices()
	return s, found, err
}

func helpDump(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	for _, f := range found {
		r := readAll(f.Device)
		if r.Driver, err = s.Driver(); err != nil {
			return err
		}
		r.Calls = s.Calls()
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	// The same devices are found again, by the same handles.
	again, err := s.Devices()
	if err != nil {
		return err
	}
	for i := range again {
		if again[i].Device != found[i].Device {
			return fmt.Errorf("device %d is another one after a second enumeration", i)
		}
	}
	return s.Close()
}

func TestStillWorld(t *testing.T) {
	list := help[reading](t, "dump", standin(t), "")
	if len(list) != 8 {
		t.Fatalf("%d devices", len(list))
	}
	for i, r := range list {
		n := float64(i)
		want := map[string]float64{
			"util": 0.90 + n/100, "mem_util": 0.40 + n/100, "used": (60 + n) * (1 << 30), "total": 81559 << 20,
			"temp": 60 + n, "margin": 27 - n, "slowdown": 89, "mem_limit": 95, "power": 500 + n,
			"limit": 700, "default": 700, "min": 200, "max": 700,
			"clock_sm": 1980e6, "clock_graphics": 1980e6, "clock_memory": 2619e6, "clock_video": 1545e6,
			"reasons": 0, "samples": 120, "last_sample": 0.90 + n/100, "newer_samples": 0, "processes": 0,
			"field82": 65 + n, "field83": 1e9 + n*1e6, "field190": 700e3, "field194": -2, "field74": 0,
			"field138": 18 * (300 + n) * (1 << 20), // KiB over all links
		}
		for name, v := range want {
			got, ok := r.Values[name]
			if !ok || math.Abs(got-v) > 1e-9*max(1, math.Abs(v)) {
				t.Errorf("GPU %d: %s = %v (%v), want %v", i, name, got, r.Faults[name], v)
			}
		}
		if len(r.Faults) != 1 || r.Faults["field9999"] != exporter.Unsupported {
			t.Errorf("GPU %d: faults %v", i, r.Faults)
		}
		id := exporter.Identity{
			UUID: fmt.Sprintf("GPU-5717a11d-0000-4000-8000-%012x", i), PCI: fmt.Sprintf("00000000:%02X:00.0", 0x18+i*0x14),
			Index: i, Model: "NVIDIA H100 80GB HBM3", Serial: fmt.Sprintf("16500230%05d", i), Arch: "hopper", Links: 18,
		}
		if r.ID != id {
			t.Errorf("GPU %d: %+v, want %+v", i, r.ID, id)
		}
		if d := r.Driver; d.Version != "580.95.05" || d.NVML != "13.580.95.05" || d.CUDA != "13.0" || len(d.Missing) != 0 {
			t.Errorf("driver %+v", d)
		}
		// 7 readings, 3 for the limits, 4 clocks, reasons, 2 times 2 for samples,
		// 3 lists of processes, a batch, and 3 for the driver.
		if i > 0 && r.Calls-list[i-1].Calls != 26 {
			t.Errorf("GPU %d: %d calls counted", i, r.Calls-list[i-1].Calls)
		}
	}
}

// helpLacking reads a device of a library that lacks every optional function.
func helpLacking(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	r := readAll(found[0].Device)
	if r.Driver, err = s.Driver(); err != nil {
		return err
	}
	w := NewWriter()
	if err := w.Open(); err != nil {
		return err
	}
	_, err = w.PowerLimits(found[0].UUID)
	r.Faults["writer"] = exporter.FaultOf(err)
	return out.Encode(r)
}

// A driver that lacks functions costs values and not the process.
func TestMissingFunctions(t *testing.T) {
	r := help[reading](t, "lacking", standin(t, names[:]...), "")[0]
	if len(r.Values) != 0 {
		t.Errorf("values from functions that are not there: %v", r.Values)
	}
	for name, f := range r.Faults {
		if want := exporter.MissingSymbol; f != want && !strings.Contains(name, "limit") && name != "default" && name != "min" && name != "max" {
			t.Errorf("%s: %s, want %s", name, f, want)
		}
	}
	if r.Faults["limit"] != exporter.Unsupported || r.Faults["writer"] != exporter.MissingSymbol {
		t.Errorf("limit %s, writer %s", r.Faults["limit"], r.Faults["writer"])
	}
	missing := slices.Clone(r.Driver.Missing)
	want := slices.Clone(names[:])
	slices.Sort(missing)
	slices.Sort(want)
	if !slices.Equal(missing, want) {
		t.Errorf("missing %v, want %v", missing, want)
	}
	if r.ID.UUID == "" || r.ID.PCI == "" || r.ID.Model != "" {
		t.Errorf("identity %+v", r.ID)
	}
}

func helpOpenOnce(out *json.Encoder) error {
	err := New().Open()
	return out.Encode(outcome(err))
}

type opening struct {
	Fault exporter.Fault
	Text  string
}

func outcome(err error) opening {
	if err == nil {
		return opening{}
	}
	return opening{exporter.FaultOf(err), err.Error()}
}

// A library without a function that is needed is refused, and which one is said.
func TestMandatoryFunctions(t *testing.T) {
	for _, name := range []string{"nvmlInit_v2", "nvmlDeviceGetPciInfo_v3"} {
		o := help[opening](t, "openonce", standin(t, name), "")[0]
		if o.Fault != exporter.MissingSymbol || !strings.Contains(o.Text, name) {
			t.Errorf("without %s: %+v", name, o)
		}
	}
}

// helpAppears opens where there is no library, then one too old, one of another
// version than the kernel driver, what is none, then a good one under the same
// name, in one process.
func helpAppears(out *json.Encoder) error {
	path := filepath.Join(os.Getenv("EVENKEEL_TEST_DIR"), "libnvidia-ml.so.1")
	s := New(WithLibraryPath(path))
	if err := out.Encode(outcome(s.Open())); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("close what was never open: %w", err)
	}
	for _, env := range []string{"EVENKEEL_TEST_OLD", "EVENKEEL_TEST_MISMATCH", "EVENKEEL_TEST_BROKEN", "EVENKEEL_TEST_GOOD"} {
		if err := install(os.Getenv(env), path); err != nil {
			return err
		}
		if err := out.Encode(outcome(s.Open())); err != nil {
			return err
		}
	}
	found, err := s.Devices()
	if err != nil || len(found) != 8 {
		return fmt.Errorf("%d devices: %w", len(found), err)
	}
	// Opened and closed again and again, as when the driver goes and comes.
	for range 3 {
		if err := errors.Join(s.Close(), s.Open()); err != nil {
			return err
		}
	}
	if found, err = s.Devices(); err != nil || found[7].Err != nil {
		return fmt.Errorf("after reopening: %v %w", found, err)
	}
	if _, err := found[7].Device.Power(); err != nil {
		return err
	}
	return s.Close()
}

func install(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.Create(to + ".new")
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	if err := dst.Close(); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// other builds a library whose functions all answer that the versions of library
// and kernel driver differ. Unlike the stand-in it can be unloaded, as the real
// one.
func other(t *testing.T, functions ...string) string {
	t.Helper()
	standin(t) // skips where there is no compiler
	dir := t.TempDir()
	var c strings.Builder
	for _, f := range functions {
		fmt.Fprintf(&c, "int %s(void) { return 18; }\n", f)
	}
	source, library := filepath.Join(dir, "other.c"), filepath.Join(dir, "other.so")
	if err := os.WriteFile(source, []byte(c.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return library
}

// A library that is installed or upgraded later is found without a restart.
func TestLibraryAppears(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("not a library"), 0o755); err != nil {
		t.Fatal(err)
	}
	list := help[opening](t, "appears", "", "",
		"EVENKEEL_TEST_DIR="+t.TempDir(), "EVENKEEL_TEST_OLD="+other(t, "nvmlShutdown"), "EVENKEEL_TEST_MISMATCH="+other(t, mandatory[:]...),
		"EVENKEEL_TEST_BROKEN="+broken, "EVENKEEL_TEST_GOOD="+standin(t))
	want := []exporter.Fault{exporter.NoLibrary, exporter.MissingSymbol, exporter.Mismatch, exporter.NoLibrary, ""}
	for i, o := range list {
		if o.Fault != want[i] {
			t.Errorf("attempt %d: %+v, want %q", i, o, want[i])
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d attempts", len(list))
	}
}

// helpTwo opens a Source and a Writer beside each other, closes one, and tries
// another library.
func helpTwo(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	w := NewWriter()
	if err := w.Open(); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if _, err := w.PowerLimits(found[0].UUID); err != nil {
		return fmt.Errorf("the writer after the source was closed: %w", err)
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err = w.PowerLimits(found[0].UUID)
	if err := out.Encode(outcome(err)); err != nil {
		return err
	}
	return out.Encode(outcome(New(WithLibraryPath(os.Getenv("EVENKEEL_TEST_OTHER"))).Open()))
}

func TestOneLibraryInAProcess(t *testing.T) {
	list := help[opening](t, "two", standin(t), "", "EVENKEEL_TEST_OTHER="+standin(t, "nvmlDeviceGetSerial"))
	if list[0].Fault != exporter.NotInitialized {
		t.Errorf("a call after the last close: %+v", list[0])
	}
	if !strings.Contains(list[1].Text, "cannot load") {
		t.Errorf("a second library: %+v", list[1])
	}
}

func TestNotOpen(t *testing.T) {
	s := New()
	if _, err := s.Devices(); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("Devices: %v", err)
	}
	if _, err := s.Driver(); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("Driver: %v", err)
	}
	if _, err := NewWriter().PowerLimits("GPU-1"); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("PowerLimits: %v", err)
	}
	if f := Facts(WithLibraryPath("/x")); !f.DriverAccess || f.Library != "/x" {
		t.Errorf("facts %+v", f)
	}
}
