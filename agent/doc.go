// Package agent carries out signed orders on a node, within the limits of its
// own file, and says what became of them.
//
// In: orders from the bus, a Writer to the devices. Out: receipts; a ledger on
// disk. Never: acts without a valid signature, beyond its allow-list, on what
// another owns, or twice on one order.
//
// Guarantees: at most once by an fsynced ledger; every effect is read back;
// an effect under a lease is undone when the lease ends, by compare-and-set,
// whoever else is dead, one device in five seconds and once it is cool enough
// (at once if nobody reads headroom, after 10 min if it cannot be known, after a
// day though it is hot); unfinished orders are reported first after a restart.
//
// To add a step kind: one line in Kinds, one case in act, its undo in restore
// and what a kill leaves of it in resolve.
package agent
