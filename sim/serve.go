package sim

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
)

const (
	defaultTick = 25 * time.Millisecond
	// catchUp bounds what a world that was held up makes good in one go.
	catchUp = time.Second
	// claimPeriod is how often the processes that claim a GPU are looked at.
	claimPeriod = 100 * time.Millisecond
)

// Run lets the world pass in real time until ctx ends. A tick of 0 takes 25 ms.
// Claims end with their processes.
func (w *World) Run(ctx context.Context, tick time.Duration) {
	w.Begin(time.Now().Add(-w.Elapsed()))
	var reaped time.Time
	follow(ctx, tick, func(now time.Time, steps int, dt time.Duration) {
		if now.Sub(reaped) >= claimPeriod {
			reaped = now
			w.Reap(process.Runs)
		}
		for range steps {
			w.Step(dt)
		}
	})
}

// follow calls step with the number of whole ticks that have passed, until ctx
// ends. Steps keep their length, so that the world stays the same one whatever
// the load of the machine.
func follow(ctx context.Context, tick time.Duration, step func(now time.Time, steps int, dt time.Duration)) {
	if tick <= 0 {
		tick = defaultTick
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		if now.Sub(last) > catchUp {
			last = now.Add(-catchUp)
		}
		steps := int(now.Sub(last) / tick)
		last = last.Add(time.Duration(steps) * tick)
		step(now, steps, tick)
	}
}

// ServeConfig says which node of a scenario to serve, and where.
type ServeConfig struct {
	Scenario *Scenario
	Node     string        // "" takes the first
	Path     string        // of the shared file, on a tmpfs; its folder must exist
	Tick     time.Duration // 0 takes 25 ms
	After    time.Duration // of the scenario that has passed when it is first shown
	// Events are read as they come, one a line in the words of a scenario, and
	// happen then. nil: only the scenario's happen.
	Events io.Reader
	Log    *slog.Logger // nil is silent
}
