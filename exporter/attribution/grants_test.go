package attribution

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution/kubelet"
	"github.com/evenkeel-gpu/evenkeel/exporter/attribution/kubelet/kubelettest"
	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const gpuName = "nvidia.com/gpu"

func gpuN(n int) string { return fmt.Sprintf("GPU-0000000%d-1111-2222-3333-444444444444", n) }

// module puts what the kernel module says of n GPUs into a /proc, the minor
// numbers against the order of the bus.
func module(t *testing.T, p process.Proc, n int) process.Proc {
	t.Helper()
	if err := os.Remove(filepath.Join(p.Root, "driver")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for i := range n {
		dir := filepath.Join(p.Root, informationOf, fmt.Sprintf("0000:%02x:00.0", 0x10+i))
		text := fmt.Sprintf("Model: \t\t NVIDIA A100\nIRQ:   \t\t 1\nGPU UUID: \t %s\nBus Location: \t 0000:%02x:00.0\nDevice Minor: \t %d\n", gpuN(i), 0x10+i, n-1-i)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// says renders the samples of a rig, all but durations.
func (r *rig) says() []string {
	var list []string
	r.samples(r.now, func(id telemetry.ID, uuid string, v float64, labels ...string) {
		row := telemetry.RowOf(id)
		if len(labels) != len(row.Labels) || !row.InRange(v) || (row.Per == telemetry.PerNode) != (uuid == "") {
			r.t.Errorf("%s %q %v %q is not as the catalogue has it", row.Name, uuid, v, labels)
		}
		if id != telemetry.NodeReaderDuration {
			list = append(list, strings.Join(strings.Fields(fmt.Sprintf("%s %s %v %s", row.Name, uuid, v, strings.Join(labels, "|"))), " "))
		}
	})
	return list
}

func (r *rig) tells(when string, want ...string) {
	r.t.Helper()
	got := r.says()
	for _, w := range want {
		if not, ok := strings.CutPrefix(w, "not "); ok {
			if slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, not) }) {
				r.t.Errorf("%s: it tells of %q:\n%s", when, not, strings.Join(got, "\n"))
			}
		} else if !slices.Contains(got, w) {
			r.t.Errorf("%s: %q is missing in\n%s", when, w, strings.Join(got, "\n"))
		}
	}
}

// asks has every source asked, some time after the last look.
func (r *rig) asks(after time.Duration) {
	r.t.Helper()
	r.now = r.now.Add(after)
	for _, g := range r.sources {
		r.ask(r.t.Context(), g, r.now)
	}
}

// Ids of devices as the plugins of NVIDIA, Google, Alibaba, Volcano, HAMi and
// KubeVirt and NVIDIA's driver of claims spell them.
func TestDeviceIDsInEverySpelling(t *testing.T) {
	p := module(t, process.Proc{Root: t.TempDir()}, 3)
	mdev := t.TempDir()
	const virtual, part = "c08b1ae4-5d1e-4f0b-9a43-7c1f7b1f2f10", "MIG-5a1b2c3d-0000-1111-2222-333344445555"
	if err := os.Symlink("../../../devices/pci0000:00/0000:00:02.0/0000:11:00.0/"+virtual, filepath.Join(mdev, virtual)); err != nil {
		t.Fatal(err)
	}
	d := readDevices(p.Folder(), mdev, []Instance{{GPU: gpuN(2), UUID: part, GI: 7}})
	for id, want := range map[string]found{
		gpuN(0):                      {uuid: gpuN(0)},
		gpuN(0) + "::3":              {uuid: gpuN(0), replica: true},
		gpuN(0) + "-12":              {uuid: gpuN(0), replica: true},
		gpuN(0) + "-_-3":             {uuid: gpuN(0), replica: true},
		part:                         {uuid: gpuN(2), gi: "7", mig: true},
		part + "::1":                 {uuid: gpuN(2), gi: "7", mig: true, replica: true},
		"MIG-" + gpuN(1) + "/3/0":    {uuid: gpuN(1), gi: "3", mig: true},
		"MIG-" + gpuN(1) + "/3/0::2": {uuid: gpuN(1), gi: "3", mig: true, replica: true},
		"nvidia0":                    {uuid: gpuN(2)}, // by minor number, not by place
		"nvidia2/gi4":                {uuid: gpuN(0), gi: "4", mig: true},
		"nvidia2/gi4/vgpu1":          {uuid: gpuN(0), gi: "4", mig: true, replica: true},
		"nvidia1/vgpu0":              {uuid: gpuN(1), replica: true},
		"gpu-2":                      {uuid: gpuN(0)},
		"gpu-0-mig-1g10gb-19-2":      {uuid: gpuN(2), mig: true},
		"0000:12:00.0":               {uuid: gpuN(2)},
		"00000000:12:00.0":           {uuid: gpuN(2)},
		virtual:                      {uuid: gpuN(1), vgpu: true},
	} {
		if got, ok := d.resolve(id); !ok || got != want {
			t.Errorf("%s: %+v, %v; want %+v", id, got, ok, want)
		}
	}
	for _, id := range []string{
		"", "GPU-", gpuN(0) + "x", gpuN(0) + "::", "MIG-ffffffff-0000-1111-2222-333344445555", "nvidia9", "nvidia0/gi", "gpu-77", "0000:99:00.0",
		"aaaaaaaa-0000-1111-2222-333344445555", "../../etc/passwd", "nvidia99999999999999999999", "GPU-../../x",
	} {
		if got, ok := d.resolve(id); ok {
			t.Errorf("%q is %+v", id, got)
		}
	}
	for name, want := range map[string]string{"0": gpuN(0), "2": gpuN(2), "1.5": gpuN(1), gpuN(1): gpuN(1)} {
		if got, ok := d.place(name); !ok || got.uuid != want {
			t.Errorf("job file %s: %+v, %v", name, got, ok)
		}
	}
	if _, ok := d.place("3"); ok {
		t.Error("a fourth GPU")
	}
}

// A GPU that nobody has opened yet has no name, and takes no other's place.
func TestModuleWithoutUUID(t *testing.T) {
	p := module(t, process.Proc{Root: t.TempDir()}, 2)
	file := filepath.Join(p.Root, informationOf, "0000:10:00.0", "information")
	if err := os.WriteFile(file, []byte("GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := readDevices(p.Folder(), "", nil)
	if _, ok := d.place("0"); ok {
		t.Error("the first GPU has a name")
	}
	if got, ok := d.place("1"); !ok || got.uuid != gpuN(1) {
		t.Errorf("the second GPU is %+v, %v", got, ok)
	}
}

// podOf is a process in the cgroup of a pod, with its logs' folder.
func podCgroup(uid string) string {
	return "0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + strings.Repeat("ab", 32) + ".scope\n"
}

const uidA, uidB = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "1f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f1"

// kube is a rig on a node with a kubelet: three GPUs and two pods whose processes
// are real ones.
func kube(t *testing.T) (r *rig, s *kubelettest.Server, a1, a2, b process.ID) {
	t.Helper()
	run := processtest.Start(t, workers)
	a1, a2 = run.Child(t, "first"), run.Child(t, "second")
	other := processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, a1, a2, other.ID)
	proc := module(t, processtest.Elsewhere(t, map[int]string{a1.PID: podCgroup(uidA), a2.PID: podCgroup(uidA), other.PID: podCgroup(uidB)}), 3)
	logs := t.TempDir()
	for _, name := range []string{"ml_train-0_" + uidA, "web_serve_" + uidB, "not-a-pod"} {
		if err := os.Mkdir(filepath.Join(logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s = kubelettest.New(t)
	return newRig(t, Options{Proc: proc, Kubelet: s.Socket, PodLogs: logs}), s, a1, a2, other.ID
}

// Processes of one pod are one member, by its UID, with their memory together;
// each process has its own series.
func TestPodIsOneMember(t *testing.T) {
	r, s, a1, a2, b := kube(t)
	s.Says(kubelettest.Pod("ml", "train-0", "main", gpuName, gpuN(0)))
	list := []exporter.Process{holds(a1.PID, 1<<30), holds(a2.PID, 2<<30), holds(b.PID, 4<<30)}
	slices.SortFunc(list, func(x, y exporter.Process) int { return x.PID - y.PID })
	h := r.lists(0, gpuN(0), list...)
	var got []string
	for _, m := range h.Members {
		got = append(got, fmt.Sprintf("%s %s %s %s %s %d", m.GetId(), m.GetKind(), m.GetOwner(), m.GetName(), m.GetPlace(), m.GetMemoryBytes()>>30))
	}
	slices.Sort(got)
	want := []string{uidA + " pod ml ml/train-0 containerd/abababababab 3", uidB + " pod web web/serve containerd/abababababab 4"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if len(h.Processes) != 3 || len(h.Why) != 2 {
		t.Errorf("%d processes, %d reasons", len(h.Processes), len(h.Why))
	}
	for _, why := range h.Why {
		if !strings.Contains(why, "Kubernetes") {
			t.Errorf("why: %s", why)
		}
	}
}

// Device-level values of a time-sliced GPU are of all its pods together: that is
// said, and each pod's own memory is told.
func TestTimeSlicedGPUIsSaidToBeShared(t *testing.T) {
	r, s, a1, _, b := kube(t)
	s.Says(
		kubelettest.Pod("ml", "train-0", "main", gpuName, gpuN(0)+"::0", gpuN(0)+"::1"),
		kubelettest.Pod("web", "serve", "main", gpuName, gpuN(0)+"::2"),
	)
	r.asks(0)
	r.lists(0, gpuN(0), holds(min(a1.PID, b.PID), 1<<30), holds(max(a1.PID, b.PID), 1<<30))
	r.tells("two pods on one GPU",
		"gpu_shared_by "+gpuN(0)+" 2", "gpu_sharing_info "+gpuN(0)+" 1 time_slicing", "gpu_use_state "+gpuN(0)+" 1 allocated_used",
		"gpu_allocations "+gpuN(0)+" 2", // replicas of one holder count once
		"gpu_member_memory_used_bytes "+gpuN(0)+" "+fmt.Sprint(float64(1<<30))+" "+uidA+"|",
		"gpu_allocation_info "+gpuN(0)+" 1 |pod|ml/train-0/main|ml", "gpu_allocation_info "+gpuN(0)+" 1 |pod|web/serve/main|web")
}

// Allocated and used, allocated and not used, used without allocation, and free
// are four things; without anybody who tells of allocations there are two.
func TestAllocatedAndUsedAreToldApart(t *testing.T) {
	r, s, a1, _, _ := kube(t)
	r.lists(0, gpuN(0), holds(a1.PID, 1))
	r.lists(0, gpuN(1))
	r.tells("nobody asked yet", "gpu_use_state "+gpuN(0)+" 1 used", "gpu_use_state "+gpuN(1)+" 1 unused", "not gpu_allocations")
	s.Says(
		kubelettest.Pod("ml", "train-0", "main", gpuName, gpuN(0)),
		kubelettest.Claims("ml", "infer", "serve", "claim", "gpu.nvidia.com", "node", "gpu-1"), // minor 1 is GPU 1
		kubelettest.Pod("net", "dpdk", "main", "intel.com/sriov", "0000:99:00.0"),
	)
	r.asks(time.Second)
	r.lists(0, gpuN(2))
	r.tells("all asked", "gpu_use_state "+gpuN(0)+" 1 allocated_used", "gpu_use_state "+gpuN(1)+" 1 allocated_unused", "gpu_use_state "+gpuN(2)+" 1 free",
		"gpu_allocation_info "+gpuN(1)+" 1 |pod|ml/infer/serve|ml", "gpu_sharing_info "+gpuN(0)+" 1 exclusive", "gpu_allocations "+gpuN(2)+" 0",
		"evenkeel_attribution_unmatched 0 kubelet") // a network card is no riddle
	s.Says(kubelettest.Pod("ml", "odd", "main", gpuName, "GPU-unheard-of"))
	r.asks(time.Second)
	r.tells("the pod ended, its process has not", "gpu_use_state "+gpuN(0)+" 1 unallocated_used", "evenkeel_attribution_unmatched 1 kubelet")
}

// When the kubelet dies its last word stays, with its age, and ends after a
// while; who holds the devices is told all the time.
func TestDeadKubeletLeavesTheLastWordWithItsAge(t *testing.T) {
	r, s, a1, _, _ := kube(t)
	s.Says(kubelettest.Pod("ml", "train-0", "main", gpuName, gpuN(0)))
	r.asks(0)
	r.lists(0, gpuN(0), holds(a1.PID, 1))
	r.tells("alive", "evenkeel_reader_success 1 kubelet", "evenkeel_attribution_age_seconds 0 kubelet", "gpu_use_state "+gpuN(0)+" 1 allocated_used")
	s.Stop()
	r.asks(time.Minute)
	h := r.lists(0, gpuN(0), holds(a1.PID, 2))
	if len(h.Members) != 1 || r.Err() != nil {
		t.Errorf("%d members, %v", len(h.Members), r.Err())
	}
	r.tells("dead", "evenkeel_reader_success 0 kubelet", "evenkeel_attribution_age_seconds 60 kubelet", "gpu_use_state "+gpuN(0)+" 1 allocated_used")
	r.asks(keepGrants)
	r.tells("dead for long", "evenkeel_reader_success 0 kubelet", "gpu_use_state "+gpuN(0)+" 1 used", "not gpu_allocation")
	s.Start(t)
	r.asks(time.Second)
	r.tells("back", "evenkeel_reader_success 1 kubelet", "evenkeel_attribution_age_seconds 0 kubelet", "gpu_use_state "+gpuN(0)+" 1 allocated_used")
	s.Fails(status.Error(codes.Internal, "checkpoint corrupt"))
	r.asks(time.Second)
	r.tells("ill", "evenkeel_reader_success 0 kubelet", "gpu_allocations "+gpuN(0)+" 1")
}

// On a node that never had a kubelet nobody misses one.
func TestNodeWithoutKubeletIsNoFault(t *testing.T) {
	r := newRig(t, Options{Kubelet: filepath.Join(t.TempDir(), "kubelet.sock"), PodLogs: "/nowhere"})
	r.asks(0)
	r.lists(0, gpuN(0))
	r.tells("no kubelet", "gpu_use_state "+gpuN(0)+" 1 unused", "not evenkeel_reader_success", "not evenkeel_attribution")
}

// A kubelet that hangs costs its own goroutine: processes are looked at, samples
// told, and Run ends.
func TestHungKubeletHoldsNothingUp(t *testing.T) {
	r, s, a1, _, _ := kube(t)
	s.Hang()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	for s.Asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	r.Listed(gpuN(0), []exporter.Process{holds(a1.PID, 1)})
	settle, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	r.Settle(settle)
	if h := r.Of(gpuN(0)); len(h.Members) != 1 {
		t.Errorf("%d members", len(h.Members))
	}
	told := 0
	r.Samples(func(telemetry.ID, string, float64, ...string) { told++ })
	if told == 0 {
		t.Error("nothing is told")
	}
	cancel()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not end")
	}
}

// However many pods there are, a device names 64 and counts all; however many
// processes, 64 members.
func TestCardinalityIsBounded(t *testing.T) {
	r, s, a1, _, _ := kube(t)
	var pods []*kubelet.Pod
	for i := range 500 {
		pods = append(pods, kubelettest.Pod("ml", fmt.Sprintf("pod-%d", i), "main", gpuName, fmt.Sprintf("%s::%d", gpuN(0), i)))
	}
	s.Says(pods...)
	r.asks(0)
	list := []exporter.Process{holds(a1.PID, 1)}
	for i := range 3000 {
		list = append(list, holds(1<<22+i, 1)) // out of sight
	}
	r.lists(0, gpuN(0), list...)
	h := r.lists(2*unseenAfter, gpuN(0), list...)
	named, members := 0, 0
	for _, line := range r.says() {
		named += strings.Count(line, "gpu_allocation_info ")
		members += strings.Count(line, "gpu_member_info ")
	}
	if named != maxNamed || len(h.Members) != exporter.MaxMembers || members != exporter.MaxMembers || len(h.Processes) != exporter.MaxMembers {
		t.Errorf("%d allocations, %d members, %d told, %d processes", named, len(h.Members), members, len(h.Processes))
	}
	r.tells("many", "gpu_allocations "+gpuN(0)+" 500")
}

// Job files as a prolog writes them, and all that can be in the folder instead.
func TestJobFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("0", "4711\n")
	write("1.3", "4712_3\n\n4713\n")
	write(gpuN(2), "4714.batch")
	write("readme.txt", "not a device")
	write("2", "rm -rf /\n"+strings.Repeat("9", 5000))
	r := newRig(t, Options{JobFiles: dir, Proc: module(t, process.Proc{Root: procWithBootID(t)}, 3)})
	r.asks(0)
	r.tells("jobs", "gpu_allocation_info "+gpuN(0)+" 1 |step|4711|", "gpu_allocation_info "+gpuN(1)+" 1 3|step|4712_3|", "gpu_allocation_info "+gpuN(1)+" 1 3|step|4713|",
		"gpu_allocation_info "+gpuN(2)+" 1 |step|4714.batch|", "gpu_sharing_info "+gpuN(1)+" 1 mig", "evenkeel_attribution_unmatched 3 job_files", "evenkeel_reader_success 1 job_files")
	// A pipe in place of a file would block for ever, a link lead elsewhere.
	for name, plant := range map[string]func(string) error{
		"pipe": func(p string) error { return syscall.Mkfifo(p, 0o644) },
		"link": func(p string) error { return os.Symlink("/etc/passwd", p) },
	} {
		path := filepath.Join(dir, "00")
		if err := plant(path); err != nil {
			t.Fatal(err)
		}
		r.asks(time.Second)
		r.tells(name, "evenkeel_reader_success 0 job_files", "gpu_allocation_info "+gpuN(0)+" 1 |step|4711|")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	r.asks(time.Second)
	r.tells("no folder", "evenkeel_reader_success 0 job_files", "gpu_allocation_info "+gpuN(0)+" 1 |step|4711|")
}

func procWithBootID(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "sys/kernel/random")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot_id"), []byte(bootID(t)), fs.FileMode(0o644)); err != nil {
		t.Fatal(err)
	}
	return root
}

// Steps of Slurm by both versions of cgroups; array and name from the
// environment, which counts only where it agrees with the cgroup.
func TestJobStepsByCgroup(t *testing.T) {
	for _, c := range []struct{ what, cgroup, env, want string }{
		{"version 1", "9:devices:/slurm/uid_1000/job_4711/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n", "", "4711.0 step slurm:4711 sleep"},
		{"version 2", "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0\n", "SLURM_JOB_ID=4711\x00SLURM_JOB_NAME=train\x00", "4711.batch step slurm:4711 train"},
		{"an array", "0::/system.slice/slurmstepd.scope/job_4713/step_0/user/task_0\n", "SLURM_JOB_ID=4713\x00SLURM_ARRAY_JOB_ID=4711\x00SLURM_ARRAY_TASK_ID=2\x00", "4713.0 step slurm:4711_2 sleep"},
		{"a forged environment", "0::/system.slice/slurmstepd.scope/job_4713/step_0/user/task_0\n", "SLURM_JOB_ID=1\x00SLURM_ARRAY_JOB_ID=1\x00SLURM_ARRAY_TASK_ID=2\x00SLURM_JOB_NAME=root\x00", "4713.0 step slurm:4713 sleep"},
		{"an array that is none", "0::/system.slice/slurmstepd.scope/job_4713/step_0/user/task_0\n", "SLURM_JOB_ID=4713\x00SLURM_ARRAY_JOB_ID=1/../2\x00SLURM_ARRAY_TASK_ID=2\x00", "4713.0 step slurm:4713 sleep"},
		{"a hostile name", "0::/system.slice/slurmstepd.scope/job_4713/step_0/user/task_0\n", "SLURM_JOB_ID=4713\x00SLURM_JOB_NAME=\"}\n\x1b[2J\xff\x00", "4713.0 step slurm:4713 \"}??[2J?"},
	} {
		run := processtest.Start(t, "echo ready\nexec sleep 1000")
		settled(t, run.ID)
		proc := processtest.Elsewhere(t, map[int]string{run.PID: c.cgroup})
		if c.env != "" {
			if err := os.WriteFile(filepath.Join(proc.Root, strconv.Itoa(run.PID), "environ"), []byte(c.env), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r := newRig(t, Options{Proc: proc})
		h := r.lists(0, gpuN(0), holds(run.PID, 1))
		if len(h.Members) != 1 {
			t.Fatalf("%s: %d members", c.what, len(h.Members))
		}
		m := h.Members[0]
		if got := m.GetId() + " " + m.GetKind() + " " + m.GetWorkload() + " " + m.GetName(); got != c.want || !strings.Contains(h.Why[0], "Slurm") {
			t.Errorf("%s: %s, want %s (%s)", c.what, got, c.want, h.Why[0])
		}
		r.tells(c.what, "gpu_use_state "+gpuN(0)+" 1 allocated_used") // by Slurm's own processes
	}
}

// A process whose files may not be read is told of as far as it can be.
func TestUnreadableProcFilesHideNobody(t *testing.T) {
	run := processtest.Start(t, "echo ready\nexec sleep 1000")
	settled(t, run.ID)
	proc := processtest.Elsewhere(t, map[int]string{run.PID: "0::/system.slice/slurmstepd.scope/job_4711/step_0\n"})
	// No environ at all, as for another user's process without the right to trace it.
	r := newRig(t, Options{Proc: proc})
	h := r.lists(0, gpuN(0), holds(run.PID, 5))
	if len(h.Members) != 1 || h.Members[0].GetId() != "4711.0" {
		t.Fatalf("members: %v", h.Members)
	}
	dir := filepath.Join(proc.Root, strconv.Itoa(run.PID))
	if err := os.Remove(filepath.Join(dir, "status")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "status"), 0o755); err != nil { // reading it fails
		t.Fatal(err)
	}
	h = r.lists(2*againEvery, gpuN(0), holds(run.PID, 6))
	if len(h.Members) != 1 || h.Members[0].GetId() != "4711.0" || h.Members[0].GetMemoryBytes() != 6 || r.Err() == nil {
		t.Errorf("members: %v, %v", h.Members, r.Err())
	}
}

// Containers and units without any scheduler.
func TestPlacesOfBareProcesses(t *testing.T) {
	id := strings.Repeat("cd", 32)
	for cgroup, want := range map[string]string{
		"0::/system.slice/docker-" + id + ".scope\n":            "docker/cdcdcdcdcdcd",
		"0::/machine.slice/libpod-" + id + ".scope/container\n": "podman/cdcdcdcdcdcd",
		"0::/system.slice/jupyter.service\n":                    "systemd/jupyter.service",
		"0::/\n":                                                "",
	} {
		run := processtest.Start(t, "echo ready\nexec sleep 1000")
		settled(t, run.ID)
		r := newRig(t, Options{Proc: processtest.Elsewhere(t, map[int]string{run.PID: cgroup})})
		h := r.lists(0, gpuN(0), holds(run.PID, 1))
		if len(h.Members) != 1 || h.Members[0].GetPlace() != want || h.Members[0].GetKind() != kindProc {
			t.Errorf("%s: %v, want %q", cgroup, h.Members, want)
		}
	}
}

// The node's shared server of MPS has memory of its clients and is nobody's work.
func TestMPSServerIsNoWorkload(t *testing.T) {
	var s sharing
	for i, name := range []string{"nvidia-cuda-mps", "train", "serve"} {
		m := &telemetry.Member{}
		m.SetId(strconv.Itoa(i))
		m.SetName(name)
		s.member(m)
	}
	var modes []string
	s.tell(gpuN(0), func(_ telemetry.ID, _ string, _ float64, labels ...string) { modes = append(modes, labels...) })
	if len(s.works) != 2 || !slices.Equal(modes, []string{"mps"}) {
		t.Errorf("%d works, %v", len(s.works), modes)
	}
}
