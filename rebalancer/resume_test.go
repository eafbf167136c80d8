package rebalancer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// readings notes where each reading of a journal began and how much it took.
type readings struct {
	*journal
	first []uint64
	count []int
}

func (j *readings) Resume(ctx context.Context, fn func(uint64, telemetry.Record) error) (uint64, error) {
	n := len(j.count)
	j.first, j.count = append(j.first, 0), append(j.count, 0)
	return j.journal.Resume(ctx, func(seq uint64, r telemetry.Record) error {
		if j.count[n]++; j.count[n] == 1 {
			j.first[n] = seq
		}
		return fn(seq, r)
	})
}

// A start reads from the last snapshot on, and knows as much as one that reads
// it all.
func TestStartReadsFromTheLastSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 2)
		l := newLive(t, w)
		l.run(5 * time.Second)
		w.inlet["n00"] = 50
		l.run(3 * time.Minute)
		l.end()
		before := l.journal.fold(t)
		data, err := before.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		at, no := len(l.journal.records)+1, false
		for _, r := range []telemetry.Record{
			{Topic: telemetry.TopicSnapshot, Snapshot: []byte("replaced by the next one")},
			{Topic: telemetry.TopicSnapshot, Snapshot: data},
			{Topic: telemetry.TopicMode, Mode: &telemetry.ModeChange{Paused: &no, By: "ada"}},
		} {
			r.ID, r.Time, r.Epoch = fmt.Sprint("more-", len(l.journal.records)), w.now, telemetry.Epoch{Incarnation: "test", Revision: 1}
			l.journal.records = append(l.journal.records, r)
		}
		j := &readings{journal: l.journal}
		l.config.Journal = j
		l.begin()
		l.run(2 * time.Second)
		if len(j.first) != 1 || j.first[0] != uint64(at+1) || j.count[0] != 2 {
			t.Errorf("read from %v, %v records; the last snapshot is at %d", j.first, j.count, at+1)
		}
		l.run(10 * time.Minute)
		for _, d := range w.devices {
			if d.limit == defaultW || d.leaseEnds.Before(w.now) {
				t.Errorf("%s: limit %v, lease until %v", d.uuid, d.limit, d.leaseEnds)
			}
		}
		if len(before.Decisions) != len(w.devices) {
			t.Fatalf("%d decisions were open; the test proves nothing", len(before.Decisions))
		}
	})
}
