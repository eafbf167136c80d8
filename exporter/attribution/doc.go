// Package attribution says whose the processes are that GPUs list.
//
// In: the pids that a device lists, /proc, the agent's rules of whose processes
// are ours. Out: members for frames: identity, workload, owner, name. Never: a
// signal, a wait of the tick, a device that is not shown because of it.
//
// A process is read when it is first listed and again from time to time, since
// its name, its user and the workload that it belongs to may change while it
// lives; in between a handle tells that the pid is still its own. What cannot
// be found out now leaves what was known.
//
// To add a system whose processes are to be named (pods, job steps): a kind
// beside those in holder.go, told by the process's cgroup.
package attribution
