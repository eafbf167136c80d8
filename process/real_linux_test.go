package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
)

// Whoever is told has put other files where a terminal may be. They are not
// opened: to open some takes for ever.
func TestSayOpensTerminalsAlone(t *testing.T) {
	_, tty := processtest.Terminal(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(file); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	r := processtest.StartOn(t, tty, "exec < "+file+"; echo ready; exec sleep 1000 2> "+file)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if i, err := process.Read(r.PID); err != nil || time.Now().After(end) {
			t.Fatal("it does not become sleep", err)
		} else if i.Name == "sleep" {
			break
		}
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, file, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	i, err := process.Read(r.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := (process.Proc{}).Say(i, "hello"); err == nil {
		t.Error("said on no terminal")
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); n > 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the file was opened: %d, %v", n, err)
	}
}

// A thread's number opens files in /proc as a process' does, and is none.
func TestThreadIsNoProcess(t *testing.T) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip(err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil || id == os.Getpid() {
			continue
		}
		if i, err := process.Read(id); !errors.Is(err, process.ErrGone) {
			t.Errorf("thread %d: %+v, %v", id, i, err)
		}
		if line, err := (process.Proc{}).Line(id); !errors.Is(err, process.ErrGone) {
			t.Errorf("thread %d: %+v, %v", id, line, err)
		}
		return
	}
	t.Skip("no second thread")
}

func TestNumbersThatAreNoProcess(t *testing.T) {
	for _, pid := range []int{0, -1, 1 << 22, 1<<32 + os.Getpid()} {
		if line, err := (process.Proc{}).Line(pid); !errors.Is(err, process.ErrGone) {
			t.Errorf("%d: %+v, %v", pid, line, err)
		}
		if i, err := process.Read(pid); !errors.Is(err, process.ErrGone) {
			t.Errorf("%d: %+v, %v", pid, i, err)
		}
		if _, _, err := (process.Proc{}).Open(process.ID{PID: pid, Start: 1}); err == nil {
			t.Errorf("%d: held", pid)
		}
	}
}
