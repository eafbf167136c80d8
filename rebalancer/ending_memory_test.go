package rebalancer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// fateful is a journal in which everything has happened to work that can: ended
// with and without effect, refused, failed, not heard of, rejected, a wave.
func fateful(t testing.TB) *bench {
	w := newWorld(5, 4)
	for i, d := range w.devices {
		d.load = 30
		if i < 6 {
			d.r = 0.18
			w.run(10+i, 500, d.uuid).owner = fmt.Sprint("u", i)
		}
		d.temp = w.inlet[d.node] + d.r*d.load
	}
	w.trees[3].stuck, w.trees[1].gpus = true, []string{"GPU-00-1", "GPU-00-0"}
	b := newBench(t, w, preempting(func(p *rebalancer.PolicySpec) { p.Settle = telemetry.Duration(10 * time.Second) })...)
	closeIt := func() {
		if b.mem.Breaker.Open {
			b.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{By: "ada"}})
		}
	}
	for range 3 {
		b.run(time.Minute)
		closeIt()
	}
	w.refuseKind = map[telemetry.StepKind]telemetry.RefuseReason{telemetry.StepPreempt: telemetry.RefuseBusy}
	for range 3 {
		b.run(time.Minute)
		closeIt()
	}
	w.refuseKind = nil
	for range 5 {
		b.run(time.Minute)
		closeIt()
	}
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Class: telemetry.Disruptive, Mode: telemetry.Approve, By: "ada"}})
	for i := range 6 {
		x := w.run(50+i, 400, w.devices[i].uuid)
		x.owner = fmt.Sprint("v", i)
	}
	for range 15 {
		b.run(time.Minute)
		closeIt()
		for _, d := range b.decisions() {
			if d.Outcome == telemetry.OutcomeAwaiting {
				b.say([]string{rebalancer.VerdictReject, rebalancer.VerdictApprove}[len(d.ID)%2], d.ID)
				break
			}
		}
	}
	return b
}

// What is remembered of work is in the journal alone: at any record a snapshot
// and the rest are the whole, and no clone is changed by what comes after it.
func TestEndingsAreAFoldOfTheJournal(t *testing.T) {
	b := fateful(t)
	records := b.journal.all()
	results, outcomes := map[telemetry.Result]bool{}, map[telemetry.Outcome]bool{}
	for _, m := range b.mem.Moves {
		results[m.Result] = true
	}
	for _, d := range endings(b.decisions()) {
		outcomes[d.Outcome] = true
	}
	if !results[telemetry.Done] || !results[telemetry.Failed] || !results[telemetry.Refused] || !outcomes[telemetry.OutcomeVerified] || len(b.mem.GPUs) < 6 {
		t.Fatalf("moves %+v, outcomes %v: the test proves too little", b.mem.Moves, outcomes)
	}
	whole := plain(t, b.journal.fold(t))
	var m rebalancer.Memory
	for i, r := range records {
		if i%max(len(records)/30, 1) == 0 {
			data, err := m.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			restored := rebalancer.Memory{}
			if err := restored.Fold(m.Seq, telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data}); err != nil {
				t.Fatal(err)
			}
			for k, rest := range records[i:] {
				if err := restored.Fold(uint64(i+k+1), rest); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(whole, plain(t, restored)); diff != "" {
				t.Fatalf("snapshot after %d of %d records (-whole +snapshot):\n%s", i, len(records), diff)
			}
		}
		c := m.Clone()
		before := plain(t, c)
		if err := m.Fold(uint64(i+1), r); err != nil {
			t.Fatal(err)
		}
		if after := plain(t, c); after != before {
			t.Fatalf("record %d changed a clone:\n%s", i+1, cmp.Diff(before, after))
		}
	}
}

// leaving is a decision to end a process in each state in which a receipt can
// find it.
func leaving(state string) *telemetry.Decision {
	s := &scene{bench: &bench{}}
	d := s.preempted(11, telemetry.OutcomeIntended, "GPU-00-0", "GPU-00-1")
	d.Predicted.Within = telemetry.Duration(time.Minute)
	end := func(o telemetry.Outcome, r telemetry.Receipt) {
		r.StepID = d.Steps[0].Step.ID
		d.Steps[0].Receipt, d.Outcome, d.Ended = &r, o, start
	}
	switch state {
	case "intended":
	case "acted":
		end(telemetry.OutcomeActed, telemetry.Receipt{Result: telemetry.Done, Node: "n00"})
		d.Ended = time.Time{}
	case "verified":
		end(telemetry.OutcomeVerified, telemetry.Receipt{Result: telemetry.Done, Node: "n00"})
	case "not ordered":
		d.Steps, d.Outcome, d.Ended = nil, telemetry.OutcomeRefused, start
	case "never begun":
		end(telemetry.OutcomeRefused, rebalancer.NeverBegun(d.Steps[0].Step, start))
	case "no word":
		end(telemetry.OutcomeExpired, telemetry.Receipt{Result: telemetry.Unknown})
	case "refused there":
		end(telemetry.OutcomeRefused, telemetry.Receipt{Result: telemetry.Refused, Why: telemetry.RefuseNotOurs, Node: "n00"})
	case "expired there":
		end(telemetry.OutcomeRefused, telemetry.Receipt{Result: telemetry.Refused, Why: telemetry.RefuseExpired, Node: "n00"})
	case "failed":
		end(telemetry.OutcomeFailed, telemetry.Receipt{Result: telemetry.Failed, Node: "n00"})
	default:
		panic(state)
	}
	return d
}

// What a receipt makes of an ending, in every state. A dash changes nothing.
func TestNewsOfAnEndingInEveryState(t *testing.T) {
	receipts := []struct {
		name string
		r    telemetry.Receipt
	}{
		{"done", telemetry.Receipt{Result: telemetry.Done}},
		{"done by a new run of the agent", telemetry.Receipt{Result: telemetry.Done, Spontaneous: true}},
		{"failed", telemetry.Receipt{Result: telemetry.Failed}},
		{"refused", telemetry.Receipt{Result: telemetry.Refused, Why: telemetry.RefuseNotOurs}},
		{"nothing known", telemetry.Receipt{Result: telemetry.Unknown}},
		{"of another node", telemetry.Receipt{Result: telemetry.Done, Node: "n7"}},
	}
	const no = "-"
	want := map[string][]string{
		"intended":      {"acted", "acted", "failed end", "refused end", "expired end", no},
		"acted":         {no, no, no, no, no, no},
		"verified":      {no, no, no, no, no, no},
		"not ordered":   {"acted", "acted", "failed end", "refused end", no, no},
		"never begun":   {"acted", "acted", "failed end", "refused end", no, no},
		"no word":       {"acted", "acted", "failed end", "refused end", no, no},
		"refused there": {no, no, no, no, no, no},
		"expired there": {no, no, no, no, no, no},
		"failed":        {no, no, no, no, no, no},
	}
	for state, row := range want {
		for i, c := range receipts {
			before := leaving(state)
			c.r.StepID, c.r.Kind = before.Act.Steps[0].ID, telemetry.StepPreempt
			if c.r.Node == "" {
				c.r.Node = "n00"
			}
			next := rebalancer.WithNews(before, c.r, start.Add(time.Second))
			got := no
			if next != nil {
				got = string(next.Outcome)
				if !next.Ended.IsZero() {
					got += " end"
				}
				if len(next.Steps) != 1 || next.Steps[0].Receipt == nil || next.Outcome == telemetry.OutcomeActed && !next.VerifyBy.Equal(start.Add(61*time.Second)) {
					t.Errorf("%s, receipt %q: %+v", state, c.name, next)
				}
			}
			if got != row[i] {
				t.Errorf("%s, receipt %q: %s, want %s", state, c.name, got, row[i])
			}
			if fmt.Sprintf("%+v", before) != fmt.Sprintf("%+v", leaving(state)) {
				t.Errorf("%s, receipt %q: the decision before was changed", state, c.name)
			}
		}
	}
}

// A late word on an ending takes the place of what was remembered of it.
func TestLateWordIsRememberedOnce(t *testing.T) {
	var m rebalancer.Memory
	seq := uint64(0)
	fold := func(at time.Duration, d *telemetry.Decision) {
		t.Helper()
		seq++
		if err := m.Fold(seq, telemetry.Record{Topic: telemetry.TopicOutcome, Time: start.Add(at), Decision: d}); err != nil {
			t.Fatal(err)
		}
	}
	fold(0, leaving("intended"))
	fold(time.Minute, leaving("no word"))
	if len(m.Moves) != 1 || m.Moves[0].Result != telemetry.Unknown || len(m.Acts) != 1 || !m.Acts[0].Failed || m.Acts[0].GPUs != 2 {
		t.Fatalf("moves %+v, acts %+v", m.Moves, m.Acts)
	}
	for _, uuid := range []string{"GPU-00-0", "GPU-00-1"} {
		if g := m.GPUs[uuid]; !g.Acted.Equal(start.Add(time.Minute)) || g.Failures != 0 {
			t.Errorf("%s: %+v", uuid, g)
		}
	}
	late := rebalancer.WithNews(m.Closed[0], telemetry.Receipt{StepID: "d-000002.1", Result: telemetry.Failed, Node: "n00"}, start.Add(2*time.Minute))
	fold(2*time.Minute, late)
	if len(m.Moves) != 1 || m.Moves[0].Result != telemetry.Failed || !m.Moves[0].At.Equal(start.Add(2*time.Minute)) || m.Moves[0].Work != "n00/ada/job" {
		t.Errorf("moves %+v", m.Moves)
	}
	if len(m.Closed) != 1 || m.Closed[0].Outcome != telemetry.OutcomeFailed {
		t.Errorf("closed %v", m.Closed)
	}
	// One that was refused has disturbed nobody, and no GPU waits for it.
	m, seq = rebalancer.Memory{}, 0
	fold(0, leaving("intended"))
	fold(time.Minute, leaving("refused there"))
	if len(m.Acts) != 1 || m.Acts[0].GPUs != 0 || len(m.GPUs) != 0 || m.Moves[0].Why != telemetry.RefuseNotOurs {
		t.Errorf("acts %+v, GPUs %+v, moves %+v", m.Acts, m.GPUs, m.Moves)
	}
}

// The memory of moves is bounded by time and by number.
func TestMovesAreBounded(t *testing.T) {
	var m rebalancer.Memory
	for i := range 5000 {
		d := leaving("failed")
		d.ID = fmt.Sprintf("d-%06d", i)
		d.Steps[0].Step.ID = d.ID + ".1"
		if err := m.Fold(uint64(i+1), telemetry.Record{Topic: telemetry.TopicOutcome, Time: start.Add(time.Duration(i) * time.Second), Decision: d}); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.Moves) != 4096 || m.Moves[4095].Step != "d-004999.1" {
		t.Errorf("%d moves kept, the last %s", len(m.Moves), m.Moves[len(m.Moves)-1].Step)
	}
	if data, err := m.Snapshot(); err != nil || len(data) > 200<<10 {
		t.Errorf("a snapshot of %d bytes, %v", len(data), err)
	}
}

// The effect of an ending is read when it is due, waits a while for a value, and
// has an end in any case.
func TestEffectOfAnEndingIsRead(t *testing.T) {
	due := start.Add(time.Minute)
	cases := []struct {
		name   string
		at     time.Duration // after it is due
		change func(*scene)
		want   telemetry.Outcome // empty: not yet
		ending string
	}{
		{"a second early", -time.Second, func(*scene) {}, "", ""},
		{"it helped", 0, func(s *scene) { s.gpu.HeadroomC = cluster.Some(11) }, telemetry.OutcomeVerified, "done, and it helped"},
		{"by half of what was predicted", 0, func(s *scene) { s.gpu.HeadroomC = cluster.Some(5.6) }, telemetry.OutcomeVerified, "done, and it helped"},
		{"half of the way, still beyond the mark", 0, func(s *scene) { s.predicted = 8; s.gpu.HeadroomC = cluster.Some(4) }, telemetry.OutcomeVerified, "done, and it helped"},
		{"it did not help", 0, func(s *scene) { s.gpu.HeadroomC = cluster.Some(1) }, telemetry.OutcomeIneffective, "it did not help; it is not done again"},
		{"no value yet", 0, func(s *scene) { s.node.State = cluster.NodeGone }, "", ""},
		{"no value for a minute", time.Minute, func(s *scene) { s.node.State = cluster.NodeGone }, telemetry.OutcomeIneffective, "what it did is not known: "},
		{"its GPU is gone", time.Minute, func(s *scene) { s.gpu.UUID = "GPU-99" }, telemetry.OutcomeIneffective, "the GPU is not in view"},
		{"its policy is gone", 0, func(s *scene) { s.policies = []rebalancer.Policy{} }, telemetry.OutcomeIneffective, "policy thermal is no longer configured"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.predicted = 12
			s.w.now = due.Add(c.at)
			c.change(s)
			for _, id := range []telemetry.ID{telemetry.GPUThermalHeadroomCelsius, telemetry.GPUTemperatureCelsiusCore, telemetry.GPUPowerWatts, telemetry.GPUThrottleActiveSWThermal} {
				s.read(id, 0)
			}
			d := s.preempted(11, telemetry.OutcomeActed, target.UUID)
			d.Predicted.After = s.predicted
			p := s.plan()
			i := slices.IndexFunc(p.Entries, func(e rebalancer.Entry) bool { return e.Decision != nil && e.Decision.ID == d.ID })
			if c.want == "" {
				if i >= 0 {
					t.Fatalf("written: %+v", p.Entries[i].Decision)
				}
				return
			}
			if i < 0 {
				t.Fatalf("not written: %+v, refused %v", p.Entries, p.Refused.Details)
			}
			got := p.Entries[i].Decision
			if got.Outcome != c.want || !got.Ended.Equal(s.w.now) || !strings.Contains(got.Ending, c.ending) || got.Open() {
				t.Errorf("%s, ended %v: %s", got.Outcome, got.Ended, got.Ending)
			}
			if read := strings.HasPrefix(got.Ending, "done"); (got.Observed != nil) != read {
				t.Errorf("observed %+v", got.Observed)
			}
		})
	}
}

// A renewal that nobody answers keeps nobody from reading what a cap did.
func TestARenewalOnItsWayHidesNoEffect(t *testing.T) {
	s := newScene(t)
	s.pending(target, telemetry.OutcomeActed)
	d := s.mem.Decisions["d-000001"]
	d.Steps = append(d.Steps, telemetry.StepRecord{Step: telemetry.Step{ID: "d-000001.2", Kind: telemetry.StepRenew, Target: target, NotBefore: start, Deadline: start.Add(time.Hour)}})
	d.Violations = []telemetry.Violation{{Mark: 5, Aim: 8}}
	s.w.now = d.VerifyBy
	s.gpu.HeadroomC = cluster.Some(9)
	s.read(telemetry.GPUThermalHeadroomCelsius, 9)
	s.read(telemetry.GPUThrottleActiveSWThermal, 0)
	got := s.keep(s.plan())
	if got.Outcome != telemetry.OutcomeVerified || len(got.Steps) != 2 || got.Steps[1].Receipt != nil {
		t.Errorf("%s, steps %+v", got.Outcome, got.Steps)
	}
}
