package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func notices(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// The owner is told before anything is done: a file that is his alone, and a
// line on his terminal.
func TestOwnerIsToldFirst(t *testing.T) {
	screen, tty := processtest.Terminal(t)
	e := newEnding(t)
	run := processtest.StartOn(t, tty, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done")
	e.holds("GPU-1", run.ID)
	go run.Reap()
	var first []string
	e.procs.set(func(call string) bool {
		if call == "before terminated" && first == nil {
			first = notices(t, e.o.Notices)
		}
		return true
	})
	o := e.preempt(run.ID, grace(5*time.Second), func(o *telemetry.Order) { o.Params.Message, o.Decision = "Row 3 is too hot.\x1b[2J\a", "d1\x1b[5m" })
	wantDetail(t, e.finally(o), telemetry.Done, "the owner: told by "+e.o.Notices, "and on the terminal of")
	if len(first) != 1 {
		t.Fatalf("before the signal there were the notices %q", first)
	}
	text, err := os.ReadFile(first[0])
	if err != nil {
		t.Fatal(err)
	}
	owner := process.UserName(processtest.UID())
	for _, want := range []string{
		"Evenkeel ends processes of " + owner + " on node1.", "decision  d1 [5m, step " + o.ID, "why       Row 3 is too hot.", fmt.Sprintf("%d sh", run.PID),
		fmt.Sprintf("GPU-1 by %d (1.0 GiB)", run.PID), "signal    TERM at 20", "grace     5s; what is left at 20", "more      evenkeel explain d1 [5m\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the notice lacks %q:\n%s", want, text)
		}
	}
	info, err := os.Stat(first[0])
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != processtest.UID() || info.Mode() != 0o600 {
		t.Errorf("the notice is user %d's with mode %s", uid, info.Mode())
	}
	if dir, err := os.Stat(e.o.Notices); err != nil || dir.Mode().Perm() != 0o755 {
		t.Errorf("the folder has mode %s, %v", dir.Mode(), err)
	}
	buf := make([]byte, 4096)
	n, err := screen.Read(buf)
	line := string(buf[:n])
	if err != nil || !strings.Contains(line, "[evenkeel] node1: your processes") || !strings.Contains(line, "TERM now, KILL in 5s. Row 3 is too hot.") || !strings.Contains(line, "evenkeel explain d1") {
		t.Errorf("on the terminal: %q, %v", line, err)
	}
	if strings.ContainsAny(string(text)+line, "\x1b\a") {
		t.Error("the order's words reach a terminal as more than text")
	}
}

// That the owner cannot be told is said, and stops nothing.
func TestOwnerCannotBeTold(t *testing.T) {
	e := newEnding(t, func(o *Options) {
		o.Notices = filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(o.Notices, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	run := e.start("echo ready; exec sleep 1000")
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "the owner: could not be told: notice: ", "not a directory")
}

func TestNoticesBehindAClosedDoor(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	e := newEnding(t)
	closed := filepath.Dir(e.o.Notices)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	run := e.start("echo ready; exec sleep 1000")
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "could not be told: notice "+e.o.Notices, "but "+closed+" is closed to its owner; chmod o+x it")
}

// A folder that another could lead elsewhere is not used: the agent is root.
func TestNoticesLedElsewhere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a folder to another user")
	}
	const mallory = 65533
	for name, plant := range map[string]func(base, dir string) error{
		"a link of another user": func(base, dir string) error {
			return errors.Join(os.Chmod(base, 0o777|os.ModeSticky), os.Symlink(filepath.Join(base, "precious"), dir), os.Lchown(dir, mallory, mallory))
		},
		"a folder of another user": func(_, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, mallory, mallory))
		},
		"a folder that all may write to": func(_, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky))
		},
		"a folder above that all may write to":  func(base, _ string) error { return os.Chmod(base, 0o777) },
		"a folder above that is another user's": func(base, _ string) error { return os.Chown(base, mallory, mallory) },
		"a way that leads through another's": func(base, dir string) error {
			theirs := filepath.Join(base, "theirs")
			return errors.Join(os.Mkdir(theirs, 0o755), os.Mkdir(filepath.Join(theirs, "x"), 0o755), os.Symlink(filepath.Join(theirs, "x"), dir), os.Chown(theirs, mallory, mallory))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnding(t)
			base := filepath.Dir(e.o.Notices)
			precious := filepath.Join(base, "precious")
			err := errors.Join(os.Mkdir(precious, 0o700), plant(base, e.o.Notices))
			if err != nil {
				t.Fatal(err)
			}
			run := e.start("echo ready; exec sleep 1000")
			wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "could not be told: notice: ", "or name another folder")
			if left := append(notices(t, e.o.Notices), notices(t, precious)...); len(left) > 0 {
				t.Errorf("written: %q", left)
			}
			if info, err := os.Stat(precious); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the mode of another folder became %s, %v", info.Mode(), err)
			}
		})
	}
	// The administrator's own link is one.
	e := newEnding(t)
	if err := os.Symlink(openDir(t), e.o.Notices); err != nil {
		t.Fatal(err)
	}
	run := e.start("echo ready; exec sleep 1000")
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "told by "+e.o.Notices)
}

func TestNoticesAreBounded(t *testing.T) {
	e := newEnding(t)
	if err := os.MkdirAll(e.o.Notices, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range keepNotices + 50 {
		name := fmt.Sprintf("20260101T%06d.000Z-alice-s%d.txt", i, i)
		if err := os.WriteFile(filepath.Join(e.o.Notices, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{"README.txt", ".notice-123"} { // another's, and one that a kill has left
		if err := os.WriteFile(filepath.Join(e.o.Notices, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &preemption{Owner: `CORP\bob/../..`, What: "1 sh"}
	path, err := e.a.writeNotice(e.preempt(process.ID{PID: 2, Start: 1}), p, uint32(os.Getuid()), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(path) != e.o.Notices || !strings.HasSuffix(path, "Z-CORP_bob_.._..-step-1.txt") {
		t.Errorf("written to %s", path)
	}
	all := notices(t, e.o.Notices)
	if len(all) != keepNotices+1 || !pathExists(filepath.Join(e.o.Notices, "README.txt")) || !pathExists(path) || pathExists(filepath.Join(e.o.Notices, ".notice-123")) {
		t.Errorf("%d files, the newest %s", len(all), path)
	}
	if pathExists(filepath.Join(e.o.Notices, "20260101T000000.000Z-alice-s0.txt")) {
		t.Error("the oldest is there")
	}
}

func TestSentence(t *testing.T) {
	for in, want := range map[string]string{
		"": "No reason was given.", " \n": "No reason was given.", "a\nb\x00c": "a b c", strings.Repeat("é", 500): strings.Repeat("é", mostWhy) + "…",
	} {
		if got := sentence(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
