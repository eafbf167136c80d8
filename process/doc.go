// Package process tells which processes belong together, whose they are, and
// which of them Evenkeel may act on.
//
// In: /proc, Rules of the agent's file. Out: identities that survive the reuse
// of a pid, workloads as trees, signals to exactly the process meant. Never: a
// signal by bare pid, a process that another system owns (kubepods, Slurm), a
// judgement that differs between the one who lists and the one who acts.
//
// A workload is a root and every process whose climb ends there: from a process
// to its parent while that is ours, of the same user and the same cgroup, and
// no place that runs other people's commands; an orphan climbs to the leader of
// its process group or session instead. So every process of ours is part of
// exactly one workload. Family follows one while its processes come and go.
//
// To add a place that runs other people's commands: a line in hosts, in
// tree.go. A system that owns its processes: a case in owner, in cgroup.go.
package process
