package attribution

import (
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// ofPod says whose a pod's process is, and whether the pod's name is known.
// Processes of one pod are one member.
func (a *Attribution) ofPod(i *identity, uid string) (named bool) {
	i.kind, i.id, i.name = kindPod, uid, uid
	namespace, name, named := a.pods.find(uid, a.now)
	if named {
		i.owner, i.name = namespace, namespace+"/"+name
	}
	return named
}

// pods are the names of the node's pods by UID, as the kubelet names the folders
// of their logs: no question to the API server is needed.
type pods struct {
	dir  string
	at   time.Time
	byID map[string][2]string
}

// podsEvery bounds how often the folder is listed for a UID that is not known.
const podsEvery = 5 * time.Second

func (p *pods) find(uid string, now time.Time) (namespace, name string, ok bool) {
	names, ok := p.byID[uid]
	if !ok && p.dir != "" && (p.at.IsZero() || now.Sub(p.at) >= podsEvery) {
		p.at = now
		p.list()
		names, ok = p.byID[uid]
	}
	return names[0], names[1], ok
}

// list reads <namespace>_<name>_<uid>; neither name can have an underscore.
func (p *pods) list() {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return // it is not readable for everybody: pods go by their UID then
	}
	p.byID = make(map[string][2]string, len(entries))
	for _, e := range entries {
		if f := strings.Split(e.Name(), "_"); len(f) == 3 {
			p.byID[f[2]] = [2]string{exporter.CleanLabel(f[0]), exporter.CleanLabel(f[1])}
		}
	}
}

// number: what a variable of Slurm may be, to be part of a reference.
var number = regexp.MustCompile(`^\d{1,19}$`)

// ofStep says which job a process is of. Job and step are Slurm's own word; what
// the process's environment adds, name and array, can be forged by whoever runs
// it, so an inventory's word goes before. The parts of a heterogeneous job are
// jobs here: nothing on the node says which belong together.
func (a *Attribution) ofStep(i *identity, pid int, job, step string) {
	i.kind, i.id, i.workload = kindStep, job, "slurm:"+job
	if step != "" {
		i.id += "." + step
	}
	env, err := a.opt.Proc.Environment(pid, "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
	if err != nil || env["SLURM_JOB_ID"] != job {
		return
	}
	if array, task := env["SLURM_ARRAY_JOB_ID"], env["SLURM_ARRAY_TASK_ID"]; number.MatchString(array) && number.MatchString(task) {
		i.workload = "slurm:" + array + "_" + task
	}
	if name := env["SLURM_JOB_NAME"]; name != "" {
		i.name = exporter.CleanLabel(name)
	}
}
