package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// benchReport is what scripts may read of `evenkeel bench -o json`.
type benchReport struct {
	Nodes  int `json:"nodes"`
	Frames struct {
		Sent, Unsent uint64
	} `json:"frames"`
	Observations struct {
		Expected, Heard, Lost, Doubled uint64
	} `json:"observations"`
	Processes []struct {
		Name string  `json:"name"`
		CPU  float64 `json:"cpu_seconds_per_second"`
		RSS  int64   `json:"resident_bytes"`
	} `json:"processes"`
	Faults []struct {
		Fault     string
		Checked   bool
		Want, Got uint64
	} `json:"faults"`
	Acts struct {
		Acts   int      `json:"acts"`
		Wrong  []string `json:"wrong"`
		Stages []struct {
			Stage string  `json:"stage"`
			P50   float64 `json:"p50_ms"`
		} `json:"stages"`
	} `json:"acts"`
}

// runBench runs `evenkeel bench` with a bus and a collector of its own, checks
// that nothing of it is left, and returns its report and exit code.
func runBench(t *testing.T, args ...string) (r benchReport, code int) {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tmp := t.TempDir()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "evenkeel"), append([]string{"bench", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %q; %s", err, out, errOut.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	return r, cmd.ProcessState.ExitCode()
}

// TestBenchCountsFaults: with the shipped binary, each of its processes apart,
// the collector counts every fault as often as it was made.
func TestBenchCountsFaults(t *testing.T) {
	t.Parallel()
	r, code := runBench(t, "--nodes", "20", "--gpus", "4", "--warmup", "2s", "--duration", "8s",
		"--faults", "lost=0.1,dup=0.1,reorder=0.1,lie-node=0.1,garbage=0.1,restart=0.1,lie-time=0.2", "--expect", "max-loss=0,max-doubled=0,max=1h")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	checked := 0
	for _, f := range r.Faults {
		if f.Checked && f.Want == f.Got && f.Got > 0 {
			checked++
		}
	}
	if checked < 8 { // restart, lie-time, and six reasons for which frames are dropped
		t.Errorf("%d faults were counted as they were made: %+v", checked, r.Faults)
	}
	if o := r.Observations; o.Lost != 0 || o.Doubled != 0 || o.Heard != o.Expected || o.Heard == 0 {
		t.Errorf("observations %+v", o)
	}
	names := map[string]bool{}
	for _, p := range r.Processes {
		names[p.Name] = p.CPU > 0 && p.RSS > 0
	}
	if !names["generator"] || !names["bus"] || !names["collector"] {
		t.Errorf("the processes are not told apart: %+v", r.Processes)
	}
	if _, code := runBench(t, "--nodes", "5", "--warmup", "1s", "--duration", "2s", "--expect", "max=1ns"); code != 1 {
		t.Errorf("exit code %d of an expectation that cannot be met, want 1", code)
	}
}

// TestBenchActs: of a fleet that sends, the devices of two nodes get hot; each
// is capped once, by its agent, through the stages that are told.
func TestBenchActs(t *testing.T) {
	t.Parallel()
	r, code := runBench(t, "--nodes", "10", "--gpus", "2", "--hot", "2", "--warmup", "3s", "--duration", "16s")
	if code != 0 || r.Acts.Acts != 4 || len(r.Acts.Wrong) != 0 {
		t.Errorf("exit code %d, %+v", code, r.Acts)
	}
	if s := r.Acts.Stages; len(s) != 8 || s[0].Stage != "total" || s[0].P50 <= 0 {
		t.Errorf("stages %+v", s)
	}
}
