//go:build cgo && linux

package nvml

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
)

// held is what a process holds.
type held struct {
	heap, resident, goroutines, threads, files int
}

func holds(t testing.TB) held {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	h := held{heap: int(m.HeapAlloc), goroutines: runtime.NumGoroutine(), files: len(files)}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "Threads:"); ok {
			_, err = fmt.Sscan(rest, &h.threads)
		} else if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, err = fmt.Sscan(rest, &h.resident)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// A hundred thousand ticks, with scrapes and with devices and a driver that go
// and come, take nothing that they do not give back.
func TestSoak(t *testing.T) {
	t.Parallel()
	if !inChild(t) {
		return
	}
	s := openStage(t, os.Getenv("EVENKEEL_STANDIN_SHM"))
	synctest.Test(t, func(t *testing.T) {
		const ticks, stretch = 100_000, 1000
		p := begin(t)
		defer func() { p.stop() }()
		var early held
		for n := 0; n < ticks; n += stretch {
			if n == ticks/10 {
				early = holds(t)
			}
			s.set(1, "forced_code", lostCode)
			pass(10)
			s.set(1, "forced_code", 0)
			if n/stretch%10 == 5 {
				s.beat(false)
				pass(10)
				s.beat(true)
				pass(50)
			} else {
				pass(60)
			}
			for range (stretch - 70) / 15 {
				pass(15)
				take(t, p)
			}
		}
		late, seen := holds(t), take(t, p)
		if n := seen["evenkeel_exporter_ticks_total"]; n < 0.98*ticks {
			t.Errorf("%v ticks", n)
		}
		t.Logf("after a tenth %+v, at the end %+v", early, late)
		if late.goroutines != early.goroutines || late.files > early.files || late.threads > early.threads+2 {
			t.Errorf("after a tenth of the ticks %+v, at the end %+v", early, late)
		}
		if late.heap > early.heap+early.heap/10+64<<10 || late.resident > early.resident+early.resident/10+2<<10 {
			t.Errorf("memory grows: after a tenth of the ticks %+v, at the end %+v", early, late)
		}
	})
}
