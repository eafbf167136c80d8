// Package crashpoint ends a process, as `kill -9` would, at a place that a test
// has named. It is empty unless built with the tag crashpoints.
//
// In: the places of a process, EVENKEEL_CRASH_AT and EVENKEEL_STOP_AT. Out: a
// process that is dead or stopped. Never: part of a shipped binary, or called
// from anything but wiring.
//
// To add a place: its name in the list of the process (app/crash.go,
// app/node/crash.go), a Pass in the decorator there, a row in e2e's table.
package crashpoint
