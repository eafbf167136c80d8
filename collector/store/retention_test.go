package store

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// blocks writes a block of two hours for each day before now, the oldest first,
// and says how many bytes one has.
func blocks(t *testing.T, dir string, now time.Time, days int) (size int64) {
	t.Helper()
	for day := days; day > 0; day-- {
		begin := now.Add(-time.Duration(day) * 24 * time.Hour).Truncate(2 * time.Hour)
		w, err := tsdb.NewBlockWriter(promslog.NewNopLogger(), dir, (2 * time.Hour).Milliseconds())
		if err != nil {
			t.Fatal(err)
		}
		app := w.AppenderV2(t.Context())
		for gpu := range 50 {
			l, ref := labels.FromStrings("__name__", "gpu_power_watts", "uuid", fmt.Sprint("GPU-", gpu), "day", fmt.Sprint(day)), storage.SeriesRef(0)
			for at := begin; at.Before(begin.Add(2 * time.Hour)); at = at.Add(time.Minute) {
				if ref, err = app.Append(ref, l, 0, at.UnixMilli(), float64(at.Unix()%7), nil, nil, storage.AOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
		id, err := w.Flush(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := tsdb.OpenBlock(nil, dir+"/"+id.String(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		size = b.Size()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return size
}

// TestRetention: the oldest blocks go, by time and by size, whichever bound is
// reached first; the newest stay and can be asked for.
func TestRetention(t *testing.T) {
	const days = 8
	for name, c := range map[string]struct {
		retention time.Duration
		blocks    float64 // that the size is for
		kept      int
		metric    string
	}{
		"neither":           {30 * 24 * time.Hour, 0, days, ""},
		"time":              {72 * time.Hour, 0, 3, "prometheus_tsdb_time_retentions_total"},
		"size":              {30 * 24 * time.Hour, 2.5, 2, "prometheus_tsdb_size_retentions_total"},
		"size before time":  {5 * 24 * time.Hour, 4.5, 4, "prometheus_tsdb_size_retentions_total"},
		"time before size":  {3 * 24 * time.Hour, 5.5, 3, "prometheus_tsdb_time_retentions_total"},
		"size beyond reach": {30 * 24 * time.Hour, 100, days, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, now := t.TempDir(), time.Now()
			size := blocks(t, dir, now, days)
			s, err := Open(Options{
				Dir: dir, Source: prometheus.ToTransactionalGatherer(prometheus.NewRegistry()), Log: promslog.NewNopLogger(),
				Retention: c.retention, RetentionBytes: int64(c.blocks * float64(size)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.db.ensure(); err != nil {
				t.Fatal(err)
			}
			defer s.db.close(errClosed)
			metas, err := s.db.BlockMetas()
			if err != nil || len(metas) != c.kept {
				t.Fatalf("%d blocks, want %d, %v", len(metas), c.kept, err)
			}
			if c.metric != "" && metric(t, s.o.Registry, c.metric) < 1 {
				t.Errorf("%s is not counted", c.metric)
			}
			web := serve(t, s)
			for day := 1; day <= days; day++ {
				got := ask(t, web, request{path: "/series", values: url.Values{"match[]": {fmt.Sprintf(`{day="%d"}`, day)}}})
				want := 0
				if day <= c.kept {
					want = 50
				}
				if _, items := decoded(t, got.text); items != want {
					t.Errorf("%d series of %d days ago, want %d", items, day, want)
				}
			}
		})
	}
}

// TestRetentionWhileItRuns: what is sampled through a day is dropped again by
// the same bounds, without a restart.
func TestRetentionWhileItRuns(t *testing.T) {
	source := newPairSource()
	s, err := Open(Options{Dir: t.TempDir(), Source: prometheus.ToTransactionalGatherer(source), Log: promslog.NewNopLogger(), Retention: 6 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.db.close(errClosed) }()
	begin := time.Now().Add(-24 * time.Hour)
	var most time.Duration // of history
	for hour := range 24 {
		fill(t, s, func(k int) (time.Time, bool) {
			source.step(k)
			return begin.Add(time.Duration(hour)*time.Hour + time.Duration(k)*time.Minute), k < 60
		})
		oldest, err := s.db.StartTime()
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, begin.Add(time.Duration(hour+1)*time.Hour).Sub(time.UnixMilli(oldest)))
	}
	// A block goes once all of it is too old, and the head is beside them: three
	// more of its two hours.
	if most < 6*time.Hour || most > 6*time.Hour+3*2*time.Hour {
		t.Errorf("up to %s were kept", most)
	}
	if n := metric(t, s.o.Registry, "prometheus_tsdb_time_retentions_total"); n < 3 {
		t.Errorf("dropped %v times", n)
	}
}
