package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What is left of a workload whose root has ended looks like a workload of its
// own. While the end of the first is under way it is not asked a second time, and
// keeps the grace that it was promised.
func TestWhatIsLeftIsNotAskedTwice(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(`(trap 'echo asked' TERM; echo pid $(exec sh -c 'echo $PPID'); while :; do sleep 0.05; done) & trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
	pid := run.Line(t, "pid ")
	child := readPID(t, pid)
	e.holds("GPU-1", child)
	first := e.preempt(run.ID, grace(8*time.Second))
	wantDetail(t, e.do(first), telemetry.Pending, "TERM was sent")
	processtest.WaitGone(t, run.ID)
	if i, err := process.Read(child.PID); err != nil || i.Parent == run.PID {
		t.Fatalf("%+v %v", i, err)
	}
	got := e.finally(e.preempt(child, grace(100*time.Millisecond)))
	wantDetail(t, got, telemetry.Refused, "step "+first.ID+" is ending")
	if got.Why != telemetry.RefuseBusy {
		t.Errorf("refused for %s", got.Why)
	}
	if !processtest.Alive(child) {
		t.Error("its grace was cut")
	}
	wantDetail(t, e.finally(first), telemetry.Done, "by KILL")
	if n := run.Count("asked"); n != 1 {
		t.Errorf("asked %d times", n)
	}
	if n := len(e.a.ending); n != 0 {
		t.Errorf("%d processes are still taken", n)
	}
}

// The root has ended before the order came, and what it has left holds on: the
// device is not free, and nobody says so.
func TestRootGoneAndItsChildrenHoldOn(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start("sleep 1000 & echo child $!; echo ready; wait")
	child := run.Child(t, "child")
	e.holds("GPU-2", child)
	if err := syscall.Kill(run.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	run.Reap()
	waitFor(t, "its parent has taken notice", func() bool { _, err := process.Read(run.PID); return err != nil })
	got := e.finally(e.preempt(run.ID))
	wantDetail(t, got, telemetry.Failed, "was gone already", "holds GPU-2 by "+strconv.Itoa(child.PID))
	wantDetail(t, e.finally(e.preempt(child)), telemetry.Done, "released: GPU-2")
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "was gone already, and holds no device")
}

func readPID(t *testing.T, pid string) process.ID {
	t.Helper()
	n := 0
	for _, c := range strings.TrimSpace(pid) {
		n = 10*n + int(c-'0')
	}
	i, err := process.Read(n)
	if err != nil {
		t.Fatal(err)
	}
	return i.ID
}

// A process that becomes a program with the rights of two users is not ours any
// more. It is left alone, and nobody says that it has ended.
func TestEscapesAreNotCalledEnded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a program setuid")
	}
	t.Parallel()
	e := newEnding(t)
	dir := openDir(t)
	file := dir + "/sleep" // a program of many names goes by it
	// Not written by this process: its children would hold it open for writing.
	if out, err := exec.Command("cp", "-L", "/bin/sleep", file).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := os.Chmod(file, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	run := e.start(`trap 'exec ` + file + ` 1000' TERM; echo ready; while :; do sleep 0.05; done`)
	e.a.releaseWithin = 300 * time.Millisecond
	got := e.finally(e.preempt(run.ID, grace(2*time.Second)))
	if i, err := process.Read(run.PID); err != nil || !i.Mixed {
		t.Skipf("setuid does not work here: %+v %v %s %d", i, err, got.Detail, run.Count(""))
	}
	if strings.Contains(got.Detail, "all ended") {
		t.Errorf("%s: %s", got.Result, got.Detail)
	}
	wantDetail(t, got, telemetry.Failed, "not ours any more", " sleep: ", "it has the rights of more than one user", "not released")
	_ = syscall.Kill(run.PID, syscall.SIGKILL)
}

// Who comes after others got KILL is stopped before it gets KILL, too: else a
// fork bomb fills the room that each KILL makes.
func TestWhoComesAfterTheKillIsStoppedFirst(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	file := filepath.Join(openDir(t), "go")
	run := e.start(`trap '' TERM; echo ready; while [ ! -e ` + file + ` ]; do sleep 0.02; done; sleep 1000 & echo born $!; wait`)
	var calls []string
	e.procs.set(func(call string) bool {
		if call == "before killed" && !pathExists(file) {
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Error(err)
			}
			run.Line(t, "born")
		}
		if strings.HasPrefix(call, "before ") {
			calls = append(calls, strings.TrimPrefix(call, "before "))
		}
		return true
	})
	got := e.finally(e.preempt(run.ID, grace(100*time.Millisecond)))
	wantDetail(t, got, telemetry.Done, "by KILL")
	if pid := run.Line(t, "born "); lives(t, pid) {
		t.Errorf("%s lives", pid)
	}
	stop := slices.Index(calls, syscall.SIGSTOP.String())
	if stop < 0 || calls[stop-1] != "killed" || calls[stop+1] != "killed" {
		t.Errorf("signals: %q", calls)
	}
}
