package process

import (
	"fmt"
	"slices"
	"strings"
)

// Rules are what the agent's file says of processes: whose may be acted on. The
// zero value means nobody's.
type Rules struct {
	// Users are names or numbers.
	Users []string
	// Cgroups are paths; what is in them or below is ours, whoever runs it.
	Cgroups []string
}

// Ours says whether a process may be acted on, and why or why not. What
// Kubernetes and Slurm run is theirs, whatever the rules say. Root's processes
// are ours only if root is named, and then, if cgroups are named too, only in
// those: half of a node's services are root's.
func (r Rules) Ours(i Info) (ours bool, why string) {
	if why := never(i); why != "" {
		return false, why
	}
	user, cgroup := r.user(i.UID), r.cgroup(i.Cgroups)
	switch ours := r.names(i.UID, user, cgroup); {
	case ours && cgroup != "":
		return true, "cgroup " + cgroup
	case ours:
		return true, "user " + user
	case i.UID == 0 && user == "":
		return false, "it runs as root, whom processes.users does not name"
	case i.UID == 0:
		return false, fmt.Sprintf("it runs as root, and its cgroup %s is under none of processes.cgroups", i.Cgroup)
	}
	return false, fmt.Sprintf("user %s is not in processes.users, and its cgroup %s is under none of processes.cgroups", UserName(i.UID), i.Cgroup)
}

// ours is Ours without the words, which ask for the names of users.
func (r Rules) ours(i Info) bool {
	return never(i) == "" && r.names(i.UID, r.user(i.UID), r.cgroup(i.Cgroups))
}

// names says whether the entries found for a process make it ours.
func (r Rules) names(uid uint32, user, cgroup string) bool {
	if uid == 0 {
		return user != "" && (cgroup != "" || len(r.Cgroups) == 0)
	}
	return user != "" || cgroup != ""
}

// never names what no rule can make ours.
func never(i Info) string {
	switch {
	case i.Kernel:
		return "it is a kernel thread"
	case i.PID <= 1:
		return "it is process 1"
	case i.Own:
		return "it is this process or one that it descends from"
	case len(i.Cgroups) == 0:
		return "its cgroup is not known"
	}
	for _, path := range i.Cgroups {
		if outside(path) {
			return fmt.Sprintf("its cgroup %s is outside what can be seen from here, so it may be Kubernetes' or Slurm's; run in the host's cgroup namespace", path)
		}
		if system := owner(path); system != "" {
			return fmt.Sprintf("its cgroup %s is %s's, and only %s may end what it runs", path, system, system)
		}
	}
	if i.Mixed {
		return "it has the rights of more than one user"
	}
	return ""
}

// user is the entry of the rules that names a user.
func (r Rules) user(uid uint32) string {
	for _, entry := range r.Users {
		if id, err := userID(entry); err == nil && id == uid && (uid != 0 || entry == "root" || entry == "0") {
			return entry
		}
	}
	return ""
}

// cgroup is the entry of the rules that a process is under.
func (r Rules) cgroup(paths []string) string {
	for _, entry := range r.Cgroups {
		if slices.ContainsFunc(paths, func(path string) bool { return under(path, entry) }) {
			return strings.TrimSuffix(entry, "/") + "/"
		}
	}
	return ""
}

// Unknown returns the users that the rules name and this node does not know.
func (r Rules) Unknown() []string {
	var unknown []string
	for _, entry := range r.Users {
		if _, err := userID(entry); err != nil {
			unknown = append(unknown, entry)
		}
	}
	return unknown
}
