package node

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter"
)

// Execd runs the exporter for Telegraf's inputs.execd with signal = "STDIN":
// for each line read it writes what /metrics would serve, in Influx's line
// protocol. It ends with its input.
func Execd(ctx context.Context, cfg *config.Exporter, in io.Reader, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	exp, err := exporter.New(exporterOptions(cfg, members(cfg, log), log))
	if err != nil {
		return err
	}
	p := lifecycle.New(ctx)
	p.Add("exporter", exp.Run)
	asked := make(chan error, 1)
	go func() { // reading cannot be ended; it ends with the process
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			families, err := exp.Gatherer().Gather()
			if err == nil {
				err = exporter.WriteLines(out, families, time.Now())
			}
			if err != nil {
				asked <- err
				return
			}
		}
		asked <- lines.Err()
	}()
	p.Add("execd", func(ctx context.Context) error {
		defer cancel()
		select {
		case err := <-asked:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	return p.Run()
}
