package remote

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

// far is a remote that answers as a test wants, and keeps what it takes in the
// order of its coming.
type far struct {
	*httptest.Server
	mu       sync.Mutex
	got      []string
	requests int
	answer   func(n int, req *prompb.WriteRequest) int
}

func newFar(t *testing.T, answer func(n int, req *prompb.WriteRequest) int) *far {
	f := &far{answer: answer}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		data, err := snappy.Decode(nil, body)
		var req prompb.WriteRequest
		if err != nil || req.Unmarshal(data) != nil {
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		f.mu.Lock()
		f.requests++
		n := f.requests
		f.mu.Unlock()
		status := http.StatusNoContent
		if f.answer != nil {
			if status = f.answer(n, &req); status == 0 { // hangs until the client gives up
				<-r.Context().Done()
				return
			}
		}
		if status/100 == 2 {
			f.mu.Lock()
			for _, ts := range req.Timeseries {
				for _, s := range ts.Samples {
					f.got = append(f.got, fmt.Sprintf("%s@%d", label(ts, "i"), s.Timestamp))
				}
			}
			f.mu.Unlock()
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(f.Close)
	return f
}

func label(ts prompb.TimeSeries, name string) string {
	for _, l := range ts.Labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

func (f *far) have() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]int{}
	for _, g := range f.got {
		out[g]++
	}
	return out
}

type bench struct {
	db  *tsdb.DB
	reg *prometheus.Registry
}

func (b bench) open(t testing.TB, address string, change func(*config.RemoteWriteConfig, *Options)) *Remote {
	t.Helper()
	c := remoteConfig(address, "", 100)
	o := Options{Store: b.db, Config: []*config.RemoteWriteConfig{c}, Registry: b.reg, Log: promslog.NewNopLogger()}
	if change != nil {
		change(c, &o)
	}
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newBench(t testing.TB) bench {
	return bench{open(t, t.TempDir()), prometheus.NewRegistry()}
}

// put commits n series at one time.
func (b bench) put(t testing.TB, r *Remote, n int, at time.Time) {
	t.Helper()
	app := b.db.Appender(t.Context())
	for i := range n {
		if _, err := app.Append(0, labels.FromStrings("__name__", "storm", "i", fmt.Sprint(i)), at.UnixMilli(), float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	if r != nil {
		r.Took(n, at)
	}
}

func (b bench) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	v := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.Metric {
				v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return v
}

// times are n round times that begin where a first mark lies.
func times(n int) []time.Time {
	out := make([]time.Time, n)
	for i := range out {
		out[i] = time.UnixMilli(time.Now().UnixMilli() + int64(i)*10)
	}
	return out
}

func TestAnswers(t *testing.T) {
	for name, answer := range map[string]func(n int, req *prompb.WriteRequest) int{
		"well": nil,
		"500":  func(n int, _ *prompb.WriteRequest) int { return map[bool]int{true: 500, false: 204}[n%3 != 0] },
		"429":  func(n int, _ *prompb.WriteRequest) int { return map[bool]int{true: 429, false: 204}[n%2 == 1] },
		"hang": func(n int, _ *prompb.WriteRequest) int { return map[bool]int{true: 0, false: 204}[n%4 == 1] },
		"slow": func(int, *prompb.WriteRequest) int { time.Sleep(20 * time.Millisecond); return 204 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, f := newBench(t), newFar(t, answer)
			r := b.open(t, f.URL, func(c *config.RemoteWriteConfig, _ *Options) {
				c.QueueConfig.RetryOnRateLimit = true
				c.RemoteTimeout = 200e6
			})
			defer r.Close()
			for _, at := range times(5) {
				b.put(t, r, 250, at)
			}
			storetest.Until(t, "every sample is there", func() bool { return len(f.have()) == 5*250 })
			if n := b.metric(t, "evenkeel_remote_samples_refused_total"); n != 0 {
				t.Errorf("%v samples refused", n)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			last := map[string]string{}
			for _, g := range f.got {
				var i string
				for k := range g {
					if g[k] == '@' {
						i = g[:k]
					}
				}
				if last[i] > g {
					t.Fatalf("%s came after %s", g, last[i])
				}
				last[i] = g
			}
		})
	}
}

// A request that is refused for some of its samples costs only these.
func TestRefusedAlone(t *testing.T) {
	b := newBench(t)
	f := newFar(t, func(_ int, req *prompb.WriteRequest) int {
		for _, ts := range req.Timeseries {
			if i := label(ts, "i"); i == "7" || i == "42" {
				return http.StatusBadRequest
			}
		}
		return 204
	})
	r := b.open(t, f.URL, nil)
	defer r.Close()
	b.put(t, r, 250, times(1)[0])
	storetest.Until(t, "the rest is there", func() bool {
		return len(f.have()) == 248 && b.metric(t, "evenkeel_remote_samples_refused_total") == 2
	})
}

// A remote that refuses everything is not asked for each sample by itself.
func TestRefusedAll(t *testing.T) {
	for status, limit := range map[int]int{400: 200, 401: 1} {
		b := newBench(t)
		f := newFar(t, func(int, *prompb.WriteRequest) int { return status })
		r := b.open(t, f.URL, func(c *config.RemoteWriteConfig, _ *Options) { c.QueueConfig.MaxSamplesPerSend = 2000 })
		b.put(t, r, 2000, times(1)[0])
		storetest.Until(t, "all are counted", func() bool { return b.metric(t, "evenkeel_remote_samples_refused_total") == 2000 })
		r.Close()
		if f.requests > limit {
			t.Errorf("%d: %d requests, at most %d", status, f.requests, limit)
		}
	}
}

func TestStandby(t *testing.T) {
	b, f := newBench(t), newFar(t, nil)
	var active atomic.Bool
	at := times(6)
	r := b.open(t, f.URL, func(_ *config.RemoteWriteConfig, o *Options) {
		o.Active = active.Load
		o.After = func() time.Time { return at[2] }
	})
	defer r.Close()
	for _, x := range at {
		b.put(t, r, 10, x)
	}
	time.Sleep(700 * time.Millisecond) // longer than a settle time
	if n := f.requests; n != 0 {
		t.Fatalf("%d requests of a standby", n)
	}
	active.Store(true)
	storetest.Until(t, "the later three rounds are there", func() bool { return len(f.have()) == 30 })
	for g, n := range f.have() {
		if n != 1 || g <= fmt.Sprintf("%s@%d", g[:1], at[2].UnixMilli()) {
			t.Errorf("%s came %d times", g, n)
		}
	}
}

// What is held back, and what comes late in spite of it, is sent too.
func TestHoldAndLate(t *testing.T) {
	b, f := newBench(t), newFar(t, nil)
	r := b.open(t, f.URL, nil)
	defer r.Close()
	at := times(3)
	release := r.Hold(at[1])
	b.put(t, r, 5, at[0])
	rule := func(name string, at time.Time) {
		app := b.db.Appender(t.Context())
		if _, err := app.Append(0, labels.FromStrings("__name__", "storm", "i", name), at.UnixMilli(), 1); err != nil {
			t.Fatal(err)
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
		r.Took(1, at)
	}
	b.put(t, r, 5, at[2])
	storetest.Until(t, "the first round", func() bool { return len(f.have()) == 5 })
	time.Sleep(700 * time.Millisecond)
	if n := len(f.have()); n != 5 {
		t.Fatalf("%d samples in spite of the hold", n)
	}
	rule("held", at[1])
	release()
	storetest.Until(t, "all", func() bool { return len(f.have()) == 11 })
	if n := b.metric(t, "evenkeel_remote_late_total"); n != 0 {
		t.Errorf("%v late", n)
	}
	rule("late", at[1].Add(time.Millisecond))
	storetest.Until(t, "the late one", func() bool { return len(f.have()) == 12 })
	if n := b.metric(t, "evenkeel_remote_late_total"); n != 1 {
		t.Errorf("%v late", n)
	}
}

func TestMark(t *testing.T) {
	f := newMarkFile(t.TempDir(), "a", "http://x/")
	if _, err := f.read(); !isNew(err) {
		t.Fatal(err)
	}
	want := mark{Acked: 5, Oldest: 1}
	if err := f.write(want); err != nil {
		t.Fatal(err)
	}
	if got, err := f.read(); err != nil || got != want {
		t.Fatal(got, err)
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		bad := append([]byte(nil), data...)
		bad[i] ^= 1
		if err := os.WriteFile(f.path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read(); err == nil {
			t.Errorf("byte %d changed, and the mark is %v", i, got)
		}
		if err := os.WriteFile(f.path, data[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read(); err == nil {
			t.Errorf("cut at %d, and the mark is %v", i, got)
		}
	}
}

// What was committed while no sender ran, and while the remote was away, is sent
// by the next; with a damaged mark all is.
func TestGap(t *testing.T) {
	b, f := newBench(t), newFar(t, nil)
	b.put(t, nil, 3, time.Now().Add(-time.Minute)) // before the remote was named
	b.open(t, f.URL, nil).Close()
	at := times(40)
	for _, x := range at {
		b.put(t, nil, 20, x)
	}
	r := b.open(t, f.URL, nil)
	storetest.Until(t, "the gap", func() bool { return len(f.have()) == 800 })
	for g, n := range f.have() {
		if n != 1 {
			t.Errorf("%s came %d times", g, n)
		}
	}
	path := r.senders[0].file.path
	r.Close()
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = b.open(t, f.URL, nil)
	defer r.Close()
	storetest.Until(t, "all", func() bool { return len(f.have()) == 803 })
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{34_000, 500_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bn := newBench(b)
			start := time.Now().Add(-30 * time.Minute)
			for i := range 100 {
				bn.put(b, nil, n, start.Add(time.Duration(i)*15*time.Second))
			}
			last := start.Add(99 * 15 * time.Second).UnixMilli()
			s := &sender{of: &Remote{opts: Options{Store: bn.db}}, conf: remoteConfig("http://127.0.0.1:1/", "", 2000)}
			b.ReportAllocs()
			for b.Loop() {
				rounds, err := s.read(b.Context(), last, last)
				if err != nil || len(rounds) != 1 || len(rounds[0].samples) != n {
					b.Fatal(err, len(rounds))
				}
				for at := 0; at < n; at += 2000 {
					if _, err := encode(false, last, rounds[0].samples[at:min(at+2000, n)]); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sample")
		})
	}
}
