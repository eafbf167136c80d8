package process

import (
	"regexp"
	"slices"
	"strings"
)

// Place is what the cgroups of a process say of where it runs. What they do not
// say is empty.
type Place struct {
	Pod       string // UID of a pod, with dashes
	Container string // id of a container
	Runtime   string // which runtime's: docker, containerd, podman, cri-o, nerdctl, lxc, nspawn; empty if the path does not tell
	Job, Step string // of Slurm: 4711, and 0, batch, extern, interactive, 0+1
	Unit      string // of systemd, the innermost
}

// String is the container or the unit: docker/3f29…, systemd/train.service.
func (p Place) String() string {
	switch {
	case p.Container != "" && p.Runtime == "":
		return "container/" + short(p.Container)
	case p.Container != "":
		return p.Runtime + "/" + short(p.Container)
	case p.Unit != "":
		return "systemd/" + p.Unit
	}
	return ""
}

// short is the form of an id that people's tools print.
func short(id string) string {
	if isHex(id, 64) {
		return id[:12]
	}
	return id
}

// PlaceOf reads the cgroups of a process. The outermost container counts: one
// in a pod is the pod's, whatever it runs inside. Below a user's own service
// manager the user makes cgroups as he likes, so nothing there is taken for a
// pod or a job.
func PlaceOf(cgroups []string) Place {
	var all Place
	for _, path := range cgroups {
		p := placeOf(path)
		if all.Pod == "" {
			all.Pod = p.Pod
		}
		if all.Container == "" {
			all.Container, all.Runtime = p.Container, p.Runtime
		}
		if all.Job == "" || all.Job == p.Job && all.Step == "" {
			all.Job, all.Step = p.Job, p.Step
		}
		if all.Unit == "" || len(p.Unit) > 0 && unitRank(p.Unit) > unitRank(all.Unit) {
			all.Unit = p.Unit
		}
	}
	if all.Pod != "" || all.Job != "" || all.Container != "" {
		all.Unit = ""
	}
	return all
}

// unitRank: of two hierarchies, the one that names a service says more.
func unitRank(unit string) int {
	if strings.HasSuffix(unit, ".service") {
		return 1
	}
	return 0
}

func placeOf(path string) (p Place) {
	slurm, pods, users, before := false, false, false, ""
	for part := range strings.SplitSeq(path, "/") {
		users = users || strings.HasPrefix(part, "user@") && strings.HasSuffix(part, ".service")
		pods = pods || strings.Contains(part, "kubepods")
		switch {
		case users:
		case slurmRoot(part):
			slurm = true
		case slurm && p.Job == "" && strings.HasPrefix(part, "job_") && isDigits(part[4:]):
			p.Job = part[4:]
		case p.Job != "" && p.Step == "" && strings.HasPrefix(part, "step_") && stepName.MatchString(part[5:]):
			p.Step = part[5:]
		case pods && p.Pod == "":
			if p.Pod = podUID(part); p.Pod != "" {
				p.Container, p.Runtime = "", "" // what the kubelet itself runs in
				if _, id, ok := strings.Cut(part, ":cri-containerd:"); ok && isID(id) {
					p.Container, p.Runtime = id, "containerd"
				}
				continue
			}
		}
		if p.Container == "" && !slurm {
			p.Container, p.Runtime = container(part)
			if p.Container != "" && p.Runtime == "" && before == "docker" {
				p.Runtime = before
			}
		}
		before = part
		if isUnit(part) {
			p.Unit = part
		}
	}
	return p
}

// slurmRoot: slurm, slurm_NODE and NODE_slurmstepd.scope.
func slurmRoot(part string) bool {
	return part == "slurm" || strings.HasPrefix(part, "slurm_") || strings.HasSuffix(part, "slurmstepd.scope")
}

var (
	stepName = regexp.MustCompile(`^(\d+(\+\d+)?|batch|extern|interactive|TBD)$`)
	// The UID of a static pod is a hash without dashes; systemd's slices have
	// underscores in place of dashes.
	podPart = regexp.MustCompile(`(?:^|-)pod([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice|$)`)
)

func podUID(part string) string {
	part, _, _ = strings.Cut(part, ":")
	m := podPart.FindStringSubmatch(part)
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(m[1], "_", "-")
}

// runtimes are how each names a container's cgroup; the id follows.
var runtimes = []struct{ prefix, runtime string }{
	{"cri-containerd-", "containerd"},
	{"crio-conmon-", ""}, // its monitor, which is no container
	{"crio-", "cri-o"},
	{"docker-", "docker"},
	{"libpod-payload-", "podman"},
	{"libpod-conmon-", ""},
	{"libpod-", "podman"},
	{"nerdctl-", "nerdctl"},
	{"lxc.payload.", "lxc"},
	{"machine-", "nspawn"},
}

func container(part string) (id, runtime string) {
	name := strings.TrimSuffix(part, ".scope")
	if isID(name) {
		return name, ""
	}
	for _, r := range runtimes {
		rest, ok := strings.CutPrefix(name, r.prefix)
		if !ok {
			continue
		}
		free := rest != "" && (r.runtime == "lxc" || r.runtime == "nspawn" && name != part) // names that people give
		if r.runtime != "" && (free || isID(rest)) {
			return rest, r.runtime
		}
		return "", ""
	}
	return "", ""
}

// isID: containers' ids are 64 hexadecimal digits.
func isID(s string) bool { return isHex(s, 64) }

func isHex(s string, n int) bool {
	return len(s) == n && !strings.ContainsFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

func isDigits(s string) bool {
	return s != "" && len(s) < 20 && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// isUnit leaves out slices, which hold units, and a user's service manager.
func isUnit(part string) bool {
	return strings.HasSuffix(part, ".scope") && part != "init.scope" ||
		strings.HasSuffix(part, ".service") && !strings.HasPrefix(part, "user@")
}

// Step is the job and step of Slurm that a process of the table belongs to, of
// which no cgroup tells: slurmstepd, which it descends from, has them in its
// title.
func (p Proc) Step(t Table, pid int) (job, step string, ok bool) {
	up := t[pid]
	for n := 0; ; n++ {
		parent, known := t[up.Parent]
		if !known || n == len(t) {
			return "", "", false
		}
		if up = parent; up.Name == "slurmstepd" && up.UID == 0 {
			break
		}
	}
	title, err := p.file(up.PID, "cmdline")
	if err != nil {
		return "", "", false
	}
	m := stepTitle.FindSubmatch(title)
	if m == nil {
		return "", "", false
	}
	return string(m[1]), string(m[2]), true
}

// stepTitle: "slurmstepd: [4711.batch]".
var stepTitle = regexp.MustCompile(`^slurmstepd: \[(\d{1,19})\.([0-9a-z+]{1,32})\]`)

// Environment returns what a process began with, of the names asked for. It is
// the process's own word: a process can be started with any.
func (p Proc) Environment(pid int, names ...string) (map[string]string, error) {
	data, err := p.file(pid, "environ")
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		name, value, ok := strings.Cut(entry, "=")
		if _, twice := env[name]; ok && !twice && slices.Contains(names, name) {
			env[name] = value
		}
	}
	return env, nil
}
