package rebalancer_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// plain is the folded part of a memory as text, apart from where it stands.
func plain(t testing.TB, m rebalancer.Memory) string {
	t.Helper()
	m.Seq, m.SnapshotSeq = 0, 0
	data, err := json.MarshalIndent(&m, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// eventful is a journal in which everything has happened that can.
func eventful(t testing.TB) *bench {
	w := newWorld(4, 4)
	b := newBench(t, w, enforcing(func(p *rebalancer.PolicySpec) {
		p.Budget = rebalancer.Budget{Percent: 100, Max: 9, Per: rebalancer.PerFleet}
	})...)
	b.run(10 * time.Second)
	for n := range w.inlet {
		w.inlet[n] = 50
	}
	b.run(5 * time.Minute)
	paused := true
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &paused, By: "ada"}})
	b.write(telemetry.Record{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Policy: "thermal", Mode: telemetry.Approve, By: "ada"}})
	w.refuse = telemetry.RefuseBusy
	b.run(time.Minute)
	w.refuse = ""
	for n := range w.inlet {
		w.inlet[n] = 60
	}
	b.run(2 * time.Minute)
	for _, d := range b.decisions() {
		if d.Outcome == telemetry.OutcomeAwaiting {
			b.say(rebalancer.VerdictReject, d.ID)
			break
		}
	}
	b.write(telemetry.Record{Topic: telemetry.TopicBreaker, Breaker: &telemetry.BreakerTrip{Open: true, Reason: "a test"}})
	b.run(time.Minute)
	for n := range w.inlet {
		w.inlet[n] = 25
	}
	b.run(5 * time.Minute)
	return b
}

// A memory restored from a snapshot at any record, with the rest folded after
// it, is the memory of the whole journal.
func TestSnapshotAndRestEqualTheWhole(t *testing.T) {
	b := eventful(t)
	records := b.journal.all()
	outcomes := map[telemetry.Outcome]bool{}
	for _, r := range records {
		if r.Decision != nil {
			outcomes[r.Decision.Outcome] = true
		}
	}
	for _, o := range []telemetry.Outcome{telemetry.OutcomeIntended, telemetry.OutcomeActed, telemetry.OutcomeVerified, telemetry.OutcomeUndone, telemetry.OutcomeAwaiting, telemetry.OutcomeRejected} {
		if !outcomes[o] {
			t.Fatalf("the journal of %d records has no %s: the test proves too little", len(records), o)
		}
	}
	whole := plain(t, b.journal.fold(t))
	step := max(len(records)/40, 1)
	for at := 0; at <= len(records); at += step {
		var before rebalancer.Memory
		for i, r := range records[:at] {
			if err := before.Fold(uint64(i+1), r); err != nil {
				t.Fatal(err)
			}
		}
		data, err := before.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		var m rebalancer.Memory
		if err := m.Fold(uint64(at+1), telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data}); err != nil {
			t.Fatal(err)
		}
		if m.Seq != uint64(at+1) || m.SnapshotSeq != m.Seq {
			t.Fatalf("stands at %d, snapshot %d, want %d", m.Seq, m.SnapshotSeq, at+1)
		}
		for i, r := range records[at:] {
			if err := m.Fold(uint64(at+2+i), r); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(whole, plain(t, m)); diff != "" {
			t.Fatalf("snapshot after %d of %d records (-whole +snapshot):\n%s", at, len(records), diff)
		}
	}
}

// Folding a record changes nothing in memories cloned before.
func TestCloneSharesNothingThatChanges(t *testing.T) {
	b := eventful(t)
	var m rebalancer.Memory
	for i, r := range b.journal.all() {
		c := m.Clone()
		before := plain(t, c)
		if err := m.Fold(uint64(i+1), r); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			if after := plain(t, c); after != before {
				t.Fatalf("record %d changed the clone:\n%s", i+1, cmp.Diff(before, after))
			}
		}
	}
}

func TestFoldRefusesWhatItCannotRead(t *testing.T) {
	zip := func(s string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, s)
		_ = z.Close()
		return b.Bytes()
	}
	for name, r := range map[string]telemetry.Record{
		"topic without content":   {ID: "x", Topic: telemetry.TopicIntent},
		"snapshot without bytes":  {Topic: telemetry.TopicSnapshot},
		"snapshot not compressed": {Topic: telemetry.TopicSnapshot, Snapshot: []byte("{}")},
		"snapshot not JSON":       {Topic: telemetry.TopicSnapshot, Snapshot: zip("nonsense")},
		"snapshot cut short":      {Topic: telemetry.TopicSnapshot, Snapshot: zip("{}")[:12]},
	} {
		var m rebalancer.Memory
		m.Seq = 6
		if err := m.Fold(7, r); err == nil || !strings.Contains(err.Error(), "journal record 7") {
			t.Errorf("%s: error %v, want one that names the record", name, err)
		}
	}
}

// A snapshot keeps to what a bus takes: decisions that have ended go first.
func TestSnapshotStaysSmall(t *testing.T) {
	noise := func(seed uint32, n int) string { // does not compress
		var b strings.Builder
		for range n {
			seed = seed*1664525 + 1013904223
			fmt.Fprintf(&b, "%08x", seed)
		}
		return b.String()
	}
	var m rebalancer.Memory
	seq := uint64(0)
	add := func(d telemetry.Decision) {
		seq++
		if err := m.Fold(seq, telemetry.Record{Topic: telemetry.TopicOutcome, Time: start, Decision: &d}); err != nil {
			t.Fatal(err)
		}
	}
	add(telemetry.Decision{ID: "open", Outcome: telemetry.OutcomeVerified, Why: "it stays"})
	for i := range 60 {
		add(telemetry.Decision{ID: fmt.Sprintf("closed-%d", i), Outcome: telemetry.OutcomeUndone, Ended: start, Why: noise(uint32(i), 8000)})
	}
	data, err := m.Snapshot()
	if err != nil || len(data) > 900<<10 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	var back rebalancer.Memory
	if err := back.Fold(1, telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data}); err != nil || back.Decisions["open"] == nil || len(back.Closed) != 0 {
		t.Errorf("%v, open %v, %d closed", err, back.Decisions["open"], len(back.Closed))
	}
	for i := range 60 {
		add(telemetry.Decision{ID: fmt.Sprintf("open-%d", i), Outcome: telemetry.OutcomeVerified, Why: noise(uint32(i), 8000)})
	}
	if _, err := m.Snapshot(); err == nil {
		t.Error("a snapshot that no bus takes is no error")
	}
}

func TestMemoryForgets(t *testing.T) {
	var m rebalancer.Memory
	for i := range 200 {
		at := start.Add(time.Duration(i) * time.Minute)
		id := fmt.Sprintf("d-%03d", i)
		step := telemetry.StepRecord{Step: telemetry.Step{ID: id + ".1", Kind: telemetry.StepPowerCap, Target: target}, Receipt: &telemetry.Receipt{StepID: id + ".1", Result: telemetry.Done}}
		undo := telemetry.StepRecord{Step: telemetry.Step{ID: id + ".2", Kind: telemetry.StepUndo, Target: target}}
		for n, d := range []telemetry.Decision{
			{ID: id, Target: target, Outcome: telemetry.OutcomeActed, Steps: []telemetry.StepRecord{step}},
			{ID: id, Target: target, Outcome: telemetry.OutcomeActed, Steps: []telemetry.StepRecord{step, undo}},
			{ID: id, Target: target, Outcome: telemetry.OutcomeUndone, Steps: []telemetry.StepRecord{step, undo}, Ended: at},
		} {
			if err := m.Fold(uint64(3*i+n+1), telemetry.Record{Topic: telemetry.TopicOutcome, Time: at, Decision: &d}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(m.Closed) != 64 || m.Closed[63].ID != "d-199" || m.Closed[0].ID != "d-136" {
		t.Errorf("%d ended decisions kept, from %s to %s", len(m.Closed), m.Closed[0].ID, m.Closed[len(m.Closed)-1].ID)
	}
	if len(m.Acts) > 12 || len(m.Undos) > 12 || len(m.Leases) != 0 || len(m.Decisions) != 0 {
		t.Errorf("%d acts, %d undos, %d leases, %d open", len(m.Acts), len(m.Undos), len(m.Leases), len(m.Decisions))
	}
}

func TestReceiptsTeachMemory(t *testing.T) {
	b, d := capped(t)
	g := b.mem.GPUs[d.uuid]
	if g.LimitW != d.limit || g.Failures != 0 || g.Acted.IsZero() {
		t.Errorf("%+v, the limit is %v", g, d.limit)
	}
	if g.LearnedR < 0.02 || g.LearnedR > 0.09 {
		t.Errorf("learned %.3f °C/W of a device with 0.09 that was still warming", g.LearnedR)
	}
	d.r = 0.06
	b.until(5*time.Minute, "undone", func() bool { return d.limit == defaultW })
	if g := b.mem.GPUs[d.uuid]; g.LimitW != defaultW {
		t.Errorf("limit %v remembered after the undo", g.LimitW)
	}
}

// Receipts that fit nothing change nothing.
func TestReceiptsThatFitNothing(t *testing.T) {
	b, _ := capped(t)
	d := b.only()
	id := d.Steps[0].Step.ID
	for name, r := range map[string]telemetry.Receipt{
		"unknown step":            {StepID: "d-000009.1", Result: telemetry.Done},
		"step that has one":       {StepID: id, Result: telemetry.Failed},
		"spontaneous, no undo":    {StepID: id, Kind: telemetry.StepPowerCap, Result: telemetry.Done, Spontaneous: true},
		"undo not spontaneous":    {StepID: id, Kind: telemetry.StepUndo, Result: telemetry.Done},
		"its owner's undo failed": {StepID: id, Kind: telemetry.StepUndo, Result: telemetry.Failed, Spontaneous: true},
	} {
		if next := rebalancer.WithNews(d, r, b.w.now); next != nil {
			t.Errorf("%s: %v", name, next)
		}
	}
	left := rebalancer.WithNews(d, telemetry.Receipt{StepID: id, Kind: telemetry.StepUndo, Result: telemetry.Refused, Why: telemetry.RefuseNotOurs, Detail: "another changed it", Spontaneous: true}, b.w.now)
	if left == nil || left.Ending != "left as it is by its owner: another changed it" {
		t.Errorf("left: %v", left)
	}
	if next := rebalancer.WithNews(d, telemetry.Receipt{StepID: id, Result: telemetry.Done, Undone: "restored", Spontaneous: true}, b.w.now); next == nil || next.Outcome != telemetry.OutcomeUndone {
		t.Errorf("spontaneous undo: %v", next)
	}
}

func TestReceiptResults(t *testing.T) {
	intended := func() *telemetry.Decision {
		return &telemetry.Decision{ID: "d-1", Outcome: telemetry.OutcomeIntended, Predicted: &telemetry.Effect{Within: telemetry.Duration(time.Minute)},
			Steps: []telemetry.StepRecord{{Step: telemetry.Step{ID: "d-1.1", Kind: telemetry.StepPowerCap}}}}
	}
	cases := []struct {
		r      telemetry.Receipt
		want   telemetry.Outcome
		ended  bool
		ending string
	}{
		{telemetry.Receipt{Result: telemetry.Done}, telemetry.OutcomeActed, false, ""},
		{telemetry.Receipt{Result: telemetry.Refused, Why: telemetry.RefuseLimit, Detail: "under 300 W"}, telemetry.OutcomeRefused, true, "refused where it would be done (limit): under 300 W"},
		{telemetry.Receipt{Result: telemetry.Failed, Detail: "driver said no"}, telemetry.OutcomeFailed, true, "driver said no"},
		{telemetry.Receipt{Result: telemetry.Failed, Detail: "read back 650 W", Undone: "700 W"}, telemetry.OutcomeFailed, true, "read back 650 W; put back: 700 W"},
		{telemetry.Receipt{Result: telemetry.Unknown, Detail: "no answer"}, telemetry.OutcomeExpired, true, "no answer"},
	}
	for _, c := range cases {
		c.r.StepID = "d-1.1"
		before := intended()
		next := rebalancer.WithReceipt(before, c.r, start)
		if next.Outcome != c.want || next.Ended.IsZero() == c.ended || next.Ending != c.ending {
			t.Errorf("%s: %s, ended %v, %q", c.r.Result, next.Outcome, next.Ended, next.Ending)
		}
		if before.Outcome != telemetry.OutcomeIntended || before.Steps[0].Receipt != nil {
			t.Errorf("%s: the decision before was changed", c.r.Result)
		}
		if c.want == telemetry.OutcomeActed && !next.VerifyBy.Equal(start.Add(time.Minute)) {
			t.Errorf("verify by %v", next.VerifyBy)
		}
	}
}
