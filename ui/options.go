package ui

import (
	"log/slog"
	"time"
)

// Options is what the handler needs. Fleet and Decisions are required.
type Options struct {
	Fleet     Fleet
	Decisions Decisions
	// Brakes may be nil: then the page does not speak of them.
	Brakes Brakes
	// Control may be nil: what needs the leader then answers that none is there.
	Control Control
	// Past may be nil: then the last ten minutes are all there is.
	Past Past
	// Alerts may be nil: then no rules are evaluated here, and the API says so.
	Alerts Alerts
	// Streams may be nil: then nobody counts them.
	Streams Streams
	// Version is shown at the foot of the page.
	Version string
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Log takes errors that no client sees; slog.Default() if nil.
	Log *slog.Logger
}
