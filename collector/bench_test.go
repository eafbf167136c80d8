package collector

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// cpuTime is the time this process has used of all cores: unlike the clock it
// does not count what other processes took.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fullSender has a value for every series of the GPU message.
func fullSender(name string) *sender {
	s := newSender(name, 8)
	for _, g := range s.gpus {
		for i := range telemetry.Catalog {
			row := &telemetry.Catalog[i]
			if row.Per != telemetry.PerGPU || row.Wire.Kind == telemetry.NoWire {
				continue
			}
			for _, x := range row.Series {
				if _, ok := g.Value(x.ID); !ok {
					g.SetValue(x.ID, min(row.Max, 1))
				}
			}
		}
	}
	return s
}

// bigWorld has nodes with 8 GPUs that were heard twice.
func bigWorld(t testing.TB, nodes int) *world {
	w := newWorld(t, nil)
	for i := range nodes {
		s := fullSender(fmt.Sprintf("n%05d", i))
		w.tick(t0, s)
		w.tick(t0.Add(2*time.Second), s)
	}
	return w
}

// BenchmarkIngest takes, judges, folds and publishes the frames of 1,000 nodes
// with 8 GPUs; an operation is a frame. Values of every series, as with a slow
// part in each frame, are the worst case.
func BenchmarkIngest(b *testing.B) {
	const nodes = 1000
	for _, slow := range []bool{false, true} {
		b.Run(fmt.Sprintf("slow=%v", slow), func(b *testing.B) {
			w := newWorld(b, func(o *Options) { o.Workers = 1 })
			type tx struct {
				subject string
				body    []byte
				start   time.Time
			}
			var all []tx
			for i := range nodes {
				s := fullSender(fmt.Sprintf("n%05d", i))
				w.tick(t0, s)
				if !slow {
					for _, g := range s.gpus {
						for id := range telemetry.ID(200) {
							if row := telemetry.RowOf(id); row != nil && row.Rate == telemetry.Slow {
								g.ClearValue(id)
							}
						}
						g.ClearDescription()
					}
				}
				body := encode(b, s.frame(t0))
				all = append(all, tx{frameSubject(s.name), append(make([]byte, 0, len(body)+64), body...), s.start})
			}
			w.bus.observed = map[string][][]byte{}
			x := w.workers[0]
			cpu := cpuTime()
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				t := all[n%nodes]
				seq := 2 + n/nodes
				at := t0.Add(time.Duration(seq) * time.Second)
				n++
				data := t.body
				data = protowire.AppendVarint(protowire.AppendTag(data, 6, protowire.VarintType), uint64(seq))
				data = protowire.AppendVarint(protowire.AppendTag(data, 7, protowire.VarintType), uint64(at.UnixNano()))
				data = protowire.AppendVarint(protowire.AppendTag(data, 9, protowire.VarintType), uint64(at.Sub(t.start)))
				w.clock.set(at)
				x.take(arrival{t.subject, data, at})
				if n%nodes == 0 {
					clear(w.bus.observed)
				}
			}
			spent := cpuTime() - cpu
			for _, why := range telemetry.DropReasons {
				if d := w.dropped(why); d > 1 {
					b.Fatalf("%d frames dropped: %s", d, why)
				}
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(n), "cpu-ns/op")
			b.ReportMetric(float64(n)/spent.Seconds(), "frames/s/core")
			b.ReportMetric(float64(len(all[0].body)), "frame-bytes")
		})
	}
}

// BenchmarkScrape serves 8,000 GPUs as their exporters speak. Prometheus asks for
// gzip.
func BenchmarkScrape(b *testing.B) {
	const nodes = 1000
	w := newWorld(b, nil)
	w.bus.deaf = true
	x := newRhythmic(b, nodes)
	for x.n < 16*nodes {
		a := x.next()
		w.clock.set(a.at)
		w.bus.send(a.subject, a.data)
		w.settle()
	}
	h := w.Handler()
	series := 0
	families, done, err := w.families.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		series += len(f.Metric)
	}
	done()
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			cpu := cpuTime()
			body := discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				req.Header.Set("Accept-Encoding", encoding)
				body.bytes = 0
				h.ServeHTTP(&body, req)
			}
			b.ReportMetric((cpuTime()-cpu).Seconds()*1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(series)/8000, "series/GPU")
			b.ReportMetric(float64(body.bytes)/float64(series), "bytes/series")
		})
	}
}

// discard is a ResponseWriter that only counts.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { d.bytes += len(p); return len(p), nil }
func (d *discard) WriteHeader(int)             {}
