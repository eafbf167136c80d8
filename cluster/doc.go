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
// own, not zero, not full, not healthy. Readers of a View need no lock. Workloads
// are those of inventories and, where none lists them, those that nodes tell of;
// the latter belong to their node and are joined to nothing else.
//
// The judge, by file: judge, sequence, clock, identity (who speaks, and when) ·
// track, slots, plausible (values) · trend, thermal, air (heat) · rate, signal,
// holders, samples, links (what verdicts rest on) · host, fabric, health, xid,
// idle, contention (verdicts) · words, observe (what is told).
//
// Of every verdict: it has evidence in words with numbers; it needs signals that
// are fresh and trusted, and what is missing makes it unknown, never good; it
// holds for a while before it ceases, so that it does not flap; nothing of it
// outlives a restart of the node's process but faults of the hardware, which only
// a reset, a start of the machine or the driver's own word end. How much of a
// node's air is its row's doing takes other nodes and is not judged here.
//
// To add a judgement: one file here that fills a field of the observation, its
// place in watch, and its reading in fold_verdict.go and view.go.
package cluster
