package store

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	promremote "github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

const writtenSeries = "g|u:g:sum|ALERTS|ALERTS_FOR_STATE"

// TestWritesToARemote: a store as it runs writes what it samples and what its
// rules record to Debian's Prometheus, over restarts of its own, while a standby
// beside it, which has the like, writes nothing.
func TestWritesToARemote(t *testing.T) {
	t.Parallel()
	addr, dir := storetest.FreeAddr(t), t.TempDir()
	conf := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(conf, []byte("global: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.Start(t, storetest.Find(t, "prometheus"), "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr, "--web.enable-remote-write-receiver").Ready("http://" + addr + "/-/ready")
	document := fmt.Sprintf(`
global: {external_labels: {cluster: c1}}
remote_write:
- url: http://%s/api/v1/write
  queue_config: {batch_send_deadline: 1s}
  write_relabel_configs: [{source_labels: [uuid], regex: b, action: drop}]
`, addr)

	run := func(folder string, active bool, v float64) (end func()) {
		s, err := Open(Options{
			Dir: folder, Interval: time.Second, Prometheus: []byte(document),
			Source:   &source{[]*dto.MetricFamily{gauge("g", metricOf(v, "uuid", "a"), metricOf(2*v, "uuid", "b"))}},
			Rules:    fstest.MapFS{"r.yaml": {Data: []byte(`groups: [{name: g, interval: 1s, rules: [{record: "u:g:sum", expr: sum(g)}, {alert: A, expr: g > 0}]}]`)}},
			Active:   func() bool { return active },
			Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		end = sync.OnceFunc(func() { cancel(); running.Wait() })
		t.Cleanup(end)
		return end
	}
	first := filepath.Join(dir, "first")
	standby := run(filepath.Join(dir, "standby"), false, 100)
	for life := 1.0; life <= 3; life++ { // each also sends what the one before it had not
		end := run(first, true, life)
		storetest.Until(t, fmt.Sprintf("the remote has what the rules of life %g recorded", life), func() bool {
			n := 0
			for s, v := range read(t, addr) {
				if s.name == "u:g:sum" && v == math.Float64bits(3*life) {
					n++
				}
			}
			return n >= 3
		})
		end()
	}
	standby()

	there, newest := read(t, addr), int64(0)
	for s := range there {
		newest = max(newest, s.at)
	}
	q, err := newRig(t, Options{Dir: first}).db.Querier(0, newest)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	here := samplesOf(t, q.Select(t.Context(), false, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", writtenSeries)))
	want := map[point]uint64{}
	for s, v := range here {
		if s.uuid != "b" && s.at < newest { // of the last moment not all may be sent
			s.cluster = "c1"
			want[s] = v
		}
	}
	if len(want) < 20 {
		t.Fatalf("only %d samples to compare", len(want))
	}
	for s, v := range want {
		if got, ok := there[s]; !ok || got != v {
			t.Errorf("%+v is %g here and %g there (%v)", s, math.Float64frombits(v), math.Float64frombits(got), ok)
		}
	}
	for s := range there {
		if _, ok := want[s]; !ok && s.at < newest {
			t.Errorf("%+v is there and not here: dropped by relabelling, or a standby's", s)
		}
	}
}

// point is one sample of the series above.
type point struct {
	name, uuid, cluster, state string
	at                         int64
}

func samplesOf(t *testing.T, set storage.SeriesSet) map[point]uint64 {
	t.Helper()
	out := map[point]uint64{}
	for set.Next() {
		l := set.At().Labels()
		it := set.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			out[point{l.Get("__name__"), l.Get("uuid"), l.Get("cluster"), l.Get("alertstate"), at}] = math.Float64bits(v)
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return out
}

// read is what a Prometheus has, markers and all.
func read(t *testing.T, addr string) map[point]uint64 {
	t.Helper()
	c, err := promremote.NewReadClient("test", &promremote.ClientConfig{
		URL: &commonconfig.URL{URL: &url.URL{Scheme: "http", Host: addr, Path: "/api/v1/read"}}, Timeout: model.Duration(time.Minute), ChunkedReadLimit: 1 << 26,
	})
	if err != nil {
		t.Fatal(err)
	}
	set, err := c.Read(t.Context(), &prompb.Query{
		EndTimestampMs: time.Now().Add(time.Hour).UnixMilli(),
		Matchers:       []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: writtenSeries}},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	return samplesOf(t, set)
}
