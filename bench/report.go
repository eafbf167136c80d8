package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Report is what a run found.
type Report struct {
	Nodes       int     `json:"nodes"`
	GPUs        int     `json:"gpus_per_node"`
	PeriodS     float64 `json:"period_seconds"`
	MeasuredS   float64 `json:"measured_seconds"`
	Connections int     `json:"connections"`
	Seed        uint64  `json:"seed"`
	Interrupted bool    `json:"interrupted"`

	Cores     int    `json:"cores"`
	LoadStart string `json:"load_start"`
	LoadEnd   string `json:"load_end"`

	Frames       Frames       `json:"frames"`
	Observations Observations `json:"observations"`
	Latency      Latency      `json:"latency"`
	Processes    []Use        `json:"processes,omitempty"`
	// DroppedByCollector is by how much its counters grew over the run.
	DroppedByCollector map[telemetry.DropReason]uint64 `json:"dropped_by_collector,omitempty"`
	CollectorLagS      float64                         `json:"collector_lag_seconds,omitempty"`
	Scrape             *Scraped                        `json:"scrape,omitempty"`
	Faults             []FaultCheck                    `json:"faults,omitempty"`
	Expectations       []Verdict                       `json:"expectations,omitempty"`
	// Problems are why something that was asked for is not in the report.
	Problems []string `json:"problems,omitempty"`
}

// Frames is what was sent, faults included.
type Frames struct {
	Sent      uint64  `json:"sent"`
	MeanBytes float64 `json:"mean_bytes"`
	// Unsent could not be written to their connection.
	Unsent uint64 `json:"unsent"`
	// Skipped are ticks that the generator was too late for.
	Skipped         uint64 `json:"skipped"`
	ConnectionsLost uint64 `json:"connections_lost"`
	// Events came with frames; those that are stored a stream has acknowledged.
	Events             uint64  `json:"events"`
	EventsStored       uint64  `json:"events_stored"`
	Refused            uint64  `json:"refused_by_server"`
	GeneratorLateP99MS float64 `json:"generator_late_p99_ms"`
}

// Observations is what became of them, over the whole run.
type Observations struct {
	Expected uint64 `json:"expected"`
	Heard    uint64 `json:"heard"`
	Lost     uint64 `json:"lost"`
	// Late came more than a second after their frame was sent.
	Late    uint64 `json:"late"`
	Doubled uint64 `json:"doubled"`
	// Unknown belong to no frame that is waited for, or to no node of the run.
	Unknown   uint64  `json:"unknown"`
	MeanBytes float64 `json:"mean_bytes"`
}

// Latency is the time from frame sent to observation heard, in milliseconds.
type Latency struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// Failed says whether an expectation was not met, a fault did not show as it
// must, or what was asked for could not be found out.
func (r *Report) Failed() bool {
	return len(r.Problems) > 0 || slices.ContainsFunc(r.Expectations, func(v Verdict) bool { return !v.Met }) ||
		slices.ContainsFunc(r.Faults, func(f FaultCheck) bool { return f.Checked && f.Want != f.Got })
}

func (r *run) report(m *meter, senders []*sender, interrupted bool) *Report {
	o, e := r.o, r.ear
	out := &Report{
		Nodes: o.Nodes, GPUs: o.GPUs, PeriodS: o.Period.Seconds(), Connections: len(r.clients), Seed: o.Seed, Interrupted: interrupted,
		Cores: runtime.NumCPU(), LoadStart: m.load, LoadEnd: load(), Processes: m.used(),
		Observations: Observations{
			Expected: e.sent.Load(), Heard: e.heard.Load(), Lost: e.lost.Load(), Late: e.late.Load(), Doubled: e.twice.Load(), Unknown: e.others.Load(),
			MeanBytes: mean(e.bytes.Load(), e.heard.Load()),
		},
		Latency: Latency{
			Count: e.latency.total(), P50: ms(e.latency.quantile(0.5)), P90: ms(e.latency.quantile(0.9)), P99: ms(e.latency.quantile(0.99)), Max: ms(e.latency.max()),
		},
	}
	if !m.from.at.IsZero() {
		out.MeasuredS = m.to.at.Sub(m.from.at).Seconds()
	}
	if e.every > 1 {
		out.Observations.Expected = out.Observations.Heard + out.Observations.Lost
	}
	made, bytes := newInjected(), uint64(0)
	for _, s := range senders {
		made.add(s.made)
		bytes += s.bytes
		out.Frames.Sent += s.frames
		out.Frames.Unsent += s.unsent
		out.Frames.Skipped += s.skipped
		out.Frames.Events += s.events
	}
	out.Frames.MeanBytes = mean(bytes, out.Frames.Sent)
	out.Frames.GeneratorLateP99MS = ms(r.slip.quantile(0.99))
	out.Frames.ConnectionsLost = r.lost.Load()
	for _, c := range r.clients {
		out.Frames.Refused += c.refused.Load()
		out.Frames.EventsStored += c.stored.Load()
	}
	if o.Collector != "" {
		if err := out.compare(m); err != nil {
			out.Problems = append(out.Problems, err.Error())
		}
	}
	if o.Scrapes > 0 && !interrupted {
		var err error
		if out.Scrape, err = m.scrapeAll(context.Background(), o.Scrapes); err != nil {
			out.Problems = append(out.Problems, err.Error())
		}
	}
	out.Faults = checkFaults(o, made, r, out)
	for _, x := range o.Expect {
		out.Expectations = append(out.Expectations, x.judge(out))
	}
	return out
}

// compare takes by how much the collector's counters grew.
func (r *Report) compare(m *meter) error {
	last, err := scrape(context.Background(), m.o.Collector)
	if err != nil {
		return err
	}
	r.DroppedByCollector, r.CollectorLagS = map[telemetry.DropReason]uint64{}, last.lag
	for _, why := range telemetry.DropReasons {
		n := last.dropped[why] - m.first.dropped[why]
		if n < 0 {
			return errors.New("the collector's counters fell during the run; it was started anew, and what it dropped before is not known")
		}
		if n > 0 {
			r.DroppedByCollector[why] = uint64(n)
		}
	}
	return nil
}

func mean(sum, n uint64) float64 {
	if n == 0 {
		return 0
	}
	return float64(sum) / float64(n)
}

// ms is a duration in milliseconds, to a hundredth.
func ms(d time.Duration) float64 { return math.Round(float64(d)/float64(time.Millisecond)*100) / 100 }

// Text writes a report for people.
func (r *Report) Text(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("%d nodes × %d GPUs, a frame each %gs, %d connections, measured %.0f s, %d cores, load %s → %s", r.Nodes, r.GPUs, r.PeriodS, r.Connections, r.MeasuredS, r.Cores, r.LoadStart, r.LoadEnd)
	if r.Interrupted {
		p("interrupted: what follows is of the part that was run")
	}
	f, o, l := &r.Frames, &r.Observations, &r.Latency
	p("frames\t%d sent, %.0f bytes in the mean; %d not sent, %d ticks skipped, %d connections lost, %d refused; the generator's ticks were at most %.1f ms late (p99)", f.Sent, f.MeanBytes, f.Unsent, f.Skipped, f.ConnectionsLost, f.Refused, f.GeneratorLateP99MS)
	p("events\t%d sent, %d stored", f.Events, f.EventsStored)
	p("observations\t%d expected, %d heard, %.0f bytes in the mean; %d lost, %d late, %d doubled, %d unknown", o.Expected, o.Heard, o.MeanBytes, o.Lost, o.Late, o.Doubled, o.Unknown)
	p("sent → heard\tp50 %.2f ms, p90 %.2f ms, p99 %.2f ms, max %.2f ms", l.P50, l.P90, l.P99, l.Max)
	for _, u := range r.Processes {
		p("%s\t%.3f CPU-seconds a second, %.0f MiB resident", u.Name, u.CPUPerSecond, mib(u.ResidentBytes))
	}
	if r.DroppedByCollector != nil {
		p("collector dropped\t%s", dropped(r.DroppedByCollector))
	}
	if s := r.Scrape; s != nil {
		p("scrape\t%d series, %.1f a GPU, %.1f MiB with gzip: %.2f CPU-seconds, %.2f s", s.Series, float64(s.Series)/float64(r.Nodes*r.GPUs), mib(s.CompressedBytes), s.CPUSeconds, s.Seconds)
	}
	for _, c := range r.Faults {
		p("fault %s\t%s", c.Fault, c.text())
	}
	for _, v := range r.Expectations {
		p("expected %s\t%s: %s", v.Expectation, map[bool]string{true: "met", false: "NOT MET"}[v.Met], v.Found)
	}
	for _, text := range r.Problems {
		p("PROBLEM\t%s", text)
	}
	return w.Flush()
}

// Row writes a report as a row of the table in docs/results.md, whose head is in
// scripts/bench.
func (r *Report) Row(to io.Writer) error {
	bus, col, gen := r.use("bus"), r.use(collectorName), r.use("generator")
	frames := float64(r.Nodes) / r.PeriodS * (1 - share(r.Observations.Lost, r.Observations.Expected))
	_, err := fmt.Fprintf(to, "| %d × %d | %.3f | %.0f | %.0f | %.3f | %.0f | %.3f | %d | %d of %d | %.1f / %.1f / %.1f | %s → %s |\n",
		r.Nodes, r.GPUs, col.CPUPerSecond, 1e6*col.CPUPerSecond/frames, mib(col.ResidentBytes), bus.CPUPerSecond, mib(bus.ResidentBytes), gen.CPUPerSecond,
		r.Connections, r.Observations.Lost, r.Observations.Expected, r.Latency.P50, r.Latency.P99, r.Latency.Max, r.LoadStart, r.LoadEnd)
	return err
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func dropped(of map[telemetry.DropReason]uint64) string {
	text := ""
	for _, why := range telemetry.DropReasons {
		if n := of[why]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, why)
		}
	}
	if text == "" {
		return "nothing"
	}
	return text[2:]
}
