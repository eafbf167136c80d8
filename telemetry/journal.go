package telemetry

import (
	"errors"
	"time"
)

// ErrConflict is returned by a compare-and-append when the journal has moved
// on: somebody else wrote, so whoever decided must look again.
var ErrConflict = errors.New("journal has moved on")

// Leadership is one state of a lease. A held one is valid until Until by the
// monotonic clock; its holder stops acting with a third of it left.
type Leadership struct {
	Held  bool
	Epoch Epoch
	Until time.Time
}
