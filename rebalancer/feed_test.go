package rebalancer_test

import (
	"context"
	"testing"
	"time"

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
