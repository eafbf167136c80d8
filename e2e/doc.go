// Package e2e holds the end-to-end test: real processes from the NVML stand-in
// to the explanation of an act.
//
// In: the built binaries. Out: a verdict. Never: part of a binary, or a
// shortcut past a process.
//
// To add a case: a scenario in testdata and a test beside the first. To add a
// place at which a process is killed: package crashpoint, and a row in the
// table of kill_test.go.
package e2e
