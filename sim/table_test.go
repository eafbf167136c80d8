//go:build linux

package sim

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/evenkeel-gpu/evenkeel/process"
)

func openTable(t testing.TB, path string) *Table {
	t.Helper()
	table, err := OpenTable(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

// holders is what the C library lists of a GPU, "pid:bytes" each.
func holders(a map[string]any) []string {
	pids, _ := a["pids"].([]any)
	sizes, _ := a["bytes"].([]any)
	var list []string
	for i := range pids {
		list = append(list, fmt.Sprintf("%.0f:%.0f", pids[i], sizes[i]))
	}
	slices.Sort(list)
	return list
}

// TestClaimThroughTheDriver: a process of this machine claims a GPU, shows in
// the driver's list and in its readings, and both end with it.
func TestClaimThroughTheDriver(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	table := openTable(t, l.path)
	pid, end := child(t)
	if err := table.Claim([]int{3, 1}, Claim{PID: pid, Share: 0.5, MemoryBytes: 10 << 30}); err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprintf("%d:%d", pid, 10<<30)}
	for _, gpu := range []int{3, 1} { // in the list at once
		if got := holders(p.want(fmt.Sprintf("processes %d", gpu), ret(0))); !slices.Equal(got, want) {
			t.Errorf("GPU %d is held by %v, want %v", gpu, got, want)
		}
	}
	p.want("processes 0", map[string]any{"ret": 0, "pids": []int{}})
	busy := p.eventually("read 3", func(a map[string]any) bool {
		return number(a, "power") > 360000 && number(a, "temperature") > 50
	})
	if number(busy, "used2") != 10<<30 || number(busy, "util") < 45 || number(busy, "util") > 55 || number(busy, "power") > 400000 {
		t.Errorf("under the claim: %v", busy)
	}
	list, err := table.Claims()
	if err != nil || len(list) != 2 || list[0].GPU != 1 || list[1].GPU != 3 || list[1].PID != pid || list[1].Share != 0.5 || list[1].Name != "sleep" {
		t.Errorf("claims: %+v, %v", list, err)
	}
	end()
	p.eventually("processes 3", func(a map[string]any) bool { return len(holders(a)) == 0 })
	p.eventually("read 3", func(a map[string]any) bool {
		return number(a, "power") < 75000 && number(a, "used2") == 0 && number(a, "util") == 0 && number(a, "temperature") <= 33
	})
	if list, err := table.Claims(); err != nil || len(list) != 0 {
		t.Errorf("claims after the end: %v, %v", list, err)
	}
}

// fill writes an entry past all checks.
func fill(p *shmProcess, kind uint32, c Claim) {
	p.write(c)
	atomic.StoreUint32(&p.Kind, kind)
}

// freed waits until the world has emptied a slot.
func freed(t *testing.T, what string, p *shmProcess) {
	t.Helper()
	for deadline := time.Now().Add(answerTimeout); atomic.LoadUint32(&p.Kind) != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s stays in the table", what)
		}
	}
}

// TestEntriesThatAreDropped: whoever is gone, was never there or never finished
// writing.
func TestEntriesThatAreDropped(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	d := &l.file.world.Device[3]
	pid, end := child(t)
	start := startOf(t, pid)
	gone, endGone := child(t)
	goneStart := startOf(t, gone)
	endGone()

	fill(&d.Processes[0], shmCompute, Claim{PID: pid, Start: start + 1, Share: 0.5})
	freed(t, "a former process of a pid", &d.Processes[0])
	fill(&d.Processes[5], shmCompute, Claim{PID: gone, Start: goneStart, Share: 0.5})
	freed(t, "a process that has ended", &d.Processes[5])
	fill(&d.Processes[6], shmCompute, Claim{PID: pid, Start: start, Share: 1.5})
	freed(t, "a share above 1", &d.Processes[6])

	// A claimer that was killed between its first write and its last; one that
	// is stopped keeps its slot.
	atomic.StoreUint32(&d.Processes[7].Kind, writing(process.ID{PID: gone, Start: goneStart}))
	stopped := writing(process.ID{PID: pid, Start: start})
	atomic.StoreUint32(&d.Processes[8].Kind, stopped)
	freed(t, "an entry that was never finished", &d.Processes[7])
	time.Sleep(3 * claimPeriod)
	if kind := atomic.LoadUint32(&d.Processes[8].Kind); kind != stopped {
		t.Errorf("the slot of a claimer that is alive was taken from it: kind %#x", kind)
	}
	end()
	freed(t, "the entry of a claimer that was killed", &d.Processes[8])
	if list, err := l.world.Claims("n", 3); err != nil || len(list) != 0 {
		t.Errorf("the world has %v, %v", list, err)
	}
}

func TestFullTable(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	table := openTable(t, l.path)
	pid, end := child(t)
	c := Claim{PID: pid, Share: 0.01, MemoryBytes: 1 << 20}
	for i := range shmProcesses {
		if err := table.Claim([]int{3}, c); err != nil {
			t.Fatalf("claim %d: %v", i, err)
		}
	}
	// All or none: what GPU 2 has room for is given back.
	if err := table.Claim([]int{2, 3}, c); err == nil || !strings.Contains(err.Error(), "GPU 3 has 64 claims") {
		t.Errorf("claim 65: %v", err)
	}
	for i := range l.file.world.Device[2].Processes {
		if kind := atomic.LoadUint32(&l.file.world.Device[2].Processes[i].Kind); kind != 0 {
			t.Errorf("GPU 2 keeps an entry of kind %#x in slot %d", kind, i)
		}
	}
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	// A driver lists a process once, with all of its memory.
	if got, want := holders(p.want("processes 3", ret(0))), []string{fmt.Sprintf("%d:%d", pid, 64<<20)}; !slices.Equal(got, want) {
		t.Errorf("64 claims of one process: %v, want %v", got, want)
	}
	end()
	p.eventually("processes 3", func(a map[string]any) bool { return len(holders(a)) == 0 })
	other, _ := child(t)
	if err := table.Claim([]int{2, 3}, Claim{PID: other, Share: 1}); err != nil {
		t.Errorf("after they have gone: %v", err)
	}
}

// TestClaimersAtOnce: 64 processes claim the 64 slots of a GPU at the same time,
// each is there once and whole; the 65th is refused.
func TestClaimersAtOnce(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	p := startProbe(t, standin(t, ""), l.path)
	p.want("init", ret(0))
	var want []string
	var wait sync.WaitGroup
	var refused atomic.Int32
	begin := make(chan struct{})
	for i := range shmProcesses + 1 {
		pid, _ := child(t)
		size := uint64(i+1) << 20
		table := openTable(t, l.path)
		want = append(want, fmt.Sprintf("%d:%d", pid, size))
		wait.Go(func() {
			<-begin
			if err := table.Claim([]int{3}, Claim{PID: pid, Share: 0.01, MemoryBytes: size}); err != nil {
				refused.Add(1)
				want[i] = ""
			}
		})
	}
	close(begin)
	wait.Wait()
	if n := refused.Load(); n != 1 {
		t.Errorf("%d of 65 claims for 64 slots were refused", n)
	}
	want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
	slices.Sort(want)
	if got := holders(p.want("processes 3", ret(0))); !slices.Equal(got, want) {
		t.Errorf("held by\n%v, want\n%v", got, want)
	}
	p.eventually("read 3", func(a map[string]any) bool { return number(a, "util") == 64 })
}

// TestReadersSeeWholeEntries while slots change hands: whoever reads gets what
// one claimer wrote.
func TestReadersSeeWholeEntries(t *testing.T) {
	var p shmProcess
	var stop atomic.Bool
	var wait sync.WaitGroup
	wait.Go(func() {
		for n := uint64(1); !stop.Load(); n++ {
			fill(&p, shmCompute, Claim{PID: int(n % 1000000), Start: n % 1000000, Share: 1, MemoryBytes: n % 1000000})
			atomic.StoreUint32(&p.Kind, 0)
		}
	})
	for seen := 0; seen < 100000; {
		c, ok := p.read()
		if !ok {
			continue
		}
		seen++
		if uint64(c.PID) != c.Start || c.Start != c.MemoryBytes {
			t.Errorf("torn: %+v", c)
			break
		}
	}
	stop.Store(true)
	wait.Wait()
}

func TestClaimErrorsSayWhatToDo(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	table := openTable(t, l.path)
	pid, end := child(t)
	for _, c := range []struct {
		gpus  []int
		claim Claim
		want  string
	}{
		{nil, Claim{PID: pid, Share: 1}, "needs a GPU"},
		{[]int{0, 4}, Claim{PID: pid, Share: 1}, "GPU 4 is not there: the world at " + l.path + " has GPUs 0 to 3"},
		{[]int{-1}, Claim{PID: pid, Share: 1}, "GPU -1 is not there"},
		{[]int{1, 1}, Claim{PID: pid, Share: 1}, "GPU 1 is named twice"},
		{[]int{0}, Claim{PID: pid}, "share of 0 is not above 0"},
		{[]int{0}, Claim{PID: pid, Share: 1.5}, "share of 1.5"},
		{[]int{0}, Claim{PID: pid, Share: math.NaN()}, "share of NaN"},
		{[]int{0}, Claim{PID: pid, Share: 1, MemoryBytes: 75 << 30}, "75.0 GiB do not fit GPU 0, which has 71.1 GiB free"},
		{[]int{0}, Claim{PID: pid, Start: 1, Share: 1}, "is not running"},
		{[]int{0}, Claim{PID: 1 << 22, Share: 1}, "process 4194304 is not running"},
		{[]int{0}, Claim{PID: -1, Share: 1}, "process -1 is not running"},
	} {
		if err := table.Claim(c.gpus, c.claim); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %+v: %v, want %q", c.gpus, c.claim, err, c.want)
		}
	}
	end()
	if err := table.Claim([]int{0}, Claim{PID: pid, Share: 1}); err == nil || !strings.Contains(err.Error(), "is not running") {
		t.Errorf("a process that has ended: %v", err)
	}
	if list, err := table.Claims(); err != nil || len(list) != 0 {
		t.Errorf("taken all the same: %v, %v", list, err)
	}
	l.stop() // as a kill would
	self := Claim{PID: os.Getpid(), Share: 1}
	old := uint64(time.Now().Add(-time.Minute).UnixMicro())
	atomic.StoreUint64(&l.file.world.HeartbeatUS, old)
	if err := table.Claim([]int{0}, self); err == nil || !strings.Contains(err.Error(), "no sign of life for 1m0s: start it again") {
		t.Errorf("a dead world: %v", err)
	}
	if _, err := table.Claims(); err == nil {
		t.Error("a dead world has claims")
	}
	if err := l.file.close(); err != nil {
		t.Fatal(err)
	}
	if err := table.Claim([]int{0}, self); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a world that ended: %v", err)
	}
}

func TestFilesThatAreNoWorld(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	layout := shmWorld{Magic: shmMagic, Layout: shmLayout + 1, Devices: 1}
	later := bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&layout)), shmSize))
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"):       "no world is served at",
		write("short", []byte("x")):         "not the file of a world",
		write("garbage", make([]byte, 1e6)): "not the file of a world",
		write("later", later):               "not the file of a world that this version can read",
		dir:                                 "",
	} {
		table, err := OpenTable(path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
			continue
		}
		if want != "" && !strings.Contains(err.Error(), "evenkeel sim serve --shm "+path) {
			t.Errorf("%s: %v, without a way out", path, err)
		}
		if table != nil {
			t.Errorf("%s: a table beside the error", path)
		}
	}
}

// TestOtherUsersMayClaim: the world file is open to everybody, as device files
// of a driver are.
func TestOtherUsersMayClaim(t *testing.T) {
	l := serveWorld(t, quick(t, "H100-SXM5-80GB"), "")
	if info, err := os.Stat(l.path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := openTable(t, l.path).Claim([]int{0}, Claim{PID: cmd.Process.Pid, Share: 0.5}); err != nil {
		t.Error(err)
	}
}
