package collector

import (
	"context"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Bus is what the collector needs of the message bus. Handlers must return at
// once; the collector only enqueues in them.
type Bus interface {
	// Connected says whether anything can be heard now.
	Connected() bool
	// FramesOf calls fn with subject and payload of every frame of a share of the
	// fleet. The payload is the callee's to keep.
	FramesOf(share telemetry.PartitionSet, fn func(subject string, data []byte)) (stop func(), err error)
	// PublishObservation sends an encoded observation of a node. The buffer is
	// reused after the call.
	PublishObservation(node string, data []byte) error
	// Inventories calls fn with every inventory snapshot, the last of each
	// source first.
	Inventories(ctx context.Context, fn func(telemetry.Inventory)) (stop func(), err error)
	// Receipts calls fn with every receipt.
	Receipts(fn func(subject string, r telemetry.Receipt)) (stop func(), err error)
	// FollowJournal calls fn with every record from the first kept one on, in
	// order, until ctx ends. It survives reconnects without gap or repetition.
	FollowJournal(ctx context.Context, fn func(seq uint64, r telemetry.Record)) error
	// Control asks the leader. No leader is an error that says so.
	Control(ctx context.Context, verb string, body []byte) ([]byte, error)
}
