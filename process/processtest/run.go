// Package processtest gives tests real processes of an ordinary user, and a
// /proc in which they are where the test says.
//
// In: shell scripts. Out: their processes, none of which outlives its test.
// Never: a process that it did not start.
package processtest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
)

// UID is the user that scripts run as: nobody if the test is root, else the
// test's own.
func UID() uint32 {
	if os.Getuid() == 0 {
		return 65534
	}
	return uint32(os.Getuid())
}

// Rules are those that make the scripts' processes ours.
func Rules() process.Rules {
	return process.Rules{Users: []string{strconv.FormatUint(uint64(UID()), 10)}}
}

// mark is in the environment of all that a script starts.
const mark = "EVENKEEL_TEST_RUN"

var runs struct {
	sync.Mutex
	n int
}

// Run is a script under way.
type Run struct {
	process.ID
	cmd  *exec.Cmd
	mark string

	reap  sync.Once
	mu    sync.Mutex
	lines []string
	over  bool
}

// Start runs a script with sh, in a session of its own, and returns when it has
// printed the line "ready". What is left of it ends with the test.
func Start(t testing.TB, script string) *Run { return start(t, UID(), nil, script) }

// StartAs runs it as a certain user, which takes a test that is root.
func StartAs(t testing.TB, uid uint32, script string) *Run { return start(t, uid, nil, script) }

// StartOn runs it with a controlling terminal, open as its standard input.
func StartOn(t testing.TB, tty *os.File, script string) *Run { return start(t, UID(), tty, script) }

func start(t testing.TB, uid uint32, tty *os.File, script string) *Run {
	t.Helper()
	runs.Lock()
	runs.n++
	r := &Run{mark: fmt.Sprintf("%s=%d.%d", mark, os.Getpid(), runs.n)}
	runs.Unlock()
	r.cmd = exec.Command("/bin/sh", "-c", script)
	r.cmd.Dir = "/"
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), r.mark}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if tty != nil {
		r.cmd.Stdin, r.cmd.SysProcAttr.Setctty = tty, true
	}
	if uid != uint32(os.Getuid()) {
		r.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = in, in
	err = r.cmd.Start()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); r.end(t) })
	go r.read(out)
	i, err := process.Read(r.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	r.ID = i.ID
	r.Line(t, "ready")
	return r
}

func (r *Run) read(out *os.File) {
	for sc := bufio.NewScanner(out); sc.Scan(); {
		r.mu.Lock()
		r.lines = append(r.lines, sc.Text())
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
}

// Line waits for a printed line that begins so and returns the rest of it.
func (r *Run) Line(t testing.TB, begins string) string {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		r.mu.Lock()
		lines, over := r.lines, r.over
		r.mu.Unlock()
		for _, l := range lines {
			if rest, ok := strings.CutPrefix(l, begins); ok {
				return strings.TrimSpace(rest)
			}
		}
		if over || time.Now().After(end) {
			t.Fatalf("no line %q from the script; it printed %q", begins, lines)
		}
	}
}

// Count is how often a line that begins so has been printed.
func (r *Run) Count(begins string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if strings.HasPrefix(l, begins) {
			n++
		}
	}
	return n
}

// Child is the process whose pid the script printed after a word, once it is the
// sleep that it is to be: until then it may be in no session of its own yet, and
// a shell's child can lose a signal.
func (r *Run) Child(t testing.TB, word string) process.ID {
	t.Helper()
	pid, err := strconv.Atoi(r.Line(t, word))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		i, err := process.Read(pid)
		if err != nil {
			t.Fatal(err)
		}
		if i.Name == "sleep" {
			return i.ID
		}
		if time.Now().After(end) {
			t.Fatalf("%d is %s and not sleep", pid, i.Name)
		}
	}
}

// Reap takes notice of the script's end once it has come, as a parent does.
func (r *Run) Reap() { r.reap.Do(func() { _ = r.cmd.Wait() }) }

// Alive says whether a process runs.
func Alive(id process.ID) bool {
	i, err := process.Read(id.PID)
	return err == nil && i.ID == id && !i.Dead()
}

// WaitGone waits until a process has ended.
func WaitGone(t testing.TB, ids ...process.ID) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		left := 0
		for _, id := range ids {
			if Alive(id) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %v still run", left, ids)
		}
	}
}

// end kills the script and everything that has the mark, until nothing has. What
// is just becoming another program has no environment to be seen: one look is
// not enough.
func (r *Run) end(t testing.TB) {
	_ = r.cmd.Process.Kill() // it may have ended
	clean := 0
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		left := 0
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			env, err := os.ReadFile(filepath.Join(dir, "environ"))
			if err != nil || !bytes.Contains(env, []byte(r.mark+"\x00")) {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if clean++; left > 0 {
			clean = 0
		}
		if clean == 3 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("%d processes of the script cannot be ended", left)
			break
		}
	}
	r.Reap()
}

// Elsewhere is a /proc in which some processes are in other cgroups than they
// really are, by pid; all else is as it is.
func Elsewhere(t testing.TB, cgroups map[int]string) process.Proc {
	t.Helper()
	root := t.TempDir()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if _, moved := cgroups[pid]; err == nil && moved {
			continue
		}
		if err := os.Symlink("/proc/"+e.Name(), filepath.Join(root, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	for pid, cgroup := range cgroups {
		dir := filepath.Join(root, strconv.Itoa(pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"stat", "status", "fd"} {
			if err := os.Symlink(fmt.Sprintf("/proc/%d/%s", pid, f), filepath.Join(dir, f)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return process.Proc{Root: root}
}
