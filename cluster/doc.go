// Package cluster is the model of the fleet. State folds frames, observations,
// inventory and receipts; Judge turns frames into observations; View is the
// immutable picture that decisions and pages are made from.
//
// In: messages of package telemetry, with the time of their arrival.
// Out: observations, Views, and on a Fork what a change would do to a View.
// Never: I/O, clocks, a decision.
//
// Guarantees: the same messages in the same order give the same View; nodes,
// GPUs and workloads come in the order of their ids; unknown is a state of its
// own, not zero, not full, not healthy. Readers of a View need no lock.
//
// To add a judgement: one file here that fills a field of the observation, and
// its reading in view.go.
package cluster
