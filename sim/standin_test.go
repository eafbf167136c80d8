//go:build linux

package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// answerTimeout bounds what any single answer of a probe may take.
const answerTimeout = 20 * time.Second

// needC skips where the stand-in cannot exist: it is a C library, and go-nvml
// is cgo. Both are built by make as well, which does not skip.
func needC(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"cc", "nm", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: the NVML stand-in is a C library", tool)
		}
	}
}

var builds struct {
	sync.Mutex
	dir  string
	done map[string]string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builds.dir != "" {
		os.RemoveAll(builds.dir)
	}
	os.Exit(code)
}

// build runs a command once and returns the file it makes; args see {} as it.
func build(t *testing.T, name string, env []string, args ...string) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	if path, ok := builds.done[name]; ok {
		return path
	}
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "evenkeel-standin-")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir, builds.done = dir, map[string]string{}
	}
	path := filepath.Join(builds.dir, name)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{}", path)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	builds.done[name] = path
	return path
}

// standin returns the folder of a stand-in that lacks some symbols.
func standin(t *testing.T, omit string) string {
	t.Helper()
	needC(t)
	return build(t, "lib-"+omit, []string{"OMIT=" + omit}, "nvml/standin/build.sh", "{}")
}

func probeBinary(t *testing.T) string {
	t.Helper()
	needC(t)
	return build(t, "nvmlprobe", []string{"CGO_ENABLED=1", "CGO_CFLAGS=-O2 -w"}, "go", "build", "-o", "{}", "./testdata/nvmlprobe")
}

// probe is a running go-nvml program.
type probe struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan map[string]any
	exit    chan error
}

// startProbe starts a program over a library and a world file; "" is the world
// that stands still.
func startProbe(t *testing.T, lib, shm string) *probe {
	t.Helper()
	p := &probe{t: t, cmd: exec.Command(probeBinary(t)), answers: make(chan map[string]any, 16), exit: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib, "EVENKEEL_STANDIN_SHM="+shm)
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var a map[string]any
			if json.Unmarshal(lines.Bytes(), &a) == nil {
				p.answers <- a
			}
		}
		p.exit <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.in.Close()
		_ = p.cmd.Process.Kill() // it may have ended
	})
	return p
}

func (p *probe) send(command string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// ask sends a command and waits for its answer.
func (p *probe) ask(command string) map[string]any {
	p.t.Helper()
	p.send(command)
	return p.answer(command)
}

func (p *probe) answer(command string) map[string]any {
	p.t.Helper()
	select {
	case a := <-p.answers:
		return a
	case err := <-p.exit:
		p.t.Fatalf("%s: the program ended: %v", command, err)
	case <-time.After(answerTimeout):
		p.t.Fatalf("%s: no answer within %v", command, answerTimeout)
	}
	return nil
}

// want asks and compares the values named.
func (p *probe) want(command string, values map[string]any) map[string]any {
	p.t.Helper()
	a := p.ask(command)
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if got, want := fmt.Sprint(a[k]), fmt.Sprint(values[k]); got != want {
			p.t.Errorf("%s: %s is %s, want %s", command, k, got, want)
		}
	}
	return a
}

func ret(code int) map[string]any { return map[string]any{"ret": code} }

// undefinedSymbols lists the NVML functions that a go-nvml program leaves to
// the library.
func symbols(t *testing.T, flag, file string) []string {
	t.Helper()
	out, err := exec.Command("nm", "-D", flag, file).Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if name := fields[len(fields)-1]; strings.HasPrefix(name, "nvml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestStandinDefinesWhatGoNVMLNeeds(t *testing.T) {
	needed := symbols(t, "--undefined-only", probeBinary(t))
	defined := symbols(t, "--defined-only", filepath.Join(standin(t, ""), "libnvidia-ml.so.1"))
	if len(needed) < 400 {
		t.Fatalf("a go-nvml program needs %d functions only", len(needed))
	}
	if !slices.Equal(needed, defined) {
		t.Errorf("needed, not defined: %v\ndefined, not needed: %v", without(needed, defined), without(defined, needed))
	}
	older := symbols(t, "--defined-only", filepath.Join(standin(t, "nvmlDeviceGetMarginTemperature nvmlDeviceGetIndex"), "libnvidia-ml.so.1"))
	if got := without(defined, older); !slices.Equal(got, []string{"nvmlDeviceGetIndex", "nvmlDeviceGetMarginTemperature"}) {
		t.Errorf("an older driver lacks %v", got)
	}
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// cStructs pairs the mirror's structs with those of world.h.
var cStructs = []struct {
	name string
	of   reflect.Type
}{
	{"ek_sample", reflect.TypeFor[shmSample]()},
	{"ek_samples", reflect.TypeFor[shmSampleRing]()},
	{"ek_process", reflect.TypeFor[shmProcess]()},
	{"ek_event", reflect.TypeFor[shmEvent]()},
	{"ek_device", reflect.TypeFor[shmDevice]()},
	{"ek_world", reflect.TypeFor[shmWorld]()},
}

func TestSharedLayoutIsThatOfC(t *testing.T) {
	needC(t)
	var program, want bytes.Buffer
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"world.h\"\nint main(void) {\n")
	for _, s := range cStructs {
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(struct %s));\n", s.name, s.name)
		fmt.Fprintf(&want, "%s %d\n", s.name, s.of.Size())
		end := uintptr(0)
		for i := range s.of.NumField() {
			f := s.of.Field(i)
			c := f.Tag.Get("c")
			fmt.Fprintf(&program, "printf(\"%s.%s %%zu %%zu\\n\", offsetof(struct %s, %s), sizeof(((struct %s *)0)->%s));\n", s.name, c, s.name, c, s.name, c)
			fmt.Fprintf(&want, "%s.%s %d %d\n", s.name, c, f.Offset, f.Type.Size())
			// A gap as wide as a field would hide one that the mirror lacks.
			if gap := f.Offset - end; gap >= 4 && (f.Type.Align() < 8 || gap >= 8) {
				t.Errorf("%s.%s: %d bytes before it are not mirrored", s.name, c, gap)
			}
			if f.Type.Kind() == reflect.Uint64 && f.Offset%8 != 0 {
				t.Errorf("%s.%s is not aligned for atomic access", s.name, c)
			}
			end = f.Offset + f.Type.Size()
		}
	}
	program.WriteString("printf(\"%u %u %u %u %u %u %llx\\n\", EK_LAYOUT, EK_DEVICES, EK_LINKS, EK_SAMPLES, EK_PROCESSES, EK_EVENTS, EK_MAGIC);\nreturn 0; }\n")
	fmt.Fprintf(&want, "%d %d %d %d %d %d %x\n", shmLayout, shmDevices, shmLinks, shmSamples, shmProcesses, shmEvents, uint64(shmMagic))
	source := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(source, program.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := source + ".bin"
	if out, err := exec.Command("cc", "-I", "nvml/standin", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	got, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(want.String(), "\n")
		for i := range min(len(gotLines), len(wantLines)) {
			if gotLines[i] != wantLines[i] {
				t.Errorf("C says %q, the mirror %q", gotLines[i], wantLines[i])
			}
		}
	}
	if size := unsafe.Sizeof(shmWorld{}); size > 1<<20 {
		t.Errorf("the world file is %d bytes", size)
	}
}

func TestStructVersionsAreChecked(t *testing.T) {
	lib := standin(t, "")
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	header := filepath.Join(strings.TrimSpace(string(out)), "pkg", "nvml")
	binary := build(t, "versions", nil, "cc", "-w", "-DNVML_NO_UNVERSIONED_FUNC_DEFS=1", "-I", header, "-o", "{}", "testdata/versions.c", "-ldl")
	cmd := exec.Command(binary, filepath.Join(lib, "libnvidia-ml.so.1"))
	cmd.Env = append(os.Environ(), "EVENKEEL_STANDIN_SHM=")
	if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestStillWorld(t *testing.T) {
	p := startProbe(t, standin(t, ""), "")
	p.want("init", ret(0))
	p.want("count", map[string]any{"ret": 0, "count": 8})
	p.want("system", map[string]any{"ret": 0, "driver": "580.95.05", "cuda": 13000})
	uuids := map[any]bool{}
	for i := range 8 {
		id := p.want(fmt.Sprintf("identity %d", i), map[string]any{"ret": 0, "index": i, "minor": i, "arch": 9, "mig": 0, "name": "NVIDIA H100 80GB HBM3"})
		uuids[id["uuid"]] = true
		if id["bus_id"] != id["ext_bus_id"] || id["bus_id"] == "" {
			t.Errorf("GPU %d: PCI addresses %v and %v", i, id["bus_id"], id["ext_bus_id"])
		}
		r := p.want(fmt.Sprintf("read %d", i), map[string]any{"ret": 0, "temperature": 60 + i, "margin": 27 - i, "margin_ret": 0, "enforced": 700000, "power": 500000 + 1000*i})
		if r["used"].(float64)+r["free"].(float64) != r["total"].(float64) {
			t.Errorf("GPU %d: memory does not add up: %v", i, r)
		}
		p.want(fmt.Sprintf("byuuid %d", i), map[string]any{"ret": 0, "index": i})
		p.want(fmt.Sprintf("bypci %d", i), map[string]any{"ret": 0, "index": i})
	}
	if len(uuids) != 8 {
		t.Errorf("%d UUIDs for 8 GPUs", len(uuids))
	}
	p.want("invalid 0", map[string]any{"threshold": 2, "clock": 2, "link": 2, "samples": 2, "beyond": 2, "uuid": 6})
	p.want("setlimit 2 350000", ret(0))
	p.want("limits 2", map[string]any{"limit": 350000, "min": 200000, "max": 700000, "default": 700000, "slowdown": 89})
	p.want("setlimit 2 199999", ret(2))
	p.want("setlimit2 2 700001", ret(2))
	p.want("limits 2", map[string]any{"limit": 350000})
	p.want("processes 0", map[string]any{"ret": 0, "pids": []int{}})
	p.want("errorstring 15", map[string]any{"text": "GPU is lost"})
	p.want("shutdown", ret(0))
	p.want("shutdown", ret(1))
	p.want("init", ret(0))
	p.want("count", map[string]any{"ret": 0, "count": 8})
}

func TestMissingSymbol(t *testing.T) {
	lib := standin(t, "nvmlDeviceGetMarginTemperature nvmlDeviceGetIndex")
	p := startProbe(t, lib, "")
	p.want("init", ret(0))
	p.want("symbol nvmlDeviceGetUUID", map[string]any{"found": true})
	p.want("symbol nvmlDeviceGetMarginTemperature", map[string]any{"found": false})
	p.send("read 0") // calls it all the same
	select {
	case err := <-p.exit:
		if p.cmd.ProcessState.ExitCode() != 127 {
			t.Errorf("the program ended with %v, want 127", err)
		}
	case <-time.After(answerTimeout):
		t.Error("a call of a symbol that is missing did not end the program")
	}
}
