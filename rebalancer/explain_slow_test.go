package rebalancer_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// longJournal takes a minute to be read, once it is full.
type longJournal struct {
	*journal
	full atomic.Bool
}

func (j *longJournal) Replay(ctx context.Context, fn func(uint64, telemetry.Record) error) (uint64, error) {
	if j.full.Load() {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return j.journal.Replay(ctx, fn)
}

// A person asks for a decision of long ago. The search does not keep the leader
// from acting.
func TestASearchInTheJournalKeepsNobodyFromActing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(1, 1)
		long := &longJournal{}
		l := newLive(t, w, func(c *rebalancer.Config) {
			long.journal = c.Journal.(*journal)
			c.Journal = long
		})
		l.run(5 * time.Second)
		long.full.Store(true)
		asked := make(chan error, 1)
		go func() {
			_, err := l.engine.Control(rebalancer.VerbExplain, []byte(`{"decision":"d-009999"}`))
			asked <- err
		}()
		w.device("GPU-00-0").r, w.device("GPU-00-0").temp = 0.1, 89
		l.run(4 * time.Second)
		if w.device("GPU-00-0").sets == 0 {
			t.Error("not capped while the journal is searched")
		}
		l.run(10 * time.Second)
		if err := <-asked; err == nil || !strings.Contains(err.Error(), "d-009999") {
			t.Errorf("%v, want an error that names what was asked for", err)
		}
	})
}
