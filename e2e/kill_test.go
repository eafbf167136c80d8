package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// kill is a row of the table: a process that dies by SIGKILL at a point, how
// long it stays dead, and whether another one takes its place meanwhile.
type kill struct {
	role  string // rebalancer or agent
	at    string
	pause time.Duration
}

// killRun is a stack on which rows follow each other along the way from a
// detection to its outcome: whoever is started again is told where to die next.
type killRun struct {
	name string
	setting
	// standby: a second rebalancer waits for the lease. The one that died is the
	// one that waits when it is back.
	standby bool
	rows    []kill
	// work is a real process that holds a share of a GPU and is to be preempted.
	work *work
	// meanwhile is done as long as the run goes on, such as saying yes.
	meanwhile func(r *crashRig) error
}

// oneHot heats one GPU for long enough that it is capped, renewed and judged
// although whoever leads dies several times.
var oneHot = []event{{gpu: 0, at: 6 * time.Second, lasts: 70 * time.Second, factor: hot}}

func rebalancer(at string, pause time.Duration) kill { return kill{"rebalancer", at, pause} }
func agent(at string, pause time.Duration) kill      { return kill{"agent", at, pause} }

const (
	atOnce   = 0
	shortly  = 2 * time.Second
	afterAll = 12 * time.Second // the leader's lease has ended, a call has been given up
	tooLate  = 33 * time.Second // an order has expired
)

// The table. Every point of the two processes is in it; TestKillTable compares
// it with what they list.
var killRuns = []killRun{
	{name: "before each step", setting: quick(oneHot...), rows: []kill{
		rebalancer("lease.acquired.before", atOnce),
		rebalancer("journal.intent.power_cap.before", shortly),
		rebalancer("do.power_cap.before", atOnce),
		rebalancer("journal.intent.renew.before", shortly),
		rebalancer("do.renew.before", afterAll),
		rebalancer("journal.judged.before", atOnce),
		rebalancer("journal.intent.undo.before", afterAll),
		rebalancer("do.undo.before", shortly),
	}},
	{name: "after each step", setting: quick(oneHot...), rows: []kill{
		rebalancer("lease.acquired.after", shortly),
		rebalancer("journal.intent.power_cap.after", atOnce),
		rebalancer("observe.before", atOnce),
		rebalancer("journal.intent.renew.after", atOnce),
		rebalancer("do.renew.after", shortly),
		rebalancer("journal.judged.after", afterAll),
		rebalancer("journal.intent.undo.after", atOnce),
		rebalancer("do.undo.after", shortly),
	}},
	{name: "the other takes over, act", setting: quick(oneHot...), standby: true, rows: []kill{
		rebalancer("lease.renewed.before", shortly),
		rebalancer("order.before", shortly),
		rebalancer("observe.after", shortly),
		rebalancer("journal.renewed.before", shortly),
		rebalancer("journal.undone.before", shortly),
	}},
	{name: "the other takes over, outcome", setting: quick(oneHot...), standby: true, rows: []kill{
		rebalancer("lease.renewed.after", shortly),
		rebalancer("do.power_cap.after", shortly),
		rebalancer("journal.acted.before", afterAll),
		rebalancer("journal.renewed.after", shortly),
		rebalancer("journal.undone.after", shortly),
	}},
	{name: "a person approves", setting: setting{policy: "testdata/quick-approve.yaml", events: oneHot}, meanwhile: (*crashRig).approve, rows: []kill{
		rebalancer("journal.waiting.before", atOnce),
		rebalancer("journal.waiting.after", shortly),
		rebalancer("journal.approval.before", atOnce),
		rebalancer("journal.approval.after", shortly),
		rebalancer("order.after", atOnce),
		rebalancer("journal.acted.after", shortly),
	}},
	{name: "refused and failed", setting: setting{policy: "testdata/quick-tight.yaml", events: []event{
		{gpu: 0, at: 6 * time.Second, lasts: 60 * time.Second, factor: hot},
		{gpu: 1, at: 12 * time.Second, lasts: 60 * time.Second, factor: hot},
	}}, rows: []kill{
		agent("lower.before", shortly),
		rebalancer("journal.unsuccessful.before", atOnce),
		rebalancer("journal.unsuccessful.after", shortly),
		rebalancer("journal.refusals.before", atOnce),
		rebalancer("journal.refusals.after", shortly),
	}},
	{name: "one cap replaces another", setting: setting{policy: "testdata/quick-tight.yaml", events: []event{
		{gpu: 0, at: 6 * time.Second, lasts: 124 * time.Second, factor: hot},
		{gpu: 0, at: 80 * time.Second, lasts: 50 * time.Second, factor: hotter},
	}}, rows: []kill{
		rebalancer("journal.replaced.before", shortly),
		rebalancer("journal.replaced.after", atOnce),
	}},
	{name: "agent caps", setting: quick(hotInTurn(6, 5*time.Second)...), rows: []kill{
		agent("order.power_cap.before", shortly),
		agent("read.before", atOnce),
		agent("receipt.unfinished.before", atOnce),
		agent("receipt.again.before", shortly),
		agent("receipt.again.after", atOnce),
		agent("receipt.again.stored", atOnce),
		agent("read.after", shortly),
		agent("receipt.unfinished.after", atOnce),
		agent("lower.after", afterAll),
		agent("receipt.unfinished.stored", shortly),
		agent("order.power_cap.after", atOnce),
		agent("receipt.power_cap.before", shortly),
		agent("receipt.power_cap.after", atOnce),
	}},
	{name: "agent renews and undoes", setting: quick(hotInTurn(6, 3*time.Second)...), rows: []kill{
		agent("receipt.power_cap.stored", tooLate),
		agent("order.renew.before", atOnce),
		agent("order.renew.after", shortly),
		agent("receipt.renew.before", atOnce),
		agent("receipt.renew.after", shortly),
		agent("receipt.renew.stored", atOnce),
		agent("order.undo.before", shortly),
		agent("raise.before", atOnce),
		agent("raise.after", shortly),
		agent("order.undo.after", atOnce),
		agent("receipt.undo.before", shortly),
		agent("receipt.undo.after", atOnce),
		agent("receipt.undo.stored", shortly),
	}},
	{name: "preemption, rebalancer before", setting: noCapHelps, work: &work{obeys, telemetry.Done, "all ended within", 1}, rows: []kill{
		rebalancer("journal.intent.preempt.before", atOnce),
		rebalancer("journal.intent.preempt.after", shortly),
		rebalancer("do.preempt.before", atOnce),
	}},
	{name: "preemption, rebalancer after", setting: noCapHelps, work: &work{ignores, telemetry.Done, "by KILL", 1}, rows: []kill{
		rebalancer("do.preempt.after", shortly),
	}},
	{name: "preemption, agent before and after", setting: noCapHelps, work: &work{obeys, telemetry.Done, "all ended within", 1}, rows: []kill{
		agent("order.preempt.before", shortly),
		agent("order.preempt.after", atOnce),
	}},
	{name: "preemption, agent before TERM", setting: noCapHelps, work: &work{obeys, telemetry.Failed, "nothing is sent again", 0}, rows: []kill{
		agent("term.before", shortly),
	}},
	{name: "preemption, agent after TERM", setting: noCapHelps, work: &work{obeys, telemetry.Done, "have ended", 1}, rows: []kill{
		agent("term.after", shortly),
	}},
	{name: "preemption, agent at KILL", setting: noCapHelps, work: &work{ignores, telemetry.Done, "released", 1}, rows: []kill{
		agent("kill.before", shortly),
		agent("kill.after", atOnce),
	}},
}

// hotInTurn heats the first n GPUs, one after the other.
func hotInTurn(n int, apart time.Duration) (events []event) {
	for i := range n {
		events = append(events, event{gpu: i, at: 6*time.Second + time.Duration(i)*apart, lasts: 60 * time.Second, factor: hot})
	}
	return events
}

// TestKillTable kills rebalancer and agent at every step between a detection
// and its outcome. Whatever dies where: every run ends right, nothing is done
// twice, and journal, receipts, devices and explanation tell the same story.
func TestKillTable(t *testing.T) {
	t.Parallel()
	t.Run("every point has a row", func(t *testing.T) {
		for role, points := range crashPoints(t) {
			for _, p := range points {
				if !slices.ContainsFunc(killTable(), func(k kill) bool { return k.role == role && strings.Split(k.at, "#")[0] == p }) {
					t.Errorf("%s: no row kills it at %s", role, p)
				}
			}
		}
	})
	for _, run := range killRuns {
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			run.run(t)
		})
	}
}

// TestShippedBinariesDoNotCrash: of what the test build does on purpose the
// other knows not even the words.
func TestShippedBinariesDoNotCrash(t *testing.T) {
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"evenkeel", "evenkeel-node"} {
		for _, word := range []string{"EVENKEEL_CRASH_AT", "EVENKEEL_STOP_AT", "crash point ", "crashpoint.go", "crash.go"} {
			for path, want := range map[string]bool{name: false, "crashpoints/" + name: true} {
				data, err := os.ReadFile(filepath.Join(bin, path))
				if err != nil {
					t.Fatal(err)
				}
				if got := bytes.Contains(data, []byte(word)); got != want {
					t.Errorf("%s contains %q: %t, want %t", path, word, got, want)
				}
			}
		}
	}
}

// killTable is every row.
func killTable() (rows []kill) {
	for _, run := range killRuns {
		rows = append(rows, run.rows...)
	}
	return append(rows, leaderlessRows...)
}

// crashPoints asks the test build for the points of each process, by way of the
// error for one that it does not have.
func crashPoints(t *testing.T) map[string][]string {
	t.Helper()
	s := newStack(t)
	s.startNATS(crashNode)
	cfg := s.configs(crashNode)
	out := map[string][]string{}
	for role, args := range map[string][]string{
		"rebalancer": {"evenkeel", "rebalancer", "-c", cfg["rebalancer"]},
		"agent":      {"evenkeel-node", "agent", "-c", cfg["agent"]},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "crashpoints", args[0]), args[1:]...)
		cmd.Env = slices.Concat(os.Environ(), s.env, []string{"EVENKEEL_CRASH_AT=nowhere"})
		text, err := cmd.CombinedOutput()
		_, names, ok := strings.Cut(string(text), "EVENKEEL_CRASH_AT=nowhere: this process has no such point; it has ")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !ok {
			t.Fatalf("%s with a point that it does not have: %v: %s", role, err, text)
		}
		names, _, _ = strings.Cut(names, "\n")
		if out[role] = strings.Fields(names); len(out[role]) < 20 {
			t.Fatalf("%s lists %q", role, names)
		}
	}
	return out
}

func (k killRun) run(t *testing.T) {
	r := newCrashRig(t, k.setting)
	var work *workload
	if k.work != nil {
		work = r.claim(t, *k.work)
	}
	deaths := r.arm(k)
	if k.meanwhile != nil {
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(500 * time.Millisecond):
					_ = k.meanwhile(r) // whoever could answer may be dead
				}
			}
		}()
	}
	for i, row := range k.rows {
		ok := t.Run(row.role+" "+row.at, func(t *testing.T) {
			deaths[i](t)
			if err := r.sound(); err != nil {
				t.Error(err)
			}
		})
		if !ok {
			r.tell(t)
			return // what follows rests on it
		}
	}
	if work != nil {
		work.endsRight(t)
		return
	}
	r.endsRight(t)
}

// arm starts the processes, each told where to die first, and returns for each
// row what waits for its death and starts the process again, told the next.
func (r *crashRig) arm(k killRun) []func(t *testing.T) {
	r.t.Helper()
	order := map[string][]int{} // rows of each role
	for i, row := range k.rows {
		order[row.role] = append(order[row.role], i)
	}
	procs := make([]*proc, len(k.rows))
	// next starts a process that dies at the next row of its role, if any.
	next := func(role, as string) {
		var env []string
		var row = -1
		if len(order[role]) > 0 {
			row, order[role] = order[role][0], order[role][1:]
			env = []string{"EVENKEEL_CRASH_AT=" + k.rows[row].at}
		}
		p := r.run(as, env...)
		if row >= 0 {
			procs[row] = p
		}
	}
	next("rebalancer", "rebalancer")
	next("agent", "agent")
	who := []string{"rebalancer"}
	if k.standby {
		r.eventually(30*time.Second, "the first leads", func() error { return r.leads("rebalancer-1") })
		next("rebalancer", "standby")
		who = append(who, "standby")
	}
	var deaths []func(t *testing.T)
	for i, row := range k.rows {
		deaths = append(deaths, func(t *testing.T) {
			procs[i].diesAt(t, row.at, 120*time.Second)
			as := row.role
			if row.role == "rebalancer" {
				as = who[0]
				who = append(who[1:], as)
			}
			if k.standby { // it waits for the lease behind the one that has it by now
				eventually(t, 40*time.Second, "the other leads", func() error {
					return r.leads(fmt.Sprintf("%s-%d", who[0], r.lives[who[0]]))
				})
			}
			time.Sleep(row.pause)
			next(row.role, as)
		})
	}
	return deaths
}

// leads says that a process has begun to lead in its life.
func (r *crashRig) leads(life string) error {
	log, err := os.ReadFile(filepath.Join(r.dir, life+".log"))
	if err == nil && !strings.Contains(string(log), `msg="leadership changed" component=engine leading=true`) {
		err = fmt.Errorf("%s has not begun to lead", life)
	}
	return err
}

// approve says yes to what waits for a person.
func (r *crashRig) approve() error {
	for _, d := range r.decisions() {
		if d.Outcome != telemetry.OutcomeAwaiting || d.Approval != nil {
			continue
		}
		body, err := json.Marshal(map[string]string{"decision": d.ID, "by": "ada"})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := r.conn.Control(ctx, "approve", body); err != nil {
			return err
		}
	}
	return nil
}
