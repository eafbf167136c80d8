package process

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestOurs(t *testing.T) {
	const user, scope = "/user.slice/s.scope", "/machine.slice/libpod-1.scope"
	alice := Rules{Users: []string{"1000"}}
	machines := Rules{Cgroups: []string{"/machine.slice/"}}
	proc := func(change ...func(*Info)) Info {
		i := Info{ID: ID{412, 1}, UID: 1000, Cgroup: user, Cgroups: []string{user}}
		for _, c := range change {
			c(&i)
		}
		return i
	}
	uid := func(n uint32) func(*Info) { return func(i *Info) { i.UID = n } }
	in := func(paths ...string) func(*Info) { return func(i *Info) { i.Cgroup, i.Cgroups = paths[0], paths } }
	for name, c := range map[string]struct {
		i    Info
		r    Rules
		ours bool
		why  string
	}{
		"nobody's":                     {proc(), Rules{}, false, "is not in processes.users"},
		"by number":                    {proc(), alice, true, "user 1000"},
		"another user":                 {proc(uid(1001)), alice, false, "user 1001 is not in"},
		"a name that nobody has":       {proc(), Rules{Users: []string{"no-such-user-here"}}, false, "is not in processes.users"},
		"by cgroup":                    {proc(uid(7), in(scope)), machines, true, "cgroup /machine.slice/"},
		"by another hierarchy":         {proc(uid(7), in("/a", scope)), machines, true, "cgroup /machine.slice/"},
		"outside of the cgroup":        {proc(uid(7)), machines, false, "is under none of processes.cgroups"},
		"a cgroup alike":               {proc(uid(7), in("/machine.slice2/x")), machines, false, "is under none"},
		"root not named":               {proc(uid(0), in(scope)), machines, false, "whom processes.users does not name"},
		"root named":                   {proc(uid(0)), Rules{Users: []string{"root"}}, true, "user root"},
		"root by number":               {proc(uid(0)), Rules{Users: []string{"0"}}, true, "user 0"},
		"root written oddly":           {proc(uid(0)), Rules{Users: []string{"00"}}, false, "whom processes.users does not name"},
		"root named, other cgroup":     {proc(uid(0)), Rules{Users: []string{"root"}, Cgroups: machines.Cgroups}, false, "under none of processes.cgroups"},
		"root named, in the cgroup":    {proc(uid(0), in(scope)), Rules{Users: []string{"root"}, Cgroups: machines.Cgroups}, true, "cgroup /machine.slice/"},
		"a pod":                        {proc(in("/kubepods/pod1")), alice, false, "Kubernetes"},
		"a pod in one hierarchy":       {proc(in(user, "/kubepods/pod1")), alice, false, "Kubernetes"},
		"a pod in an allowed cgroup":   {proc(in("/machine.slice/kubepods/pod1")), machines, false, "Kubernetes"},
		"a job step":                   {proc(in("/slurm/uid_1000/job_1")), alice, false, "only Slurm may end"},
		"outside the cgroup namespace": {proc(in("/../../pod1/c")), alice, false, "cgroup namespace"},
		"no cgroup known":              {proc(func(i *Info) { i.Cgroups = nil }), alice, false, "not known"},
		"setuid":                       {proc(func(i *Info) { i.Mixed = true }), alice, false, "more than one user"},
		"kernel":                       {proc(func(i *Info) { i.Kernel = true }), alice, false, "kernel thread"},
		"pid 1":                        {proc(func(i *Info) { i.PID = 1 }), alice, false, "process 1"},
		"this process":                 {proc(func(i *Info) { i.Own = true }), alice, false, "this process or one"},
	} {
		ours, why := c.r.Ours(c.i)
		if ours != c.ours || c.r.ours(c.i) != ours || !strings.Contains(why, c.why) {
			t.Errorf("%s: %v, %q; want %v, %q", name, ours, why, c.ours, c.why)
		}
	}
}

func TestUserNames(t *testing.T) {
	if got := UserName(0); got != "root" {
		t.Errorf("user 0 is %q", got)
	}
	if got := UserName(3999999999); got != "3999999999" {
		t.Errorf("a user without a name is %q", got)
	}
	if id, err := userID("root"); id != 0 || err != nil {
		t.Errorf("root is %d, %v", id, err)
	}
	if _, err := userID("no-such-user-here"); err == nil {
		t.Error("a user that does not exist has a number")
	}
}

// TestNameServiceThatHangs: it costs one wait, one look-up under way, and
// recovers.
func TestNameServiceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		back := make(chan struct{})
		l := &lookups{ask: func(string) (string, error) { asked.Add(1); <-back; return "1000", nil }}
		began := time.Now()
		for range 1000 {
			if _, err := l.get("alice"); !errors.Is(err, errNoName) {
				t.Fatal(err)
			}
		}
		if waited := time.Since(began); asked.Load() != 1 || waited != nameWait {
			t.Errorf("asked %d times, waited %s", asked.Load(), waited)
		}
		close(back)
		synctest.Wait()
		if id, err := l.get("alice"); err != nil || id != "1000" {
			t.Errorf("%q, %v", id, err)
		}
		time.Sleep(nameLasts + time.Second)
		if id, err := l.get("alice"); err != nil || id != "1000" || asked.Load() != 2 {
			t.Errorf("%q, %v after %d questions; want it asked anew", id, err, asked.Load())
		}
	})
}
