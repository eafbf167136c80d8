// Package bench is the load generator: a fleet of exporters as the collector
// hears it, as many nodes as are asked for, and the report of what became of
// their frames.
//
// In: a shape of the fleet, faults with their probability, a seed, where the bus
// is. Out: frames on the bus, a report with counts, latencies and what the
// processes used. Never: a frame to an address that was not named; a run without
// an end; a judgement of values.
//
// Frames are those of real exporters over a small simulated world that moves
// (world.go). Every node of the fleet borrows the frame of one of them, with its
// own names and header put in (body.go), so that ten thousand nodes cost less
// than a tenth of what they load. Each node has a connection of its own that
// speaks no more of the protocol than an exporter needs (client.go), its place
// in the period by its name, and parts in the rhythm of an exporter (send.go).
// What the collector publishes is heard and compared with what was sent
// (hear.go); injected faults must show in the collector's counters as often as
// they were made (faults.go, check.go).
//
// To add a fault: a constant and its row in faults.go, and what it does to a
// frame in send.go. A value that an exporter begins to send moves once it has a
// line in world.go.
package bench
