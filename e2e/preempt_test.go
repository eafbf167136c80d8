package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What a workload does when it is asked to end. Each prints a line for each
// signal that it gets.
const (
	obeys   = `trap 'echo term; sleep 0.3; exit 0' TERM; echo ready; while :; do sleep 0.1; done`
	ignores = `trap 'echo term' TERM; echo ready; while :; do sleep 0.1; done`
	// listens tells of every signal that could be meant to end it.
	listens = `for s in TERM INT HUP QUIT USR1 USR2 CONT; do trap "echo signal $s" $s; done; echo ready; while :; do sleep 0.1; done`
)

// GPUs of the quick world on which nothing runs but what claims them: one for
// what is ours, one for what is not.
const ourGPU, foreignGPU = 6, 7

// beyondHelp is a cooling so bad that the hardware slows the GPU down and stays
// at that: only an idle one is cool.
const beyondHelp = 4.9

// noCapHelps is a node whose agent may end the processes of the test's ordinary
// user, and whose GPU gets too hot for any cap that its policy would set.
var noCapHelps = setting{
	policy: "testdata/quick-preempt.yaml",
	rules: fmt.Sprintf("allow: [power_cap, renew, undo, preempt]\nnotices: NOTICES\nprocesses: {users: [\"%d\"]}\n",
		processtest.UID()),
	events: []event{
		{gpu: ourGPU, at: 8 * time.Second, lasts: 110 * time.Second, factor: beyondHelp},
		{gpu: foreignGPU, at: 8 * time.Second, lasts: 110 * time.Second, factor: beyondHelp},
	},
}

// work is what a workload does, and how its end is to be reported.
type work struct {
	script string
	result telemetry.Result
	says   string
	terms  int
}

// workload is a real process tree with a share of a simulated GPU.
type workload struct {
	work
	rig *crashRig
	run *processtest.Run
}

// claim starts a workload and lets it hold the GPU.
func (r *crashRig) claim(t *testing.T, w work) *workload {
	t.Helper()
	run := processtest.Start(t, w.script)
	r.hold(t, run, ourGPU)
	return &workload{w, r, run}
}

// hold makes a process use most of a GPU.
func (r *crashRig) hold(t *testing.T, run *processtest.Run, gpu int) {
	t.Helper()
	r.eventually(20*time.Second, "the world takes the claim", func() error {
		_, err := r.evenkeel("sim", "claim", "--shm", r.shm, "--gpu", fmt.Sprint(gpu), "--share", "0.8", "--memory", "20GiB", "--pid", fmt.Sprint(run.PID))
		return err
	})
}

// decided are the preemptions.
func (w *workload) decided() (out []*telemetry.Decision) {
	for _, d := range w.rig.decisions() {
		if d.Kind == telemetry.ActPreempt {
			out = append(out, d)
		}
	}
	return out
}

// receipt is what the agent reported of the preemption, once it has.
func (w *workload) receipt() (telemetry.Receipt, error) {
	for _, got := range w.rig.reported() {
		if got.Kind == telemetry.StepPreempt && got.Result != telemetry.Pending {
			return got, nil
		}
	}
	return telemetry.Receipt{}, errors.New("no receipt")
}

// known wants the journal to have the end of the step.
func (w *workload) known() error {
	ds := w.decided()
	if len(ds) == 0 {
		return errors.New("no preemption was decided")
	}
	d := ds[len(ds)-1]
	if n := len(d.Steps); n == 0 || d.Steps[n-1].Receipt == nil {
		return fmt.Errorf("%s is %s", d.ID, d.Outcome)
	}
	return nil
}

// endsRight wants the workload to have been asked as often as it should and to
// have ended or not, as reported, and everybody to say the same.
func (w *workload) endsRight(t *testing.T) {
	t.Helper()
	eventually(t, 120*time.Second, "the end of the step is in the journal", w.known)
	var got telemetry.Receipt
	eventually(t, 20*time.Second, "the agent's receipt is stored", func() (err error) {
		got, err = w.receipt()
		return err
	})
	if got.Result != w.result || !strings.Contains(got.Detail, w.says) {
		t.Errorf("reported %s: %s; want %s: %s", got.Result, got.Detail, w.result, w.says)
	}
	ended := w.result == telemetry.Done
	if alive := processtest.Alive(w.run.ID); alive == ended || w.run.Count("term") != w.terms {
		t.Errorf("alive: %t, asked %d times; want %t, %d", alive, w.run.Count("term"), !ended, w.terms)
	}
	if done := len(w.decided()); done != 1 && w.terms > 0 {
		t.Errorf("%d preemptions were decided", done)
	}
	if err := w.rig.sound(); err != nil {
		t.Errorf("the run was not sound: %v", err)
	}
	soon(t, "its GPU is not as it should be", func() error {
		claimed, err := w.claimed()
		if err == nil && claimed == ended {
			err = fmt.Errorf("claimed by it: %t", claimed)
		}
		return err
	})
	soon(t, "journal and receipts disagree", w.rig.receiptsAgree)
	soon(t, "an explanation is not true", func() error { return w.explained(got) })
	if writes := w.rig.writes(); len(writes) > 0 {
		t.Errorf("limits were written: %v", writes)
	}
	if t.Failed() {
		w.rig.tell(t)
	}
}

// claimed asks the world whether the workload holds its GPU.
func (w *workload) claimed() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(w.rig.bin, "evenkeel"), "sim", "claims", "--shm", w.rig.shm).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("%w: %s", err, out)
	}
	return slices.Contains(strings.Fields(string(out)), fmt.Sprint(w.run.PID)), nil
}

// explained wants the decision to say whom it was about and what became of it,
// in the words of the agent.
func (w *workload) explained(got telemetry.Receipt) error {
	ds := w.decided()
	d := ds[len(ds)-1]
	text, err := w.rig.evenkeel("explain", d.ID)
	if err != nil {
		return err
	}
	for _, want := range []string{
		"thermal/preempt (disruptive, enforce)", fmt.Sprintf("proc:%s/%d@%d", crashNode, w.run.PID, w.run.Start),
		fmt.Sprintf("step %s ends process %d on %s", got.StepID, w.run.PID, crashNode), string(got.Result), w.says,
	} {
		if !strings.Contains(text, want) {
			err = errors.Join(err, fmt.Errorf("%s does not say %q:\n%s", d.ID, want, text))
		}
	}
	return err
}

// TestPreempt ends real process trees that hold shares of simulated GPUs, from
// the heat to the released device.
func TestPreempt(t *testing.T) {
	t.Parallel()
	t.Run("with grace", preemptedWithGrace)
	t.Run("by KILL", preemptedByKill)
}

// preemptedWithGrace: one that obeys is given its time. Another user's process
// on a GPU as hot is never touched.
func preemptedWithGrace(t *testing.T) {
	t.Parallel()
	r := newCrashRig(t, noCapHelps)
	w := r.claim(t, work{obeys, telemetry.Done, "all ended within", 1})
	foreign := processtest.StartAs(t, processtest.UID()-1, listens)
	r.hold(t, foreign, foreignGPU)
	r.run("rebalancer")
	r.run("agent")
	w.endsRight(t)
	got, err := w.receipt()
	if err != nil {
		t.Fatal(err)
	}
	if n := got.After["processes"] + got.After["holders"]; n != 0 || got.Before["holders"] != 1 {
		t.Errorf("before %v, after %v", got.Before, got.After)
	}
	notices, err := filepath.Glob(filepath.Join(r.dir, "notices", "*"))
	if err != nil || len(notices) != 1 || !strings.Contains(got.Detail, "told by "+notices[0]) {
		t.Errorf("notices %v, %v; %s", notices, err, got.Detail)
	}
	r.eventually(120*time.Second, "it was judged", func() error {
		if d := w.decided()[0]; d.Outcome != telemetry.OutcomeVerified || d.Ended.IsZero() {
			return fmt.Errorf("%s is %s", d.ID, d.Outcome)
		}
		return nil
	})
	if d := w.decided()[0]; d.Observed == nil || d.Observed.Change() < 10 {
		t.Errorf("headroom went from %+v", d.Observed)
	}

	if !processtest.Alive(foreign.ID) || foreign.Count("signal") != 0 {
		t.Errorf("another's process: alive %t, %d signals", processtest.Alive(foreign.ID), foreign.Count("signal"))
	}
	for _, d := range r.decisions() {
		if d.Target.PID == foreign.PID {
			t.Errorf("%s was about another's process", d.ID)
		}
	}
	text, err := r.evenkeel("explain", "nothing")
	if err != nil || !strings.Contains(text, "there is nothing to preempt") {
		t.Errorf("why nothing is done to it: %v\n%s", err, text)
	}
}

// preemptedByKill: one that takes no notice is killed when its grace is over,
// and not before.
func preemptedByKill(t *testing.T) {
	t.Parallel()
	r := newCrashRig(t, noCapHelps)
	w := r.claim(t, work{ignores, telemetry.Done, "by KILL", 1})
	r.run("rebalancer")
	r.run("agent")
	w.endsRight(t)
	got, err := w.receipt()
	if err != nil {
		t.Fatal(err)
	}
	grace := time.Duration(w.decided()[0].Steps[0].Step.Params.Grace)
	if took := got.Ended.Sub(got.Started); took < grace || grace != 3*time.Second {
		t.Errorf("it was killed %s after it was asked, its grace was %s", took, grace)
	}
}
