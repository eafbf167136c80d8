package process_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
)

// family is a shell with a child, one in a session of its own, and one whose
// parent has ended.
const family = `
sleep 1000 & echo child $!
setsid sleep 1000 & echo session $!
(sleep 1000 & echo orphan $!)
echo ready
wait`

func snapshot(t *testing.T) process.Table {
	t.Helper()
	table, err := process.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func members(t *testing.T, r *process.Family) []process.ID {
	t.Helper()
	all, _ := r.Update(snapshot(t), processtest.Rules())
	var ids []process.ID
	for _, i := range all {
		ids = append(ids, i.ID)
	}
	return ids
}

// settle waits until the script's children have become what they will be: a
// process has its pid before it is in its session and has lost its parent.
func settle(t *testing.T, r *processtest.Run) (child, session, orphan process.ID) {
	t.Helper()
	child, session, orphan = r.Child(t, "child"), r.Child(t, "session"), r.Child(t, "orphan")
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		table := snapshot(t)
		if table[session.PID].Session == session.PID && table[orphan.PID].Parent != r.PID && table[orphan.PID].Name == "sleep" {
			return child, session, orphan
		}
	}
	t.Fatal("the script's processes do not settle")
	return child, session, orphan
}

// TestRuns: a process is known by pid and start, and has ended when nothing of
// it runs, though its parent has not taken notice.
func TestRuns(t *testing.T) {
	r := processtest.Start(t, "echo ready\nexec sleep 1000")
	h, _, err := process.Proc{}.Open(r.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	other := process.ID{PID: r.PID, Start: r.Start + 1}
	if !h.Runs() || !process.Runs(r.ID) || process.Runs(other) {
		t.Errorf("it runs: by handle %v, by id %v, a later one of its pid %v", h.Runs(), process.Runs(r.ID), process.Runs(other))
	}
	if n := testing.AllocsPerRun(100, func() { h.Runs() }); n != 0 {
		t.Errorf("%.1f allocations to ask a handle", n)
	}
	if err := h.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); h.Runs() || process.Runs(r.ID); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("killed, and it runs: by handle %v, by id %v", h.Runs(), process.Runs(r.ID))
		}
	}
	if i, err := process.Read(r.PID); err != nil || i.State != "Z" {
		t.Errorf("nobody has waited for it, and it is %+v, %v", i, err)
	}
}

func TestRealTree(t *testing.T) {
	r := processtest.Start(t, family)
	child, session, orphan := settle(t, r)
	table := snapshot(t)
	if ours, why := table.Ours(table[r.PID], processtest.Rules()); !ours {
		t.Skipf("tests run where nothing is ours: %s", why)
	}
	for _, id := range []process.ID{r.ID, child, session, orphan} {
		line, err := process.Proc{}.Line(id.PID)
		if err != nil {
			t.Fatal(err)
		}
		for what, of := range map[string]process.Table{"whole": table, "line": line} {
			if got, ok := of.Root(id.PID, processtest.Rules()); !ok || got != r.ID {
				t.Errorf("root of %s by the %s table is %s, %v; want %s", id, what, got, ok, r.ID)
			}
		}
	}
	f := process.Follow(table[r.PID])
	all := []process.ID{r.ID, child, session, orphan}
	if got := members(t, f); len(got) != 4 || !slices.Contains(got, child) || !slices.Contains(got, session) || !slices.Contains(got, orphan) || got[0] != r.ID {
		t.Fatalf("tree %v, want %v", got, all)
	}
	// Its root ends and is first a zombie, then gone: the rest holds together.
	signal(t, r.ID, syscall.SIGKILL)
	processtest.WaitGone(t, r.ID)
	for _, state := range []string{"zombie", "gone"} {
		if got := members(t, f); len(got) != 3 || slices.Contains(got, r.ID) {
			t.Errorf("with its root %s the tree is %v", state, got)
		}
		if id, ok := snapshot(t).Root(orphan.PID, processtest.Rules()); state == "zombie" && (!ok || id != r.ID) {
			t.Errorf("root of the orphan is %s, %v", id, ok)
		}
		r.Reap()
	}
	for _, id := range []process.ID{child, session, orphan} {
		signal(t, id, syscall.SIGKILL)
	}
	processtest.WaitGone(t, child, session, orphan)
	if got := members(t, f); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
}

func signal(t *testing.T, id process.ID, s syscall.Signal) {
	t.Helper()
	h, _, err := process.Proc{}.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func TestHandleHoldsOneProcess(t *testing.T) {
	r := processtest.Start(t, "echo ready; exec sleep 1000")
	if _, _, err := (process.Proc{}).Open(process.ID{PID: r.PID, Start: r.Start + 1}); !errors.Is(err, process.ErrGone) {
		t.Errorf("a pid with another start: %v", err)
	}
	h, i, err := process.Proc{}.Open(r.ID)
	if err != nil || i.ID != r.ID || i.UID != processtest.UID() {
		t.Fatalf("%+v, %v", i, err)
	}
	defer h.Close()
	if ended := process.Ended([]*process.Handle{h}, 5*time.Millisecond); len(ended) != 0 {
		t.Error("ended though it runs")
	}
	if err := h.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if ended := process.Ended([]*process.Handle{h}, 20*time.Second); len(ended) != 1 {
		t.Fatal("its end was not seen")
	}
	r.Reap()
	if err := h.Signal(syscall.SIGTERM); !errors.Is(err, process.ErrGone) {
		t.Errorf("signal to an ended process: %v", err)
	}
	if _, _, err := (process.Proc{}).Open(r.ID); !errors.Is(err, process.ErrGone) {
		t.Errorf("an ended process: %v", err)
	}
}

func TestThisProcessIsNeverOurs(t *testing.T) {
	rules := process.Rules{Users: []string{strconv.Itoa(os.Getuid())}}
	table := snapshot(t)
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		one, err := process.Read(pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range []process.Info{one, table[pid]} {
			if ours, why := rules.Ours(i); ours || !i.Own {
				t.Errorf("%d %s is ours: %s", pid, i.Name, why)
			}
		}
		if _, ok := table.Root(pid, rules); ok {
			t.Errorf("%d has a root", pid)
		}
	}
}

func TestAnothersProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	r := processtest.StartAs(t, 65533, "echo ready; exec sleep 1000")
	if _, ok := snapshot(t).Root(r.PID, processtest.Rules()); ok {
		t.Error("another user's process has a root")
	}
	table := snapshot(t)
	if ours, why := table.Ours(table[r.PID], processtest.Rules()); ours || why == "" {
		t.Errorf("ours: %v, %s", ours, why)
	}
}

func TestElsewhere(t *testing.T) {
	r := processtest.Start(t, "sleep 1000 & echo child $!; echo ready; wait")
	child := r.Child(t, "child")
	for _, c := range []string{"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n", "12:freezer:/slurm/uid_65534/job_7/step_0\n1:name=systemd:/system.slice/x.service\n"} {
		table, err := processtest.Elsewhere(t, map[int]string{child.PID: c}).Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if ours, why := table.Ours(table[child.PID], processtest.Rules()); ours {
			t.Errorf("in %q it is ours: %s", c, why)
		}
		if _, strangers := process.Follow(table[r.PID]).Update(table, processtest.Rules()); fmt.Sprint(strangers) == "[]" || strangers[0].ID != child {
			t.Errorf("strangers %v", strangers)
		}
	}
}

func TestSnapshotWhileProcessesComeAndGo(t *testing.T) {
	processtest.Start(t, "echo ready; while :; do /bin/true & /bin/true; done")
	for range 20 {
		if table := snapshot(t); !table[os.Getpid()].Own {
			t.Fatal("this process is not in the table")
		}
	}
}

func TestSay(t *testing.T) {
	screen, tty := processtest.Terminal(t)
	r := processtest.StartOn(t, tty, "echo ready; exec sleep 1000")
	i, err := process.Read(r.PID)
	if err != nil || i.TTY == 0 {
		t.Fatalf("%+v, %v", i, err)
	}
	if err := (process.Proc{}).Say(i, "to whom it concerns\r\n"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := screen.Read(buf); err != nil || !strings.Contains(string(buf[:n]), "to whom it concerns") {
		t.Errorf("%q, %v", buf[:n], err)
	}
	// A terminal that nobody reads is not waited for.
	long := strings.Repeat("x", 4000)
	for n := 0; process.Proc.Say(process.Proc{}, i, long) == nil; n++ {
		if n > 1000 {
			t.Fatal("a terminal takes 4 MB")
		}
	}
	// Without one, and with one that the process has not open any more.
	other := processtest.Start(t, "echo ready; exec sleep 1000")
	without, err := process.Read(other.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := (process.Proc{}).Say(without, long); err == nil {
		t.Error("said on no terminal")
	}
	without.TTY = i.TTY
	if err := (process.Proc{}).Say(without, long); err == nil {
		t.Error("said on the terminal of another")
	}
}
