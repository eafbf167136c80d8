package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter/host/feed"
)

// hostReaders starts the program that reads the host; nil where there is none.
func hostReaders(cfg *config.Exporter, log *slog.Logger) (*feed.Source, error) {
	if cfg.Host.Command == "" {
		return nil, nil
	}
	path, err := hostProgram(cfg.Host.Command)
	if err != nil {
		if cfg.Host.File != "" {
			return nil, fmt.Errorf("host.file is set and %s is not there: %w", cfg.Host.Command, err)
		}
		log.Info("nothing of the host is read", "component", "host", "err", err)
		return nil, nil
	}
	args := []string{"read"}
	if cfg.Host.File != "" {
		args = append(args, "--config", cfg.Host.File)
	}
	return feed.New(func(ctx context.Context) (io.ReadCloser, func() error, error) {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 2 * time.Second
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, nil, err
		}
		return out, cmd.Wait, cmd.Start()
	}, log), nil
}

// hostProgram looks beside this program first.
func hostProgram(name string) (string, error) {
	if filepath.IsAbs(name) {
		_, err := os.Stat(name)
		return name, err
	}
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, found := exec.LookPath(name)
	return path, errors.Join(found)
}
