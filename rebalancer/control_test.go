package rebalancer_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Every verb with what it cannot take: the answer says what is wrong, and
// nothing is written.
func TestControlRefusesWhatIsWrong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.device("GPU-00-0").r = 0.09
		l.until(3*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		cases := []struct{ verb, body, want string }{
			{"", ``, `verb "": want one of`},
			{"reboot", `{"by":"ada"}`, `verb "reboot": want one of`},
			{"Pause", `{"by":"ada"}`, `verb "Pause": want one of`},
			{"pause", `{`, "pause: unexpected end"},
			{"pause", `[]`, "pause: json"},
			{"pause", `{"by":7}`, "pause: json"},
			{"pause", ``, "who asks for it"},
			{"pause", `{}`, "who asks for it"},
			{"resume", `{"by":""}`, "who asks for it"},
			{"mode", `{"mode":"enforce"}`, "who asks for it"},
			{"mode", `{"by":"ada"}`, `mode "": want observe, recommend, approve or enforce`},
			{"mode", `{"by":"ada","mode":"ENFORCE"}`, `mode "ENFORCE"`},
			{"mode", `{"by":"ada","mode":"enforce","class":"Gentle"}`, `class "Gentle": want gentle, disruptive or none`},
			{"close", `{}`, "who asks for it"},
			{"close", `{"by":"ada"}`, "the breaker is closed"},
			{"approve", `{"decision":"d-000001"}`, "who asks for it"},
			{"approve", `{"by":"ada"}`, `approve: no decision "" is open`},
			{"approve", `{"by":"ada","decision":"d-000001"}`, "d-000001 is verified, it waits for no approval"},
			{"reject", `{"by":"ada","decision":"d-9"}`, `reject: no decision "d-9" is open`},
			{"reject", `{"by":"ada","decision":"d-000001"}`, "d-000001 is verified; undo it instead"},
			{"undo", `{"by":"ada","decision":"D-000001"}`, `undo: no decision "D-000001" is open`},
			{"undo", `{"by":"ada"}`, `undo: no decision "" is open`},
			{"explain", `{}`, "explain: want a decision, a workload, or nothing"},
			{"explain", `{"decision":"d-77"}`, `no decision "d-77" in the journal`},
			{"explain", `{"workload":"slurm:404"}`, `workload "slurm:404" is not in view, and no decision was ever about it`},
			{"explain", `{"workload":"what"}`, "what"},
		}
		before := len(l.journal.all())
		for _, c := range cases {
			l.settle()
			reply, err := l.engine.Control(c.verb, []byte(c.body))
			l.settle()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %s: %s, %v; want %q", c.verb, c.body, reply, err, c.want)
			}
		}
		for _, r := range l.journal.all()[before:] {
			if r.Topic == telemetry.TopicMode || r.Topic == telemetry.TopicApproval || r.Topic == telemetry.TopicBreaker {
				t.Errorf("written though it was wrong: %+v", r)
			}
		}
	})
}

// What people say is on record with who said it, and holds for the next leader.
func TestControlIsRecorded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		l.run(3 * time.Second)
		say := func(verb string, q rebalancer.Request) telemetry.Record {
			t.Helper()
			q.By = "ada"
			var done struct {
				Done string `json:"done"`
				Seq  uint64 `json:"seq"`
			}
			if err := l.ask(verb, q, &done); err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
			all := l.journal.all()
			if done.Done != verb || done.Seq == 0 || done.Seq > uint64(len(all)) {
				t.Errorf("%s answers %+v at %d records", verb, done, len(all))
			}
			return all[done.Seq-1]
		}
		if r := say("pause", rebalancer.Request{}); r.Mode == nil || !*r.Mode.Paused || r.Mode.All || r.Mode.By != "ada" || r.Time.IsZero() || r.Epoch.Revision == 0 {
			t.Errorf("pause: %+v", r)
		}
		if m := l.journal.fold(t); !m.Paused || m.PausedAll {
			t.Errorf("paused %v, all %v", m.Paused, m.PausedAll)
		}
		say("pause", rebalancer.Request{All: true})
		if m := l.journal.fold(t); !m.Paused || !m.PausedAll {
			t.Errorf("paused %v, all %v", m.Paused, m.PausedAll)
		}
		if r := say("resume", rebalancer.Request{All: true}); *r.Mode.Paused || r.Mode.All {
			t.Errorf("resume: %+v", r.Mode)
		}
		for _, c := range []struct {
			q    rebalancer.Request
			key  string
			mode telemetry.Mode
		}{
			{rebalancer.Request{Mode: telemetry.Observe}, "/", telemetry.Observe},
			{rebalancer.Request{Policy: "thermal", Mode: telemetry.Recommend}, "thermal/", telemetry.Recommend},
			{rebalancer.Request{Class: telemetry.Gentle, Mode: telemetry.Approve}, "/gentle", telemetry.Approve},
			{rebalancer.Request{Policy: "thermal", Class: telemetry.Gentle, Mode: telemetry.Enforce}, "thermal/gentle", telemetry.Enforce},
		} {
			say("mode", c.q)
			if m := l.journal.fold(t); m.Modes[c.key] != c.mode {
				t.Errorf("modes %v, want %s at %q", m.Modes, c.mode, c.key)
			}
		}
		l.end()
		l.begin()
		l.run(3 * time.Second)
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil || !strings.Contains(x.Text, "gentle acts enforce, disruptive acts recommend") {
			t.Errorf("a new leader says %v\n%s", err, x.Text)
		}
	})
}

// A follower changes nothing, and says who would.
func TestControlOfAFollower(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLive(t, newWorld(1, 1))
		l.run(3 * time.Second)
		l.lease.take(true)
		l.run(12 * time.Second)
		err := l.ask("pause", rebalancer.Request{By: "ada"}, nil)
		if err == nil || !strings.Contains(err.Error(), "does not lead") {
			t.Errorf("pause: %v", err)
		}
		var dry rebalancer.DryRun
		if err := l.ask("plan", rebalancer.Request{}, &dry); err != nil || dry.Text == "" {
			t.Errorf("a follower plans as if it led: %v, %q", err, dry.Text)
		}
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil || !strings.Contains(x.Text, "does not lead, so it only looks") {
			t.Errorf("%v\n%s", err, x.Text)
		}
		if n := len(l.journal.all()); n != 0 {
			t.Errorf("%d records", n)
		}
	})
}

// A word that cannot be written has no effect, and the person is told.
func TestControlWithoutAJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLive(t, newWorld(1, 1))
		l.run(3 * time.Second)
		l.journal.hook(func(telemetry.Record) error { return errors.New("disk full") }, nil, nil)
		if err := l.ask("pause", rebalancer.Request{By: "ada", All: true}, nil); err == nil || !strings.Contains(err.Error(), "nothing has changed, ask again") {
			t.Errorf("%v", err)
		}
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil || strings.Contains(x.Text, "paused") || !strings.Contains(x.Text, "journal 1") {
			t.Errorf("%v\n%s", err, x.Text)
		}
		l.journal.hook(nil, nil, nil)
		if err := l.ask("pause", rebalancer.Request{By: "ada", All: true}, nil); err != nil {
			t.Errorf("and afterwards: %v", err)
		}
	})
}

// The breaker closes by a person's word alone, and the acts from before it do
// not open it again.
func TestControlClosesTheBreaker(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(2, 4)
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.refuse = telemetry.RefuseNotAllowed
		for _, d := range w.devices {
			d.r = 0.1
		}
		l.until(3*time.Minute, "open", func() bool { m := l.journal.fold(t); return m.Breaker.Open })
		var dry rebalancer.DryRun
		var x rebalancer.Explanation
		if err := l.ask("explain", rebalancer.Request{Nothing: true}, &x); err != nil || !strings.Contains(x.Text, "the breaker is open since") {
			t.Errorf("%v\n%s", err, x.Text)
		}
		if got := l.metric("evenkeel_breaker_open"); got != 1 {
			t.Errorf("evenkeel_breaker_open %v", got)
		}
		w.refuse = ""
		if err := l.ask("close", rebalancer.Request{By: "ada", Reason: "agents allow caps now"}, nil); err != nil {
			t.Fatal(err)
		}
		l.run(30 * time.Second)
		if m := l.journal.fold(t); m.Breaker.Open || m.Breaker.By != "ada" || m.Breaker.Reason != "agents allow caps now" {
			t.Errorf("breaker %+v", m.Breaker)
		}
		if got := l.metric("evenkeel_breaker_open"); got != 0 {
			t.Errorf("evenkeel_breaker_open %v after it was closed", got)
		}
		if err := l.ask("plan", rebalancer.Request{}, &dry); err != nil || strings.Contains(dry.Text, "breaker opens") {
			t.Errorf("%v\n%s", err, dry.Text)
		}
	})
}

// The dry run in words: what would be done, the step, the breaker, and why not
// the rest.
func TestPlanInWords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 2)
		l := newLive(t, w, func(c *rebalancer.Config) {
			c.Policies = enforcing(func(p *rebalancer.PolicySpec) {
				p.Filter, p.Predict = rebalancer.Filter{N: 1, M: 1}, 0
				p.Budget = rebalancer.Budget{Percent: 50, Per: rebalancer.PerFleet}
			})
		})
		var dry rebalancer.DryRun
		if err := l.ask("plan", rebalancer.Request{}, &dry); err != nil || dry.Text != "no View of the fleet yet\n" {
			t.Errorf("%v, %q", err, dry.Text)
		}
		l.run(3 * time.Second)
		l.lease.take(true)
		l.run(12 * time.Second) // from now on it only looks
		for i, d := range w.devices {
			d.temp, d.r = 87+float64(i), 0.12
		}
		l.w.advance(time.Millisecond)
		l.engine.Update(l.w.view())
		if err := l.ask("plan", rebalancer.Request{}, &dry); err != nil {
			t.Fatal(err)
		}
		golden(t, "plan.txt", dry.Text)
		if len(dry.Decisions) != 1 || dry.Refused.Counts[telemetry.RefusalBudget] != 1 {
			t.Errorf("%d decisions, refused %v", len(dry.Decisions), dry.Refused.Counts)
		}
		data, err := json.Marshal(dry)
		if err != nil || !strings.Contains(string(data), `"coverage":{"expected":2,"fresh":2,"ratio":1}`) {
			t.Errorf("%v, %s", err, data)
		}
	})
}

// Names, help and units are as Prometheus wants them, before and after acts,
// and no series appears or goes on the way.
func TestMetricsLint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		l := newLive(t, w)
		count := func() map[string]int {
			families, err := l.reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			problems, err := promlint.NewWithMetricFamilies(families).Lint()
			if err != nil || len(problems) > 0 {
				t.Errorf("%v: %+v", err, problems)
			}
			n := map[string]int{}
			for _, f := range families {
				n[f.GetName()] = len(f.GetMetric())
			}
			return n
		}
		before := count()
		l.run(5 * time.Second)
		w.device("GPU-00-0").r = 0.09
		l.until(3*time.Minute, "verified", func() bool { return l.outcome() == telemetry.OutcomeVerified })
		w.device("GPU-00-0").r = 0.05
		l.until(10*time.Minute, "undone", func() bool { return l.outcome() == telemetry.OutcomeUndone })
		after := count()
		for name, n := range before {
			if after[name] != n {
				t.Errorf("%s has %d series, at the start it had %d", name, after[name], n)
			}
		}
		for outcome, want := range map[telemetry.Outcome]float64{telemetry.OutcomeIntended: 1, telemetry.OutcomeActed: 1, telemetry.OutcomeVerified: 1, telemetry.OutcomeUndone: 1, telemetry.OutcomeFailed: 0} {
			if got := l.metric("evenkeel_decisions_total", "policy", "thermal", "act", "cap", "outcome", string(outcome)); got != want {
				t.Errorf("%s decisions: %v, want %v", outcome, got, want)
			}
		}
		if p, o := l.metric("evenkeel_effect", "kind", "predicted"), l.metric("evenkeel_effect", "kind", "observed"); p <= 0 || o <= 0 {
			t.Errorf("effect predicted %v, observed %v", p, o)
		}
	})
}
