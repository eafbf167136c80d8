package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Scripts that take the signal in their own way, and print a line each time.
const (
	obeys   = `trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.02; done`
	ignores = `trap 'echo term' TERM; echo ready; while :; do sleep 0.02; done`
)

// point is a place at which an agent may be killed.
type point struct {
	name string
	// at says whether this call is the place, from what was called before.
	at func(call string, before []string, id process.ID) bool
}

func called(call string, times int, before []string) bool {
	n := 0
	for _, b := range before {
		if b == call {
			n++
		}
	}
	return n >= times
}

var (
	beforeItLooks   = point{"before it looks", func(call string, _ []string, _ process.ID) bool { return call == "look" }}
	beforeTheSignal = point{"before the signal", func(call string, _ []string, _ process.ID) bool { return call == "before terminated" }}
	behindTheSignal = point{"behind the signal", func(call string, _ []string, _ process.ID) bool { return call == "after terminated" }}
	inTheGrace      = point{"in the grace", func(call string, before []string, _ process.ID) bool {
		return call == "look" && called("after terminated", 1, before)
	}}
	beforeKill = point{"before KILL", func(call string, _ []string, _ process.ID) bool { return call == "before killed" }}
	behindKill = point{"behind KILL", func(call string, _ []string, _ process.ID) bool { return call == "after killed" }}
	allGone    = point{"when all are gone", func(call string, before []string, id process.ID) bool {
		return call == "look" && called("after terminated", 1, before) && !processtest.Alive(id)
	}}
)

// killed carries an order out up to a point and leaves the ledger as a kill
// there would. e is then the rig of the agent that comes after.
func (e *ending) killed(at point, o *telemetry.Order, id process.ID) {
	e.t.Helper()
	image := e.o.Ledger + ".image"
	dead := make(chan struct{})
	var before []string
	e.procs.set(func(call string) bool {
		if at.at(call, before, id) {
			e.image(image)
			close(dead)
			return false
		}
		before = append(before, call)
		return true
	})
	answer := make(chan []byte, 1)
	go func(a *Agent, data []byte) { answer <- a.Handle(data) }(e.a, e.sign(o))
	select {
	case <-dead:
	case <-time.After(30 * time.Second):
		e.t.Fatalf("never came to the point %s: %v\n%s", at.name, before, <-answer)
	}
	e.procs.set(nil)
	e.a.aside.Wait()
	e.reopen(func(o *Options) { o.Ledger = image })
}

// next is the final receipt of a step that the bus has.
func (e *ending) next(step string) telemetry.Receipt {
	e.t.Helper()
	var got telemetry.Receipt
	waitFor(e.t, "the receipt is published", func() bool {
		for _, r := range e.bus.get() {
			if r.StepID == step && r.Result != telemetry.Pending {
				got = r
				return true
			}
		}
		return false
	})
	return got
}

// TestKilledAtEveryPoint: wherever the agent is killed, the order has one end,
// which is true, and its processes get the signal at most once.
func TestKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	const patience = 700 * time.Millisecond
	for _, c := range []struct {
		at     point
		script string
		result telemetry.Result
		says   string
		terms  int
		alive  bool
	}{
		{beforeItLooks, obeys, telemetry.Failed, "nothing was done", 0, true},
		{beforeTheSignal, obeys, telemetry.Failed, "nothing is sent again", 0, true},
		{behindTheSignal, ignores, telemetry.Failed, "whether it did is not known, and nothing is sent again", 1, true},
		{behindTheSignal, obeys, telemetry.Done, "have ended", 1, false},
		{inTheGrace, obeys, telemetry.Done, "all ended within", 1, false},
		{inTheGrace, ignores, telemetry.Done, "by KILL", 1, false},
		{beforeKill, ignores, telemetry.Done, "by KILL", 1, false},
		{behindKill, ignores, telemetry.Done, "released: GPU-1", 1, false},
		{allGone, obeys, telemetry.Done, "released: GPU-1", 1, false},
		{allGone, ignores, telemetry.Done, "released: GPU-1", 1, false},
	} {
		name := map[string]string{obeys: "obeys", ignores: "ignores"}[c.script]
		t.Run(c.at.name+", the workload "+name, func(t *testing.T) {
			t.Parallel()
			e := newEnding(t)
			run := e.start(c.script)
			o := e.preempt(run.ID, grace(patience))
			began := time.Now()
			e.killed(c.at, o, run.ID)
			waitFor(t, "the signal has come", func() bool { return run.Count("term") >= c.terms })
			if c.script == obeys && c.terms > 0 {
				processtest.WaitGone(t, run.ID)
			}
			stop := e.run()
			defer stop()
			got := e.next(o.ID)
			wantDetail(t, got, c.result, c.says)
			if !got.Spontaneous {
				t.Error("the receipt does not say that nobody asked just then")
			}
			if processtest.Alive(run.ID) != c.alive || run.Count("term") != c.terms {
				t.Errorf("alive %v, got the signal %d times; want %v, %d", processtest.Alive(run.ID), run.Count("term"), c.alive, c.terms)
			}
			if took := time.Since(began); c.script == ignores && !c.alive && took < patience {
				t.Errorf("killed after %s, before its grace of %s was over", took, patience)
			}
			if again := e.do(o); again.Result != c.result || again.Detail != got.Detail {
				t.Errorf("repeated: %s %s", again.Result, again.Detail)
			}
			stop()
			for _, r := range e.bus.get() { // a receipt may be published twice, and is the same then
				if !r.Ended.Equal(got.Ended) || r.Detail != got.Detail {
					t.Errorf("two ends: %s; %s", got.Detail, r.Detail)
				}
			}
		})
	}
}

// TestKilledBehindKill: what a former run has killed did not end by itself within
// its grace, though that run did not live to say so.
func TestKilledBehindKill(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(`trap '' TERM; echo ready; exec sleep 1000`)
	o := e.preempt(run.ID, grace(300*time.Millisecond))
	e.killed(behindKill, o, run.ID)
	processtest.WaitGone(t, run.ID)
	stop := e.run()
	defer stop()
	wantDetail(t, e.next(o.ID), telemetry.Done, "past the grace of 300ms")
}

// TestKilledAndTheNodeRestarted: nothing of the workload can run any more.
func TestKilledAndTheNodeRestarted(t *testing.T) {
	t.Parallel()
	for _, at := range []point{beforeTheSignal, behindTheSignal, inTheGrace} {
		e := newEnding(t)
		run := e.start(ignores)
		o := e.preempt(run.ID)
		e.killed(at, o, run.ID)
		terms := 0
		if at.name != beforeTheSignal.name {
			terms = 1
		}
		waitFor(t, "the signal has come", func() bool { return run.Count("term") >= terms })
		e.reopen(func(o *Options) { o.BootID = "boot-2" })
		stop := e.run()
		wantDetail(t, e.next(o.ID), telemetry.Done, "the node has restarted")
		stop()
		if !processtest.Alive(run.ID) || run.Count("term") != terms {
			t.Errorf("%s: a process of another life was signalled", at.name)
		}
	}
}

// A resumed order takes nothing from those that come meanwhile.
func TestOrdersWhileOneIsResumed(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(ignores)
	o := e.preempt(run.ID, grace(4*time.Second))
	e.killed(inTheGrace, o, run.ID)
	stop := e.run()
	defer stop()
	waitFor(t, "it is healthy", e.a.running.Load)
	wantDetail(t, e.do(o), telemetry.Pending, "TERM was sent; the processes have until")
	e.mustDo(e.cap(500))
	wantDetail(t, e.do(e.preempt(run.ID)), telemetry.Refused, "step "+o.ID+" is ending process")
	wantDetail(t, e.next(o.ID), telemetry.Done, "by KILL")
	if n := run.Count("term"); n != 1 {
		t.Errorf("the signal came %d times", n)
	}
}

// What the workload starts in its grace is found again after a kill, though its
// parents have ended.
func TestKilledWhileChildrenAreBorn(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(`trap '(sleep 1000 & echo orphan $!); exit 0' TERM; echo ready; while :; do sleep 0.02; done`)
	o := e.preempt(run.ID, grace(time.Second))
	e.killed(point{"when only the orphan is left", func(call string, before []string, id process.ID) bool {
		// The look before this one has seen the orphan.
		return call == "look" && called("look alone", 1, before) && !processtest.Alive(id) && run.Count("orphan") == 1
	}}.countingLooks(), o, run.ID)
	stop := e.run()
	defer stop()
	wantDetail(t, e.next(o.ID), telemetry.Done, "1 by KILL")
	if pid := run.Line(t, "orphan "); lives(t, pid) {
		t.Errorf("orphan %s lives", pid)
	}
}

// countingLooks lets a point see that the look before it came when the root had
// ended.
func (p point) countingLooks() point {
	at, alone := p.at, false
	p.at = func(call string, before []string, id process.ID) bool {
		if alone {
			before = append(before, "look alone")
		}
		if at(call, before, id) {
			return true
		}
		alone = alone || call == "look" && !processtest.Alive(id)
		return false
	}
	return p
}

// A clock that was set does not change what the workload was promised for more
// than its grace.
func TestClockSetBackWhileTheAgentWasAway(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := e.start(ignores)
	o := e.preempt(run.ID, grace(600*time.Millisecond))
	e.killed(inTheGrace, o, run.ID)
	err := e.a.ledger.change(o.ID, func(x *entry) { x.Preempt.Until = time.Now().Add(24 * time.Hour) })
	if err != nil {
		t.Fatal(err)
	}
	e.reopen()
	stop := e.run()
	defer stop()
	wantDetail(t, e.next(o.ID), telemetry.Done, "by KILL")
}

// An agent that is told to end does not wait for a grace; its next run does.
func TestStoppedInTheGrace(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	file := filepath.Join(openDir(t), "go")
	run := e.start(`trap 'echo term' TERM; echo ready; while [ ! -e ` + file + ` ]; do sleep 0.02; done`)
	stop := e.run()
	waitFor(t, "it runs", e.a.running.Load)
	const patient = 5 * time.Minute
	o := e.preempt(run.ID, grace(patient))
	wantDetail(t, e.do(o), telemetry.Pending)
	began := time.Now()
	stop()
	if took := time.Since(began); took > patient/2 {
		t.Errorf("the end took %s of a grace of %s", took, patient)
	}
	if r := e.bus.get(); len(r) != 0 {
		t.Fatalf("published %+v", r)
	}
	e.reopen()
	stop = e.run()
	defer stop()
	waitFor(t, "it runs", e.a.running.Load)
	wantDetail(t, e.do(o), telemetry.Pending, "TERM was sent")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wantDetail(t, e.next(o.ID), telemetry.Done, "all ended within")
	if n := run.Count("term"); n != 1 {
		t.Errorf("the signal came %d times", n)
	}
}

// TestFullLedger: what cannot be written down before is not done.
func TestFullLedger(t *testing.T) {
	e := newEnding(t)
	run := e.start(ignores)
	o := e.preempt(run.ID)
	var cut atomic.Bool
	e.procs.set(func(call string) bool {
		if call == "after signal 0" && !cut.Swap(true) { // the last call before the order is marked as begun
			_ = e.a.ledger.db.Close()
		}
		return true
	})
	got := e.do(o)
	wantDetail(t, got, telemetry.Failed, "the ledger cannot be written")
	if !processtest.Alive(run.ID) || run.Count("term") != 0 {
		t.Error("it was signalled though that could not be written down")
	}
	if e.a.broken.Load() == nil || !strings.Contains(*e.a.broken.Load(), "not open") {
		t.Error("the health check does not know")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	e := newEnding(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.a.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
