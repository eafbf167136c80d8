// Package collector brings the fleet together: frames in, each judged once,
// observations and an exposition out.
//
// In: frames, inventory, receipts and the journal from the bus.
// Out: one observation per node and second on the bus, /metrics, the data
// behind the API (query.go).
// Never: decides, judges outside cluster.Judge, lets one node's input disturb
// another's.
//
// Guarantees: handlers only enqueue into bounded rings that drop the oldest
// and count it; every refused message is counted by its reason; the series of
// a node that is gone end, evenkeel_node_up stays 0.
//
// To add a family to /metrics: a row in the catalogue; exposition is derived.
package collector
