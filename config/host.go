package config

import (
	"fmt"
	"path/filepath"
)

// Host says how this node's exporter reads what is around its GPUs: by a program
// of its own, evenkeel-host, which the exporter starts.
type Host struct {
	// Command is that program; without it, or where it is not there, nothing of
	// the host is read. By default it lies beside the exporter.
	Command string `yaml:"command"`
	// File is its configuration, in TOML: Telegraf's own for each input. Without
	// one the usual inputs are read.
	File string `yaml:"file,omitempty"`
}

// DefaultHost is evenkeel-host beside the exporter.
func DefaultHost() Host { return Host{Command: "evenkeel-host"} }

func (h Host) validate() error {
	switch {
	case h.File != "" && h.Command == "":
		return fmt.Errorf("host.file %q without host.command; name the program that reads it", h.File)
	case h.File != "" && !filepath.IsAbs(h.File):
		return fmt.Errorf("host.file %q: want a path from the root", h.File)
	}
	return nil
}
