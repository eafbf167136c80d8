package sim

import (
	"log/slog"
	"time"
)

// ServeConfig says which node of a scenario to serve, and where.
type ServeConfig struct {
	Scenario *Scenario
	Node     string        // "" takes the first
	Path     string        // of the shared file, on a tmpfs; its folder must exist
	Tick     time.Duration // 0 takes 25 ms
	Log      *slog.Logger  // nil is silent
}
