package collector

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// kept is a sink that keeps frames as they were sent.
type kept struct {
	mu     sync.Mutex
	frames [][]byte
}

func (k *kept) Frame(data []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.frames = append(k.frames, append([]byte(nil), data...))
	return nil
}

// framesOf runs the exporter of a node with two GPUs over a simulated world; one
// is lost after a while.
func framesOf(t testing.TB, model string) [][]byte {
	return record(t, model, 2, func(world *sim.World) {
		time.Sleep(2500 * time.Millisecond) // until it listens
		if err := world.SetFault("n", 1, sim.FaultLost, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	})
}

// record returns the frames that a node's exporter sends meanwhile.
func record(t testing.TB, model string, gpus int, meanwhile func(*sim.World)) [][]byte {
	t.Helper()
	s, err := sim.ParseScenario(fmt.Appendf(nil, "name: one\nrows: [{name: a, inlet_celsius: 25}]\nnodes: [{name: n, row: a, model: %s, gpus: %d}]\n", model, gpus))
	if err != nil {
		t.Fatal(err)
	}
	world, err := sim.New(s, 0)
	if err != nil {
		t.Fatal(err)
	}
	source, err := world.Source("n")
	if err != nil {
		t.Fatal(err)
	}
	sink := &kept{}
	e, err := exporter.New(exporter.Options{Node: "n", Source: source, Sink: sink, Period: exporter.MinPeriod})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	meanwhile(world)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return sink.frames
}

// Whatever a node reads leaves the collector under the same name, single links
// only where they are asked for.
func TestWhatANodeReadsIsExposed(t *testing.T) {
	for _, model := range []string{"H100-SXM5-80GB", "B200-SXM6-180GB"} {
		frames := framesOf(t, model)
		for _, perLink := range []bool{false, true} {
			w := newWorld(t, func(o *Options) { o.PerLink = perLink })
			var at time.Time
			var read telemetry.Frame
			told := map[telemetry.ID]bool{}
			for _, data := range frames {
				if err := telemetry.DecodeFrame(data, &read); err != nil {
					t.Fatal(err)
				}
				g := read.GetGpus()[:min(1, len(read.GetGpus()))]
				for _, row := range telemetry.Catalog {
					for _, s := range row.Series {
						if len(g) == 0 {
							continue
						}
						_, scalar := g[0].Value(s.ID)
						_, link := g[0].LinkValue(s.ID, 17)
						if scalar || link && perLink {
							told[s.ID] = true
						}
					}
				}
				for _, x := range read.GetSamples() {
					told[telemetry.ID(x.GetId())] = true
				}
				at = time.Unix(0, read.GetSampleTimeUnixNano())
				w.clock.set(at)
				w.bus.send(frameSubject("n"), data)
			}
			w.settle()
			w.clock.set(at.Add(100 * time.Millisecond))
			code, body := w.get("/metrics")
			if code != 200 {
				t.Fatalf("status %d", code)
			}
			n := 0
			for id := range told {
				row := telemetry.RowOf(id)
				if n++; !strings.Contains(body, "\n"+row.Name+"{") {
					t.Errorf("%s, per link %v: no %s", model, perLink, row.Name)
				}
			}
			if n < 50 {
				t.Errorf("%s: only %d series were told", model, n)
			}
			for _, name := range []string{"gpu_nvlink_bytes_total{", "gpu_nvlink_up{"} {
				if strings.Contains(body, name) != perLink {
					t.Errorf("%s, per link %v: %s", model, perLink, name)
				}
			}
			for _, s := range []string{`gpu_xid_errors_total{action="RESTART_BM",`, `gpu_reader_failing{fault="lost",`} {
				if !strings.Contains(body, s) {
					t.Errorf("%s: no %s", model, s)
				}
			}
		}
	}
}
