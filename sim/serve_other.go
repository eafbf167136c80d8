//go:build !linux

package sim

import (
	"context"
	"errors"
)

// Serve needs Linux, where the NVML stand-in runs.
func Serve(context.Context, ServeConfig) error {
	return errors.New("serve a world: the NVML stand-in runs on Linux only")
}
