package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestID(t *testing.T) {
	id := ID{412, 8812}
	if got := id.String(); got != "412@8812" {
		t.Errorf("written %q", got)
	}
	if got := Ref("gpu-01", id); got != "proc:gpu-01/412@8812" {
		t.Errorf("reference %q", got)
	}
	for s, want := range map[string]ID{"412@8812": id, "1@0": {1, 0}, "2147483647@18446744073709551615": {1<<31 - 1, 1<<64 - 1}} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "@", "412", "412@", "@8812", "0@1", "-1@1", "+1@1", "1@-1", "1@1@1", "2147483648@1", "4 @1", "412@8812+boot"} {
		if got, err := Parse(s); err == nil || !strings.Contains(err.Error(), "<pid>@<start") {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

// fake is a /proc in a folder.
type fake struct {
	t    *testing.T
	root string
}

func newFake(t *testing.T) fake { return fake{t, t.TempDir()} }

func (f fake) proc(self int) Proc { return Proc{Root: f.root, Self: self} }

func (f fake) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func statLine(pid int, name, state string, parent, group, session, tty, flags, threads int, start uint64) string {
	return fmt.Sprintf("%d (%s) %s %d %d %d %d -1 %d 1 2 3 4 5 6 7 8 20 0 %d 0 %d 1000 200 18446744073709551615 1 1\n",
		pid, name, state, parent, group, session, tty, flags, threads, start)
}

func (f fake) add(pid, parent int, uid, cgroup string) {
	f.write(strconv.Itoa(pid)+"/stat", statLine(pid, "python3", "S", parent, pid, pid, 0, 0x400100, 3, uint64(100+pid)))
	f.write(strconv.Itoa(pid)+"/status", "Name:\tpython3\nUmask:\t0022\nUid:\t"+uid+"\nGid:\t1\t1\t1\t1\n")
	f.write(strconv.Itoa(pid)+"/cgroup", cgroup)
}

func TestReadFakeProc(t *testing.T) {
	f := newFake(t)
	f.add(412, 40, "1000\t1000\t1000\t1000", "0::/user.slice/a.scope\n")
	f.write("412/stat", statLine(412, "a) R 1 (b\x1b[2J\xff", "S", 40, 410, 400, 34817, 0x400100, 7, 8812))
	got, err := f.proc(1).Read(412)
	want := Info{ID: ID{412, 8812}, Parent: 40, Group: 410, Session: 400, TTY: 34817, UID: 1000, Name: "a) R 1 (b?[2J?", State: "S", Threads: 7,
		Cgroup: "/user.slice/a.scope", Cgroups: []string{"/user.slice/a.scope"}}
	if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}

	// A setuid program, a kernel thread (which has no status that matters).
	f.add(413, 412, "1000\t0\t0\t0", "0::/\n")
	if got, err := f.proc(1).Read(413); err != nil || !got.Mixed || got.UID != 1000 {
		t.Errorf("%+v, %v", got, err)
	}
	f.write("50/stat", statLine(50, "kworker/0:1", "I", 2, 0, 0, 0, 0x4208060, 1, 5))
	if got, err := f.proc(1).Read(50); err != nil || !got.Kernel {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := f.proc(1).Read(999); !errors.Is(err, ErrGone) {
		t.Errorf("a process that is not there: %v", err)
	}
}

func TestReadRefusesWhatItCannotTell(t *testing.T) {
	for name, stat := range map[string]string{
		"empty": "", "no name": "412 S 1", "cut": "412 (sh) S 1 2 3", "not a number": strings.Replace(statLine(412, "sh", "S", 1, 2, 3, 0, 0, 1, 9), " 9 ", " x ", 1),
		"another's": statLine(413, "sh", "S", 1, 2, 3, 0, 0, 1, 9),
	} {
		f := newFake(t)
		f.add(412, 1, "1\t1\t1\t1", "0::/\n")
		f.write("412/stat", stat)
		if got, err := f.proc(1).Read(412); err == nil || !strings.Contains(err.Error(), "process 412: stat") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	f := newFake(t)
	f.add(412, 1, "", "0::/\n")
	if got, err := f.proc(1).Read(412); err == nil || !strings.Contains(err.Error(), "Uid") {
		t.Errorf("no users: %+v, %v", got, err)
	}
}

func TestSnapshotFakeProc(t *testing.T) {
	f := newFake(t)
	one := "1\t1\t1\t1"
	f.add(1, 0, "0\t0\t0\t0", "0::/init.scope\n")
	f.add(10, 1, one, "0::/\n")
	f.add(20, 10, one, "0::/\n") // self
	f.add(30, 20, one, "0::/\n")
	f.write("40/status", "vanished: no stat any more")
	f.write("50/stat", statLine(50, "vanishing", "S", 1, 1, 1, 0, 0, 1, 9)) // its other files are gone
	f.write("self/stat", "no number")
	f.write("sys/kernel/random/boot_id", "b-1\n")
	table, err := f.proc(20).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var pids, own []int
	for pid, i := range table {
		pids = append(pids, pid)
		if i.Own {
			own = append(own, pid)
		}
	}
	slices.Sort(pids)
	slices.Sort(own)
	if fmt.Sprint(pids, own) != "[1 10 20 30] [1 10 20]" {
		t.Errorf("listed %v, own %v", pids, own)
	}
	for pid, want := range map[int]bool{10: true, 20: true, 30: false} {
		if got, err := f.proc(20).Read(pid); err != nil || got.Own != want {
			t.Errorf("%d: own %v, %v", pid, got.Own, err)
		}
	}
	if id, err := f.proc(20).BootID(); err != nil || id != "b-1" {
		t.Errorf("boot id %q, %v", id, err)
	}
	f.write("60/stat", "rubbish")
	if _, err := f.proc(20).Snapshot(); err == nil {
		t.Error("a process that cannot be read was left out without a word")
	}
	if _, err := (Proc{Root: f.root + "/none"}).Snapshot(); err == nil {
		t.Error("no /proc and no error")
	}
}

func TestDead(t *testing.T) {
	for _, c := range []struct {
		state   string
		threads int
		dead    bool
	}{{"Z", 1, true}, {"Z", 0, true}, {"Z", 4, false}, {"X", 0, true}, {"S", 1, false}, {"T", 1, false}, {"D", 1, false}} {
		if got := (Info{State: c.state, Threads: c.threads}).Dead(); got != c.dead {
			t.Errorf("%s with %d threads: dead %v", c.state, c.threads, got)
		}
	}
}

func TestCgroupFormats(t *testing.T) {
	for name, c := range map[string]struct{ file, chief, all string }{
		"version 2":         {"0::/user.slice/user-1000.slice/session-3.scope\n", "/user.slice/user-1000.slice/session-3.scope", "[/user.slice/user-1000.slice/session-3.scope]"},
		"version 2 top":     {"0::/\n", "/", "[/]"},
		"version 1":         {"12:freezer:/\n11:memory:/m/x\n3:cpu,cpuacct:/\n1:name=systemd:/user.slice/s\n", "/user.slice/s", "[/ /m/x /user.slice/s]"},
		"version 1 no slot": {"12:freezer:/\n11:memory:/m/x\n1:name=systemd:/\n", "/m/x", "[/ /m/x]"},
		"hybrid":            {"9:name=systemd:/a\n8:pids:/b\n0::/c\n", "/c", "[/a /b /c]"},
		"hybrid unused 2":   {"9:name=systemd:/a\n8:pids:/b\n0::/\n", "/a", "[/ /a /b]"},
		"deleted":           {"0::/machine.slice/x.scope (deleted)\n", "/machine.slice/x.scope", "[/machine.slice/x.scope]"},
		"colons":            {"0::/system.slice/docker:1:2\n", "/system.slice/docker:1:2", "[/system.slice/docker:1:2]"},
		"namespace":         {"0::/../../podabc/1\n", "/../../podabc/1", "[/../../podabc/1]"},
		"empty":             {"", "", "[]"},
		"rubbish":           {"rubbish\n0::\n", "", "[]"},
	} {
		chief, all := cgroups([]byte(c.file))
		if chief != c.chief || fmt.Sprint(all) != c.all {
			t.Errorf("%s: %q %v, want %q %s", name, chief, all, c.chief, c.all)
		}
	}
}

func TestOwners(t *testing.T) {
	for path, want := range map[string]string{
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-ab.scope": "Kubernetes",
		"/kubepods/besteffort/pod1/ab":                             "Kubernetes",
		"/docker/1/kubelet/kubepods/pod1":                          "Kubernetes", // a cluster in a container
		"/kubelet.slice/kubelet-kubepods.slice/x":                  "Kubernetes",
		"/system.slice/containerd.service/kubepods-pod1.slice:cri": "Kubernetes",
		"/system.slice/crio-abc.scope":                             "Kubernetes",
		"/slurm/uid_1000/job_7/step_0/task_0":                      "Slurm",
		"/slurm_n1/uid_1000/job_7":                                 "Slurm",
		"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0":  "Slurm",
		"/system.slice/n1_slurmstepd.scope/job_7":                  "Slurm",
		"/system.slice/slurmd.service":                             "Slurm",
		"/slurm.slice/x":                                           "Slurm",
		"/user.slice/user-1000.slice/session-3.scope":              "",
		"/machine.slice/libpod-ab.scope":                           "",
		"/docker/ab":                                               "",
		"/user.slice/my-slurm-notes.scope":                         "",
		"/":                                                        "",
	} {
		if got := owner(path); got != want {
			t.Errorf("%s is %q's, want %q", path, got, want)
		}
	}
	for _, c := range []struct {
		path, prefix string
		want         bool
	}{
		{"/machine.slice/x", "/machine.slice/", true}, {"/machine.slice/x", "/machine.slice", true}, {"/machine.slice", "/machine.slice/", true},
		{"/machine.slice2/x", "/machine.slice", false}, {"/machine.slic", "/machine.slice", false}, {"/a", "/", false}, {"/a", "", false},
		{"/b/machine.slice/x", "/machine.slice", false},
	} {
		if got := under(c.path, c.prefix); got != c.want {
			t.Errorf("%s under %s: %v", c.path, c.prefix, got)
		}
	}
}
