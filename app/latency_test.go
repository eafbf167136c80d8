package app

import (
	"sync"
	"testing"
	"time"
)

// hotTicks bounds the wait for the acts: one on a GPU is not repeated before its
// effect could show, 15 s at the least.
const hotTicks = filterTicks + 10

// heat lets every node speak once a second, comfortable first and then hot
// where the shape says so, until all acts are done.
func (l *line) heat() map[string]completing {
	l.Helper()
	var (
		mu   sync.Mutex
		out  = map[string]completing{}
		wg   sync.WaitGroup
		base = time.Now().Truncate(time.Second).Add(time.Second)
	)
	for i, n := range l.nodes {
		offset := time.Second * time.Duration(i) / time.Duration(len(l.nodes))
		if l.shape.burst {
			offset = 0
		}
		wg.Go(func() {
			for tick := range comfortable + hotTicks {
				if tick >= comfortable+filterTicks && l.seen.done(l.shape.acts()) {
					return
				}
				time.Sleep(time.Until(base.Add(time.Duration(tick)*time.Second + offset)))
				data, err := n.frame(time.Now(), i < l.shape.hot && tick >= comfortable)
				if err != nil {
					l.Errorf("frame of %s: %v", n.name, err)
					return
				}
				sent := time.Now()
				if err := n.conn.PublishFrame(n.name, data); err != nil {
					l.Errorf("frame of %s: %v", n.name, err)
					return
				}
				if tick == comfortable+filterTicks-1 {
					mu.Lock()
					out[n.name] = completing{n.seq, sent}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return out
}

// stages reads the sightings, and fails on what should not have been seen:
// every GPU that got hot has one act with one receipt, in order, not before
// the frame that completes the filter.
func (l *line) stages(frames map[string]completing) []stages {
	l.Helper()
	s := l.seen
	s.mu.Lock()
	for _, text := range s.disorder {
		l.Error(text)
	}
	if len(s.receipts) != l.shape.acts() || len(s.intents) != l.shape.acts() {
		l.Errorf("%d GPUs have receipts and %d intents, want %d", len(s.receipts), len(s.intents), l.shape.acts())
	}
	s.mu.Unlock()
	var out []stages
	for _, n := range l.nodes[:l.shape.hot] {
		for _, uuid := range n.devices.uuids {
			got, err := s.of(n.name, uuid, frames[n.name])
			if err != nil {
				l.Error(err)
				continue
			}
			out = append(out, got)
		}
	}
	return out
}

// TestLatencyLine checks counts and order on a small line: one act and one
// receipt per hot GPU, none elsewhere, intent first.
func TestLatencyLine(t *testing.T) {
	l := startLine(t, lineShape{nodes: 3, gpus: 2, hot: 2})
	got := l.stages(l.heat())
	if len(got) != l.shape.acts() {
		t.Errorf("%d acts, want %d", len(got), l.shape.acts())
	}
	for i, n := range l.nodes {
		want := 0
		if i < l.shape.hot {
			want = l.shape.gpus
		}
		if n.devices.capped() != want {
			t.Errorf("%s: %d GPUs are capped, want %d", n.name, n.devices.capped(), want)
		}
	}
	for _, g := range got {
		if g.total <= 0 || g.observation <= 0 {
			t.Errorf("a stage that takes no time was not seen: %+v", g)
		}
	}
}

// BenchmarkLatency10Nodes is the way from a frame to a receipt, 10 nodes with 8
// GPUs, all of which get hot. An operation is a fresh line and one such wave.
func BenchmarkLatency10Nodes(b *testing.B) {
	b.Run("spread", func(b *testing.B) { benchmarkLatency(b, lineShape{nodes: 10, gpus: 8, hot: 10}) })
	b.Run("burst", func(b *testing.B) { benchmarkLatency(b, lineShape{nodes: 10, gpus: 8, hot: 10, burst: true}) })
}

func benchmarkLatency(b *testing.B, shape lineShape) {
	var all []stages
	for b.Loop() {
		l := startLine(b, shape)
		all = append(all, l.stages(l.heat())...)
		l.end()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(all)), "acts")
	total := spread(all, func(s stages) time.Duration { return s.total })
	b.ReportMetric(ms(total[0]), "p50-ms")
	b.ReportMetric(ms(total[1]), "p99-ms")
	b.ReportMetric(ms(total[2]), "max-ms")
	b.Log(table(all))
}
