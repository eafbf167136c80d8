package agent

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestNeverTouched: what is not ours is refused, with the reason, and lives.
func TestNeverTouched(t *testing.T) {
	t.Parallel()
	self, err := process.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	parent, err := process.Read(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	in := func(cgroup string) func(*ending, process.ID) {
		return func(e *ending, id process.ID) {
			e.procs.Processes = processtest.Elsewhere(e.t, map[int]string{id.PID: cgroup})
		}
	}
	own := func(e *ending, _ process.ID) {
		e.a.cfg.Processes.Users = append(e.a.cfg.Processes.Users, fmt.Sprint(os.Getuid()))
	}
	for name, c := range map[string]struct {
		id   process.ID // the script's unless set
		rig  func(*ending, process.ID)
		says string
	}{
		"in a pod":                     {rig: in("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-1.scope\n"), says: "only Kubernetes may end"},
		"in a pod, version 1":          {rig: in("9:memory:/kubepods/burstable/pod1/c1\n1:name=systemd:/\n"), says: "only Kubernetes may end"},
		"in a job step":                {rig: in("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"), says: "only Slurm may end"},
		"in a job step, version 1":     {rig: in("9:freezer:/slurm/uid_65534/job_7/step_0\n1:name=systemd:/system.slice/slurmd.service\n"), says: "only Slurm may end"},
		"outside of what can be seen":  {rig: in("0::/../../pod1/c1\n"), says: "cgroup namespace"},
		"of a user who is not named":   {rig: func(e *ending, _ process.ID) { e.a.cfg.Processes.Users = []string{"3999999998"} }, says: "is not in processes.users"},
		"in a cgroup that is not ours": {rig: func(e *ending, _ process.ID) { e.a.cfg.Processes = process.Rules{Cgroups: []string{"/machine.slice/"}} }, says: "is under none of processes.cgroups"},
		"the agent":                    {id: self.ID, rig: own, says: "this process or one that it descends from"},
		"the agent's parent":           {id: parent.ID, rig: own, says: "this process or one that it descends from"},
		"process 1":                    {id: firstProcess(t), rig: own, says: "is not ours"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnding(t)
			id := c.id
			if id.PID == 0 {
				id = e.start("echo ready; exec sleep 1000").ID
			}
			c.rig(e, id)
			e.holds("GPU-1", id)
			e.wantAlive(id, e.preempt(id), telemetry.RefuseNotOurs, c.says)
		})
	}
}

func firstProcess(t *testing.T) process.ID {
	t.Helper()
	i, err := process.Read(1)
	if err != nil {
		t.Skip(err)
	}
	return i.ID
}

// wantAlive wants an order refused, dry and in earnest, and its process alive
// and its owner not disturbed.
func (e *ending) wantAlive(id process.ID, o *telemetry.Order, why telemetry.RefuseReason, says string) {
	e.t.Helper()
	rehearsal := *o
	rehearsal.DryRun = true
	for _, o := range []*telemetry.Order{&rehearsal, o} {
		got := e.finally(o)
		if got.Why != why {
			e.t.Errorf("%s %s (%s), want refused %s", got.Result, got.Why, got.Detail, why)
		}
		wantDetail(e.t, got, telemetry.Refused, says)
	}
	time.Sleep(20 * time.Millisecond) // a signal would have come
	if !processtest.Alive(id) {
		e.t.Error("it was ended all the same")
	}
	if pathExists(e.o.Notices) {
		e.t.Error("its owner was told of what did not happen")
	}
}

func TestAnothersProcessIsNotTouched(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	e := newEnding(t)
	run := processtest.StartAs(t, 65533, "echo ready; exec sleep 1000")
	e.holds("GPU-1", run.ID)
	e.wantAlive(run.ID, e.preempt(run.ID), telemetry.RefuseNotOurs, "user 65533 is not in processes.users")
	// Root's are not ours by their cgroup.
	rooted := processtest.StartAs(t, 0, "echo ready; exec sleep 1000")
	e.holds("GPU-1", rooted.ID)
	e.procs.Processes = processtest.Elsewhere(t, map[int]string{rooted.PID: "0::/machine.slice/x\n"})
	e.a.cfg.Processes.Cgroups = []string{"/machine.slice/"}
	e.wantAlive(rooted.ID, e.preempt(rooted.ID), telemetry.RefuseNotOurs, "it runs as root")
}

func TestEveryRefusalOfAPreemption(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order func(*telemetry.Order)
		rig   func(*ending)
		why   telemetry.RefuseReason
		says  string
	}{
		"no pid":                    {order: func(o *telemetry.Order) { o.Target.PID = 0 }, why: telemetry.RefuseMalformed, says: "the order lacks one"},
		"no start":                  {order: func(o *telemetry.Order) { o.Target.PIDStart = 0 }, why: telemetry.RefuseMalformed, says: "the order lacks one"},
		"no boot id":                {order: func(o *telemetry.Order) { o.Target.BootID = "" }, why: telemetry.RefuseMalformed, says: "the order lacks one"},
		"a pid reused":              {order: func(o *telemetry.Order) { o.Target.PIDStart-- }, why: telemetry.RefuseNoTarget, says: "which is another process and is left alone"},
		"KILL at once":              {order: func(o *telemetry.Order) { o.Params.Signal = "KILL" }, why: telemetry.RefuseMalformed, says: "there are TERM, INT, HUP, USR1, USR2"},
		"no such signal":            {order: func(o *telemetry.Order) { o.Params.Signal = "SIGTERM" }, why: telemetry.RefuseMalformed, says: "there are TERM"},
		"too long":                  {order: grace(11 * time.Minute), why: telemetry.RefuseLimit, says: "10m0s, this agent's longest (limits.max_grace)"},
		"negative":                  {order: grace(-time.Second), why: telemetry.RefuseMalformed, says: "a grace of -1s"},
		"nobody can tell who holds": {rig: func(e *ending) { e.a.lists = nil }, why: telemetry.RefuseUnsupported, says: "cannot see who holds a device"},
		"no driver":                 {rig: func(e *ending) { e.cards.change(func() { e.cards.err[""] = errAway }) }, why: telemetry.RefuseNoTarget, says: "the driver is away"},
		"its device is silent": {rig: func(e *ending) {
			e.cards.change(func() { e.cards.silent["GPU-1"] = make(chan struct{}) })
		}, why: telemetry.RefuseNoTarget, says: "others do not answer: GPU-1 (the device does not answer)"},
		"its device is lost": {rig: func(e *ending) {
			e.cards.change(func() { e.cards.of["GPU-1"], e.cards.err["GPU-1"] = nil, errAway })
		}, why: telemetry.RefuseNoTarget, says: "others do not answer: GPU-1 (the driver is away)"},
		"no /proc": {rig: func(e *ending) { e.procs.Processes = process.Proc{Root: "/none"} }, why: telemetry.RefuseNoTarget, says: "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnding(t)
			run := e.start("echo ready; exec sleep 1000")
			if c.rig != nil {
				c.rig(e)
			}
			order := c.order
			if order == nil {
				order = func(*telemetry.Order) {}
			}
			e.wantAlive(run.ID, e.preempt(run.ID, order), c.why, c.says)
		})
	}
}

func TestOnlyTheRootIsNamed(t *testing.T) {
	e := newEnding(t)
	run := e.start(family)
	child := run.Child(t, "child")
	e.holds("GPU-1", child)
	e.wantAlive(child, e.preempt(child), telemetry.RefuseNoTarget, fmt.Sprintf("is a part of the workload of %s (sh); name that one", run.ID))
}

func TestWhatHoldsNothingIsNotEnded(t *testing.T) {
	e := newEnding(t)
	run := e.start("echo ready; exec sleep 1000")
	e.cards.change(func() { e.cards.of["GPU-1"] = nil })
	got := e.finally(e.preempt(run.ID))
	wantDetail(t, got, telemetry.Done, "holds no device, so nothing was ended")
	wantNumbers(t, "after", got.After, "holders:0 processes:1")
	if !processtest.Alive(run.ID) {
		t.Error("ended for nothing")
	}
}

func TestGoneAlready(t *testing.T) {
	t.Parallel()
	e := newEnding(t)
	run := processtest.Start(t, "echo ready; exec sleep 1000")
	// An earlier life of the node: whatever has its pid now is another.
	wantDetail(t, e.finally(e.preempt(run.ID, func(o *telemetry.Order) { o.Target.BootID = "boot-0" })), telemetry.Done, "the node has restarted")
	if !processtest.Alive(run.ID) {
		t.Fatal("a process of this life was ended")
	}
	gone := process.ID{PID: 1 << 22, Start: 5} // beyond what the kernel gives
	wantDetail(t, e.finally(e.preempt(gone)), telemetry.Done, "was gone already, and holds no device")
	e.cards.change(func() { e.cards.silent["GPU-2"] = make(chan struct{}) })
	wantDetail(t, e.finally(e.preempt(gone)), telemetry.Done, "was gone already", "not known of GPU-2")
	e.cards.change(func() { e.cards.err["GPU-1"] = errAway })
	wantDetail(t, e.finally(e.preempt(gone)), telemetry.Done, "was gone already", "not known of GPU-1 (the driver is away)")
	e = newEnding(t)
	e.cards.change(func() { e.cards.err[""] = errAway })
	wantDetail(t, e.finally(e.preempt(gone)), telemetry.Failed, "whether a device is still held is not known")
}
