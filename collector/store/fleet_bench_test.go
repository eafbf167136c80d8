package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/rules"

	"github.com/evenkeel-gpu/evenkeel/alerts"
	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

// copies is a fleet of as many nodes of 8 GPUs as wanted, each with the series
// that a collector serves of a cool simulated GPU, as many as a figure is for;
// those that rules read stay. Metrics are the same pointers
// each time, as a collector's are.
type copies struct {
	families []*dto.MetricFamily
	moving   []*dto.Gauge
	rising   []*dto.Counter
	around   []float64
	random   *rand.Rand
}

// Gather implements prometheus.TransactionalGatherer.
func (c *copies) Gather() ([]*dto.MetricFamily, func(), error) { return c.families, func() {}, nil }

// move moves what moves on a real device.
func (c *copies) move() {
	for i, g := range c.moving {
		v := c.around[i] * (1 + 0.02*c.random.NormFloat64())
		g.Value = &v
	}
	for _, k := range c.rising {
		v := k.GetValue() + 5000 + 100*c.random.Float64()
		k.Value = &v
	}
}

var moves = []string{"_celsius", "_watts", "_hertz", "_ratio", "_bytes", "_bytes_per_second"}

func newCopies(b *testing.B, nodes, perGPU int, c *choice) *copies {
	b.Helper()
	real, _ := fleetAt(b, 20)
	storetest.Until(b, "the fleet is known", real.Ready)
	time.Sleep(20 * time.Second) // what is read each 15 s
	families, done, err := real.Gatherer().Gather()
	if err != nil {
		b.Fatal(err)
	}
	defer done()
	out := &copies{random: rand.New(rand.NewPCG(1, 1))}
	for _, f := range families {
		if !c.keeps(f.GetName()) {
			continue
		}
		name, help, kind := f.GetName(), f.GetHelp(), f.GetType()
		to := &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
		var gpus, nodeOnes []*dto.Metric
		first := ""
		for _, m := range f.Metric {
			switch uuid := label(m, "uuid"); {
			case uuid != "" && (first == "" || first == uuid):
				first = uuid
				gpus = append(gpus, m)
			case uuid != "":
			case label(m, "node") == "n1":
				nodeOnes = append(nodeOnes, m)
			case label(m, "node") == "":
				to.Metric = append(to.Metric, out.clone(name, m, "", ""))
			}
		}
		if perGPU -= len(gpus); perGPU < 0 && len(gpus) > 0 && !c.read[name] {
			perGPU += len(gpus) // beyond what the figure is for
			continue
		}
		out.families = append(out.families, to)
		for n := range nodes {
			node := fmt.Sprintf("gpu-%04d", n)
			for _, m := range nodeOnes {
				to.Metric = append(to.Metric, out.clone(name, m, node, ""))
			}
			for gpu := range 8 {
				for _, m := range gpus {
					to.Metric = append(to.Metric, out.clone(name, m, node, fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", n, gpu)))
				}
			}
		}
	}
	return out
}

func (c *copies) clone(name string, m *dto.Metric, node, uuid string) *dto.Metric {
	out := &dto.Metric{}
	for _, l := range m.Label {
		k, v := l.GetName(), l.GetValue()
		switch {
		case k == "node" && node != "":
			v = node
		case k == "uuid":
			v = uuid
		}
		out.Label = append(out.Label, &dto.LabelPair{Name: &k, Value: &v})
	}
	switch {
	case m.Gauge != nil:
		v := m.Gauge.GetValue()
		out.Gauge = &dto.Gauge{Value: &v}
		if name == "gpu_thermal_headroom_celsius" && strings.HasSuffix(node, "00") {
			v = 2 // one node in a hundred is hot
		}
		for _, end := range moves {
			if uuid != "" && strings.HasSuffix(name, end) && v != 0 {
				c.moving, c.around = append(c.moving, out.Gauge), append(c.around, v)
				break
			}
		}
	case m.Counter != nil:
		v := m.Counter.GetValue()
		out.Counter = &dto.Counter{Value: &v}
		if uuid != "" && (strings.Contains(name, "_joules") || strings.Contains(name, "bytes")) {
			c.rising = append(c.rising, out.Counter)
		}
	}
	return out
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// used is the CPU time that this process has used.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident is what of this process is in memory, in MiB.
func resident(b *testing.B) float64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("no /proc: ", err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	var kib float64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}

// BenchmarkFleet keeps a fleet for two hours of samples, one each 15 s, with all
// embedded rules, as fast as it can; CPU is that of the second hour. Its
// figures are those of a process of its own, so run one size at a time. Time is
// given; the series of the fleet, which a collector holds anyway, are in what is
// resident.
func BenchmarkFleet(b *testing.B) {
	for _, c := range []struct {
		gpus, perGPU int
		series       Series
	}{{AllGPUs, 60, All}, {JudgedGPUs, 60, Judged}} {
		b.Run(fmt.Sprintf("%d-%s", c.gpus, c.series), func(b *testing.B) {
			if b.N > 1 {
				b.Skip("one run tells it: -benchtime 1x")
			}
			keepFleet(b, c.gpus, c.perGPU, c.series)
		})
	}
}

func keepFleet(b *testing.B, gpus, perGPU int, series Series) {
	const interval, hour = 15 * time.Second, 240 // rounds
	reg, log := prometheus.NewRegistry(), promslog.NewNopLogger()
	fleet := &copies{}
	s, err := Open(Options{Dir: b.TempDir(), Source: fleet, Interval: interval, Series: series, Rules: alerts.Files(), Registry: reg, Log: log})
	if err != nil {
		b.Fatal(err)
	}
	*fleet = *newCopies(b, gpus/8, perGPU, s.sampler.choice)
	if err := s.db.ensure(); err != nil {
		b.Fatal(err)
	}
	defer s.db.close(errClosed)
	empty := resident(b)

	begin := time.Now().Add(-4 * time.Hour).Truncate(interval)
	due := map[*rules.Group]time.Time{}
	var sampling, evaluating time.Duration
	round := func(k int) {
		at := begin.Add(time.Duration(k) * interval)
		fleet.move()
		from := used(b)
		if _, err := s.sampler.sample(b.Context(), at); err != nil {
			b.Fatal(err)
		}
		between := used(b)
		for _, g := range s.ruler.RuleGroups() {
			if !at.Before(due[g]) {
				due[g] = at.Add(g.Interval())
				rules.DefaultEvalIterationFunc(context.Background(), g, at)
			}
		}
		sampling, evaluating = sampling+between-from, evaluating+used(b)-between
	}
	for k := range hour {
		round(k)
	}
	// The windows of the rules are full from now on.
	sampling, evaluating = 0, 0
	from := used(b)
	for k := hour; k < 2*hour; k++ {
		round(k)
	}
	spent, held := used(b)-from, resident(b)
	core := func(d time.Duration, rounds int) float64 {
		return 100 * float64(d) / float64(time.Duration(rounds)*interval)
	}
	b.ReportMetric(core(spent, hour), "%core")
	b.ReportMetric(held, "MiB")
	n := 0
	for _, f := range fleet.families {
		n += len(f.Metric)
	}
	fmt.Printf("| %d, %s | %d, %.1f a GPU | %.1f %% of a core: sampling %.1f, rules %.1f | %.0f MiB, of which %.0f before the first sample |\n",
		gpus, series, n, float64(n)/float64(gpus), core(spent, hour), core(sampling, hour), core(evaluating, hour), held, empty)
	rulesSaid(b, s.ruler)
}
