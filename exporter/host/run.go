package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/influxdata/telegraf"

	"github.com/evenkeel-gpu/evenkeel/exporter/host/feed"
)

// Options of Run.
type Options struct {
	Config *Config
	// Prober is the command that probes one mount, its path to be added.
	Prober []string
	Log    *slog.Logger // nil is silent
}

// readerOf is what runs once each period.
type readerOf struct {
	name string
	read func(ctx context.Context, to *samples) error
}

// Run runs every reader on a goroutine of its own, and gives what each run finds
// to the writer, until ctx ends or nobody reads any more.
func Run(ctx context.Context, opt Options, to *feed.Writer) error {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	readers := make([]readerOf, 0, 16)
	for i := range opt.Config.Inputs {
		readers = append(readers, opt.Config.Inputs[i].reader(opt.Log))
	}
	for i := range opt.Config.Endpoints {
		e := &opt.Config.Endpoints[i]
		readers = append(readers, readerOf{"endpoint_" + e.Name, e.scrape})
	}
	if opt.Config.Mounts.Probe {
		p := &prober{list: "/proc/self/mountinfo", command: opt.Prober, types: opt.Config.Mounts.FSTypes, wait: probeWait}
		readers = append(readers, readerOf{"mounts", p.probe})
	}
	if opt.Config.Ports {
		readers = append(readers, readerOf{"ports", func(_ context.Context, to *samples) error { return readPorts(portsRoot, to) }})
	}
	readers = append(readers, readerOf{"pressure", func(_ context.Context, to *samples) error { return readPressure("/proc", to) }})
	for i := range readers {
		go func() {
			if err := readers[i].run(ctx, opt.Config.Period, to); err != nil {
				cancel(err)
			}
		}()
	}
	<-ctx.Done() // and not for readers that hang: they end with the process
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// run reads each period. A run that takes longer makes the next one late, not
// two at once.
func (r *readerOf) run(ctx context.Context, period time.Duration, to *feed.Writer) error {
	timer := time.NewTicker(period)
	defer timer.Stop()
	for {
		if err := to.Write(r.once(ctx, period)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}

// once makes a batch of one run. A plugin that panics has failed, and no more.
func (r *readerOf) once(ctx context.Context, period time.Duration) (b *feed.Batch) {
	var s samples
	b = &feed.Batch{Reader: r.name, Period: period}
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			b.Error = fmt.Sprintf("%s: panic: %v", r.name, p)
		}
		b.Took, b.Samples, b.Refused = time.Since(began), s.list, s.refused
	}()
	if err := r.read(ctx, &s); err != nil {
		b.Error = err.Error()
	}
	return b
}

// reader runs a plugin as Telegraf does: once initialized, it gathers.
func (in *Input) reader(log *slog.Logger) readerOf {
	ready := false
	return readerOf{in.Name, func(_ context.Context, to *samples) error {
		if !ready {
			giveLogger(in.plugin, log.With("input", in.Name))
			if p, ok := in.plugin.(telegraf.Initializer); ok {
				if err := p.Init(); err != nil {
					return fmt.Errorf("%s: %w", in.Name, err)
				}
			}
			if p, ok := in.plugin.(telegraf.ServiceInput); ok {
				if err := p.Start(&accumulator{}); err != nil {
					return fmt.Errorf("%s: %w", in.Name, err)
				}
			}
			ready = true
		}
		var acc accumulator
		err := in.plugin.Gather(&acc)
		points, more := acc.take()
		for i := range points {
			in.translate(&points[i], to)
		}
		return errors.Join(err, more)
	}}
}
