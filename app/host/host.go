// Package host wires the process that reads what is around the GPUs.
//
// In: its TOML file, standard output. Out: batches on it. Never: logic.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"

	"github.com/evenkeel-gpu/evenkeel/exporter/host"
	"github.com/evenkeel-gpu/evenkeel/exporter/host/feed"
)

// Run reads the host until ctx ends or nobody reads out any more.
func Run(ctx context.Context, file string, out io.Writer, log *slog.Logger) error {
	cfg, err := load(file)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("host readers: %w", err)
	}
	err = host.Run(ctx, host.Options{Config: cfg, Prober: []string{self, "probe"}, Log: log}, feed.NewWriter(out))
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil // the exporter has ended
	}
	return err
}

func load(file string) (*host.Config, error) {
	if file == "" {
		return host.Default()
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("host file: %w", err)
	}
	return host.Parse(text)
}

// Check says what is wrong with a file.
func Check(file string) error {
	_, err := load(file)
	return err
}

// Probe asks one mount.
func Probe(path string) error { return host.Probe(path) }
