package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/compression"
)

const (
	// segmentSize of the write-ahead log. Whatever is torn in one costs at most
	// a rewrite of it.
	segmentSize = 32 << 20
	// reserve is what is left free on the disk: Prometheus's storage ends the
	// whole process when it cannot write a chunk, and must have room for those
	// of its head.
	reserve = 256 << 20
	// chunksHead is where the head's chunks are, by the numbers that the
	// write-ahead log gives to series. Without all of the log they could become
	// those of another series; and the log alone has the same samples.
	chunksHead = "chunks_head"
	// aside is the folder for what could not be read. It is kept for people;
	// nothing reads it.
	aside = "unreadable"
)

// errFull says that the disk has no room for more.
var errFull = errors.New("the disk under the store is full")

// folder is where the database lies, and the care for it while it is closed.
type folder struct {
	dir     string
	reserve uint64 // left free by what is added
	repair  uint64 // needs to be free before it is opened
	options *tsdb.Options
	log     *slog.Logger
}

func newFolder(o Options) (*folder, error) {
	// A name in a message must lead there from anywhere.
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("store.dir: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store.dir: %w; name a folder that this user may write to, or set store.enabled to false", err)
	}
	t := tsdb.DefaultOptions()
	t.RetentionDuration = o.Retention.Milliseconds()
	t.MaxBytes = o.RetentionBytes
	// As Prometheus does: blocks grow to a tenth of the retention, a month at most.
	t.MaxBlockDuration = max(min(o.Retention.Milliseconds()/10, (31*24*time.Hour).Milliseconds()), t.MinBlockDuration)
	t.WALCompression = compression.Snappy
	t.WALSegmentSize = segmentSize
	if o.reserve == 0 {
		o.reserve = reserve
	}
	return &folder{dir: dir, reserve: o.reserve, repair: min(o.reserve, 2*segmentSize), options: t, log: o.Log.With("component", "tsdb")}, nil
}

// open opens the database. What in it cannot be read is put aside rather than
// keep the rest from being read; an error means that nothing was harmed.
func (f *folder) open(reg prometheus.Registerer) (*tsdb.DB, *scoped, error) {
	if err := f.room(); err != nil {
		return nil, nil, err
	}
	if err := f.alone(func() error { return errors.Join(f.undoRepair(), f.emptyCheckpoint()) }); err != nil {
		return nil, nil, err
	}
	// As many as could be unreadable, each one once; 64 is no bound in practice.
	for range 64 {
		scope := &scoped{Registerer: reg}
		db, err := tsdb.Open(f.dir, f.log, scope, f.options, nil)
		if err == nil && !scope.repaired() {
			return db, scope, nil
		}
		scope.unregister()
		if err == nil {
			if err := errors.Join(db.Close(), os.RemoveAll(filepath.Join(f.dir, chunksHead))); err != nil {
				return nil, nil, fmt.Errorf("store.dir: %w", err)
			}
			continue
		}
		switch bad := f.unreadable(err); {
		case errors.Is(err, syscall.ENOSPC):
			return nil, nil, fmt.Errorf("%w: %w", errFull, err)
		case errors.Is(err, fs.ErrPermission), bad == "":
			return nil, nil, fmt.Errorf("store.dir %s: %w", f.dir, err)
		default:
			if err := f.putAside(bad, err); err != nil {
				return nil, nil, err
			}
		}
	}
	return nil, nil, fmt.Errorf("store.dir %s: too much of it is unreadable; move it away, and a new one is made", f.dir)
}

// room refuses to open what may need a repair that the disk has no room for: a
// repair writes the segment anew.
func (f *folder) room() error {
	free, _, err := disk(f.dir)
	if err != nil {
		return fmt.Errorf("store.dir: %w", err)
	}
	if free < f.repair {
		return fmt.Errorf("%w: %s has %d MiB free and needs %d; free some, or lower store.retention_size", errFull, f.dir, free>>20, f.repair>>20)
	}
	return nil
}

// alone does what only the holder of the folder may do.
func (f *folder) alone(do func() error) error {
	lock, err := tsdbutil.NewDirLocker(f.dir, "tsdb", f.log, nil)
	if err != nil {
		return fmt.Errorf("store.dir: %w", err)
	}
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("store.dir %s: %w; is another collector using it? Each needs a folder of its own", f.dir, err)
	}
	return errors.Join(do(), lock.Release())
}

// undoRepair takes back a repair of the write-ahead log that was cut off: until
// it is over, the records are in the segment that it put away.
func (f *folder) undoRepair() error {
	const suffix = ".repair"
	cut, err := filepath.Glob(filepath.Join(f.dir, "wal", "*"+suffix))
	if err != nil {
		return err
	}
	for _, name := range cut {
		segment := strings.TrimSuffix(name, suffix)
		f.log.Warn("a repair was cut off; it is begun anew", "segment", segment)
		if err := os.Rename(name, segment); err != nil {
			return fmt.Errorf("store.dir: %w", err)
		}
	}
	return nil
}

// unreadable is what an error of opening is about, as a path below the folder;
// empty where that is not known.
func (f *folder) unreadable(err error) string {
	text := err.Error()
	entries, readErr := os.ReadDir(f.dir)
	if readErr != nil {
		return ""
	}
	for _, e := range entries {
		if _, notBlock := ulid.ParseStrict(e.Name()); notBlock == nil && e.IsDir() && strings.Contains(text, e.Name()) {
			return e.Name()
		}
	}
	// A block that the error does not name.
	for _, e := range entries {
		if _, notBlock := ulid.ParseStrict(e.Name()); notBlock != nil || !e.IsDir() {
			continue
		}
		b, err := tsdb.OpenBlock(f.log, filepath.Join(f.dir, e.Name()), nil, nil)
		if err != nil {
			return e.Name()
		}
		_ = b.Close()
	}
	for _, part := range []struct{ says, path string }{{"checkpoint", "wal"}, {"WAL", "wal"}, {"wal", "wal"}, {"segment", "wal"}, {"chunk", chunksHead}} {
		if strings.Contains(text, part.says) {
			if _, err := os.Stat(filepath.Join(f.dir, part.path)); err == nil {
				return part.path
			}
		}
	}
	return ""
}

// emptyCheckpoint puts a log away whose checkpoint has nothing in it, which the
// storage does not notice.
func (f *folder) emptyCheckpoint() error {
	all, err := filepath.Glob(filepath.Join(f.dir, "wal", "checkpoint.*"))
	if err != nil {
		return err
	}
	for _, c := range all {
		if filepath.Ext(c) == ".tmp" {
			continue // the storage removes it
		}
		if segments, err := os.ReadDir(c); err != nil || len(segments) == 0 {
			return f.putAside("wal", errors.Join(err, fmt.Errorf("%s is empty", c)))
		}
	}
	return nil
}

// putAside moves a part of the folder to where nothing reads it.
func (f *folder) putAside(part string, why error) error {
	to := filepath.Join(f.dir, aside)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("store.dir: %w", err)
	}
	name := part
	for i := 1; ; i++ {
		if _, err := os.Stat(filepath.Join(to, name)); errors.Is(err, fs.ErrNotExist) {
			break
		}
		name = fmt.Sprintf("%s-%d", part, i)
	}
	if err := os.Rename(filepath.Join(f.dir, part), filepath.Join(to, name)); err != nil {
		return fmt.Errorf("store.dir: %w", err)
	}
	if part == "wal" {
		if err := os.RemoveAll(filepath.Join(f.dir, chunksHead)); err != nil {
			return fmt.Errorf("store.dir: %w", err)
		}
	}
	f.log.Error("a part of the store cannot be read and was put aside; the rest goes on", "part", part, "now", filepath.Join(to, name), "err", why)
	return nil
}

// scoped remembers what was registered, so that a database that is opened anew
// can register again.
type scoped struct {
	prometheus.Registerer
	all []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (s *scoped) Register(c prometheus.Collector) error {
	if err := s.Registerer.Register(c); err != nil {
		return err
	}
	s.all = append(s.all, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (s *scoped) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

func (s *scoped) unregister() {
	for _, c := range slices.Backward(s.all) {
		s.Unregister(c)
	}
	s.all = nil
}

// repaired says whether opening the database cost a part of its log.
func (s *scoped) repaired() bool {
	reg := prometheus.NewRegistry()
	for _, c := range s.all {
		_ = reg.Register(c) // in another registry too
	}
	families, err := reg.Gather()
	if err != nil {
		return false
	}
	for _, f := range families {
		if f.GetName() == "prometheus_tsdb_wal_corruptions_total" && len(f.Metric) == 1 {
			return f.Metric[0].GetCounter().GetValue() > 0
		}
	}
	return false
}
