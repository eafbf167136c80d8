package process

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	podID   = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
	static  = "aa87b0cc45d9f0c8a5c1b5be3a9e1f02"
	boxID   = "3f29c1a4d5b6978887a9b0c1d2e3f4051627384950617283940516273849506a"
	otherID = "9999c1a4d5b6978887a9b0c1d2e3f4051627384950617283940516273849506a"
)

// Cgroups as the runtimes, kubelets, Slurm and systemd of today and before spell
// them; P stands for the pod's UID, P_ for it with underscores, C for the
// container's id.
func TestPlaceInEverySpelling(t *testing.T) {
	pod := func(runtime string) Place { return Place{Pod: podID, Container: boxID, Runtime: runtime} }
	box := func(runtime string) Place { return Place{Container: boxID, Runtime: runtime} }
	for _, c := range []struct {
		what, paths string
		want        Place
	}{
		{"kubelet, systemd, containerd", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podP_.slice/cri-containerd-C.scope", pod("containerd")},
		{"kubelet, systemd, guaranteed", "/kubepods.slice/kubepods-podP_.slice/cri-containerd-C.scope", pod("containerd")},
		{"kubelet, systemd, cri-o", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podP_.slice/crio-C.scope/container", pod("cri-o")},
		{"kubelet, systemd, docker", "/kubepods.slice/kubepods-podP_.slice/docker-C.scope", pod("docker")},
		{"kubelet, cgroupfs", "/kubepods/burstable/podP/C", pod("")},
		{"kubelet, cgroupfs with a parent", "/kubelet/kubepods/besteffort/podP/C", pod("")},
		{"containerd with the wrong driver", "/system.slice/containerd.service/kubepods-burstable-podP_.slice:cri-containerd:C", pod("containerd")},
		{"a static pod", "/kubepods/burstable/pod" + static + "/C", Place{Pod: static, Container: boxID}},
		{"kind: a kubelet in a container", "/docker/" + otherID + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podP_.slice/cri-containerd-C.scope", pod("containerd")},
		{"a container in a pod is the pod's", "/kubepods/podP/C/docker/" + otherID, pod("")},
		{"seen from another cgroup namespace", "/../../kubepods-podP_.slice/cri-containerd-C.scope", pod("containerd")},
		{"version 1, one hierarchy tells", "/kubepods/podP/C /system.slice/kubelet.service", pod("")},
		{"docker, cgroupfs", "/docker/C", box("docker")},
		{"docker, systemd", "/system.slice/docker-C.scope", box("docker")},
		{"docker, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-C.scope", box("docker")},
		{"podman", "/machine.slice/libpod-C.scope/container", box("podman")},
		{"podman, rootless", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-C.scope", box("podman")},
		{"podman, payload", "/machine.slice/libpod-payload-C", box("podman")},
		{"podman's monitor is no container", "/machine.slice/libpod-conmon-C.scope", Place{Unit: "libpod-conmon-" + boxID + ".scope"}},
		{"nerdctl", "/system.slice/nerdctl-C.scope", box("nerdctl")},
		{"containerd, a namespace", "/default/C", box("")},
		{"lxc", "/lxc.payload.web-1", Place{Container: "web-1", Runtime: "lxc"}},
		{"nspawn", "/machine.slice/machine-deb.scope", Place{Container: "deb", Runtime: "nspawn"}},
		{"slurm, version 1", "/slurm/uid_1000/job_4711/step_0/task_3", Place{Job: "4711", Step: "0"}},
		{"slurm, version 1, several slurmd", "/slurm_n1/uid_1000/job_4711/step_batch/task_0 /system.slice/slurmd.service", Place{Job: "4711", Step: "batch"}},
		{"slurm, version 2", "/system.slice/slurmstepd.scope/job_4711/step_extern/user/task_0", Place{Job: "4711", Step: "extern"}},
		{"slurm, version 2, several slurmd", "/system.slice/n1_slurmstepd.scope/job_4711/step_interactive/user/task_0", Place{Job: "4711", Step: "interactive"}},
		{"slurm, a part of a heterogeneous step", "/slurm/uid_1000/job_4711/step_0+1/task_0", Place{Job: "4711", Step: "0+1"}},
		{"slurm, a container in a step is the step's", "/slurm/uid_1000/job_4711/step_0/task_0/docker/C", Place{Job: "4711", Step: "0"}},
		{"slurm, some hierarchies know the job alone", "/slurm/uid_1000/job_4711 /slurm/uid_1000/job_4711/step_2", Place{Job: "4711", Step: "2"}},
		{"a service", "/system.slice/train.service", Place{Unit: "train.service"}},
		{"a service of a template", "/system.slice/system-train.slice/train@7.service", Place{Unit: "train@7.service"}},
		{"a user's service", "/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service", Place{Unit: "jupyter.service"}},
		{"a login", "/user.slice/user-1000.slice/session-3.scope", Place{Unit: "session-3.scope"}},
		{"a service and a scope", "/user.slice/session-3.scope /system.slice/train.service", Place{Unit: "train.service"}},
		{"nothing", "/", Place{}},
		{"nothing at all", "", Place{}},
		// A user makes what he likes below his own service manager.
		{"a forged pod", "/user.slice/user-1000.slice/user@1000.service/kubepods/podP/C", box("")},
		{"a forged job", "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_1/step_0", Place{}},
		{"a job that is no number", "/slurm/uid_1000/job_1;drop/step_0", Place{}},
		{"a step that is none", "/slurm/uid_1000/job_7/step_../task_0", Place{Job: "7"}},
		{"a pod outside of all pods", "/podP/C", box("")},
		{"a pod that is no UID", "/kubepods/podabc/C", box("")},
	} {
		paths := strings.NewReplacer("podP_", "pod"+strings.ReplaceAll(podID, "-", "_"), "podP", "pod"+podID, "C", boxID).Replace(c.paths)
		if got := PlaceOf(strings.Fields(paths)); got != c.want {
			t.Errorf("%s:\n%+v, want\n%+v", c.what, got, c.want)
		}
	}
}

func TestPlaceAsText(t *testing.T) {
	for want, p := range map[string]Place{
		"docker/3f29c1a4d5b6":    {Container: boxID, Runtime: "docker"},
		"container/3f29c1a4d5b6": {Container: boxID},
		"lxc/web-1":              {Container: "web-1", Runtime: "lxc"},
		"systemd/train.service":  {Unit: "train.service"},
		"":                       {},
	} {
		if p.String() != want {
			t.Errorf("%+v is %q, want %q", p, p.String(), want)
		}
	}
}

// What is told as a pod's or a job's is what no rule can make ours, whatever the
// path: the two readings of a cgroup never contradict each other.
func TestPlaceAgreesWithOwner(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"kubepods", "kubepods.slice", "kubepods-pod" + strings.ReplaceAll(podID, "-", "_") + ".slice", "pod" + podID, boxID,
		"slurm", "slurm_n1", "slurmstepd.scope", "n1_slurmstepd.scope", "job_7", "step_0", "uid_1000", "user@1000.service", "docker", "system.slice", "..", "",
	})
	rapid.Check(t, func(t *rapid.T) {
		path := "/" + strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, "parts"), "/")
		p := PlaceOf([]string{path})
		if p.Job != "" && owner(path) == "" {
			t.Fatalf("%s: job %s, and nobody's by the rules", path, p.Job)
		}
		if p.Pod != "" && owner(path) == "" {
			t.Fatalf("%s: pod %s, and nobody's by the rules", path, p.Pod)
		}
	})
}
