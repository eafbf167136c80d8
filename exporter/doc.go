// Package exporter reads every GPU of a node each tick and says what it saw:
// a frame to the bus and /metrics from memory.
//
// In: a Source of devices. Out: frames to a Sink, an exposition of its own.
// Never: writes to a device, waits for one GPU on behalf of another, judges.
//
// Guarantees: one worker per GPU with at most one driver call outstanding; a
// GPU that hangs or is lost costs the others nothing and is named; a value that
// is absent, blank or out of range has no series; counters never fall within
// an incarnation.
//
// To add a metric: one row in telemetry/catalog.go and one reader in the file
// of its topic.
package exporter
