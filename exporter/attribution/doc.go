// Package attribution says whose the processes are that GPUs list.
//
// In: the pids that a device lists, /proc, the agent's rules of whose processes
// are ours; what the kubelet and a scheduler's job files say of allocations.
// Out: members for frames: identity, workload, owner, name; samples of who was
// given which device, and how it is shared. Never: a signal, a wait of the tick,
// a device that is not shown because of it.
//
// A process is read when it is first listed and again from time to time, since
// its name, its user and the workload that it belongs to may change while it
// lives; in between a handle tells that the pid is still its own. What cannot
// be found out now leaves what was known.
//
// Each scheduler is asked on a goroutine of its own. Its last word stays in force
// for ten minutes, with its age told.
//
// To add a system whose processes are to be named: a kind beside those in
// holder.go, told by the process's cgroup (process.PlaceOf). One that gives
// devices away: an entry in granters. A spelling of a device's id: resolve.
package attribution
