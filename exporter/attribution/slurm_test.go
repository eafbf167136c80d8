package attribution

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/process"
)

// slurm is a cluster of one node with two GPUs that are none.
type slurm struct {
	t    *testing.T
	dir  string
	node string
	env  []string
	bin  map[string]string
}

// slurmPrograms are where they are installed, or unpacked by scripts/install.
func slurmPrograms(t *testing.T) (bin map[string]string, libraries string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a slurmd takes root")
	}
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	unpacked := filepath.Join(cache, "evenkeel/tools/debian/usr")
	bin = map[string]string{}
	for _, name := range []string{"slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scancel"} {
		for _, p := range []string{
			"/usr/sbin/" + name, "/usr/sbin/" + name + "-wlm", "/usr/bin/" + name,
			unpacked + "/sbin/" + name + "-wlm", unpacked + "/bin/" + name,
		} {
			if _, err := os.Stat(p); err == nil && bin[name] == "" {
				bin[name] = p
			}
		}
		if bin[name] == "" {
			t.Skipf("%s is not installed; run scripts/install test", name)
		}
	}
	roots, err := filepath.Glob(filepath.Dir(filepath.Dir(bin["slurmd"])) + "/lib/*/slurm-wlm")
	if err != nil || len(roots) == 0 {
		t.Skipf("no plugins of Slurm beside %s; run scripts/install test", bin["slurmd"])
	}
	return bin, roots[0]
}

func port(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// startSlurm starts a cluster that tracks processes in one way.
func startSlurm(t *testing.T, node, track string) *slurm {
	t.Helper()
	bin, plugins := slurmPrograms(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	s := &slurm{t: t, dir: t.TempDir(), node: node, bin: bin}
	for _, d := range []string{"state", "spool", "bin"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The names that their processes are to have; Debian's have a suffix.
	for _, name := range []string{"slurmctld", "slurmd", "slurmstepd"} {
		if err := os.Symlink(bin[name], filepath.Join(s.dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
		bin[name] = filepath.Join(s.dir, "bin", name)
	}
	for i := range 2 {
		if err := os.Symlink("/dev/null", filepath.Join(s.dir, "nvidia"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"slurm.conf": fmt.Sprintf(`ClusterName=test
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
PluginDir=%[2]s
SlurmctldPort=%[3]d
SlurmctldPidFile=%[4]s/slurmctld.pid
SlurmdPidFile=%[4]s/slurmd.pid
StateSaveLocation=%[4]s/state
SlurmdSpoolDir=%[4]s/spool
SlurmctldLogFile=%[4]s/slurmctld.log
SlurmdLogFile=%[4]s/slurmd.log
MpiDefault=none
ProctrackType=%[5]s
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
ReturnToService=2
KillWait=2
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=%[6]s NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=%[7]d CPUs=4 RealMemory=1000 Gres=gpu:a100:2 State=UNKNOWN
PartitionName=all Nodes=%[6]s Default=YES MaxTime=INFINITE State=UP
`, host, plugins, port(t), s.dir, track, node, port(t)),
		"gres.conf":   fmt.Sprintf("NodeName=%s Name=gpu Type=a100 File=%s/nvidia[0-1]\n", node, s.dir),
		"cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainDevices=no\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(os.Environ(), "SLURM_CONF="+s.dir+"/slurm.conf", "LD_LIBRARY_PATH="+filepath.Dir(plugins)+":"+plugins)
	t.Cleanup(func() {
		s.stop("slurmd")
		s.stop("slurmctld")
	})
	conf := s.dir + "/slurm.conf"
	s.run(bin["slurmctld"], "-c", "-f", conf)
	s.run(bin["slurmd"], "-N", node, "-f", conf, "-d", bin["slurmstepd"])
	return s
}

func (s *slurm) run(name string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = s.env, s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s\n%s", filepath.Base(name), args, err, out, s.log())
	}
	return string(out)
}

func (s *slurm) log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "slurmd.log"))
	return string(text)
}

// stop ends a daemon by its pid file, and waits for it.
func (s *slurm) stop(name string) {
	text, err := os.ReadFile(filepath.Join(s.dir, name+".pid"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") || syscall.Kill(pid, syscall.SIGTERM) != nil {
			return
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// submit runs a script as an array of one task, and returns the job's number and
// the pids that the script tells.
func (s *slurm) submit(name, script string, words ...string) (job string, pids []int) {
	s.t.Helper()
	told := filepath.Join(s.dir, "told")
	out := s.run(s.bin["sbatch"], "--parsable", "--gres=gpu:1", "--array=3", "-J", name, "-o", told,
		"--export=ALL,SRUN="+s.bin["srun"], "--wrap", script)
	job = strings.TrimSpace(out)
	s.t.Cleanup(func() { s.cancel(job, pids) })
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(told)
		pids = pids[:0]
		for _, w := range words {
			for line := range strings.Lines(string(text)) {
				if rest, ok := strings.CutPrefix(line, w+" "); ok {
					pid, err := strconv.Atoi(strings.TrimSpace(rest))
					if err != nil {
						s.t.Fatal(err)
					}
					pids = append(pids, pid)
				}
			}
		}
		if len(pids) == len(words) {
			return job, pids
		}
		if time.Now().After(end) {
			s.t.Fatalf("the job told %q\n%s", text, s.log())
		}
	}
}

// cancel ends a job, and waits until nothing of it is left: slurmstepd outlives
// a slurmd that is stopped.
func (s *slurm) cancel(job string, pids []int) {
	var steps []int
	for _, pid := range pids {
		for p, n := pid, 0; p > 1 && n < 10; n++ {
			i, err := process.Read(p)
			if err != nil {
				break
			}
			if i.Name == "slurmstepd" {
				steps = append(steps, p)
			}
			p = i.Parent
		}
	}
	s.run(s.bin["scancel"], "--full", "-s", "KILL", job)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := false
		for _, p := range steps {
			i, err := process.Read(p)
			left = left || err == nil && i.Name == "slurmstepd" && !i.Dead()
			if left && time.Now().After(end) {
				_ = syscall.Kill(p, syscall.SIGKILL)
			}
		}
		if !left || time.Now().After(end) {
			return
		}
	}
}

// A real Slurm: the batch script's process and a step's are known as of their
// job and step, whether cgroups tell or nothing but slurmstepd's title does.
func TestStepsOfARealSlurm(t *testing.T) {
	for _, c := range []struct{ node, track string }{{"ekcgroup", "proctrack/cgroup"}, {"eklinux", "proctrack/linuxproc"}} {
		t.Run(strings.TrimPrefix(c.track, "proctrack/"), func(t *testing.T) {
			t.Parallel()
			if c.track == "proctrack/cgroup" {
				probe := "/sys/fs/cgroup/freezer/evenkeel-test-" + strconv.Itoa(os.Getpid())
				if err := os.Mkdir(probe, 0o755); err != nil {
					t.Skipf("no cgroups of version 1 can be made here: %v", err)
				}
				_ = os.Remove(probe)
			}
			s := startSlurm(t, c.node, c.track)
			job, pids := s.submit("tr\"ain", `sleep 1000 & echo batch $!
$SRUN --overlap --mpi=none -n1 sh -c 'echo step $$; exec sleep 1000'`, "batch", "step")
			r := newRig(t, Options{})
			for i, step := range []string{"batch", "0"} {
				uuid := gpuN(i)
				var h exporter.Holders
				// A process has its pid before it is what it will be.
				for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					h = r.lists(2*againEvery, uuid, holds(pids[i], 1<<30))
					if len(h.Members) == 1 && h.Members[0].GetName() == "tr\"ain" || time.Now().After(end) {
						break
					}
				}
				if len(h.Members) != 1 {
					t.Fatalf("%s: %d members\n%s", step, len(h.Members), s.log())
				}
				m := h.Members[0]
				got := m.GetId() + " " + m.GetKind() + " " + m.GetWorkload() + " " + m.GetName()
				if want := job + "." + step + " step slurm:" + job + "_3 tr\"ain"; got != want || !strings.Contains(h.Why[0], "Slurm") {
					t.Errorf("%s, want %s (%s)", got, want, h.Why[0])
				}
				r.tells(step, "gpu_use_state "+uuid+" 1 allocated_used")
			}
		})
	}
}
