// Package telemetry is the words on the wire: the metric catalogue, the frame
// a node sends each tick, events, observations, inventory, decisions, orders
// and receipts, with their codecs, subject names and signatures.
//
// In: nothing; every other package speaks in these types.
// Out: bytes and typed errors; a reader never panics on foreign input.
// Never: I/O, clocks, goroutines, a bus client, a judgement about a value.
//
// Guarantees: a field number or JSON key is never reused or changed in
// meaning (wire.lock is compared by a test); absent is not zero; values are in
// base units behind the accessors, whatever their form on the wire.
//
// To add a metric: one row in catalog.go, `make generate`, one reader in the
// exporter. To add a message field: the struct or .proto, `make generate`.
package telemetry
