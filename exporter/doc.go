// Package exporter reads every GPU of a node each tick and says what it saw:
// a frame to the bus and /metrics from memory. What happens between readings it
// tells as events.
//
// In: a Source of devices, which may be a Notifier too. Out: frames and events to
// a Sink, an exposition of its own.
// Never: writes to a device, waits for one GPU on behalf of another, judges.
//
// Guarantees: one worker per GPU with at most one reading outstanding, beside
// the source's own lookups and registrations; a GPU that hangs or is lost costs
// the others nothing and is named by frames, events and the readers' metrics; a
// value that is absent, blank or out of range has no series; counters never fall
// within an incarnation and survive wraps of the driver's. An event is told once,
// under an id that no other has; a tick waits neither for it nor for the bus.
//
// There are three parts: fast values every tick, links and processes every five
// seconds, the slow part every fifteen. To add a metric: one row in
// telemetry/catalog.go and one reader in the file of its topic. A new Xid is a
// line in xid.go.
package exporter
