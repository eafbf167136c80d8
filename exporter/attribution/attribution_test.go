package attribution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// rig is an Attribution whose looks the test makes.
type rig struct {
	*Attribution
	t   *testing.T
	now time.Time
}

func newRig(t *testing.T, opt Options) *rig {
	t.Helper()
	opt.Node = "node-1"
	if opt.Rules == nil {
		opt.Rules = func() (process.Rules, error) { return processtest.Rules(), nil }
	}
	a := New(opt)
	t.Cleanup(func() {
		for pid := range a.known {
			a.forget(pid)
		}
	})
	return &rig{a, t, time.Unix(1e9, 0)}
}

// lists tells what a device lists and looks at it, some time after the last
// look.
func (r *rig) lists(after time.Duration, uuid string, list ...exporter.Process) exporter.Holders {
	r.Listed(uuid, list)
	return r.looks(after, uuid)
}

func (r *rig) looks(after time.Duration, uuid string) exporter.Holders {
	r.now = r.now.Add(after)
	r.look(r.now)
	return r.Of(uuid)
}

func holds(pid int, bytes uint64) exporter.Process {
	return exporter.Process{PID: pid, MemoryBytes: bytes, Instance: exporter.NoInstance}
}

func bootID(t *testing.T) string {
	t.Helper()
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return boot
}

// says renders a member, all but the boot id.
func says(t *testing.T, m *telemetry.Member) string {
	t.Helper()
	id, ok := strings.CutSuffix(m.GetId(), "+"+bootID(t))
	if !ok {
		t.Errorf("member %q is of no life of this node", m.GetId())
	}
	gi := ""
	if m.HasGi() {
		gi = fmt.Sprintf(" gi %d", m.GetGi())
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %d%s", id, m.GetKind(), cmp.Or(m.GetWorkload(), "-"), m.GetOwner(), m.GetName(), m.GetMemoryBytes(), gi))
}

func all(t *testing.T, h exporter.Holders) []string {
	t.Helper()
	if len(h.Why) != len(h.Members) {
		t.Errorf("%d reasons beside %d members", len(h.Why), len(h.Members))
	}
	var list []string
	for i, m := range h.Members {
		if h.Why[i] == "" {
			t.Errorf("%s: no reason", m.GetId())
		}
		list = append(list, says(t, m))
	}
	return list
}

func wants(t *testing.T, when string, h exporter.Holders, want ...string) {
	t.Helper()
	if got := all(t, h); !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// workers is a launcher with two workers, as of torchrun.
const workers = `
sleep 1000 & echo first $!
sleep 1000 & echo second $!
echo ready
wait`

// settled waits until the children are what they will be: a process has its pid
// before it has become its program.
func settled(t *testing.T, ids ...process.ID) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		left := slices.ContainsFunc(ids, func(id process.ID) bool {
			i, err := process.Read(id.PID)
			return err != nil || i.Name != "sleep"
		})
		if !left {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the script's children do not settle")
		}
	}
}

// Processes of ours are named with the workload that they are part of, all
// others with their user alone.
func TestWhoseProcessesAre(t *testing.T) {
	run := processtest.Start(t, workers)
	first, second := run.Child(t, "first"), run.Child(t, "second")
	settled(t, first, second)
	self, err := process.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	owner, me := process.UserName(processtest.UID()), process.UserName(self.UID)
	r := newRig(t, Options{})
	list := []exporter.Process{holds(first.PID, 1<<30), {PID: second.PID, MemoryBytes: 2 << 30, Instance: 3}, holds(os.Getpid(), 0)}
	slices.SortFunc(list, func(a, b exporter.Process) int { return cmp.Compare(a.PID, b.PID) })
	h := r.lists(0, "GPU-0", list...)
	workload := process.Ref("node-1", run.ID)
	want := []string{
		fmt.Sprintf("%s proc %s %s sleep %d", first, workload, owner, 1<<30),
		fmt.Sprintf("%s proc %s %s sleep %d gi 3", second, workload, owner, 2<<30),
		fmt.Sprintf("%s unknown - %s %s 0", self.ID, me, self.Name),
	}
	slices.SortFunc(want, func(a, b string) int { return cmp.Compare(pidOf(a), pidOf(b)) })
	wants(t, "listed", h, want...)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if nobody := r.Of("GPU-1"); nobody.Version != 0 || nobody.Members != nil {
		t.Errorf("a device that was never listed: %+v", nobody)
	}
	if h := r.lists(0, "GPU-1"); h.Version != 1 || len(h.Members) != 0 {
		t.Errorf("a device that nobody holds: %+v", h)
	}
	if err := telemetry.WorkloadRef(workload).Check(); err != nil {
		t.Error(err)
	}
}

func pidOf(line string) int {
	pid, _, _ := strings.Cut(line, "@")
	n, _ := strconv.Atoi(pid)
	return n
}

// Who ends is no member any more, whether the device lists him or not, and
// another that gets his pid is another.
func TestProcessesThatEnd(t *testing.T) {
	one, other := processtest.Start(t, "echo ready\nexec sleep 1000"), processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, one.ID, other.ID)
	r := newRig(t, Options{})
	list := []exporter.Process{holds(one.PID, 1), holds(other.PID, 2)}
	h := r.lists(0, "GPU-0", list...)
	if len(h.Members) != 2 || h.Version != 1 {
		t.Fatalf("holders %v", all(t, h))
	}
	if err := syscall.Kill(one.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	processtest.WaitGone(t, one.ID)
	// Nobody has waited for it, and the device hangs and lists nobody anew.
	h = r.looks(lookEvery, "GPU-0")
	if h.Version != 2 || len(h.Members) != 1 || pidOf(h.Members[0].GetId()) != other.PID {
		t.Errorf("one has ended: %v", all(t, h))
	}
	one.Reap()
	if h = r.lists(lookEvery, "GPU-0", list...); h.Version != 2 || len(h.Members) != 1 {
		t.Errorf("listed though it ended: version %d, %v", h.Version, all(t, h))
	}
	if h = r.lists(0, "GPU-0"); h.Version != 3 || len(h.Members) != 0 {
		t.Errorf("nobody is listed: version %d, %v", h.Version, all(t, h))
	}
	if len(r.known) != 0 {
		t.Errorf("%d processes are remembered", len(r.known))
	}
}

// moved is a /proc in which a pid may be given to another process: stat says a
// start of the test's choice.
type moved struct {
	root string
	pid  int
}

func newMoved(t *testing.T, pid int) moved {
	t.Helper()
	m := moved{processtest.Elsewhere(t, map[int]string{pid: "0::/jobs\n"}).Root, pid}
	return m
}

func (m moved) start(t *testing.T, by uint64) process.ID {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.pid))
	if err != nil {
		t.Fatal(err)
	}
	i, err := process.Read(m.pid)
	if err != nil {
		t.Fatal(err)
	}
	now := process.ID{PID: m.pid, Start: i.Start + by}
	text := strings.Replace(string(data), fmt.Sprintf(" %d ", i.Start), fmt.Sprintf(" %d ", now.Start), 1)
	path := filepath.Join(m.root, strconv.Itoa(m.pid), "stat")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return now
}

// Where the kernel gives no handle, the start tells a pid that is given out anew.
func TestPIDOfAnother(t *testing.T) {
	run := processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, run.ID)
	proc := newMoved(t, run.PID)
	r := newRig(t, Options{Proc: process.Proc{Root: proc.root}})
	before := proc.start(t, 5)
	h := r.lists(0, "GPU-0", holds(run.PID, 1))
	if len(h.Members) != 1 || !strings.HasPrefix(h.Members[0].GetId(), before.String()+"+") {
		t.Fatalf("holders %v, want %s", all(t, h), before)
	}
	k := r.known[run.PID]
	k.handle.Close()
	k.handle = nil
	after := proc.start(t, 9)
	h = r.lists(time.Second, "GPU-0", holds(run.PID, 1))
	if len(h.Members) != 1 || !strings.HasPrefix(h.Members[0].GetId(), after.String()+"+") || h.Version != 2 {
		t.Errorf("the pid is another's: version %d, %v, want %s", h.Version, all(t, h), after)
	}
}

// What a process is called, and what it belongs to, is looked at again: soon
// after it was first listed, then once a minute.
func TestReadAgain(t *testing.T) {
	run := processtest.Start(t, "sleep 1000 & echo child $!\necho ready\nwait")
	child := run.Child(t, "child")
	settled(t, child)
	r := newRig(t, Options{})
	h := r.lists(0, "GPU-0", holds(child.PID, 1))
	workload := process.Ref("node-1", run.ID)
	if len(h.Members) != 1 || h.Members[0].GetWorkload() != workload {
		t.Fatalf("holders %v", all(t, h))
	}
	if err := syscall.Kill(run.PID, syscall.SIGKILL); err != nil { // the launcher
		t.Fatal(err)
	}
	processtest.WaitGone(t, run.ID)
	run.Reap()
	if h = r.lists(4*time.Second, "GPU-0", holds(child.PID, 1)); h.Version != 1 {
		t.Errorf("read again after 4 s: %v", all(t, h))
	}
	h = r.lists(time.Second, "GPU-0", holds(child.PID, 1))
	if len(h.Members) != 1 || h.Version != 2 || h.Members[0].GetWorkload() != process.Ref("node-1", child) {
		t.Errorf("an orphan is a workload of its own: version %d, %v", h.Version, all(t, h))
	}
	k := r.known[child.PID]
	var waits []time.Duration
	for range 3 {
		waits = append(waits, k.again.Sub(r.now))
		r.looks(k.again.Sub(r.now), "GPU-0")
	}
	if want := []time.Duration{60e9, 60e9, 60e9}; !slices.Equal(waits, want) {
		t.Errorf("read again after %v, want %v", waits, want)
	}
}

// A process that /proc does not show may have ended just now. One that is still
// listed later is somebody's, out of sight.
func TestOutOfSight(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	r := newRig(t, Options{})
	if h := r.lists(0, "GPU-0", holds(pid, 1)); h.Version != 1 || len(h.Members) != 0 {
		t.Errorf("vanished: %v", all(t, h))
	}
	if h := r.looks(time.Hour, "GPU-0"); h.Version != 1 || len(h.Members) != 0 {
		t.Errorf("vanished, and not listed since: %v", all(t, h))
	}
	h := r.lists(0, "GPU-0", holds(pid, 1))
	wants(t, "still listed", h, fmt.Sprintf("%d@0 unknown -   1", pid))
	if !strings.Contains(h.Why[0], "host's pid namespace") {
		t.Errorf("why: %s", h.Why[0])
	}
	if h := r.lists(0, "GPU-0"); len(h.Members) != 0 {
		t.Errorf("not listed any more: %v", all(t, h))
	}
}

// What is used changes often and is no news; a frame names no more than it has
// room for.
func TestMemoryAndBounds(t *testing.T) {
	run := processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, run.ID)
	r := newRig(t, Options{})
	before := r.lists(0, "GPU-0", holds(run.PID, 1))
	after := r.lists(0, "GPU-0", holds(run.PID, 2))
	if after.Version != before.Version || after.Members[0].GetMemoryBytes() != 2 || before.Members[0].GetMemoryBytes() != 1 {
		t.Errorf("version %d → %d, %d → %d bytes", before.Version, after.Version, before.Members[0].GetMemoryBytes(), after.Members[0].GetMemoryBytes())
	}
	var many []exporter.Process
	for i := range exporter.MaxMembers + 6 {
		many = append(many, holds(1<<22-100+i, 1)) // pids that nobody has
	}
	r.lists(0, "GPU-1", many...)
	h := r.lists(time.Minute, "GPU-1", many...)
	if len(h.Members) != exporter.MaxMembers || pidOf(h.Members[63].GetId()) != 1<<22-100+63 {
		t.Errorf("%d members of %d processes", len(h.Members), len(many))
	}
}

// A process on eight GPUs is read once, and nothing is allocated while nothing
// changes.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	run := processtest.Start(t, workers)
	list := []exporter.Process{holds(run.Child(t, "first").PID, 1<<30), holds(run.Child(t, "second").PID, 1<<30)}
	r := newRig(t, Options{})
	step := func() {
		for gpu := range 8 {
			r.Listed(uuids[gpu], list)
		}
		r.look(r.now)
	}
	step()
	if len(r.known) != 2 || len(r.Of(uuids[7]).Members) != 2 {
		t.Fatalf("%d processes, %d members", len(r.known), len(r.Of(uuids[7]).Members))
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%.1f allocations a look", n)
	}
}

var uuids = []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"}

// Without rules nobody's processes are ours, with bad ones those stay that were;
// whose they are is found out all the same, and new rules count within a minute.
func TestRules(t *testing.T) {
	run := processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, run.ID)
	bad := errors.New("the agent's file cannot be read")
	var rules process.Rules
	err := bad
	r := newRig(t, Options{Rules: func() (process.Rules, error) { return rules, err }})
	kind := func(after time.Duration) string {
		h := r.lists(after, "GPU-0", holds(run.PID, 1))
		if len(h.Members) != 1 || h.Members[0].GetName() != "sleep" {
			t.Fatalf("holders %v", all(t, h))
		}
		if want := err != nil; (r.Err() != nil) != want {
			t.Errorf("error %v", r.Err())
		}
		return h.Members[0].GetKind() + " " + h.Why[0]
	}
	if got := kind(0); got != "unknown "+bad.Error() {
		t.Errorf("without rules: %s", got)
	}
	rules, err = processtest.Rules(), nil
	if got := kind(time.Second); !strings.HasPrefix(got, "proc user ") {
		t.Errorf("with rules: %s", got)
	}
	rules, err = process.Rules{}, bad
	if got := kind(rulesEvery); !strings.HasPrefix(got, "proc ") {
		t.Errorf("with bad rules after good ones: %s", got)
	}
	err = nil
	if got := kind(time.Second); !strings.HasPrefix(got, "unknown user ") {
		t.Errorf("with rules that name nobody: %s", got)
	}
}

// Without a /proc nothing is known of processes, which is no reason to fail; it
// is known as soon as there is one.
func TestWithoutProc(t *testing.T) {
	root := filepath.Join(t.TempDir(), "proc")
	r := newRig(t, Options{Proc: process.Proc{Root: root}})
	run := processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, run.ID)
	if h := r.lists(0, "GPU-0", holds(run.PID, 1)); h.Version != 0 || r.Err() == nil || !strings.Contains(r.Err().Error(), "boot id") {
		t.Errorf("holders %+v, error %v", h, r.Err())
	}
	if err := os.Symlink("/proc", root); err != nil {
		t.Fatal(err)
	}
	if h := r.looks(lookEvery, "GPU-0"); len(h.Members) != 1 || r.Err() != nil {
		t.Errorf("holders %v, error %v", all(t, h), r.Err())
	}
}

// Nobody who lists or asks waits for a look that hangs.
func TestNobodyWaits(t *testing.T) {
	release := make(chan struct{})
	var asked atomic.Bool
	a := New(Options{Node: "node-1", Rules: func() (process.Rules, error) {
		asked.Store(true)
		<-release
		return process.Rules{}, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { a.Run(ctx) })
	a.Listed("GPU-0", []exporter.Process{holds(os.Getpid(), 1)})
	for end := time.Now().Add(20 * time.Second); !asked.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is looked at")
		}
	}
	for range 1000 {
		a.Listed("GPU-0", []exporter.Process{holds(os.Getpid(), 1)})
		if h := a.Of("GPU-0"); h.Version != 0 {
			t.Fatalf("holders %+v", h)
		}
	}
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	a.Settle(short)
	stop()
	if h := a.Of("GPU-0"); h.Version != 0 {
		t.Fatalf("holders %+v", h)
	}
	close(release)
	a.Settle(t.Context())
	if h := a.Of("GPU-0"); len(h.Members) != 1 {
		t.Errorf("holders %v", all(t, h))
	}
	cancel()
	ended.Wait()
	if len(a.known) != 0 {
		t.Error("handles are left open")
	}
}

func BenchmarkLook(b *testing.B) {
	a := New(Options{Node: "node-1", Rules: func() (process.Rules, error) { return processtest.Rules(), nil }})
	var list []exporter.Process
	for range 4 {
		list = append(list, holds(processtest.Start(b, "echo ready\nexec sleep 1000").PID, 1<<30))
	}
	now := time.Now()
	look := func() {
		for gpu := range 8 {
			a.Listed(uuids[gpu], list)
		}
		a.look(now)
	}
	b.Run("steady", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			look()
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			now = now.Add(time.Minute)
			look()
		}
	})
	for pid := range a.known {
		a.forget(pid)
	}
}
