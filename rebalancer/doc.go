// Package rebalancer is the engine: detect, find candidates, climb the ladder,
// guard, plan, journal the intent, check again, act, read back, learn.
//
// In: Views, the journal, receipts, orders from people. Out: journal records,
// steps to actuators, answers to plan and explain. Never: acts without a
// journalled intent, on a stale or doubtful value, beyond a budget, or off the
// clock: Step is pure and takes now as an argument.
//
// Guarantees: the same View and Memory give the same plan; Memory is a fold of
// the journal, apart from sample counts, which are rebuilt from samples;
// policies propose and only the engine acts; every refusal is typed and
// counted. An act on a GPU holds that GPU, an act on a workload the workload
// and all its GPUs; gentle acts on two GPUs of one workload do not exclude each
// other. A step is ordered under one id by however many processes, and asked
// for before it is ordered again, so that it is done at most once where the
// backend keeps a ledger; to ask begins nothing. The journal fences a leader
// whose epoch has been passed, and late word of an act takes its decision up
// again. What is in force is renewed, undone by the leader, or undone by its
// owner when the lease ends; nothing else keeps it.
//
// A preemption is about two things, and its Target names both: the GPU that is
// beyond its mark (node, uuid, generation), by which it is confirmed, settled,
// reviewed and explained, and the process tree that goes (workload, pid, start,
// boot id), by which it is ordered, protected and remembered. Act.GPUs are all
// that the workload has: they are held, counted in budgets and by the breaker,
// and left alone afterwards, also when the View no longer shows the workload.
// It has no lease and no undo: once done, its effect is read and it is closed.
// Its step may be begun for as long as any step, and then takes its grace and
// RunTime; Deadline is when its end is known. It is refused while a cap would
// do, and what protects a workload is asked at the plan and before the order. A
// wave of them opens the breaker before it passes the limit.
//
// The flow, by file: step (a pass) · detect, filter (confirmed violations) ·
// candidates, victim (who would have to go, and what protects him) · ladder
// (rungs, net benefit, intent) · guard, budget, breaker · followup (verify, undo,
// renew, end), preempt · receipt · memory, snapshot (the fold) ·
// run (the loop) · journal (writing) · recheck · execute (steps on their way) ·
// control, explain, ring (people) · metrics.
//
// To add a policy: one file in policy/ and one line in its list. To add a
// refusal: its reason in telemetry, the guard that gives it, its case in the
// table of guard_test.go or, if it protects a workload, of preempt_test.go. To add
// a mode of relief: a case in follow.
package rebalancer
