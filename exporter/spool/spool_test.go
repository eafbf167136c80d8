package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// bus takes frames while it is up.
type bus struct {
	mu         sync.Mutex
	up         bool
	live, late []string
}

var errDown = errors.New("not connected")

func (b *bus) Frame(data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.up {
		return errDown
	}
	b.live = append(b.live, string(data))
	return nil
}

func (b *bus) backfill(data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.up {
		return errDown
	}
	b.late = append(b.late, string(data))
	return nil
}

func (b *bus) set(up bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up = up
}

func (b *bus) taken() (live, late []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.live), slices.Clone(b.late)
}

func open(t testing.TB, dir string, most int64, b *bus) *Spool {
	t.Helper()
	s, err := New(Options{Dir: dir, Max: most, Live: b, Backfill: b.backfill, Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a spool until the test ends it.
func run(t *testing.T, s *Spool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func frames(from, to int) (list []string) {
	for i := from; i < to; i++ {
		list = append(list, frame(i))
	}
	return list
}

func frame(i int) string { return fmt.Sprintf("frame %d of the node", i) }

// An outage loses nothing: what could not be sent is sent after it, in order and
// unchanged, at a pace, and never as a live frame.
func TestOutageIsSentAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bus{}
		dir := t.TempDir()
		s := open(t, dir, 1<<20, b)
		stop := run(t, s)
		defer stop()
		for _, f := range frames(0, 100) {
			if err := s.Frame([]byte(f)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		b.set(true)
		_ = s.Frame([]byte("now"))
		time.Sleep(time.Second)
		synctest.Wait()
		if _, late := b.taken(); len(late) == 0 || len(late) > 21 {
			t.Errorf("%d old frames in the first second", len(late))
		}
		b.set(false) // a short one, in the middle
		time.Sleep(10 * time.Second)
		b.set(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		live, late := b.taken()
		if !slices.Equal(live, []string{"now"}) || !slices.Equal(late, frames(0, 100)) {
			t.Errorf("live %q, %d late", live, len(late))
		}
		left, _ := filepath.Glob(filepath.Join(dir, "*"))
		if len(left) != 0 || s.bytes.Load() != 0 {
			t.Errorf("left on disk: %v, %d bytes", left, s.bytes.Load())
		}
		if k, n, l := testutil.ToFloat64(s.kept), testutil.ToFloat64(s.sent), testutil.ToFloat64(s.lost); k != 100 || n != 100 || l != 0 {
			t.Errorf("kept %v, sent %v, lost %v", k, n, l)
		}
	})
}

// What a process left is sent by the next one; what a crash left half-written is
// skipped, and so is what is no record.
func TestSpoolSurvivesACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bus{}
		dir := t.TempDir()
		s := open(t, dir, 1<<20, b)
		for _, f := range frames(0, 10) {
			if err := s.write([]byte(f)); err != nil {
				t.Fatal(err)
			}
		}
		s.close()
		names, _ := filepath.Glob(filepath.Join(dir, "*"+suffix))
		if len(names) != 1 {
			t.Fatalf("segments %v", names)
		}
		text, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(names[0], text[:len(text)-5], 0o600); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"00000000000000000007" + suffix: "\xff\xff\xff\xffgarbage", "notes.txt": "keep me", "x" + suffix: "keep me too"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.set(true)
		s = open(t, dir, 1<<20, b)
		stop := run(t, s)
		defer stop()
		_ = s.Frame([]byte("now"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, late := b.taken(); !slices.Equal(late, frames(0, 9)) {
			t.Errorf("%q", late)
		}
		left, _ := os.ReadDir(dir)
		if len(left) != 2 {
			t.Errorf("left: %v", left)
		}
	})
}

// Whatever comes, the folder stays within its bound, the newest frames are kept
// and each frame is kept or counted as lost.
func TestSpoolStaysWithinItsBound(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		sub, err := os.MkdirTemp(dir, "")
		if err != nil {
			rt.Fatal(err)
		}
		most := int64(rapid.IntRange(200, 20_000).Draw(rt, "bound"))
		b := &bus{}
		s := open(t, sub, most, b)
		defer s.close()
		sizes := rapid.SliceOfN(rapid.IntRange(1, 400), 1, 200).Draw(rt, "frames")
		last := ""
		for i, n := range sizes {
			f := fmt.Sprint(i, strings.Repeat("x", n))
			s.keep([]byte(f), time.Unix(int64(i*100), 0))
			if int64(len(f)+headBytes) <= most {
				last = f
			}
			total := int64(0)
			entries, err := os.ReadDir(sub)
			if err != nil {
				rt.Fatal(err)
			}
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					rt.Fatal(err)
				}
				total += info.Size()
			}
			if total > most || total != s.bytes.Load() {
				rt.Fatalf("%d bytes on disk, %d known, bound %d", total, s.bytes.Load(), most)
			}
		}
		b.set(true)
		for range len(sizes) + 1 {
			s.send()
		}
		_, late := b.taken()
		if len(late)+int(testutil.ToFloat64(s.lost)) != len(sizes) {
			rt.Fatalf("%d sent, %v lost of %d", len(late), testutil.ToFloat64(s.lost), len(sizes))
		}
		if last != "" && (len(late) == 0 || late[len(late)-1] != last) {
			rt.Fatal("the newest frame is not the last one sent")
		}
	})
}

// A full disk costs the frames that it has no room for, and the tick nothing;
// the spool goes on when there is room. The disk is a real one.
func TestFullDiskUnderTheSpool(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	b := &bus{}
	s := open(t, dir, 64<<20, b)
	defer s.close()
	big := strings.Repeat("y", 3000)
	now := time.Unix(1e9, 0)
	var kept []string
	for i := range 60 {
		f := fmt.Sprint(i, big)
		before := testutil.ToFloat64(s.kept)
		s.keep([]byte(f), now)
		if testutil.ToFloat64(s.kept) > before {
			kept = append(kept, f)
		}
		now = now.Add(2 * diskPause)
	}
	if lost := testutil.ToFloat64(s.lost); lost == 0 || len(kept) == 0 || int(lost)+len(kept) != 60 {
		t.Fatalf("%v lost, %d kept", lost, len(kept))
	}
	b.set(true)
	for range 100 {
		s.send()
	}
	if _, late := b.taken(); !slices.Equal(late, kept) {
		t.Errorf("%d sent, %d kept", len(late), len(kept))
	}
	before := testutil.ToFloat64(s.kept)
	s.keep([]byte("room again"), now)
	if testutil.ToFloat64(s.kept) != before+1 {
		t.Error("nothing is kept though there is room")
	}
}

// Back-pressure never reaches who makes frames: with nobody at the disk Frame
// returns at once, keeps a few, and counts the rest.
func TestBackPressureEndsAtTheSpool(t *testing.T) {
	s := open(t, t.TempDir(), 1<<20, &bus{})
	refused := 0
	for i := range 10 * queued {
		if s.Frame([]byte(frame(i))) != nil {
			refused++
		}
	}
	if refused != 9*queued || testutil.ToFloat64(s.lost) != float64(refused) {
		t.Errorf("%d refused, %v lost", refused, testutil.ToFloat64(s.lost))
	}
}

func TestFolderThatMayNotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(Options{Dir: filepath.Join(file, "spool"), Max: 1, Live: &bus{}, Registry: prometheus.NewRegistry()})
	if err == nil || !strings.Contains(err.Error(), "may write") {
		t.Errorf("%v", err)
	}
	if telemetry.RowOf(telemetry.SelfSpoolBytes) == nil {
		t.Error("no row")
	}
}
