//go:build cgo && linux

package nvml

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// cost is what the exporter takes of a node.
type cost struct {
	Ticks    int
	CPU      time.Duration
	Wall     time.Duration
	Calls    uint64
	Bytes    int
	Resident float64 // MiB
}

type tally struct {
	ticks, bytes, left int
	start, end         func()
}

func (s *tally) Frame(data []byte) error {
	if s.ticks == 0 {
		s.start()
	} else {
		s.bytes += len(data)
	}
	if s.ticks++; s.ticks > s.left {
		s.end()
	}
	return nil
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// helpCost runs the exporter for some ticks and says what they took, the start
// left out.
func helpCost(out *json.Encoder) error {
	period, err := time.ParseDuration(os.Getenv("EVENKEEL_TEST_PERIOD"))
	if err != nil {
		return err
	}
	src := New()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var c cost
	var used time.Duration
	var calls uint64
	var from time.Time
	sink := &tally{
		left:  int(20 * time.Second / period),
		start: func() { used, calls, from = cpu(), src.Calls(), time.Now() },
	}
	sink.end = func() {
		c.CPU, c.Calls, c.Wall = cpu()-used, src.Calls()-calls, time.Since(from)
		c.Ticks, c.Bytes = sink.ticks-1, sink.bytes
		cancel()
	}
	e, err := exporter.New(exporter.Options{Node: "n", Source: src, Sink: sink, Period: period})
	if err != nil {
		return err
	}
	if err := e.Run(ctx); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		if _, err := fmt.Sscan(rest, &c.Resident); err != nil {
			return err
		}
		c.Resident /= 1024
	}
	return out.Encode(c)
}

// BenchmarkCost runs the exporter against the stand-in with eight GPUs for
// twenty seconds at each rate.
func BenchmarkCost(b *testing.B) {
	for _, period := range []string{"1s", "100ms"} {
		b.Run(period, func(b *testing.B) {
			for range b.N {
				c := help[cost](b, "cost", standin(b), "", "EVENKEEL_TEST_PERIOD="+period)[0]
				b.ReportMetric(100*c.CPU.Seconds()/c.Wall.Seconds(), "%core")
				b.ReportMetric(float64(c.CPU.Microseconds())/float64(c.Ticks), "us-cpu/tick")
				b.ReportMetric(float64(c.Calls)/float64(c.Ticks*8), "calls/GPU/tick")
				b.ReportMetric(float64(c.Bytes)/float64(c.Ticks), "bytes/frame")
				b.ReportMetric(c.Resident, "MiB")
			}
		})
	}
}
