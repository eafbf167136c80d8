//go:build cgo && linux

package nvml

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// poke writes into a world file, see testdata/poke.c.
func poke(t *testing.T, path string, args ...any) {
	t.Helper()
	tool := pokeTool(t)
	words := []string{path}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	if out, err := exec.Command(tool, words...).CombinedOutput(); err != nil {
		t.Fatalf("poke %v: %v\n%s", words, err, out)
	}
}

// frozen is a copy of a served world, a step after its beginning, that nobody
// runs: what is poked into it stays, be it about processes that there are not.
func frozen(t *testing.T, path string) string {
	t.Helper()
	const heartbeat = 8 // its place in the file, after the magic
	var first, data []byte
	for deadline := time.Now().Add(10 * time.Second); first == nil || bytes.Equal(data[heartbeat:heartbeat+8], first[heartbeat:heartbeat+8]); time.Sleep(5 * time.Millisecond) {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = data
		}
		if time.Now().After(deadline) {
			t.Fatal("the world does not move")
		}
	}
	binary.NativeEndian.PutUint64(data[heartbeat:], 1<<62)
	path += ".frozen"
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pokeTool(t testing.TB) string {
	t.Helper()
	standin(t) // skips where there is no compiler
	built.Lock()
	defer built.Unlock()
	tool := filepath.Join(built.dir, "poke")
	if built.libs["poke"] == "" {
		if out, err := exec.Command("cc", "-O1", "-Wall", "-Werror", "-I../sim/nvml/standin", "-o", tool, "testdata/poke.c").CombinedOutput(); err != nil {
			t.Fatalf("build poke: %v\n%s", err, out)
		}
		built.libs["poke"] = tool
	}
	return tool
}

// holders is what came of listing one GPU's processes.
type holders struct {
	List  []exporter.Process
	Fault exporter.Fault
	Calls uint64
}

func helpProcesses(out *json.Encoder) error {
	s, found, err := opened()
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.Device == nil {
			if err := out.Encode(holders{Fault: exporter.FaultOf(f.Err)}); err != nil {
				return err
			}
			continue
		}
		before := s.Calls()
		list, err := f.Device.(exporter.ProcessLister).Processes([]exporter.Process{{PID: 1}})
		if len(list) == 0 || list[0].PID != 1 {
			return fmt.Errorf("what was in the list is gone: %v", list)
		}
		if err := out.Encode(holders{list[1:], exporter.FaultOf(err), s.Calls() - before}); err != nil {
			return err
		}
	}
	return s.Close()
}

const (
	compute, graphics, mps = 1, 2, 3
	whole                  = exporter.NoInstance
)

// Every process of three lists is there once, in the order of the pids, through
// whichever version of the functions a driver has.
func TestProcesses(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "")
	path = frozen(t, path)
	for slot, p := range [][4]any{
		{compute, 900, 3 << 30, whole}, {compute, 70, 1 << 30, 2}, {compute, 500, uint64(1<<64 - 1), whole},
		{graphics, 900, 4 << 30, whole}, {graphics, 80, 5, whole},
		{mps, 600, 6, whole}, {mps, 601, 7, whole}, {mps, 500, 8, whole},
	} {
		poke(t, path, append([]any{"process", 1, 3 * slot}, p[:]...)...)
	}
	poke(t, path, "process", 2, 0, compute, 123, 9, whole)
	poke(t, path, "process", 3, 0, compute, 1<<30, 9, whole) // what a struct laid out otherwise may show
	two := []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"}
	one := slices.Concat(two, []string{"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v2"})
	for name, omit := range map[string][]string{"newest": nil, "version 2": two, "version 1": one} {
		list := help[holders](t, "processes", standin(t, omit...), path)
		instance := uint32(2)
		if name == "version 1" {
			instance = whole // it knows of none
		}
		want := []exporter.Process{
			{PID: 70, MemoryBytes: 1 << 30, Instance: instance}, {PID: 80, MemoryBytes: 5, Instance: whole}, {PID: 500, MemoryBytes: 8, Instance: whole},
			{PID: 600, MemoryBytes: 6, Instance: whole}, {PID: 601, MemoryBytes: 7, Instance: whole}, {PID: 900, MemoryBytes: 4 << 30, Instance: whole},
		}
		if h := list[1]; !slices.Equal(h.List, want) || h.Fault != "" || h.Calls != 6 {
			t.Errorf("%s: %+v, want %v in 6 calls", name, h, want)
		}
		if h := list[0]; len(h.List) != 0 || h.Fault != "" || h.Calls != 3 {
			t.Errorf("%s: nobody's GPU: %+v", name, h)
		}
		if h := list[2]; len(h.List) != 1 || h.List[0].PID != 123 || h.Calls != 3 {
			t.Errorf("%s: GPU of one process: %+v", name, h)
		}
		if h := list[3]; len(h.List) != 0 || h.Fault != exporter.OutOfRange {
			t.Errorf("%s: a pid that cannot be: %+v", name, h)
		}
	}
}

// A driver without one of the lists tells the others; one without any tells that
// it cannot.
func TestProcessListsThatAreMissing(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "events: [{at: 0s, gpu: n/3, fault: lost}]\n")
	path = frozen(t, path)
	poke(t, path, "process", 0, 0, compute, 41, 1, whole)
	poke(t, path, "process", 0, 1, mps, 42, 2, whole)
	var all, ofMPS []string
	for _, list := range processLists {
		for _, s := range list.versions {
			all = append(all, names[s])
			if strings.Contains(names[s], "MPS") {
				ofMPS = append(ofMPS, names[s])
			}
		}
	}
	if h := help[holders](t, "processes", standin(t, ofMPS...), path)[0]; len(h.List) != 1 || h.List[0].PID != 41 || h.Fault != "" {
		t.Errorf("without MPS: %+v", h)
	}
	list := help[holders](t, "processes", standin(t, all...), path)
	if h := list[0]; len(h.List) != 0 || h.Fault != exporter.MissingSymbol {
		t.Errorf("without lists: %+v", h)
	}
	if h := list[3]; h.Fault != exporter.Lost {
		t.Errorf("lost: %+v", h)
	}
}

// helpHolders asks a Writer who holds each device, as it finds them.
func helpHolders(out *json.Encoder) error {
	w := NewWriter()
	if err := w.Open(); err != nil {
		return err
	}
	if _, err := w.Holders("GPU-none"); exporter.FaultOf(err) != exporter.Lost {
		return fmt.Errorf("a device that is not there: %w", err)
	}
	found, err := w.Devices()
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.Err != nil {
			if err := out.Encode(holders{Fault: exporter.FaultOf(f.Err)}); err != nil {
				return err
			}
			continue
		}
		list, err := w.Holders(f.UUID)
		if err := out.Encode(holders{List: list, Fault: exporter.FaultOf(err)}); err != nil {
			return err
		}
	}
	return nil
}

// One GPU that is lost and one that hangs are named; of the others it is known
// who holds them.
func TestWriterHolders(t *testing.T) {
	t.Parallel()
	path, _ := serve(t, h100, "events: [{at: 0s, gpu: n/3, fault: lost}, {at: 0s, gpu: n/1, fault: hung}]\n")
	path = frozen(t, path)
	poke(t, path, "process", 0, 0, compute, 41, 5, whole)
	poke(t, path, "process", 2, 0, compute, 43, 6, 1)
	list := help[holders](t, "holders", standin(t), path)
	if len(list) < 4 {
		t.Fatalf("%+v", list)
	}
	for i, want := range []holders{
		{List: []exporter.Process{{PID: 41, MemoryBytes: 5, Instance: whole}}}, {Fault: exporter.Hung},
		{List: []exporter.Process{{PID: 43, MemoryBytes: 6, Instance: 1}}}, {Fault: exporter.Lost},
	} {
		if got := list[i]; got.Fault != want.Fault || !slices.Equal(got.List, want.List) {
			t.Errorf("GPU %d: %+v, want %+v", i, got, want)
		}
	}
}
