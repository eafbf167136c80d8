package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
)

// numbered is a family of ten series whose values tell them apart.
func numbered() (f *dto.MetricFamily, set func(n int)) {
	f, _ = counted(10)
	of := slices.Clone(f.Metric)
	return f, func(n int) {
		for i, m := range of {
			*m.Gauge.Value = float64(n*10 + i)
		}
	}
}

// counted is a family of series that all have the same value.
func counted(series int) (f *dto.MetricFamily, set func(float64)) {
	f = gauge("n")
	for i := range series {
		f.Metric = append(f.Metric, metricOf(0, "i", strconv.Itoa(i)))
	}
	return f, func(v float64) {
		for _, m := range f.Metric {
			*m.Gauge.Value = v
		}
	}
}

// one matches the series of one index.
func one(i int) *labels.Matcher {
	return labels.MustNewMatcher(labels.MatchEqual, "i", strconv.Itoa(i))
}

const (
	childDir   = "EVENKEEL_TEST_STORE_DIR"
	childFrom  = "EVENKEEL_TEST_STORE_FROM"
	killSeries = 200
	// killStep is the time between two rounds of a child: two hours, after which
	// the storage writes a block, are 120 of them.
	killStep = 60
)

// TestStoreInAChild is what TestKillAtAnyMoment kills: it says each round that
// it has committed.
func TestStoreInAChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		return // by itself it shows nothing
	}
	from, err := strconv.Atoi(os.Getenv(childFrom))
	if err != nil {
		t.Fatal(err)
	}
	f, set := counted(killSeries)
	r := newRig(t, Options{Dir: dir}, f)
	for n := from; ; n++ {
		set(float64(n))
		r.round(t.Context(), at(int64(n)*killStep))
		if r.down {
			t.Fatal("a round was not kept")
		}
		if _, err := fmt.Println("kept", n); err != nil {
			return
		}
	}
}

// TestKillAtAnyMoment: what was committed is there after kill -9, whatever the
// storage was doing, blocks and truncation included; and nothing is there twice.
func TestKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	dir, next := t.TempDir(), 1
	for kill := range 8 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStoreInAChild$", "-test.v")
		cmd.Env = append(os.Environ(), childDir+"="+dir, childFrom+"="+strconv.Itoa(next))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last, lines, rest := 0, bufio.NewScanner(out), 130+kill*37
		for rest > 0 && lines.Scan() {
			if n, ok := strings.CutPrefix(lines.Text(), "kept "); ok {
				if last, err = strconv.Atoi(n); err != nil {
					t.Fatal(err)
				}
				rest--
			}
		}
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatalf("%v: %s", err, said.Bytes())
		}
		for lines.Scan() { // what it said before it died
			if n, ok := strings.CutPrefix(lines.Text(), "kept "); ok {
				if v, err := strconv.Atoi(n); err == nil {
					last = v
				}
			}
		}
		_ = cmd.Wait()
		if last < next {
			t.Fatalf("the child kept nothing: %s", said.Bytes())
		}
		r := newRig(t, Options{Dir: dir})
		for _, i := range []int{0, killSeries / 2, killSeries - 1} {
			got := r.samples(one(i))
			if len(got) < last || len(got) > last+1 { // the last may be kept and not told
				t.Fatalf("kill %d: series %d has %d samples, %d were kept", kill, i, len(got), last)
			}
			for k, line := range got {
				if want := fmt.Sprintf(`{__name__="n", i="%d"} %d %d`, i, (k+1)*killStep*1000, k+1); line != want {
					t.Fatalf("kill %d: sample %d is %s, want %s", kill, k, line, want)
				}
			}
			next = len(got) + 1
		}
		r.db.close(errClosed)
	}
	t.Logf("8 kills over %d rounds of %d series", next-1, killSeries)
}

func TestFolderInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	_, err := Open(Options{Dir: r.o.Dir, Source: &source{}, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "is another collector using it? Each needs a folder of its own") {
		t.Errorf("a folder in use: %v", err)
	}
	r.round(t.Context(), at(1)) // and the one that has it is not harmed
	if r.down {
		t.Error("the store that had the folder is down")
	}
}

func TestFolderThatCannotBe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Dir: filepath.Join(file, "store"), Source: &source{}})
	if err == nil || !strings.Contains(err.Error(), "name a folder that this user may write to, or set store.enabled to false") {
		t.Errorf("a folder below a file: %v", err)
	}
}

// aged is a folder with blocks, a checkpoint and a write-ahead log: 500 rounds,
// a minute apart.
func aged(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	f, set := numbered()
	for n := 1; n <= 500; {
		r := newRig(t, Options{Dir: dir}, f) // each opening begins a segment, and several are cut to a checkpoint
		for range 50 {
			set(n)
			r.round(t.Context(), at(int64(n)*60))
			n++
		}
		if err := r.db.db.Compact(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.db.close(errClosed)
	}
	return dir
}

func overwrite(t *testing.T, path string, from int64, with []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(with, from); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func glob(t *testing.T, parts ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(parts...))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: nothing there (%v)", filepath.Join(parts...), err)
	}
	return found
}

func blockFolders(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for _, path := range glob(t, dir, "*") {
		if _, err := ulid.ParseStrict(filepath.Base(path)); err == nil {
			out = append(out, path)
		}
	}
	if len(out) < 2 {
		t.Fatalf("blocks: %v, want several", out)
	}
	return out
}

// TestDamage: whatever is broken, the store opens, the rest is readable, what
// cannot be read is kept aside, and new samples are kept over a restart.
func TestDamage(t *testing.T) {
	t.Parallel()
	garbage := bytes.Repeat([]byte{0xA5}, 4096)
	for _, c := range []struct {
		name  string
		harm  func(t *testing.T, dir string)
		least int // samples of a series that must be there
		aside bool
	}{
		{"a block's index is cut off", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(blockFolders(t, dir)[0], "index"), 10); err != nil {
				t.Fatal(err)
			}
		}, 300, true},
		{"a block's index is garbage", func(t *testing.T, dir string) {
			overwrite(t, filepath.Join(blockFolders(t, dir)[0], "index"), 0, garbage)
		}, 300, true},
		{"a block has no chunks", func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(blockFolders(t, dir)[1], "chunks")); err != nil {
				t.Fatal(err)
			}
		}, 300, true},
		{"a block has no meta.json", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(blockFolders(t, dir)[0], "meta.json")); err != nil {
				t.Fatal(err)
			}
		}, 300, false},
		{"the write-ahead log has garbage", func(t *testing.T, dir string) {
			segments := glob(t, dir, "wal", "0*")
			overwrite(t, segments[len(segments)-1], 600, garbage)
		}, 240, false},
		{"the write-ahead log has a gap", func(t *testing.T, dir string) {
			segments := glob(t, dir, "wal", "0*")
			if err := os.Rename(segments[len(segments)-1], filepath.Join(dir, "wal", "00099999")); err != nil {
				t.Fatal(err)
			}
		}, 240, true},
		{"the write-ahead log's names are not numbers", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "wal", "notes.txt"), garbage, 0o600); err != nil {
				t.Fatal(err)
			}
		}, 500, false},
		{"the checkpoint is garbage", func(t *testing.T, dir string) {
			overwrite(t, glob(t, dir, "wal", "checkpoint.*", "0*")[0], 0, garbage)
		}, 240, true},
		{"the checkpoint is empty", func(t *testing.T, dir string) {
			for _, path := range glob(t, dir, "wal", "checkpoint.*", "0*") {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		}, 240, true},
		{"the head's chunks are garbage", func(t *testing.T, dir string) {
			overwrite(t, glob(t, dir, "chunks_head", "0*")[0], 0, garbage)
		}, 360, true},
		{"a repair was cut off", func(t *testing.T, dir string) {
			segments := glob(t, dir, "wal", "0*")
			full := segments[0]
			for _, s := range segments { // the one with the records
				if size(t, s) > size(t, full) {
					full = s
				}
			}
			if err := os.Rename(full, full+".repair"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(full, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, 500, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := aged(t)
			c.harm(t, dir)
			f, set := numbered()
			slices.Reverse(f.Metric) // series get other numbers than before
			r := newRig(t, Options{Dir: dir}, f)
			if got := len(r.samples(one(3))); got < c.least {
				t.Errorf("%d samples are left, want at least %d", got, c.least)
			}
			_, err := os.Stat(filepath.Join(dir, aside))
			if got := err == nil; got != c.aside {
				t.Errorf("put aside: %v, want %v", got, c.aside)
			}
			before := len(r.samples(one(3)))
			for n := 501; n <= 520; n++ {
				set(n)
				r.round(t.Context(), at(int64(n)*60))
			}
			r.db.close(errClosed)
			again := newRig(t, Options{Dir: dir})
			for i := range 10 { // each sample is its own series'
				for _, line := range again.samples(one(i)) {
					if want := fmt.Sprintf(`{__name__="n", i="%d"} `, i); !strings.HasPrefix(line, want) || !strings.HasSuffix(line, " "+strconv.Itoa(valueOf(t, line, i))) {
						t.Fatalf("series %d has %s", i, line)
					}
				}
			}
			if got := len(again.samples(one(3))); got != before+20 {
				t.Errorf("%d samples after a restart, want %d", got, before+20)
			}
		})
	}
}

// valueOf is the value that a series of aged has at the time of a line.
func valueOf(t *testing.T, line string, i int) int {
	t.Helper()
	ms, err := strconv.Atoi(strings.Fields(line)[2])
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return ms/60000*10 + i
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestFullDisk: on a disk that is really full a write tears the log. What was
// committed before is there, what comes when there is room again is kept, and
// nothing in between ends the process.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("a small disk cannot be mounted here: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	f, set := counted(500)
	r := newRig(t, Options{Dir: filepath.Join(dir, "store"), reserve: 1}, f)
	var kept []int
	round := func(n int) {
		set(float64(n))
		r.round(t.Context(), at(int64(n)*15))
		if !r.down {
			kept = append(kept, n)
		}
	}
	n := 0
	for range 20 {
		n++
		round(n)
	}
	for cycle := range 3 {
		ballast := filepath.Join(dir, "ballast")
		fillDisk(t, ballast)
		torn := r.refused(refusedUnwritten)
		for i := 0; r.refused(refusedUnwritten) < torn+5*500; i++ {
			if n++; i > 60 {
				t.Fatalf("cycle %d: a full disk did not show in 60 rounds", cycle)
			}
			round(n)
		}
		if up := testutil.ToFloat64(r.metrics.up); up != 0 {
			t.Errorf("cycle %d: up is %v on a full disk", cycle, up)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		before := len(kept)
		for range 10 {
			n++
			round(n)
		}
		if got := len(kept) - before; got != 10 {
			t.Fatalf("cycle %d: %d of 10 rounds were kept when there was room again", cycle, got)
		}
	}
	check := func(r *rig, when string) {
		got := r.samples(one(77))
		if len(got) != len(kept) {
			t.Fatalf("%s: %d samples, %d rounds were kept", when, len(got), len(kept))
		}
		for i, n := range kept {
			if want := fmt.Sprintf(`{__name__="n", i="77"} %d %d`, n*15000, n); got[i] != want {
				t.Errorf("%s: sample %d is %s, want %s", when, i, got[i], want)
			}
		}
	}
	check(r, "before a restart")
	r.db.close(errClosed)
	check(newRig(t, Options{Dir: filepath.Join(dir, "store"), reserve: 1}), "after a restart")
}

// fillDisk leaves no byte free.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// TestStartsOnAFullDisk: the collector comes up, says why nothing is kept, and
// keeps from when there is room.
func TestStartsOnAFullDisk(t *testing.T) {
	t.Parallel()
	f, set := counted(3)
	r := newRig(t, Options{}, f)
	r.round(t.Context(), at(1))
	dir := r.o.Dir
	r.db.close(errClosed)
	full := newRig(t, Options{Dir: dir}, f)
	full.db.close(errOpening)
	full.db.folder.repair = 1 << 60
	set(2)
	full.round(t.Context(), at(2))
	if _, _, err := full.db.hold(); !full.down || !errors.Is(err, errFull) || !strings.Contains(err.Error(), "free some, or lower store.retention_size") {
		t.Fatalf("down %v, query: %v", full.down, err)
	}
	full.db.folder.repair = 1
	set(3)
	full.round(t.Context(), at(3))
	wantSamples(t, full.samples(one(1)), `{__name__="n", i="1"} 1000 0`, `{__name__="n", i="1"} 3000 3`)
}

// TestCloseWaitsForReaders: who reads is not cut off, and who comes later is told
// that the store is away.
func TestCloseWaitsForReaders(t *testing.T) {
	t.Parallel()
	f, _ := counted(1)
	r := newRig(t, Options{}, f)
	r.round(t.Context(), at(1))
	q, err := r.db.Querier(0, 1e6)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { r.db.close(errClosed); close(closed) }()
	for {
		if other, err := r.db.Querier(0, 1e6); err == nil {
			_ = other.Close()
			time.Sleep(time.Millisecond)
			continue
		}
		break
	}
	select {
	case <-closed:
		t.Fatal("closed under a reader")
	default:
	}
	set := q.Select(t.Context(), false, nil, one(0))
	if !set.Next() || set.Err() != nil {
		t.Errorf("the reader sees nothing: %v", set.Err())
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	<-closed
}
