//go:build linux

package sim

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/process"
)

func claim(t testing.TB, w *World, slot int, c Claim) {
	t.Helper()
	if err := w.Claim("n", slot, c); err != nil {
		t.Fatal(err)
	}
}

// TestClaimIsLoad: what a process claims shows as activity, utilisation, power,
// memory and heat, on every product, and is gone with it.
func TestClaimIsLoad(t *testing.T) {
	for _, m := range Models() {
		t.Run(m.Key, func(t *testing.T) {
			w := oneGPU(t, m.Key, 0)
			g := &w.gpus[0]
			g.job = -1 // an idle GPU of its own
			run(w, time.Minute)
			idleW, idleC := meanOver(w, 10*time.Second)
			c := Claim{PID: 7, Start: 9, Share: 0.6, MemoryBytes: 3 << 30}
			claim(t, w, 0, c)
			run(w, 8*m.TimeConstant)
			busyW, busyC := meanOver(w, time.Minute)
			if want := m.IdleWatts + 0.6*(m.LoadWatts-m.IdleWatts); math.Abs(busyW-want) > 0.02*want {
				t.Errorf("a share of 0.6 draws %.1f W, want %.1f W", busyW, want)
			}
			if got, want := busyC-idleC, m.ResistanceCPerW*(busyW-idleW); math.Abs(got-want) > 0.03*want+0.1 {
				t.Errorf("it warms by %.2f °C, want %.2f °C", got, want)
			}
			r := readOne(t, w, "n", 0)
			if math.Abs(r.Utilization-0.6) > 0.05 || math.Abs(r.Activity-0.6) > 0.05 || r.MemoryUtilization <= 0 || r.MemoryUsedBytes != 3<<30 || r.Reasons != 0 || r.PState != 0 {
				t.Errorf("readings under a claim: %+v", r)
			}
			if err := w.Release("n", 0, 7, 8); err != nil { // the pid's former process
				t.Fatal(err)
			}
			if list, err := w.Claims("n", 0); err != nil || !slices.Equal(list, []Claim{c}) {
				t.Errorf("claims: %v, %v", list, err)
			}
			if err := w.Release("n", 0, 7, 9); err != nil {
				t.Fatal(err)
			}
			run(w, 8*m.TimeConstant)
			if afterW, afterC := meanOver(w, 10*time.Second); math.Abs(afterW-idleW) > 0.01 || math.Abs(afterC-idleC) > 0.1 {
				t.Errorf("%.1f W and %.1f °C after it, %.1f W and %.1f °C before", afterW, afterC, idleW, idleC)
			}
			if r := readOne(t, w, "n", 0); r.MemoryUsedBytes != 0 || r.Utilization != 0 || r.Reasons != reasonIdle {
				t.Errorf("readings after the claim: %+v", r)
			}
		})
	}
}

// TestClaimBesideAJob: they share what there is, and the job works the less.
func TestClaimBesideAJob(t *testing.T) {
	speed := func(shares ...float64) (Reading, float64) {
		w := oneGPU(t, "H100-SXM5-80GB", 0.75)
		for i, share := range shares {
			claim(t, w, 0, Claim{PID: 7 + i, Share: share, MemoryBytes: 50 << 30})
		}
		run(w, time.Minute)
		return readOne(t, w, "n", 0), w.Scores()[0].UsefulGPUSeconds / 60
	}
	alone, full := speed()
	light, same := speed(0.1)
	if math.Abs(same-full) > 0.01 || light.PowerW < alone.PowerW+40 {
		t.Errorf("beside a small claim the job does %.3f of its work at %.0f W, %.3f at %.0f W alone", same, light.PowerW, full, alone.PowerW)
	}
	crowded, less := speed(0.5, 0.25)
	if math.Abs(less-full/1.5) > 0.03 || crowded.Activity > 1 || crowded.PowerW > 700 || crowded.PowerW < 690 {
		t.Errorf("with twice the load that there is room for, the job does %.3f of its work at %.0f W; alone %.3f", less, crowded.PowerW, full)
	}
	if room := uint64(81559-551) * mib; crowded.MemoryUsedBytes != room {
		t.Errorf("104 GiB in the memory of an H100: %d bytes, it has %d", crowded.MemoryUsedBytes, room)
	}
	over, _ := speed(1, 1, 1)
	if over.Activity > 1 || over.Utilization > 1 || over.PowerW > 700 {
		t.Errorf("four times what there is: %+v", over)
	}
}

func TestClaimsOfALostGPUDoNothing(t *testing.T) {
	w := parseWorld(t, goodScenario)
	claim(t, w, 1, Claim{PID: 7, Share: 1})
	if err := w.SetFault("n", 1, FaultLost, true); err != nil {
		t.Fatal(err)
	}
	run(w, 10*time.Second)
	if r := readOne(t, w, "n", 1); r.PowerW != r.Model.IdleWatts {
		t.Errorf("a lost GPU draws %.1f W for its process", r.PowerW)
	}
}

func TestClaimsThatCannotBe(t *testing.T) {
	w := parseWorld(t, goodScenario)
	for _, c := range []struct {
		node  string
		slot  int
		claim Claim
		want  string
	}{
		{"m", 0, Claim{PID: 1, Share: 1}, `node "m" is not in the world`},
		{"n", 2, Claim{PID: 1, Share: 1}, "no GPU 2"},
		{"n", 0, Claim{Share: 1}, "pid of a process"},
		{"n", 0, Claim{PID: 1}, "share of 0"},
		{"n", 0, Claim{PID: 1, Share: 1.01}, "share of 1.01"},
		{"n", 0, Claim{PID: 1, Share: math.NaN()}, "share of NaN"},
		{"n", 0, Claim{PID: 1, Share: 1, MemoryBytes: 16 << 30}, "16.0 GiB do not fit the 14.6 GiB"},
	} {
		if err := w.Claim(c.node, c.slot, c.claim); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c, err, c.want)
		}
	}
	if _, err := w.Claims("n", 9); err == nil {
		t.Error("a GPU that is not there has claims")
	}
	if err := w.Release("n", 9, 1, 1); err == nil {
		t.Error("a GPU that is not there let a claim go")
	}
	if len(w.claims) != 0 {
		t.Errorf("taken all the same: %v", w.claims)
	}
}

// TestSourceListsClaims: the driver lists each process once, by pid, and fails
// as its other calls do.
func TestSourceListsClaims(t *testing.T) {
	w := parseWorld(t, goodScenario)
	s, found := openNode(t, w, "n")
	for _, c := range []Claim{{PID: 30, Share: 0.1, MemoryBytes: 1}, {PID: 20, Share: 0.1}, {PID: 30, Share: 0.1, MemoryBytes: 2}} {
		claim(t, w, 0, c)
	}
	before := []exporter.Process{{PID: 99}}
	got, err := found[0].Device.(exporter.ProcessLister).Processes(before)
	want := []exporter.Process{{PID: 99}, {PID: 20, Instance: exporter.NoInstance}, {PID: 30, MemoryBytes: 3, Instance: exporter.NoInstance}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %v, %v, want %v", got, err, want)
	}
	if got, err := found[1].Device.(exporter.ProcessLister).Processes(nil); err != nil || len(got) != 0 {
		t.Errorf("the other GPU lists %v, %v", got, err)
	}
	if err := w.SetFault("n", 0, FaultLost, true); err != nil {
		t.Fatal(err)
	}
	if got, err := found[0].Device.(exporter.ProcessLister).Processes(before); exporter.FaultOf(err) != exporter.Lost || len(got) != 1 {
		t.Errorf("a lost GPU lists %v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := found[1].Device.(exporter.ProcessLister).Processes(nil); exporter.FaultOf(err) != exporter.NotInitialized {
		t.Errorf("after Close: %v", err)
	}
}

// child starts a process that waits until the test ends or end.
func child(t testing.TB) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

func startOf(t testing.TB, pid int) uint64 {
	t.Helper()
	p, err := process.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p.Start
}

// TestReap: a world in real time lets go of processes that have ended, one that
// its parent has not waited for included, and of pids that are somebody else's.
func TestReap(t *testing.T) {
	w := parseWorld(t, goodScenario)
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	start, self := startOf(t, pid), startOf(t, os.Getpid())
	claim(t, w, 0, Claim{PID: pid, Start: start, Share: 0.5})
	claim(t, w, 0, Claim{PID: os.Getpid(), Start: self, Share: 0.25})
	claim(t, w, 1, Claim{PID: os.Getpid(), Start: self - 1, Share: 0.25}) // a former one of this pid
	w.Reap(process.Runs)
	if got := fmt.Sprint(len(w.claims), w.gpus[0].claimShare, w.gpus[1].claimShare); got != "2 0.75 0" {
		t.Errorf("claims, shares after a reused pid: %s", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Not waited for: a zombie still has its pid and its start.
	for deadline := time.Now().Add(answerTimeout); process.Runs(process.ID{PID: pid, Start: start}); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a killed child still runs")
		}
	}
	w.Reap(process.Runs)
	if got := fmt.Sprint(len(w.claims), w.gpus[0].claimShare); got != "1 0.25" {
		t.Errorf("claims, share after its end: %s", got)
	}
	_ = cmd.Wait() // it was killed
}
