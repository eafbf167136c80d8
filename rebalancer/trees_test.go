package rebalancer_test

import (
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const bootID = "boot-1"

// tree is a process tree that holds devices of one node.
type tree struct {
	node        string
	pid         int
	start       uint64
	gpus        []string
	watts       float64 // that it draws on each
	owner, name string
	kind        string
	// elusive is gone whenever it is to be told.
	elusive bool
	// lingers is shown although it is over.
	lingers bool
	// deaf does not end on its signal, stuck not even on KILL.
	deaf, stuck bool
	over        bool
	// signals is how often it was told to end, by the steps that did.
	signals []string
	told    []telemetry.Params
	step    *telemetry.Step
	until   time.Time
}

// run starts a process on devices of one node.
func (w *world) run(pid int, watts float64, gpus ...string) *tree {
	t := &tree{node: w.device(gpus[0]).node, pid: pid, start: uint64(1000 * pid), gpus: gpus, watts: watts, owner: "ada", name: fmt.Sprintf("job%d", pid), kind: cluster.KindProcess}
	w.trees = append(w.trees, t)
	return t
}

func (t *tree) ref() telemetry.WorkloadRef {
	return telemetry.WorkloadRef(fmt.Sprintf("proc:%s/%d@%d", t.node, t.pid, t.start))
}

func (t *tree) member() cluster.Member {
	return cluster.Member{ID: fmt.Sprintf("%d@%d+%s", t.pid, t.start, bootID), Kind: t.kind, Workload: t.ref(), Owner: t.owner, Name: t.name}
}

func (w *world) membersOn(d *device) []cluster.Member {
	var out []cluster.Member
	for _, t := range w.trees {
		for _, uuid := range t.gpus {
			if uuid == d.uuid && (!t.over || t.lingers) {
				out = append(out, t.member())
			}
		}
	}
	return out
}

// preempt is what an agent does with a process: the signal, the grace, KILL.
func (w *world) preempt(s telemetry.Step, r telemetry.Receipt) telemetry.Receipt {
	var t *tree
	for _, x := range w.trees {
		if x.node == s.Target.Node && x.pid == s.Target.PID && x.start == s.Target.PIDStart && s.Target.BootID == bootID && !x.over && !x.elusive {
			t = x
		}
	}
	if t == nil {
		r.Result, r.Why, r.Detail = telemetry.Refused, telemetry.RefuseNoTarget, "there is no such process"
		w.ledger[s.ID] = r
		return r
	}
	t.signals, t.told = append(t.signals, s.ID), append(t.told, s.Params)
	w.calls[s.ID]++
	t.step, t.until = &s, w.now.Add(2*time.Second)
	if t.deaf || t.stuck {
		t.until = w.now.Add(time.Duration(s.Params.Grace))
	}
	r.Result, r.Detail = telemetry.Pending, "told to end"
	w.ledger[s.ID] = r
	return r
}

// endTrees ends what has been told to and has had its time.
func (w *world) endTrees() {
	for _, t := range w.trees {
		if t.step == nil || w.now.Before(t.until) {
			continue
		}
		r := w.ledger[t.step.ID]
		r.Result, r.Ended = telemetry.Done, w.now
		r.Detail = fmt.Sprintf("1 process ended on SIG%s, GPU memory released", t.step.Params.Signal)
		switch {
		case t.stuck:
			r.Result, r.Detail = telemetry.Failed, "1 process is still there 10 s after KILL"
		case t.deaf:
			r.Detail = "1 process ended on SIGKILL, GPU memory released"
		}
		t.over, t.step = !t.stuck, nil
		w.ledger[r.StepID] = r
	}
}
