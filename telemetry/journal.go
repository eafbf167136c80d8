package telemetry

import (
	"errors"
	"time"
)

// ErrConflict is returned by a compare-and-append when the journal has moved
// on: somebody else wrote, so whoever decided must look again.
var ErrConflict = errors.New("journal has moved on")

// Leadership is one state of a lease. A held one is valid until Until by the
// monotonic clock; its holder stops acting before that.
type Leadership struct {
	Held  bool
	Epoch Epoch
	Until time.Time
	// Others is set, where those who wait say so, if another waits for the lease
	// or, while it is not held here, has it; as far as was seen. Holder is who has
	// it then, if that was seen.
	Others bool
	Holder string
}
