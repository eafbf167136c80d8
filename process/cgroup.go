package process

import (
	"slices"
	"strings"
)

// cgroups reads /proc/PID/cgroup: a line "id:controllers:path" for each
// hierarchy of version 1, "0::path" for version 2, both on hybrid systems.
func cgroups(data []byte) (chief string, all []string) {
	rank := 4
	for line := range strings.Lines(string(data)) {
		id, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || path == "" {
			continue
		}
		path = strings.TrimSuffix(path, " (deleted)")
		if !slices.Contains(all, path) {
			all = append(all, path)
		}
		now := 2
		switch {
		case path == "/":
			now = 3
		case id == "0":
			now = 0
		case controllers == "name=systemd":
			now = 1
		}
		if now < rank {
			rank, chief = now, path
		}
	}
	slices.Sort(all)
	return chief, all
}

// owner names the system whose processes are in a cgroup, whose own hands they
// are left to; "" for none.
func owner(path string) string {
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case strings.Contains(part, "kubepods"), // kubepods, kubepods.slice, kubepods-burstable.slice, kubelet-kubepods.slice
			strings.HasPrefix(part, "cri-containerd-"), strings.HasPrefix(part, "crio-"):
			return "Kubernetes"
		case part == "slurm", strings.HasPrefix(part, "slurm_"), strings.HasPrefix(part, "slurm."), strings.HasPrefix(part, "slurmd"), strings.Contains(part, "slurmstepd"):
			return "Slurm"
		}
	}
	return ""
}

// outside says whether a path leads out of the cgroup namespace of who reads
// it: where the process really is cannot be seen then.
func outside(path string) bool { return path == "/.." || strings.HasPrefix(path, "/../") }

// under says whether a path is a cgroup or below it, by whole components.
func under(path, prefix string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return prefix != "" && (path == prefix || strings.HasPrefix(path, prefix+"/"))
}
