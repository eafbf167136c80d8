//go:build cgo && linux

package nvml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A process has one library and a missing function would end it, so each case
// runs in a process of its own: this test binary, told by the environment which
// helper to be.
const helperEnv = "EVENKEEL_NVML_TEST_HELPER"

var helpers = map[string]func(out *json.Encoder) error{
	"dump":      helpDump,
	"lacking":   helpLacking,
	"appears":   helpAppears,
	"two":       helpTwo,
	"write":     helpWrite,
	"headroom":  helpHeadroom,
	"export":    helpExport,
	"unplug":    helpUnplug,
	"lookup":    helpLookup,
	"examine":   helpExamine,
	"openonce":  helpOpenOnce,
	"cost":      helpCost,
	"processes": helpProcesses,
	"holders":   helpHolders,
	"told":      helpTold,
	"hear":      helpHear,
	"register":  helpRegister,
	"run":       helpRun,
	"once":      helpOnce,
}

var built struct {
	sync.Mutex
	dir  string
	libs map[string]string
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](json.NewEncoder(os.Stdout)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// standin builds the stand-in without some functions, once, and returns the
// library's path.
func standin(t testing.TB, omit ...string) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler: the NVML stand-in is a C library")
	}
	built.Lock()
	defer built.Unlock()
	key := strings.Join(omit, " ")
	if path, ok := built.libs[key]; ok {
		return path
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "evenkeel-nvml-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.libs = dir, map[string]string{}
	}
	dir := filepath.Join(built.dir, fmt.Sprint(len(built.libs)))
	cmd := exec.Command("../sim/nvml/standin/build.sh", dir)
	cmd.Env = append(os.Environ(), "OMIT="+key)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the stand-in: %v\n%s", err, out)
	}
	built.libs[key] = filepath.Join(dir, "libnvidia-ml.so.1")
	return built.libs[key]
}

// help runs a helper to its end and decodes what it says, a line a value.
func help[T any](t testing.TB, name, library, shm string, env ...string) []T {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+name, LibraryEnv+"="+library, "EVENKEEL_STANDIN_SHM="+shm)
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	timer := time.AfterFunc(60*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helper %s: %v\n%s%s", name, err, out, stderr.String())
	}
	var list []T
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var v T
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("helper %s: %v\n%s", name, err, out)
		}
		list = append(list, v)
	}
	return list
}

// undefined lists NVML functions in a file's dynamic symbols.
func dynamic(t *testing.T, flag, file string) []string {
	t.Helper()
	out, err := exec.Command("nm", "-D", flag, file).Output()
	if err != nil {
		t.Fatalf("nm %s: %v", file, err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if name := fields[len(fields)-1]; strings.HasPrefix(name, "nvml") {
			names = append(names, name)
		}
	}
	return names
}

// The stand-in has every function that a program with this package leaves to
// the library, and every one that this package looks up by name.
func TestStandinHasEveryFunction(t *testing.T) {
	if _, err := exec.LookPath("nm"); err != nil {
		t.Skip("no nm: symbols cannot be listed")
	}
	defined := dynamic(t, "--defined-only", standin(t))
	needed := dynamic(t, "--undefined-only", os.Args[0])
	if len(needed) < 400 {
		t.Fatalf("only %d functions are left to the library", len(needed))
	}
	for _, name := range slices.Concat(needed, mandatory[:], names[:]) {
		if !slices.Contains(defined, name) {
			t.Errorf("the stand-in has no %s", name)
		}
	}
}
