package bench

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// Used is what a process has used of the machine.
type Used struct {
	CPU      time.Duration
	Resident int64 // bytes
}

// Watched is a process of this machine.
type Watched struct {
	Name string
	PID  int
}

// meter takes the readings between which a run is measured.
type meter struct {
	o     *Options
	log   *slog.Logger
	first figures // of the collector, before the first frame
	load  string

	from, to snapshot
}

// snapshot is what the processes have used at a moment.
type snapshot struct {
	at        time.Time
	processes []Used // this one, then those that are watched
	collector figures
}

func (m *meter) begin(ctx context.Context) error {
	m.load = load()
	if m.o.Collector == "" {
		return nil
	}
	var err error
	m.first, err = scrape(ctx, m.o.Collector)
	return err
}

// window waits for the time to measure from, and then for the end.
func (m *meter) window(from time.Time, measuring *atomic.Bool, done <-chan struct{}) {
	select {
	case <-done:
		return // interrupted before there was anything to measure
	case <-time.After(time.Until(from)):
	}
	m.from = m.snapshot()
	measuring.Store(true)
	<-done
	measuring.Store(false)
	m.to = m.snapshot()
}

func (m *meter) snapshot() snapshot {
	s := snapshot{at: time.Now()}
	for _, pid := range m.pids() {
		u, err := usage(pid)
		if err != nil {
			m.log.Warn("what a process uses cannot be read", "pid", pid, "err", err)
		}
		s.processes = append(s.processes, u)
	}
	if m.o.Collector != "" {
		var err error
		// The run goes on without: its end asks again.
		if s.collector, err = scrape(context.Background(), m.o.Collector); err != nil {
			m.log.Warn("the collector does not answer", "err", err)
		}
	}
	return s
}

func (m *meter) pids() []int {
	out := []int{os.Getpid()}
	for _, w := range m.o.Watch {
		out = append(out, w.PID)
	}
	return out
}

// Use is what a process used while it was measured.
type Use struct {
	Name          string  `json:"name"`
	CPUPerSecond  float64 `json:"cpu_seconds_per_second"`
	ResidentBytes int64   `json:"resident_bytes"` // at the end
}

// used lists what each process used; none if nothing was measured.
func (m *meter) used() []Use {
	span := m.to.at.Sub(m.from.at).Seconds()
	if m.from.at.IsZero() || span <= 0 {
		return nil
	}
	var out []Use
	add := func(name string, a, b Used) {
		if a.CPU > 0 && b.CPU >= a.CPU {
			out = append(out, Use{name, (b.CPU - a.CPU).Seconds() / span, b.Resident})
		}
	}
	add("generator", m.from.processes[0], m.to.processes[0])
	seen := false
	for i, w := range m.o.Watch {
		seen = seen || w.Name == collectorName
		add(w.Name, m.from.processes[i+1], m.to.processes[i+1])
	}
	if !seen && m.from.collector.counted {
		add(collectorName, m.from.collector.used, m.to.collector.used)
	}
	return out
}

// collectorName is what the report calls it.
const collectorName = "collector"
