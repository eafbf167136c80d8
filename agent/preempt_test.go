package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func TestPreemptEndsAWorkload(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(family)
	child, session, orphan := run.Child(t, "child"), run.Child(t, "session"), run.Child(t, "orphan")
	e.holds("GPU-2", session)
	waitFor(t, "the orphan is one", func() bool { i, err := process.Read(orphan.PID); return err == nil && i.Parent != run.PID })
	o := e.preempt(run.ID)
	got := e.finally(o)
	wantDetail(t, got, telemetry.Done, "4 processes of "+process.UserName(processtest.UID()), "TERM to 4, all ended within", "released: GPU-1, GPU-2", "told by "+e.o.Notices)
	wantNumbers(t, "before", got.Before, "device_memory_bytes:2.147483648e+09 holders:2 processes:4")
	wantNumbers(t, "after", got.After, "holders:0 processes:0")
	for _, id := range []process.ID{run.ID, child, session, orphan} {
		if processtest.Alive(id) {
			t.Errorf("%s lives", id)
		}
	}
	if r := e.bus.get(); len(r) != 1 || r[0].Result != telemetry.Done || r[0].Spontaneous || r[0].StepID != o.ID {
		t.Errorf("published %+v", r)
	}
	if again := e.do(o); again.Detail != got.Detail {
		t.Errorf("repeated: %s %s", again.Result, again.Detail)
	}
	// The same workload in a new order: there is nothing left to end.
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "was gone already, and holds no device")
}

func TestWhatIgnoresTheSignalIsKilledAfterItsGrace(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start("trap '' TERM; sleep 1000 & echo child $!; echo ready; while :; do sleep 1000; done")
	child := run.Child(t, "child")
	const patience = 400 * time.Millisecond
	began := time.Now()
	got := e.finally(e.preempt(run.ID, grace(patience)))
	if took := time.Since(began); took < patience {
		t.Errorf("killed after %s, before its grace of %s was over", took, patience)
	}
	wantDetail(t, got, telemetry.Done, "TERM to 3, 0 ended within the grace of 400ms and 3 by KILL", "released: GPU-1")
	if processtest.Alive(child) {
		t.Error("a child lives")
	}
}

// What a workload starts when it is asked to end is left to it for its grace,
// and ended with it.
func TestChildrenBornOfTheSignal(t *testing.T) {
	t.Parallel()
	t.Run("that save its work", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		run := e.start(`trap '(trap "echo disturbed" TERM; sleep 0.4; echo saved); exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
		wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "all ended within")
		if run.Count("saved") != 1 || run.Count("disturbed") != 0 {
			t.Errorf("saved %d times, disturbed %d times", run.Count("saved"), run.Count("disturbed"))
		}
	})
	t.Run("that stay", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		run := e.start(`trap 'setsid sleep 1000 & echo born $!; (sleep 1001 & echo orphan $!)' TERM; echo ready; while :; do sleep 0.05; done`)
		got := e.finally(e.preempt(run.ID, grace(500*time.Millisecond)))
		wantDetail(t, got, telemetry.Done, " within the grace of 500ms and ", " by KILL")
		for _, word := range []string{"born ", "orphan "} {
			if pid := run.Line(t, word); lives(t, pid) {
				t.Errorf("%s%s lives", word, pid)
			}
		}
	})
	t.Run("whose parent has ended", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		run := e.start(`trap '(sleep 1000 & echo orphan $!); exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
		wantDetail(t, e.finally(e.preempt(run.ID, grace(500*time.Millisecond))), telemetry.Done, "1 by KILL")
		if pid := run.Line(t, "orphan "); lives(t, pid) {
			t.Errorf("orphan %s lives", pid)
		}
	})
}

// lives says whether a process whose pid a script printed has not ended.
func lives(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	i, err := process.Read(n)
	return err == nil && !i.Dead()
}

// A workload that always becomes another process, whose parent has ended, is
// ended too.
func TestWorkloadThatIsOnTheRun(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	comet := filepath.Join(openDir(t), "comet")
	if err := os.WriteFile(comet, []byte("echo here $$\ntrap '' TERM\nsleep 0.02\nsh $0 &\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := e.start("trap 'exit 0' TERM; (sh " + comet + " &); echo ready; while :; do sleep 0.02; done")
	run.Line(t, "here")
	wantDetail(t, e.finally(e.preempt(run.ID, grace(400*time.Millisecond))), telemetry.Done, "by KILL")
	n := run.Count("here")
	time.Sleep(200 * time.Millisecond)
	if more := run.Count("here"); n < 5 || more != n {
		t.Errorf("it was here %d times, and %d times after its end", n, more-n)
	}
}

func pathExists(path string) bool { _, err := os.Stat(path); return err == nil }

// A stopped process handles a signal once it goes on, so it is let go on.
func TestStoppedWorkloadStillEnds(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(`trap 'echo handled; exit 0' TERM; sleep 1000 & echo child $!; echo ready; while :; do sleep 0.05; done`)
	child := run.Child(t, "child")
	for _, id := range []process.ID{run.ID, child} {
		if err := syscall.Kill(id.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "it is stopped", func() bool { i, err := process.Read(id.PID); return err == nil && i.State == "T" })
	}
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "all ended within")
	if run.Count("handled") != 1 {
		t.Errorf("the signal was handled %d times", run.Count("handled"))
	}
}

// The root has ended, its parent has taken no notice, and its children hold on.
func TestZombieRoot(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := processtest.Start(t, "sleep 1000 & echo child $!; (sleep 1001 & echo orphan $!); echo ready; wait")
	child, orphan := run.Child(t, "child"), run.Child(t, "orphan")
	e.holds("GPU-1", child)
	if err := syscall.Kill(run.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it is a zombie, its child an orphan", func() bool {
		i, err := process.Read(run.PID)
		c, errChild := process.Read(child.PID)
		return err == nil && errChild == nil && i.Dead() && c.Parent != run.PID
	})
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "2 processes of", "released: GPU-1")
	if processtest.Alive(child) || processtest.Alive(orphan) {
		t.Error("what the root has left behind lives")
	}
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "was gone already")
}

func TestOtherSignals(t *testing.T) {
	e := newEnding(t)
	run := e.start(`trap 'echo saving; exit 0' USR1; trap 'echo wrong' TERM; echo ready; while :; do sleep 0.05; done`)
	wantDetail(t, e.finally(e.preempt(run.ID, func(o *telemetry.Order) { o.Params.Signal = "USR1" })), telemetry.Done, "USR1 to ", "all ended within")
	if run.Count("saving") != 1 || run.Count("wrong") != 0 {
		t.Errorf("saving %d, wrong %d", run.Count("saving"), run.Count("wrong"))
	}
}

func TestDryRunSignalsNobody(t *testing.T) {
	e := newEnding(t)
	run := e.start(family)
	got := e.do(e.preempt(run.ID, dry, grace(5*time.Second)))
	wantDetail(t, got, telemetry.Done, "would send TERM to 4 processes", fmt.Sprintf("%d sh", run.PID), fmt.Sprintf("GPU-1 by %d (1.0 GiB)", run.PID), "KILL after 5s")
	if !processtest.Alive(run.ID) || pathExists(e.o.Notices) {
		t.Error("a dry run did something")
	}
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done) // and holds nothing back
}

// An order that takes its time is pending, and done once; caps go on meanwhile.
func TestLongOrderIsPendingAndDoneOnce(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	file := filepath.Join(openDir(t), "go")
	run := e.start(`trap 'echo term' TERM; echo ready; while [ ! -e ` + file + ` ]; do sleep 0.02; done`)
	o := e.preempt(run.ID)
	began := time.Now()
	wantDetail(t, e.do(o), telemetry.Pending, "TERM was sent", "to end")
	if took := time.Since(began); took < repeatWait {
		t.Errorf("pending after %s", took)
	}
	for range 2 {
		wantDetail(t, e.do(o), telemetry.Pending, "TERM was sent")
	}
	e.mustDo(e.cap(500))
	wantDetail(t, e.do(e.preempt(run.ID)), telemetry.Refused, "step "+o.ID+" is ending process")
	wantDetail(t, e.do(e.preempt(run.ID, dry)), telemetry.Refused, "is ending process")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wantDetail(t, e.finally(o), telemetry.Done, "all ended within")
	if n := run.Count("term"); n != 1 {
		t.Errorf("the signal came %d times", n)
	}
	receipts := 0
	for _, r := range e.bus.get() {
		if r.StepID == o.ID {
			receipts++
		}
	}
	if receipts != 1 {
		t.Errorf("%d receipts published", receipts)
	}
}

// An order is good if it has not expired when it begins.
func TestExpiryIsJudgedAtTheStart(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start("trap '' TERM; echo ready; while :; do sleep 1000; done")
	o := e.preempt(run.ID, grace(3*time.Second), func(o *telemetry.Order) { o.Expires = time.Now().Add(time.Second) })
	wantDetail(t, e.finally(o), telemetry.Done, "by KILL")
	late := e.preempt(run.ID, func(o *telemetry.Order) {
		o.SentAt, o.Expires = o.SentAt.Add(-time.Minute), time.Now().Add(-time.Second)
	})
	e.wantRefused(late, telemetry.RefuseExpired)
}

func TestNotReleased(t *testing.T) {
	t.Parallel()
	impatient := func(e *ending) { e.a.releaseWithin = 300 * time.Millisecond }
	t.Run("still listed", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		impatient(e)
		run := e.start("echo ready; exec sleep 1000")
		e.cards.change(func() { e.cards.sticky = true })
		got := e.finally(e.preempt(run.ID))
		wantDetail(t, got, telemetry.Failed, "all ended within", "not released after 300ms", fmt.Sprintf("GPU-1 by %d", run.PID))
		wantNumbers(t, "after", got.After, "device_memory_bytes:1.073741824e+09 holders:1 processes:0")
		wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Failed, "was gone already, and still listed is GPU-1")
	})
	t.Run("its device falls silent", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		impatient(e)
		run := e.start(`trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
		e.procs.set(func(call string) bool {
			if call == "after terminated" {
				e.cards.change(func() { e.cards.silent["GPU-1"] = make(chan struct{}) })
			}
			return true
		})
		wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Failed, "whether it is released is not known of GPU-1 (the device does not answer)")
	})
	t.Run("the driver goes away", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		impatient(e)
		run := e.start("echo ready; exec sleep 1000")
		e.procs.set(func(call string) bool {
			if call == "after terminated" {
				e.cards.change(func() { e.cards.err["GPU-1"], e.cards.err["GPU-2"] = errAway, errAway })
			}
			return true
		})
		wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Failed, "not known of GPU-1 (the driver is away)")
	})
	t.Run("another device is silent", func(t *testing.T) {
		t.Parallel()
		e := newEnding(t)
		run := e.start("echo ready; exec sleep 1000")
		e.cards.change(func() { e.cards.silent["GPU-2"] = make(chan struct{}) })
		wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Done, "released: GPU-1")
	})
}

// What Kubernetes runs inside the workload is named and left alone.
func TestStrangersInTheTreeAreLeft(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(`trap 'exit 0' TERM; sleep 1000 & echo child $!; echo ready; while :; do sleep 0.05; done`)
	child := run.Child(t, "child")
	elsewhere := processtest.Elsewhere(t, map[int]string{child.PID: "0::/kubepods/pod1/c\n"})
	e.procs.Processes = elsewhere
	got := e.finally(e.preempt(run.ID, grace(300*time.Millisecond)))
	wantDetail(t, got, telemetry.Done, fmt.Sprintf("left alone: %d sleep of", child.PID))
	if !processtest.Alive(child) {
		t.Error("a process in a pod was ended")
	}
}

func TestCannotBeEnded(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	e.a.killWithin = 200 * time.Millisecond
	run := e.start("trap '' TERM; echo ready; while :; do sleep 1000; done")
	e.procs.Processes = deaf{process.Proc{}}
	got := e.finally(e.preempt(run.ID, grace(100*time.Millisecond)))
	wantDetail(t, got, telemetry.Failed, "left 200ms after KILL: 2 processes", fmt.Sprintf("%d sh (state S)", run.PID), "they hold GPU-1")
	wantNumbers(t, "after", got.After, "device_memory_bytes:1.073741824e+09 holders:1 processes:2")
}

// deaf is a node whose processes KILL does not end, as one does not that waits
// inside the kernel.
type deaf struct{ process.Proc }

func (d deaf) Signal(h *process.Handle, s syscall.Signal) error {
	if s == syscall.SIGKILL {
		return nil
	}
	return d.Proc.Signal(h, s)
}

// What is no longer ours when it is about to be signalled gets no signal.
func TestJudgedAgainOnceHeld(t *testing.T) {
	e := newEnding(t)
	run := e.start("echo ready; exec sleep 1000")
	e.procs.Processes = moved{process.Proc{}, processtest.Elsewhere(t, map[int]string{run.PID: "0::/kubepods/pod1/c\n"})}
	wantDetail(t, e.finally(e.preempt(run.ID)), telemetry.Failed, "no process was signalled", "is no longer ours", "only Kubernetes may end")
	if !processtest.Alive(run.ID) {
		t.Error("it was ended")
	}
}

// moved is a node whose processes are elsewhere by the time they are held.
type moved struct {
	process.Proc
	to process.Proc
}

func (m moved) Open(id process.ID) (*process.Handle, process.Info, error) { return m.to.Open(id) }

func TestNoPermissionToSignal(t *testing.T) {
	e := newEnding(t)
	run := e.start(family)
	e.procs.Processes = denied{process.Proc{}}
	for _, change := range []func(*telemetry.Order){dry, grace(time.Second)} {
		wantDetail(t, e.finally(e.preempt(run.ID, change)), telemetry.Refused, "must run as root or with CAP_KILL")
	}
	if pathExists(e.o.Notices) {
		t.Error("the owner was told of what cannot be")
	}
}

type denied struct{ process.Proc }

func (denied) Signal(h *process.Handle, s syscall.Signal) error {
	return fmt.Errorf("process %s: signal %s: %w", h.ID, s, syscall.EPERM)
}

func TestPreemptIsOptedInto(t *testing.T) {
	e := newEnding(t)
	run := e.start(family)
	e.reopen(func(o *Options) { o.Allow = []telemetry.StepKind{telemetry.StepPowerCap} })
	e.wantRefused(e.preempt(run.ID), telemetry.RefuseNotAllowed)
	e.reopen(func(o *Options) {
		o.Allow = []telemetry.StepKind{telemetry.StepPreempt}
		o.ClockSynced = func() (bool, error) { return false, nil }
	})
	if got := e.wantRefused(e.preempt(run.ID), telemetry.RefuseClock); !strings.Contains(got.Detail, "not synchronised") {
		t.Error(got.Detail)
	}
	if !processtest.Alive(run.ID) {
		t.Error("ended")
	}
	for name, change := range map[string]func(*Config){
		"nobody's processes": func(c *Config) { c.Processes = process.Rules{} },
		"no grace":           func(c *Config) { c.Grace = 0 },
		"a grace beyond":     func(c *Config) { c.MaxGrace = c.Grace - 1 },
		"no notices":         func(c *Config) { c.Notices = "" },
	} {
		c := e.o.Config
		change(&c)
		if err := c.Check(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
