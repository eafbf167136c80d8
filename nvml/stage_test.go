//go:build cgo && linux

package nvml

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// place is where a field lies in the world file.
type place struct{ at, size int64 }

// stage is a world that moves only as a test says.
type stage struct {
	t    testing.TB
	file *os.File
	at   map[string]place
}

func openStage(t testing.TB, path string) *stage {
	t.Helper()
	tool := os.Getenv("EVENKEEL_TEST_POKE")
	if tool == "" {
		tool = pokeTool(t)
	}
	out, err := exec.Command(tool, path, "layout").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, at: map[string]place{}}
	for line := range strings.Lines(string(out)) {
		var name string
		var p place
		if _, err := fmt.Sscan(line, &name, &p.at, &p.size); err != nil {
			t.Fatalf("layout %q: %v", line, err)
		}
		s.at[name] = p
	}
	if s.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.file.Close() })
	return s
}

func (s *stage) write(at int64, b []byte) {
	if _, err := s.file.WriteAt(b, at); err != nil {
		s.t.Fatal(err)
	}
}

// beat has the driver loaded or not: a heartbeat of the far future never grows
// old.
func (s *stage) beat(loaded bool) {
	at := uint64(0)
	if loaded {
		at = 1 << 62
	}
	s.write(s.at["heartbeat"].at, binary.NativeEndian.AppendUint64(nil, at))
}

func (s *stage) of(gpu int, field string) place {
	p, ok := s.at[field]
	if !ok {
		s.t.Fatalf("the world file has no %s", field)
	}
	p.at += int64(gpu) * s.at["stride"].at
	return p
}

// set gives every word of a field a value.
func (s *stage) set(gpu int, field string, v uint64) {
	p := s.of(gpu, field)
	if p.size == 4 {
		s.write(p.at, binary.NativeEndian.AppendUint32(nil, uint32(v)))
		return
	}
	s.write(p.at, bytes.Repeat(binary.NativeEndian.AppendUint64(nil, v), int(p.size/8)))
}

// counts are the driver's own counters.
var counts = []string{
	"energy_mj", "throttle_ns", "pcie_tx_bytes", "pcie_rx_bytes", "pcie_replays", "nvlink_tx_bytes", "nvlink_rx_bytes", "nvlink_errors",
	"ecc_corrected_volatile", "ecc_corrected_aggregate", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate",
	"remapped_correctable", "remapped_uncorrectable",
}

// quiet is a Source without its events: who waits for one in the driver's
// library holds the test's clock.
type quiet struct{ exporter.Source }

// incarnation is an exporter that runs on the test's clock.
type incarnation struct {
	*exporter.Exporter
	stop func()
}

func begin(t testing.TB) incarnation {
	e, err := exporter.New(exporter.Options{Node: "n", Source: quiet{New()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	return incarnation{e, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}}
}

func pass(ticks int) {
	time.Sleep(time.Duration(ticks) * time.Second)
	synctest.Wait()
}

// inChild runs a test in a process of its own, as it has the one library and
// the one world, and says whether this is that process.
func inChild(t *testing.T, args ...string) bool {
	t.Helper()
	const child = "EVENKEEL_NVML_TEST_CHILD"
	if os.Getenv(child) != "" {
		return true
	}
	path := stand(t, h100)
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^" + t.Name() + "$", "-test.count=1", "-test.v"}, args...)...)
	cmd.Env = append(os.Environ(), child+"=1", LibraryEnv+"="+standin(t), "EVENKEEL_STANDIN_SHM="+path, "EVENKEEL_TEST_POKE="+pokeTool(t))
	timer := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// counters is what the counters of an exposition came to.
type counters map[string]float64

// take returns the counters of now.
func take(t testing.TB, p incarnation) counters {
	families, err := p.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := counters{}
	for _, f := range families {
		if f.GetType() != dto.MetricType_COUNTER {
			continue
		}
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += "," + l.GetName() + "=" + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue()
		}
	}
	return out
}

// Whatever becomes of devices, driver and process, a counter falls only with a
// new process, and counts nothing twice.
func TestCountersNeverFall(t *testing.T) {
	t.Parallel()
	if !inChild(t, "-rapid.checks=25", "-rapid.nofailfile") {
		return
	}
	s := openStage(t, os.Getenv("EVENKEEL_STANDIN_SHM"))
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			what:  rapid.SampledFrom(acts).Draw(rt, "what"),
			gpu:   rapid.IntRange(0, gpus-1).Draw(rt, "gpu"),
			ticks: rapid.IntRange(1, 40).Draw(rt, "ticks"),
			n:     rapid.Uint64Range(0, 1<<20).Draw(rt, "n"),
		}
	}), 3, 10)
	rapid.Check(t, func(rt *rapid.T) {
		plan := steps.Draw(rt, "steps")
		var err error
		synctest.Test(t, func(t *testing.T) { err = storm(t, s, plan) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

const (
	gpus                = 2
	lostCode, resetCode = 15, 16
)

// step is something that happens, to a GPU or all, and the ticks it takes.
type step struct {
	what  string
	gpu   int
	ticks int
	n     uint64
}

var acts = []string{"grow", "lost and back", "reset", "reset unseen", "driver reload", "restart", "one wrong reading"}

// storm is one life of two GPUs; it says which counter lied.
func storm(t *testing.T, s *stage, plan []step) error {
	var raw [gpus]uint64
	set := func(gpu int, v uint64) {
		raw[gpu] = v
		for _, c := range counts {
			s.set(gpu, c, v)
		}
	}
	s.beat(true)
	for gpu := range gpus {
		s.set(gpu, "forced_code", 0)
		set(gpu, 1_000_000)
	}
	p := begin(t)
	defer func() { p.stop() }()
	pass(20)
	first, last, grown := take(t, p), take(t, p), 0.0 // of every raw counter, since first
	var lies []error
	check := func(after string) {
		now := take(t, p)
		for key, v := range now {
			if was, known := last[key]; known && v < was {
				lies = append(lies, fmt.Errorf("after %s %s fell from %v to %v", after, key, was, v))
			}
			if was, known := first[key]; known && strings.HasPrefix(key, "gpu_energy_joules_total") && v-was > grown*1e-3+1e-6 {
				lies = append(lies, fmt.Errorf("after %s %s grew by %v, the device's own by %v", after, key, v-was, grown*1e-3))
			}
		}
		for key := range last {
			if _, there := now[key]; !there {
				now[key] = last[key] // its device is down; it may not have fallen when it is back
			}
		}
		last = now
	}
	for _, x := range plan {
		switch x.what {
		case "grow":
			for i := range gpus {
				set(i, raw[i]+x.n)
			}
			grown += float64(x.n)
		case "lost and back":
			s.set(x.gpu, "forced_code", lostCode)
			pass(x.ticks)
			check("lost")
			s.set(x.gpu, "forced_code", 0)
		case "reset":
			s.set(x.gpu, "forced_code", resetCode)
			pass(x.ticks)
			set(x.gpu, 0)
			s.set(x.gpu, "forced_code", 0)
		case "reset unseen":
			set(x.gpu, 0)
		case "driver reload":
			s.beat(false)
			pass(x.ticks)
			check("unloaded")
			for i := range gpus {
				set(i, 0)
			}
			s.beat(true)
			pass(40)
		case "restart":
			p.stop()
			p = begin(t)
			pass(20)
			first, last, grown = take(t, p), take(t, p), 0
		case "one wrong reading":
			s.set(x.gpu, "energy_mj", raw[x.gpu]/2)
			pass(1)
			check("a wrong reading")
			s.set(x.gpu, "energy_mj", raw[x.gpu])
		}
		for range 3 {
			pass(1)
			check(x.what)
		}
		pass(x.ticks)
		check(x.what)
	}
	var seen []string
	for key := range last {
		name, _, _ := strings.Cut(key, ",")
		seen = append(seen, name)
	}
	slices.Sort(seen)
	if seen = slices.Compact(seen); len(seen) < 12 {
		lies = append(lies, fmt.Errorf("only %d counters are exposed: %v", len(seen), seen))
	}
	return errors.Join(lies...)
}
