package rebalancer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The whole story of an ending, and of its workload during and after it.
func TestExplainAnEnding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d, tree := tooHot(4)
		tree.watts, tree.gpus, tree.name = 400, []string{"GPU-00-0", "GPU-00-1"}, "python3"
		w.run(12, 90, "GPU-00-0").owner = "bob"
		w.run(13, 60, "GPU-00-0").name = "serve"
		tree.deaf = true
		w.jobs = []telemetry.InventoryWorkload{
			{Ref: tree.ref(), Owner: "ada", Priority: -1, Requests: telemetry.Requests{Share: 0.7}, Start: w.now.Add(-2 * time.Hour), Members: []telemetry.WorkloadMember{{ID: tree.member().ID, Node: "n00", GPUs: tree.gpus}},
				Checkpoint: &telemetry.Checkpoint{Signal: "SIGUSR1", Grace: telemetry.Duration(time.Minute), Last: w.now.Add(-10 * time.Minute)}},
			{Ref: "proc:n00/13@13000", OptOut: []string{"preempt"}, Priority: -3, Members: []telemetry.WorkloadMember{{ID: w.trees[2].member().ID, Node: "n00", GPUs: []string{"GPU-00-0"}}}, Requests: telemetry.Requests{Share: 0.03}},
		}
		l := newLive(t, w, func(c *rebalancer.Config) { c.Policies = preempting() })
		w.jobs[0].Start, w.jobs[0].Checkpoint.Last = w.now.Add(-2*time.Hour), w.now.Add(-10*time.Minute)
		d.r = 0.2
		var story strings.Builder
		tell := func(when string, q rebalancer.Request) {
			var x rebalancer.Explanation
			if err := l.ask(rebalancer.VerbExplain, q, &x); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			fmt.Fprintf(&story, "==== %s ====\n%s\n", when, x.Text)
		}
		l.until(4*time.Minute, "told", func() bool { return len(tree.signals) == 1 })
		l.run(10 * time.Second)
		id := l.endings()[0].ID
		about := rebalancer.Request{Workload: tree.ref()}
		tell("its decision, in its grace", rebalancer.Request{Decision: id})
		tell("the workload, in its grace", about)
		tell("another on its GPU", rebalancer.Request{Workload: "proc:n00/12@12000"})
		l.until(2*time.Minute, "over", func() bool { return tree.over })
		l.until(3*time.Minute, "read", func() bool { return !l.endings()[0].Ended.IsZero() })
		w.jobs = nil
		l.run(2 * time.Second)
		tell("its decision, at its end", rebalancer.Request{Decision: id})
		tell("the workload that was", about)
		golden(t, "preempt.txt", story.String())
		// A new process, whose memory has let go of it, finds it in the journal.
		for i := range 80 {
			old := telemetry.Decision{ID: fmt.Sprintf("d-x%d", i), Ended: l.w.now, Outcome: telemetry.OutcomeExpired}
			l.journal.mu.Lock()
			l.journal.records = append(l.journal.records, telemetry.Record{Topic: telemetry.TopicOutcome, Time: l.w.now, Decision: &old})
			l.journal.mu.Unlock()
		}
		l.end()
		l.begin()
		l.run(2 * time.Second)
		var x rebalancer.Explanation
		if err := l.ask(rebalancer.VerbExplain, about, &x); err != nil || len(x.Decisions) != 1 || x.Decisions[0].ID != id {
			t.Errorf("long after: %v, %v", err, x.Decisions)
		}
	})
}
