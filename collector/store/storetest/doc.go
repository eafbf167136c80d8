// Package storetest starts the programs that the store works with, for tests:
// Prometheus, Alertmanager, VictoriaMetrics.
//
// In: a test, a program's name, its arguments.
// Out: the running program, on ports of its own, ended with the test.
// Never: leaves a process behind, ends one by its name.
package storetest
