package rebalancer_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var update = flag.Bool("update", false, "write testdata anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got, -update writes it):\n%s", path, diff)
	}
}

// The whole story of one decision, asked for at each turn.
func TestExplainFromStartToUndone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 2)
		w.jobs = []telemetry.InventoryWorkload{{Ref: "slurm:4711", Owner: "ada", Priority: 10, Members: []telemetry.WorkloadMember{{ID: "4711.0", Node: "n00", GPUs: []string{"GPU-00-0", "GPU-00-1"}}}}}
		l := newLive(t, w)
		l.run(10 * time.Second)
		d := w.device("GPU-00-1")
		d.r = 0.1
		var story strings.Builder
		tell := func(when string) {
			var x rebalancer.Explanation
			if err := l.ask(rebalancer.VerbExplain, rebalancer.Request{Decision: "d-000001"}, &x); err != nil {
				t.Fatal(err)
			}
			if len(x.Decisions) != 1 || x.Decisions[0].ID != "d-000001" {
				t.Errorf("decisions %v", x.Decisions)
			}
			fmt.Fprintf(&story, "==== %s ====\n%s\n", when, x.Text)
		}
		l.until(2*time.Minute, "acted", func() bool { return l.outcome() == telemetry.OutcomeActed })
		tell("when it has acted")
		l.until(2*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		tell("when it is verified")
		l.run(10 * time.Minute)
		tell("ten minutes on")
		d.r = 0.06
		l.until(5*time.Minute, "undone", func() bool { return l.outcome() == telemetry.OutcomeUndone })
		tell("when it is undone")
		golden(t, "thermal_cap.txt", story.String())
	})
}

func TestExplainWorkloadAndNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 2)
		w.jobs = []telemetry.InventoryWorkload{
			{Ref: "slurm:1", Owner: "ada", Priority: 10, OptOut: []string{"cap"}, Members: []telemetry.WorkloadMember{{ID: "1.0", GPUs: []string{"GPU-00-0", "GPU-00-1"}}}},
			{Ref: "slurm:2", Members: []telemetry.WorkloadMember{{ID: "2.0", GPUs: []string{"GPU-01-0"}}}},
		}
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.device("GPU-00-1").r, w.device("GPU-01-0").r = 0.1, 0.1
		l.run(2 * time.Minute)
		var story strings.Builder
		for _, q := range []rebalancer.Request{{Workload: "slurm:1"}, {Workload: "slurm:2"}, {Nothing: true}} {
			var x rebalancer.Explanation
			if err := l.ask(rebalancer.VerbExplain, q, &x); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&story, "==== %s ====\n%s\n", strings.Trim(string(q.Workload)+map[bool]string{true: " nothing"}[q.Nothing], " "), x.Text)
		}
		golden(t, "workload_and_nothing.txt", story.String())
	})
}

func TestExplainRefusesWhatItDoesNotKnow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLive(t, newWorld(1, 1))
		if err := l.ask(rebalancer.VerbExplain, rebalancer.Request{Workload: "slurm:1"}, nil); err == nil || !strings.Contains(err.Error(), "no View") {
			t.Errorf("before any View: %v", err)
		}
		var x rebalancer.Explanation
		if err := l.ask(rebalancer.VerbExplain, rebalancer.Request{Nothing: true}, &x); err != nil || !strings.Contains(x.Text, "no View of the fleet yet") {
			t.Errorf("before any View: %v, %q", err, x.Text)
		}
		var p rebalancer.DryRun
		if err := l.ask(rebalancer.VerbPlan, rebalancer.Request{}, &p); err != nil || !strings.Contains(p.Text, "no View") {
			t.Errorf("plan before any View: %v, %q", err, p.Text)
		}
		l.run(2 * time.Second)
		for want, q := range map[string]rebalancer.Request{
			`no decision "d-000042"`:                            {Decision: "d-000042"},
			"is not in view, and no decision was ever about it": {Workload: "slurm:1"},
			"is none of k8s, slurm, proc":                       {Workload: "docker:1"},
			"want a decision":                                   {},
		} {
			if err := l.ask(rebalancer.VerbExplain, q, nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", q, err, want)
			}
		}
		if _, err := l.engine.Control(rebalancer.VerbExplain, []byte("{")); err == nil {
			t.Error("half a request is accepted")
		}
		if _, err := l.engine.Control("dance", nil); err == nil || !strings.Contains(err.Error(), "approve") {
			t.Errorf("unknown verb: %v", err)
		}
	})
}

// A decision that memory has let go of is looked up in the journal.
func TestExplainOldDecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLive(t, newWorld(1, 1))
		l.end()
		for i := range 100 {
			d := telemetry.Decision{ID: fmt.Sprintf("d-%06d", i+1), Policy: "thermal", Kind: telemetry.ActCap, Outcome: telemetry.OutcomeUndone, Ended: time.Now(), Why: fmt.Sprintf("story %d", i+1)}
			if _, err := l.journal.Append(t.Context(), uint64(i), telemetry.Record{Topic: telemetry.TopicOutcome, Decision: &d}); err != nil {
				t.Fatal(err)
			}
		}
		l.begin()
		l.run(2 * time.Second)
		var x rebalancer.Explanation
		if err := l.ask(rebalancer.VerbExplain, rebalancer.Request{Decision: "d-000007"}, &x); err != nil || !strings.Contains(x.Text, "story 7") {
			t.Errorf("%v\n%s", err, x.Text)
		}
	})
}

func TestPlanChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 2)
		l := newLive(t, w)
		l.lease.take(true) // a follower plans too, as if it led
		l.run(5 * time.Second)
		w.device("GPU-00-0").temp, w.device("GPU-00-0").r = 88, 0.1
		l.run(20 * time.Second)
		for range 3 {
			var p rebalancer.DryRun
			if err := l.ask(rebalancer.VerbPlan, rebalancer.Request{}, &p); err != nil {
				t.Fatal(err)
			}
			if len(p.Decisions) != 1 || p.Decisions[0].Outcome != telemetry.OutcomeIntended || !strings.Contains(p.Text, "step d-000001.1-") || !strings.Contains(p.Text, " power_cap on GPU-00-0 on n00") || p.Coverage.Fresh != 2 {
				t.Errorf("%+v\n%s", p.Decisions, p.Text)
			}
		}
		if len(l.journal.all()) != 0 || w.device("GPU-00-0").sets != 0 {
			t.Error("the dry run wrote or acted")
		}
	})
}

func TestControlChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Approve })
		})
		l.run(5 * time.Second)
		w.device("GPU-00-0").r = 0.1
		l.until(time.Minute, "awaiting", func() bool { return l.outcome() == telemetry.OutcomeAwaiting })
		m := l.journal.fold(t)
		id := ""
		for id = range m.Decisions {
		}
		for _, c := range []struct {
			verb string
			q    rebalancer.Request
			want string
		}{
			{rebalancer.VerbApprove, rebalancer.Request{Decision: id}, "who asks"},
			{rebalancer.VerbApprove, rebalancer.Request{Decision: "d-9", By: "ada"}, "no decision"},
			{rebalancer.VerbUndo, rebalancer.Request{Decision: id, By: "ada"}, "nothing of it is in force"},
			{rebalancer.VerbMode, rebalancer.Request{Mode: "wild", By: "ada"}, "want observe"},
			{rebalancer.VerbMode, rebalancer.Request{Mode: telemetry.Enforce, Class: "rough", By: "ada"}, "want gentle"},
			{rebalancer.VerbClose, rebalancer.Request{By: "ada"}, "breaker is closed"},
		} {
			if err := l.ask(c.verb, c.q, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %+v: %v, want %q", c.verb, c.q, err, c.want)
			}
		}
		do := func(verb string, q rebalancer.Request) {
			t.Helper()
			q.By = "ada"
			if err := l.ask(verb, q, nil); err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
		}
		do(rebalancer.VerbPause, rebalancer.Request{All: true})
		do(rebalancer.VerbApprove, rebalancer.Request{Decision: id})
		l.run(3 * time.Second)
		if w.device("GPU-00-0").sets != 0 {
			t.Fatal("acted while all is paused")
		}
		do(rebalancer.VerbResume, rebalancer.Request{})
		l.until(5*time.Second, "acted", func() bool { return w.device("GPU-00-0").sets == 1 })
		if err := l.ask(rebalancer.VerbReject, rebalancer.Request{Decision: id, By: "ada"}, nil); err == nil || !strings.Contains(err.Error(), "undo it instead") {
			t.Errorf("reject of an act: %v", err)
		}
		if err := l.ask(rebalancer.VerbApprove, rebalancer.Request{Decision: id, By: "ada"}, nil); err == nil || !strings.Contains(err.Error(), "waits for no approval") {
			t.Errorf("approve of an act: %v", err)
		}
		l.until(2*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		do(rebalancer.VerbUndo, rebalancer.Request{Decision: id})
		l.until(10*time.Second, "undone", func() bool { return w.device("GPU-00-0").limit == defaultW })
		do(rebalancer.VerbMode, rebalancer.Request{Policy: "thermal", Class: telemetry.Gentle, Mode: telemetry.Observe})
		m = l.journal.fold(t)
		if m.Modes["thermal/gentle"] != telemetry.Observe {
			t.Errorf("modes %v", m.Modes)
		}
	})
}

func TestControlOfAnEngineThatDoesNotRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m, _ := metricsOf(nil)
		e, err := rebalancer.New(rebalancer.Config{Holder: "a", Journal: &journal{}, Lease: &lease{}, Metrics: m, Log: quiet(), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Control(rebalancer.VerbPlan, nil); err == nil || !strings.Contains(err.Error(), "is it running") {
			t.Errorf("%v", err)
		}
	})
}

// Passes that change nothing are written once per set of reasons, and kept an
// hour in memory.
func TestRefusalsAreWrittenWhenTheyChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 1)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) { p.Mode = telemetry.Observe })
		})
		sets := func() (out []*telemetry.RefusalSet) {
			for _, r := range l.journal.all() {
				if r.Refused != nil {
					out = append(out, r.Refused)
				}
			}
			return out
		}
		l.run(10 * time.Second)
		if n := len(sets()); n != 0 {
			t.Fatalf("%d sets while nothing is refused", n)
		}
		w.device("GPU-00-0").r = 0.1
		l.run(3 * time.Minute)
		if got := sets(); len(got) != 1 || got[0].Counts[telemetry.RefusalMode] != 1 {
			t.Fatalf("sets %+v, want one with the mode", got)
		}
		w.device("GPU-01-0").r = 0.1
		l.run(3 * time.Minute)
		if got := sets(); len(got) != 2 || got[1].Counts[telemetry.RefusalMode] != 2 {
			t.Fatalf("%d sets, want a second with both", len(got))
		}
		l.end()
		l.begin() // a new leader knows what was written
		l.run(time.Minute)
		if n := len(sets()); n != 2 {
			t.Fatalf("%d sets after a restart, want no new one", n)
		}
		w.device("GPU-00-0").r, w.device("GPU-01-0").r = 0.06, 0.06
		l.run(3 * time.Minute)
		if got := sets(); len(got[len(got)-1].Counts) != 0 {
			t.Errorf("last set %v, want that nothing is refused any more", got[len(got)-1])
		}
		var x rebalancer.Explanation
		if err := l.ask(rebalancer.VerbExplain, rebalancer.Request{Nothing: true}, &x); err != nil || len(x.Idle) == 0 {
			t.Fatalf("%v, %d runs of idle passes", err, len(x.Idle))
		}
		l.run(2 * time.Hour)
		if err := l.ask(rebalancer.VerbExplain, rebalancer.Request{Nothing: true}, &x); err != nil {
			t.Fatal(err)
		}
		for _, i := range x.Idle {
			if time.Since(i.Last) > time.Hour {
				t.Errorf("idle passes of %s ago are kept", time.Since(i.Last))
			}
		}
	})
}

// Snapshots come by themselves and a start from one is a start from all.
func TestEngineWritesSnapshots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 2)
		l := newLive(t, w)
		l.end()
		resumed := false
		for i := range 970 {
			r := telemetry.Record{ID: fmt.Sprint("old-", i), Topic: telemetry.TopicMode, Time: time.Now(), Mode: &telemetry.ModeChange{Paused: &resumed, By: "ada"}}
			if _, err := l.journal.Append(t.Context(), uint64(i), r); err != nil {
				t.Fatal(err)
			}
		}
		l.begin()
		for n := range w.inlet {
			w.inlet[n] = 50
		}
		count := func() (n int) {
			for _, r := range l.journal.all() {
				if r.Topic == telemetry.TopicSnapshot {
					n++
				}
			}
			return n
		}
		l.until(time.Hour, "a snapshot", func() bool { return count() > 0 })
		l.run(10 * time.Minute)
		l.end()
		l.begin()
		l.run(10 * time.Minute)
		for _, d := range w.devices {
			if d.limit == defaultW || d.leaseEnds.Before(w.now) {
				t.Errorf("%s: limit %v, lease until %v", d.uuid, d.limit, d.leaseEnds)
			}
		}
		for id, n := range w.calls {
			if n > 1 {
				t.Errorf("step %s done %d times", id, n)
			}
		}
	})
}

func TestMetricsArePreCreated(t *testing.T) {
	policies := enforcing()
	_, reg := metricsOf(policies)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
		if f.GetHelp() == f.GetName() {
			t.Errorf("%s has no row in the catalogue", f.GetName())
		}
	}
	want := map[string]int{
		"evenkeel_decisions_total": 2 * len(telemetry.Outcomes), "evenkeel_refusals_total": len(telemetry.RefusalReasons), "evenkeel_effect": 2,
		"evenkeel_breaker_open": 1, "evenkeel_leader": 1, "evenkeel_pass_seconds": 1, "evenkeel_last_pass_timestamp_seconds": 1,
		"evenkeel_act_age_seconds": 2, "evenkeel_journal_pending": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}
