// Package node wires the processes of evenkeel-node: export, agent, doctor.
//
// In: checked configuration. Out: running processes. Never: logic, or anything
// that may not reach a GPU node; that is why it is not part of package app.
//
// To add a part to the node: here, and look at the ban in conventions_test.go.
package node

// Version is set by the linker.
var Version = "unknown"
