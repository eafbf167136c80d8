package rebalancer_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// FuzzFold reads any two records, one after the other: a journal that a later
// version wrote, or that was damaged, must neither stop a start by a panic nor
// leave a Memory that cannot be written or planned on.
func FuzzFold(f *testing.F) {
	b := eventful(f)
	records := b.journal.all()
	for i, r := range records {
		if i%7 == 0 {
			first, _ := json.Marshal(r)
			second, _ := json.Marshal(records[len(records)-1-i])
			f.Add(first, second)
		}
	}
	f.Add([]byte(`{"topic":"outcome","decision":{"id":"d-1","outcome":"acted"}}`), []byte(`{"topic":"intent","decision":{"id":"d-1","outcome":"verified","observed":{},"steps":[{"step":{"kind":"power_cap"},"receipt":{"result":"done"}}]}}`))
	f.Add([]byte(`{"topic":"tomorrow","decision":{"id":"d-2","new_field":[1,2],"steps":[{"step":{"id":"d-2.x"}}]},"another":{}}`), []byte(`{"topic":"snapshot","snapshot":"AAAA"}`))
	f.Add([]byte(`{"topic":"outcome","decision":{"id":"d-3","outcome":"intended","target":{"uuid":"GPU-00-0"},"steps":[{"step":{"id":"d-3.1"}}]}}`), []byte(`{}`))
	w := newWorld(1, 1)
	view := w.view()
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var m rebalancer.Memory
		for i, data := range [][]byte{first, second} {
			var r telemetry.Record
			if json.Unmarshal(data, &r) != nil {
				return
			}
			before := m.Seq
			if err := m.Fold(uint64(i+1), r); err == nil && m.Seq != uint64(i+1) {
				t.Fatalf("folded as %d, at %d", i+1, m.Seq)
			} else if err != nil && r.Topic == telemetry.TopicSnapshot && m.Seq != before {
				t.Fatal("a snapshot that cannot be read changed the memory")
			}
		}
		again := m.Clone()
		data, err := m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		var back rebalancer.Memory
		if err := back.Fold(m.Seq, telemetry.Record{Topic: telemetry.TopicSnapshot, Snapshot: data}); err != nil {
			t.Fatalf("its own snapshot cannot be read: %v", err)
		}
		m.Leading, m.Epoch = true, epoch
		pl := rebalancer.Planner{Policies: enforcing(), Actuators: []rebalancer.Actuator{w}, Breaker: rebalancer.DefaultBreaker, Expiry: 30 * time.Second}
		for _, at := range []time.Duration{0, time.Minute, time.Hour} {
			pl.Step(start.Add(at), view, m)
		}
		if plain(t, again) != plain(t, m) {
			t.Fatal("Step changed the memory that it was given")
		}
	})
}

// FuzzSpec wants what Validate passes to be something that an engine can run
// on, and what it does not pass to be said.
func FuzzSpec(f *testing.F) {
	f.Add(5.0, 8.0, 3, 5, 50.0, 2000, int64(30*time.Second), int64(0), int64(10*time.Minute), 2.0, 0.4, 0.5)
	f.Add(math.NaN(), 8.0, 3, 5, 50.0, 0, int64(30*time.Second), int64(0), int64(10*time.Minute), 2.0, 0.4, 0.5)
	f.Add(5.0, math.Inf(1), 3, 5, 50.0, 0, int64(30*time.Second), int64(0), int64(10*time.Minute), math.Inf(1), 0.4, 0.5)
	f.Add(5.0, 8.0, 64, 64, 1e-300, 1, int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), 1e300, 1.0, 0.999)
	f.Add(-5.0, -8.0, 1, 1, 100.0, -1, int64(-1), int64(-1), int64(-1), -1.0, -0.4, -0.5)
	w := newWorld(1, 2)
	for _, d := range w.devices {
		d.temp = 89
	}
	view := w.view()
	f.Fuzz(func(t *testing.T, act, aim float64, n, m int, percent float64, most int, settle, notice, lease int64, margin, cut, floor float64) {
		s := policy.Defaults()[0]
		s.Mode, s.Act, s.Aim, s.Filter = telemetry.Enforce, act, aim, rebalancer.Filter{N: n, M: m}
		s.Budget.Percent, s.Budget.Max = percent, most
		s.Settle, s.Notice, s.Lease = telemetry.Duration(settle), telemetry.Duration(notice), telemetry.Duration(lease)
		s.Margin, s.MaxCut, s.Floor = margin, cut, floor
		if err := s.Validate(); err != nil {
			if err.Error() == "" {
				t.Fatal("refused without a word")
			}
			return
		}
		for _, v := range []float64{act, aim, margin, cut, floor, percent} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("passed with %v", v)
			}
		}
		if s.Revision() == "unknown" {
			t.Fatal("passed, but its revision is not known")
		}
		if start.Add(64*time.Duration(s.Settle)).Before(start) || !start.Add(time.Duration(s.Lease)).After(start) {
			t.Fatalf("passed with times that run over: settle %s, lease %s", time.Duration(s.Settle), time.Duration(s.Lease))
		}
		thermal, err := policy.NewThermal(s)
		if err != nil {
			return
		}
		mem := rebalancer.Memory{Leading: true, Epoch: epoch}
		pl := rebalancer.Planner{Policies: []rebalancer.Policy{thermal}, Actuators: []rebalancer.Actuator{w}, Breaker: rebalancer.DefaultBreaker, Expiry: 30 * time.Second}
		plan, _ := pl.Step(start, view, mem)
		for _, step := range steps(plan) {
			if watts := *step.Params.PowerLimitWatts; watts < minW || watts < floor*defaultW || watts > defaultW {
				t.Fatalf("caps at %v W with floor %v", watts, floor)
			}
		}
	})
}
