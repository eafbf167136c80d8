package rebalancer

import (
	"context"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Journal is the ordered record of what was decided and what came of it.
type Journal interface {
	// Append adds a record if the journal's last sequence is still expect, and
	// returns the new one. ErrConflict means that somebody else wrote.
	Append(ctx context.Context, expect uint64, r telemetry.Record) (seq uint64, err error)
	// AppendAll adds records in order, each only right behind the one before it,
	// without waiting for one to be stored before the next is sent. stored is
	// called for each in turn as it is stored. After an error those reported are
	// there, and of the rest it is not known.
	AppendAll(ctx context.Context, expect uint64, rs []telemetry.Record, stored func(seq uint64)) error
	// Replay calls fn with every kept record in order and returns the last
	// sequence.
	Replay(ctx context.Context, fn func(seq uint64, r telemetry.Record) error) (last uint64, err error)
	// Resume is Replay from the last snapshot on, or from the start if there is
	// none.
	Resume(ctx context.Context, fn func(seq uint64, r telemetry.Record) error) (last uint64, err error)
}

// ErrConflict is returned by Append when the journal has moved on.
var ErrConflict = telemetry.ErrConflict

// Lease is the leadership. Only the write results count: a read may be old.
type Lease interface {
	// Hold tries to acquire and then renew the lease until ctx ends, calling
	// changed on every change. Held leases are valid until the returned time by
	// the monotonic clock; the holder stops acting with a third left.
	Hold(ctx context.Context, holder string, changed func(Leadership)) error
}

// Leadership is one state of the lease.
type Leadership = telemetry.Leadership

// Actuator is the hand of one backend.
type Actuator interface {
	Name() string
	// Can says what stands against a step, without side effects.
	Can(v *cluster.View, s telemetry.Step) []telemetry.Refusal
	// Do carries a step out. It is idempotent by Step.ID and honours DryRun,
	// Epoch and Deadline. An error means that the result is not known.
	Do(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error)
	// Observe asks what became of a step, and never begins it. A step that the
	// backend has not seen is unknown.
	Observe(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error)
}

// InventorySource tells of nodes and workloads.
type InventorySource interface {
	Watch(ctx context.Context, fn func(telemetry.Inventory)) error
}
