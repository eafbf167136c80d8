package rebalancer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What arrives as fast as it is folded must not keep Views from coming.
func TestAFeedThatNeverRunsDryStillShowsViews(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var f *rebalancer.Feed
	f = rebalancer.NewFeed(func() time.Time { // asked at each fold: one comes while one goes
		if ctx.Err() == nil {
			f.Inventory(telemetry.Inventory{Source: "file"})
		}
		return start
	}, quiet())
	f.Inventory(telemetry.Inventory{Source: "file"})
	views := 0
	if err := f.Run(ctx, func(*cluster.View) {
		if views++; views == 3 {
			cancel()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if views < 3 {
		t.Errorf("%d Views in 20 s", views)
	}
}

// What found no room is on the metrics.
func TestFeedTellsWhatItDropped(t *testing.T) {
	f := rebalancer.NewFeed(time.Now, quiet())
	reg := prometheus.NewPedanticRegistry()
	f.Register(reg)
	const room = 1 << 15
	for range room {
		f.Observation("ek.v1.obs.0.n1", nil)
	}
	if n, err := testutil.GatherAndCount(reg, "evenkeel_feed_dropped_total"); err != nil || n != 1 || f.Dropped() != 0 {
		t.Fatalf("%d series, %v, %d dropped with all in the queue", n, err, f.Dropped())
	}
	for range 3 {
		f.Receipt(telemetry.Receipt{})
	}
	want := "# HELP evenkeel_feed_dropped_total Observations, inventories and receipts that the rebalancer had no room for.\n# TYPE evenkeel_feed_dropped_total counter\nevenkeel_feed_dropped_total 3\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
