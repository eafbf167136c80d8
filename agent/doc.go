// Package agent carries out signed orders on a node, within the limits of its
// own file, and says what became of them.
//
// In: orders from the bus, a Writer to the devices, a Lister of who holds them,
// the node's processes. Out: receipts; a ledger on disk; notices to owners.
// Never: acts without a valid signature, beyond its allow-list, on what another
// owns, or twice on one order.
//
// Guarantees: at most once by an fsynced ledger; every effect is read back;
// an effect under a lease is undone when the lease ends, by compare-and-set,
// whoever else is dead, one device in five seconds and once it is cool enough
// (at once if nobody reads headroom, after 10 min if it cannot be known, after a
// day though it is hot); unfinished orders are reported first after a restart.
//
// A preemption ends a workload (see package process): the owner is told, all of
// it gets one signal, what is left after the grace gets KILL, and it is done when
// no device lists it any more. It may take minutes, so its request is answered
// pending and other orders go on; a killed agent waits out the rest of the grace
// in its next run and never signals twice.
//
// To add a step kind: one line in Kinds and in config's agentKinds, one case in
// act, its undo in restore and what a kill leaves of it in resolve. One that
// outlasts its request: as preempt, by besides and resume.
package agent
