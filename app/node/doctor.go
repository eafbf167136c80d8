package node

import (
	"context"
	"errors"
	"io"

	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/nvml"
)

// Doctor says what works on this node. A finding that keeps the exporter from
// its work is an error, so that the exit code is 1.
func Doctor(ctx context.Context, cfg *config.Exporter, w io.Writer) error {
	opt := nvml.WithLibraryPath(cfg.Library)
	facts := nvml.Facts(opt)
	facts.Members = members(cfg, nil)
	worst, err := exporter.Doctor(ctx, nvml.New(opt), facts, w)
	if err != nil {
		return err
	}
	if worst == exporter.Failure {
		return errors.New("this node is not healthy; the lines marked failure say what to do")
	}
	return nil
}
