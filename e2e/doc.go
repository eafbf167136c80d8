// Package e2e holds the end-to-end test: real processes from the NVML stand-in
// to the explanation of an act.
//
// In: the built binaries. Out: a verdict. Never: part of a binary, or a
// shortcut past a process.
//
// To add a case: a scenario in testdata and a test beside the first.
package e2e
