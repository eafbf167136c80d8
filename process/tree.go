package process

import (
	"cmp"
	"slices"
)

// host is a kind of process that runs other people's commands: what it starts
// is a workload of its own.
type host struct {
	what string
	is   func(q, child Info) bool
}

// hosts are tried in this order; names are as the kernel keeps them, 15 bytes.
var hosts = []host{
	{"process 1", func(q, _ Info) bool { return q.PID <= 1 }},
	// A shell at a terminal, known by its name or by what job control does: each
	// job is a group of its own in the shell's session.
	{"an interactive shell", func(q, child Info) bool {
		return q.Session == q.PID && q.TTY != 0 &&
			(named(q, "sh", "bash", "zsh", "dash", "ash", "ksh", "csh", "tcsh", "fish", "nu", "xonsh", "pwsh") ||
				child.Session == q.Session && child.Group != q.Group)
	}},
	{"a remote login", func(q, _ Info) bool { return named(q, "sshd", "sshd-session", "dropbear", "login") }},
	{"a terminal server", func(q, _ Info) bool {
		return named(q, "tmux", "tmux: server", "screen", "SCREEN", "zellij", "dtach", "mosh-server")
	}},
	{"a service manager", func(q, _ Info) bool { return named(q, "systemd", "(sd-pam)", "supervisord", "runsvdir", "s6-svscan") }},
	{"a scheduler of commands", func(q, _ Info) bool { return named(q, "cron", "crond", "CRON", "atd", "anacron", "fcron") }},
	{"a container engine", func(q, _ Info) bool {
		return named(q, "containerd-shim", "conmon", "dockerd", "containerd", "podman", "runc", "crun")
	}},
	{"a notebook server", func(q, _ Info) bool {
		return named(q, "jupyter-lab", "jupyter-noteboo", "jupyter-server", "jupyterhub", "jupyterhub-sing", "jupyter-labhub")
	}},
}

func named(q Info, names ...string) bool { return slices.Contains(names, q.Name) }

// isHost says whether a process runs its child for somebody.
func isHost(q, child Info) bool {
	return slices.ContainsFunc(hosts, func(h host) bool { return h.is(q, child) })
}

// Ours is Rules.Ours with what only the other processes tell: a job step is
// Slurm's though no cgroup holds it.
func (t Table) Ours(i Info, r Rules) (ours bool, why string) {
	if t.inStep(i) {
		return false, "it belongs to a step of Slurm, and only Slurm may end what it runs"
	}
	return r.Ours(i)
}

// inStep says whether a process descends from Slurm's own.
func (t Table) inStep(i Info) bool {
	for range len(t) {
		up, ok := t[i.Parent]
		if !ok {
			return false
		}
		if up.Name == "slurmstepd" && up.UID == 0 {
			return true
		}
		i = up
	}
	return false
}

// judged is a table with what has been found out about it.
type judged struct {
	t    Table
	r    Rules
	ours map[int]bool
}

func judge(t Table, r Rules) *judged { return &judged{t, r, make(map[int]bool, len(t))} }

func (j *judged) isOurs(i Info) bool {
	yes, known := j.ours[i.PID]
	if !known {
		yes = !j.t.inStep(i) && j.r.ours(i)
		j.ours[i.PID] = yes
	}
	return yes
}

// joins says whether a process and the one it climbs to are one workload. The
// kernel may have moved a dead one out of its cgroup.
func (j *judged) joins(p, q Info) bool {
	return p.UID == q.UID && !isHost(q, p) &&
		(p.Dead() || q.Dead() || slices.Equal(p.Cgroups, q.Cgroups)) && j.isOurs(q)
}

// orphan says whether a process has lost the parent that started it. A child is
// born into its parent's session and leaves it only by leading its own.
func (t Table) orphan(p Info) bool {
	q, ok := t[p.Parent]
	return !ok || q.PID <= 1 || q.Session != p.Session && p.PID != p.Session
}

// up is one step of a climb: to the parent, or, for an orphan, to the leader of
// its group or session.
func (j *judged) up(p Info) (Info, bool) {
	if q, ok := j.t[p.Parent]; ok && j.joins(p, q) {
		return q, true
	}
	if !j.t.orphan(p) {
		return Info{}, false
	}
	for _, leader := range []int{p.Group, p.Session} {
		q, ok := j.t[leader]
		if ok && leader != p.PID && q.Start <= p.Start && j.joins(p, q) && !j.t.descends(q, p.PID) {
			return q, true
		}
	}
	return Info{}, false
}

// descends says whether a process is a descendant of another by its parents.
func (t Table) descends(i Info, of int) bool {
	for range len(t) {
		if i.Parent == of {
			return true
		}
		up, ok := t[i.Parent]
		if !ok {
			return false
		}
		i = up
	}
	return false
}

// climb visits a process and what it climbs to, until visit says stop.
func (j *judged) climb(p Info, visit func(Info) (stop bool)) {
	for range len(j.t) {
		if visit(p) {
			return
		}
		q, ok := j.up(p)
		if !ok {
			return
		}
		p = q
	}
}

// Root is the top of the workload that a process belongs to; false if the
// process is not there or not ours. The table may be of Line or of Snapshot.
func (t Table) Root(pid int, r Rules) (ID, bool) {
	p, ok := t[pid]
	j := judge(t, r)
	if !ok || !j.isOurs(p) {
		return ID{}, false
	}
	var top ID
	j.climb(p, func(q Info) bool { top = q.ID; return false })
	return top, true
}

// Tree is the living part of a workload, the root first, in the order in which
// the processes were born. The table must be of Snapshot.
func (t Table) Tree(root ID, r Rules) []Info {
	i, ok := t[root.PID]
	if !ok || i.Start != root.Start {
		return nil
	}
	members, _ := Follow(i).Update(t, r)
	return members
}

// byBirth orders parents before their children.
func byBirth(a, b Info) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID)) }
