package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

var (
	errOpening = errors.New("the store is being opened")
	errClosed  = errors.New("the store is closed")
)

// database is a tsdb.DB that may be away: while its log is read at the start,
// while its disk is full, and after a commit failed. A failed write leaves a
// torn record in the write-ahead log, behind which a restart would find nothing,
// so the database is opened anew, and thereby repaired, before it takes more.
type database struct {
	folder *folder
	reg    prometheus.Registerer
	log    *slog.Logger
	scope  *scoped // what the open one registered
	// took hears of each commit: how many samples, and the newest of their times.
	took func(samples int, newest int64)

	mu     sync.Mutex
	left   *sync.Cond // users became fewer
	db     *tsdb.DB   // nil while it is away
	why    error      // why it is away
	torn   bool       // a commit failed
	users  int        // queriers and appenders that are open
	opened int
}

func newDatabase(f *folder, reg prometheus.Registerer, log *slog.Logger) *database {
	d := &database{folder: f, reg: reg, log: log, why: errOpening, took: func(int, int64) {}}
	d.left = sync.NewCond(&d.mu)
	return d
}

// ensure opens the database if it is away or torn. It is called by one
// goroutine. errFull is no reason to give up: there may be room again.
func (d *database) ensure() error {
	if d.sound() {
		return nil
	}
	d.close(errOpening)
	db, scope, err := d.folder.open(d.reg)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.why = err
		return err
	}
	d.db, d.why, d.torn, d.scope = db, nil, false, scope
	if d.opened++; d.opened > 1 {
		d.log.Info("the store was opened anew after a write had failed")
	}
	return nil
}

func (d *database) sound() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.db != nil && !d.torn
}

// close waits for whoever reads and closes; why is what the next ones are told.
func (d *database) close(why error) {
	d.mu.Lock()
	db := d.db
	d.db, d.why = nil, why
	for d.users > 0 {
		d.left.Wait()
	}
	d.mu.Unlock()
	if db == nil {
		return
	}
	if err := db.Close(); err != nil {
		d.log.Warn("the store did not close cleanly; what was committed is read back at the next start", "err", err)
	}
	d.scope.unregister()
}

// hold gives the database until release is called, once.
func (d *database) hold() (db *tsdb.DB, release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.db == nil {
		// ErrNotReady: the API answers 503 then.
		return nil, nil, fmt.Errorf("%w: %w", tsdb.ErrNotReady, d.why)
	}
	d.users++
	return d.db, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.users--; d.users == 0 {
			d.left.Broadcast()
		}
	}), nil
}

// tear notes that a commit failed, which the next ensure mends.
func (d *database) tear(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.torn {
		d.torn = true
		d.log.Error("the store could not be written; it is opened anew before it takes more", "err", err)
	}
}

// openings is how often the database was opened.
func (d *database) openings() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// Querier implements storage.Queryable.
func (d *database) Querier(mint, maxt int64) (storage.Querier, error) {
	db, release, err := d.hold()
	if err != nil {
		return nil, err
	}
	q, err := db.Querier(mint, maxt)
	if err != nil {
		release()
		return nil, err
	}
	return heldQuerier{q, release}, nil
}

// ChunkQuerier implements storage.ChunkQueryable.
func (d *database) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	db, release, err := d.hold()
	if err != nil {
		return nil, err
	}
	q, err := db.ChunkQuerier(mint, maxt)
	if err != nil {
		release()
		return nil, err
	}
	return heldChunkQuerier{q, release}, nil
}

// ExemplarQuerier implements storage.ExemplarQueryable: there are none.
func (d *database) ExemplarQuerier(ctx context.Context) (storage.ExemplarQuerier, error) {
	db, release, err := d.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	return db.ExemplarQuerier(ctx)
}

type heldQuerier struct {
	storage.Querier
	release func()
}

func (q heldQuerier) Close() error {
	defer q.release()
	return q.Querier.Close()
}

type heldChunkQuerier struct {
	storage.ChunkQuerier
	release func()
}

func (q heldChunkQuerier) Close() error {
	defer q.release()
	return q.ChunkQuerier.Close()
}

// AppenderV2 implements storage.AppendableV2.
func (d *database) AppenderV2(ctx context.Context) storage.AppenderV2 {
	db, release, err := d.hold()
	if err == nil && d.full() {
		release()
		err = errFull
	}
	if err != nil {
		return refusing{err}
	}
	return &appender{AppenderV2: db.AppenderV2(ctx), d: d, release: release}
}

// full says whether the reserve of the disk is all that is left.
func (d *database) full() bool {
	free, _, err := disk(d.folder.dir)
	return err == nil && free < d.folder.reserve
}

// appender holds the database until it ends, and tells of a failed commit.
type appender struct {
	storage.AppenderV2
	d       *database
	release func()
	samples int
	newest  int64
}

func (a *appender) Append(ref storage.SeriesRef, l labels.Labels, st, t int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram, o storage.AOptions) (storage.SeriesRef, error) {
	ref, err := a.AppenderV2.Append(ref, l, st, t, v, h, fh, o)
	if err == nil {
		a.samples, a.newest = a.samples+1, max(a.newest, t)
	}
	return ref, err
}

func (a *appender) Commit() error {
	defer a.release()
	if a.d.isTorn() {
		return errors.Join(errClosed, a.AppenderV2.Rollback())
	}
	err := a.AppenderV2.Commit()
	if err != nil {
		a.d.tear(err)
		return err
	}
	a.d.took(a.samples, a.newest)
	return nil
}

func (a *appender) Rollback() error {
	defer a.release()
	return a.AppenderV2.Rollback()
}

func (d *database) isTorn() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.torn
}

// refusing takes nothing, and says why.
type refusing struct{ why error }

func (r refusing) Append(storage.SeriesRef, labels.Labels, int64, int64, float64, *histogram.Histogram, *histogram.FloatHistogram, storage.AOptions) (storage.SeriesRef, error) {
	return 0, r.why
}
func (r refusing) Commit() error   { return r.why }
func (r refusing) Rollback() error { return nil }

// Dir is the folder.
func (d *database) Dir() string { return d.folder.dir }

// StartTime is the time of the oldest sample, in milliseconds.
func (d *database) StartTime() (int64, error) {
	db, release, err := d.hold()
	if err != nil {
		return 0, err
	}
	defer release()
	return db.StartTime()
}

// Stats implements the API's view of the database.
func (d *database) Stats(label string, limit int) (*tsdb.Stats, error) {
	db, release, err := d.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	return db.Head().Stats(label, limit), nil
}

// WALReplayStatus implements the API's view of the database.
func (d *database) WALReplayStatus() (tsdb.WALReplayStatus, error) {
	return tsdb.WALReplayStatus{}, nil
}

// BlockMetas implements the API's view of the database.
func (d *database) BlockMetas() ([]tsdb.BlockMeta, error) {
	db, release, err := d.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	return db.BlockMetas(), nil
}

// errReadOnly: what is kept is not changed over HTTP.
var errReadOnly = errors.New("the store is not changed over HTTP")

// CleanTombstones implements the API's view of the database.
func (d *database) CleanTombstones() error { return errReadOnly }

// Delete implements the API's view of the database.
func (d *database) Delete(context.Context, int64, int64, ...*labels.Matcher) error {
	return errReadOnly
}

// Snapshot implements the API's view of the database.
func (d *database) Snapshot(string, bool) error { return errReadOnly }
