// Package app wires the processes of evenkeel: up, collector, rebalancer and
// sim serve.
//
// In: checked configuration. Out: running processes that end when their
// context does. Never: logic; one straight-line function per process, in the
// order in which things must start.
//
// To add a process: its function here and a command in cmd/evenkeel. To add an
// actuator: one line in rebalancer.go.
package app

// Version is set by the linker.
var Version = "unknown"
