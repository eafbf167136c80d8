package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/evenkeel-gpu/evenkeel/alerts"
)

// source is what a sampler reads: the families it is given.
type source struct{ families []*dto.MetricFamily }

// Gather implements prometheus.TransactionalGatherer.
func (s *source) Gather() ([]*dto.MetricFamily, func(), error) { return s.families, func() {}, nil }

// gauge is a family of gauges: label pairs and value, for each.
func gauge(name string, metrics ...*dto.Metric) *dto.MetricFamily {
	return &dto.MetricFamily{Name: new(name), Help: new("help of " + name), Type: dto.MetricType_GAUGE.Enum(), Metric: metrics}
}

func metricOf(v float64, pairs ...string) *dto.Metric {
	m := &dto.Metric{Gauge: &dto.Gauge{Value: new(v)}}
	for i := 0; i < len(pairs); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: new(pairs[i]), Value: new(pairs[i+1])})
	}
	return m
}

// rig is a store that is sampled by hand.
type rig struct {
	*Store
	t   testing.TB
	src *source
}

func newRig(t testing.TB, o Options, families ...*dto.MetricFamily) *rig {
	t.Helper()
	r := &rig{t: t, src: &source{families}}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Source == nil {
		o.Source = r.src
	}
	o.Log = slog.New(slog.DiscardHandler)
	o.Registry = prometheus.NewRegistry()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.ensure(); err != nil && !errors.Is(err, errFull) {
		t.Fatal(err)
	}
	r.Store = s
	t.Cleanup(func() { s.db.close(errClosed) })
	return r
}

// refused is how many samples were not kept, by why.
func (r *rig) refused(why string) int {
	return int(testutil.ToFloat64(r.metrics.refused.WithLabelValues(why)))
}

// samples are all of the store's, a line each; a marker is "end".
func (r *rig) samples(matchers ...*labels.Matcher) []string {
	r.t.Helper()
	return samplesIn(r.t, r.db, matchers...)
}

func samplesIn(t testing.TB, from storage.Queryable, matchers ...*labels.Matcher) []string {
	t.Helper()
	if len(matchers) == 0 {
		matchers = []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotEqual, "__name__", "")}
	}
	q, err := from.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	var out []string
	set := q.Select(context.Background(), true, nil, matchers...)
	var it chunkenc.Iterator
	for set.Next() {
		it = set.At().Iterator(it)
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			if value.IsStaleNaN(v) {
				out = append(out, fmt.Sprintf("%s %d end", set.At().Labels(), at))
			} else {
				out = append(out, fmt.Sprintf("%s %d %v", set.At().Labels(), at, v))
			}
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

func at(s int64) time.Time { return time.Unix(s, 0) }

func wantSamples(t testing.TB, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("samples (-want +got):\n%s", d)
	}
}

// TestSampleOfEachType: series are named as a scrape of the same families
// names them.
func TestSampleOfEachType(t *testing.T) {
	t.Parallel()
	of := func(kind dto.MetricType, name string, m *dto.Metric) *dto.MetricFamily {
		return &dto.MetricFamily{Name: new(name), Type: kind.Enum(), Metric: []*dto.Metric{m}}
	}
	r := newRig(t, Options{},
		of(dto.MetricType_COUNTER, "c_total", &dto.Metric{Counter: &dto.Counter{Value: new(3.0)}}),
		gauge("g", metricOf(-1, "empty", "", "z", "2", "a", "1")),
		of(dto.MetricType_HISTOGRAM, "h", &dto.Metric{Histogram: &dto.Histogram{
			SampleCount: new(uint64(9)), SampleSum: new(4.5),
			Bucket: []*dto.Bucket{{UpperBound: new(0.25), CumulativeCount: new(uint64(2))}, {UpperBound: new(1.0), CumulativeCount: new(uint64(5))}, {UpperBound: new(1e9), CumulativeCount: new(uint64(9))}},
		}}),
		of(dto.MetricType_SUMMARY, "s", &dto.Metric{Summary: &dto.Summary{
			SampleCount: new(uint64(2)), SampleSum: new(7.0), Quantile: []*dto.Quantile{{Quantile: new(0.5), Value: new(3.0)}, {Quantile: new(1.0), Value: new(math.NaN())}},
		}}),
		of(dto.MetricType_UNTYPED, "u", &dto.Metric{Untyped: &dto.Untyped{Value: new(8.0)}}),
	)
	r.round(t.Context(), at(1))
	wantSamples(t, r.samples(),
		`{__name__="c_total"} 1000 3`,
		`{__name__="g", a="1", z="2"} 1000 -1`,
		`{__name__="h_bucket", le="+Inf"} 1000 9`,
		`{__name__="h_bucket", le="0.25"} 1000 2`,
		`{__name__="h_bucket", le="1.0"} 1000 5`,
		`{__name__="h_bucket", le="1e+09"} 1000 9`,
		`{__name__="h_count"} 1000 9`,
		`{__name__="h_sum"} 1000 4.5`,
		`{__name__="s", quantile="0.5"} 1000 3`,
		`{__name__="s", quantile="1.0"} 1000 NaN`,
		`{__name__="s_count"} 1000 2`,
		`{__name__="s_sum"} 1000 7`,
		`{__name__="u"} 1000 8`,
	)
	if m, ok := r.sampler.meta.GetMetadata("g"); !ok || m.Help != "help of g" || m.Type != "gauge" {
		t.Errorf("metadata of g: %+v", m)
	}
}

// TestSeriesEndsAndComesBack: what is gone ends at the next sample, once, and
// goes on when it is back, whether its metric is the same or a new one.
func TestSeriesEndsAndComesBack(t *testing.T) {
	t.Parallel()
	a, b := metricOf(1, "uuid", "a"), metricOf(2, "uuid", "b")
	f := gauge("g", a, b)
	r := newRig(t, Options{}, f)
	for i, metrics := range [][]*dto.Metric{{a, b}, {b}, {b}, {metricOf(3, "uuid", "a"), b}, {metricOf(4, "uuid", "a"), b}, {}} {
		f.Metric = metrics
		r.round(t.Context(), at(int64(i+1)))
	}
	wantSamples(t, r.samples(),
		`{__name__="g", uuid="a"} 1000 1`, `{__name__="g", uuid="a"} 2000 end`,
		`{__name__="g", uuid="a"} 4000 3`, `{__name__="g", uuid="a"} 5000 4`, `{__name__="g", uuid="a"} 6000 end`,
		`{__name__="g", uuid="b"} 1000 2`, `{__name__="g", uuid="b"} 2000 2`, `{__name__="g", uuid="b"} 3000 2`,
		`{__name__="g", uuid="b"} 4000 2`, `{__name__="g", uuid="b"} 5000 2`, `{__name__="g", uuid="b"} 6000 end`,
	)
	if n := len(r.sampler.series) + len(r.sampler.by); n != 0 {
		t.Errorf("%d series and metrics are still remembered", n)
	}
}

// TestOneSeriesTwice: the first counts, and the second is told of.
func TestOneSeriesTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{}, gauge("g", metricOf(1, "uuid", "a"), metricOf(2, "uuid", "a")))
	r.round(t.Context(), at(1))
	wantSamples(t, r.samples(), `{__name__="g", uuid="a"} 1000 1`)
	if n := r.refused(refusedTwice); n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
}

// TestClockGoesBack: what is older than the last is refused and counted, and the
// rest goes on when the clock has caught up.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	m := metricOf(1)
	r := newRig(t, Options{}, gauge("g", m))
	for i, s := range []int64{10, 4, 5, 11} {
		m.Gauge.Value = new(float64(i))
		r.round(t.Context(), at(s))
	}
	wantSamples(t, r.samples(), `{__name__="g"} 10000 0`, `{__name__="g"} 11000 3`)
	if n := r.refused(refusedOrder); n != 2 {
		t.Errorf("%d refused, want 2", n)
	}
}

// TestSeriesAreBounded: beyond the bound new series are refused and counted;
// the others are kept, and room is made when some end.
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	f := gauge("g")
	r := newRig(t, Options{}, f)
	r.sampler.most = 3
	for i := range 10 {
		f.Metric = append(f.Metric, metricOf(float64(i), "n", fmt.Sprint(i)))
	}
	r.round(t.Context(), at(1))
	if got := r.samples(); len(got) != 3 {
		t.Errorf("kept %v, want 3", got)
	}
	if n := r.refused(refusedMany); n != 7 {
		t.Errorf("%d refused, want 7", n)
	}
	f.Metric = f.Metric[2:]
	r.round(t.Context(), at(2)) // two end
	r.round(t.Context(), at(3)) // two more have room
	if n := len(r.sampler.series); n != 3 {
		t.Errorf("%d series, want 3", n)
	}
	if got := strings.Join(r.samples(), "\n"); !strings.Contains(got, `n="3"} 3000 3`) || !strings.Contains(got, `n="4"} 3000 4`) {
		t.Errorf("no room was made:\n%s", got)
	}
}

// TestEndOfALostRound: a series that ended while nothing could be written ends
// in the next round that can.
func TestEndOfALostRound(t *testing.T) {
	t.Parallel()
	a, b := metricOf(1, "uuid", "a"), metricOf(2, "uuid", "b")
	f := gauge("g", a, b)
	r := newRig(t, Options{}, f)
	r.round(t.Context(), at(1))
	r.db.folder.reserve = math.MaxUint64 // as if others had filled the disk
	f.Metric = []*dto.Metric{a}
	r.round(t.Context(), at(2))
	if n, up := r.refused(refusedUnwritten), testutil.ToFloat64(r.metrics.up); n != 2 || up != 0 {
		t.Errorf("%d unwritten, up %v; want 2 and 0", n, up)
	}
	r.db.folder.reserve = 0
	r.round(t.Context(), at(3))
	wantSamples(t, r.samples(),
		`{__name__="g", uuid="a"} 1000 1`, `{__name__="g", uuid="a"} 3000 1`,
		`{__name__="g", uuid="b"} 1000 2`, `{__name__="g", uuid="b"} 3000 end`)
	if up := testutil.ToFloat64(r.metrics.up); up != 1 {
		t.Errorf("up is %v after room was made", up)
	}
}

// TestOpenedAnew: after a write failed the database is opened again, and the
// samples go on in their own series.
func TestOpenedAnew(t *testing.T) {
	t.Parallel()
	f := gauge("g", metricOf(0, "uuid", "a"), metricOf(1, "uuid", "b"))
	r := newRig(t, Options{}, f)
	r.round(t.Context(), at(1))
	r.db.tear(errors.New("as if a write had failed"))
	f.Metric = []*dto.Metric{metricOf(5, "uuid", "c"), metricOf(1, "uuid", "b")} // other refs than before
	r.round(t.Context(), at(2))
	wantSamples(t, r.samples(),
		`{__name__="g", uuid="a"} 1000 0`, `{__name__="g", uuid="a"} 2000 end`,
		`{__name__="g", uuid="b"} 1000 1`, `{__name__="g", uuid="b"} 2000 1`,
		`{__name__="g", uuid="c"} 2000 5`)
	if n := r.db.openings(); n != 2 {
		t.Errorf("opened %d times, want 2", n)
	}
	// Its metrics are registered once, so that they can be gathered.
	if _, err := r.o.Registry.Gather(); err != nil {
		t.Error(err)
	}
}

// TestSteadySampleIsCheap: a fleet whose metrics stay costs no allocation a
// series and round beyond the storage's own.
func TestSteadySampleIsCheap(t *testing.T) {
	const series = 5000
	f := gauge("g")
	for i := range series {
		f.Metric = append(f.Metric, metricOf(float64(i), "uuid", fmt.Sprint(i)))
	}
	r := newRig(t, Options{}, f)
	now := int64(1)
	round := func() { now += 15; r.round(t.Context(), at(now)) }
	round()
	if n := testing.AllocsPerRun(20, round); n > series/20 {
		t.Errorf("%v allocations a round of %d series", n, series)
	}
}

func TestChoice(t *testing.T) {
	t.Parallel()
	const raw, judged, read, node, own, foreign = "gpu_pcie_replays_total", "gpu_health", "gpu_temperature_celsius", "evenkeel_node_up", "evenkeel_frames_dropped_total", "go_goroutines"
	if rowOf(raw) == nil || rowOf(judged) == nil || rowOf(read) == nil || rowOf(node) == nil || rowOf(own) == nil {
		t.Fatal("the catalogue has other names")
	}
	kept := func(c *choice) []string {
		var out []string
		for _, name := range []string{raw, judged, read, node, own, foreign} {
			if c.keeps(name) {
				out = append(out, name)
			}
		}
		return out
	}
	everything, some := []string{raw, judged, read, node, own, foreign}, []string{judged, read, node, own, foreign}
	gpus := 0
	auto := newChoice(Options{Series: Auto, GPUs: func() int { return gpus }, Log: slog.New(slog.DiscardHandler)}, []string{read})
	for _, step := range []struct {
		gpus int
		want []string
	}{{10, everything}, {AllGPUs, everything}, {AllGPUs + 1, some}, {AllGPUs - 1, some}, {AllGPUs * 4 / 5, everything}, {100 * AllGPUs, some}} {
		gpus = step.gpus
		auto.look()
		if got := kept(auto); !slices.Equal(got, step.want) {
			t.Errorf("auto, %d GPUs: keeps %v, want %v", gpus, got, step.want)
		}
	}
	for series, want := range map[Series][]string{All: everything, Judged: some} {
		c := newChoice(Options{Series: series, GPUs: func() int { return 3 }, Log: slog.New(slog.DiscardHandler)}, []string{read})
		c.look()
		if got := kept(c); !slices.Equal(got, want) {
			t.Errorf("%s: keeps %v, want %v", series, got, want)
		}
	}
}

// TestRulesAreFedByTheJudged: whatever our rules select is kept, also where only
// judged series are.
func TestRulesAreFedByTheJudged(t *testing.T) {
	t.Parallel()
	set, err := loadRules(alerts.Files(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c := newChoice(Options{Series: Judged}, set.reads())
	reads := slices.Collect(maps.Keys(c.read))
	if len(reads) < 20 {
		t.Fatalf("the rules read %v only", reads)
	}
	for _, name := range reads {
		if !c.keeps(name) {
			t.Errorf("%s is read by a rule and not kept", name)
		}
	}
}
