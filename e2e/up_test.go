package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

type nodeItem struct {
	Name  string `json:"name"`
	State string `json:"state"`
	GPUs  int    `json:"gpus"`
}

// upOnDriver runs `evenkeel up --source nvml` with the stand-in for a driver.
func (s *stack) upOnDriver(name string) *proc {
	s.t.Helper()
	return s.start(name, "evenkeel", "up", "--source", "nvml", "--listen", s.addr["collector"], "--data", filepath.Join(s.dir, name))
}

// TestUpOnADriver: where there is a GPU driver `up` shows this machine's GPUs
// through the exporter beside it, recommends, and acts on nothing.
func TestUpOnADriver(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.start("sim", "evenkeel", "sim", "serve", "--scenario", "testdata/inlet-fault.yaml", "--shm", s.shm)
	s.eventually(10*time.Second, "the world is there", func() error { _, err := os.Stat(s.shm); return err })
	up := s.upOnDriver("up")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s.eventually(30*time.Second, "this machine's node and its GPUs are seen", func() error {
		nodes, err := list[nodeItem](s, "nodes")
		if err == nil && (len(nodes) != 1 || nodes[0].Name != host || nodes[0].State != "up" || nodes[0].GPUs != 8) {
			err = fmt.Errorf("nodes %+v, want 8 GPUs on %s", nodes, host)
		}
		return err
	})
	exporter := s.child(up)

	recommended := func() (n int, err error) {
		ds, err := list[telemetry.Decision](s, "decisions")
		for _, d := range ds {
			for _, step := range d.Steps {
				if step.Receipt != nil {
					t.Errorf("%s: step %s has a receipt", d.ID, step.Step.ID)
				}
			}
			switch d.Outcome {
			case telemetry.OutcomeRecommended:
				n++
			case telemetry.OutcomeExpired:
			default:
				t.Errorf("%s is %s; up on a driver only recommends", d.ID, d.Outcome)
			}
		}
		return n, err
	}
	s.eventually(90*time.Second, "a cap is recommended", func() error {
		n, err := recommended()
		if err == nil && n == 0 {
			err = errors.New("no recommendation")
		}
		return err
	})
	time.Sleep(5 * time.Second) // an act would follow within one
	if _, err := recommended(); err != nil {
		t.Error(err)
	}
	gpus, err := list[gpuItem](s, "gpus")
	if err != nil || len(gpus) != 8 {
		t.Fatalf("%d GPUs, %v", len(gpus), err)
	}
	for _, g := range gpus {
		if g.Limit == nil || g.Default == nil || *g.Limit != *g.Default {
			t.Errorf("GPU %d is not at its default limit", g.Index)
		}
	}
	m, err := s.metrics("collector")
	if err != nil || !strings.Contains(m, "\nevenkeel_bus_connected 1\n") {
		t.Errorf("the connection to the bus is not on /metrics: %v", err)
	}

	up.stop(t)
	s.gone(exporter)
	if code := up.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("up ended with %d after TERM", code)
	}
}

// TestUpLeavesNothingBehind: the exporter beside it goes also when up is
// killed, and up goes when the exporter is.
func TestUpLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.env[1] = "EVENKEEL_STANDIN_SHM=" // a still world
	killed := s.upOnDriver("killed")
	exporter := s.child(killed)
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.gone(exporter)
	<-killed.done

	up := s.upOnDriver("up")
	exporter = s.child(up)
	if err := syscall.Kill(exporter, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-up.done:
	case <-time.After(20 * time.Second):
		t.Fatal("up goes on without its exporter")
	}
	out, err := os.ReadFile(up.log.Name())
	if code := up.cmd.ProcessState.ExitCode(); err != nil || code != 1 || !strings.Contains(string(out), "evenkeel-node export: ") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestUpWithoutTheNodeBinary says what is missing and what to do, before
// anything is started.
func TestUpWithoutTheNodeBinary(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	alone := filepath.Join(s.dir, "evenkeel")
	// Not written by this process: a child that another test starts meanwhile
	// would hold it open for writing, and it could not be run.
	if out, err := exec.Command("cp", filepath.Join(s.bin, "evenkeel"), alone).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	cmd := exec.Command(alone, "up", "--source", "nvml", "--listen", s.addr["collector"])
	cmd.Env = []string{"PATH=" + s.dir + "/none", "TMPDIR=" + s.dir}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"evenkeel-node", "make build", "--source sim"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("does not say %q: %s", want, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.dir, "evenkeel-up-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// child is the pid of the exporter that an `up` started.
func (s *stack) child(p *proc) (pid int) {
	s.t.Helper()
	s.eventually(20*time.Second, "the exporter is started", func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			data, err := os.ReadFile(task)
			if err != nil {
				continue
			}
			for _, f := range strings.Fields(string(data)) {
				if n, err := strconv.Atoi(f); err == nil {
					if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n)); strings.TrimSpace(string(comm)) == "evenkeel-node" {
						pid = n
						return nil
					}
				}
			}
		}
		return errors.New("no child")
	})
	return pid
}

// gone waits for the end of a process that is not ours.
func (s *stack) gone(pid int) {
	s.t.Helper()
	s.eventually(15*time.Second, "the exporter is gone", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		if errors.Is(err, os.ErrNotExist) || strings.HasPrefix(state, "Z") {
			return nil // a zombie has ended; whoever inherited it has not looked yet
		}
		return errors.New("it is still there")
	})
}
