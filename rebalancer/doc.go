// Package rebalancer is the engine: detect, find candidates, climb the ladder,
// guard, plan, journal the intent, check again, act, read back, learn.
//
// In: Views, the journal, orders from people. Out: journal records, steps to
// actuators, answers to plan and explain. Never: acts without a journalled
// intent, on a stale or doubtful value, beyond a budget, or off the clock:
// Step is pure and takes now as an argument.
//
// Guarantees: the same View and Memory give the same plan; Memory is a fold of
// the journal; policies propose and only the engine acts; every refusal is
// typed and counted.
//
// To add a policy: one file in policy/ and one line in its list. To add a
// refusal: its reason in telemetry and the guard that gives it.
package rebalancer
