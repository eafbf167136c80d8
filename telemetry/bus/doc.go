// Package bus is the only package that knows the NATS client: frames and
// observations, events and receipts, inventory, the journal, orders, verbs to
// the leader, and the lease of leadership, each with the delivery it needs.
//
// In: encoded messages and the words of package telemetry. Out: the same on
// the other side, typed errors where nobody listens, counts of what was lost.
// Never: judges a value, opens an order, blocks a tick, keeps an old frame to
// send it later.
//
// Guarantees: frames and observations are sent at most once, and an attempt
// without a connection fails at once; events and receipts are sent again until
// the server has stored them, each stored once; the journal takes a record only
// behind the sequence its writer has seen; followers see every kept message
// once and in order across reconnects; a lease counts from before the write
// that gave it, never from a read.
//
// To add a subject: its name in telemetry, the method here, its place in
// Permissions, and a case in the contract test, which runs over every kind of
// server.
package bus
