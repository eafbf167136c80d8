package config

import (
	"fmt"
	"path/filepath"
)

// Spool keeps frames of an outage of the bus on disk, and sends them after it.
type Spool struct {
	// Dir is its folder; without one, frames of an outage are lost.
	Dir string `yaml:"dir,omitempty"`
	// MaxMiB bounds it. A day of a node with 8 GPUs is about 300 MiB.
	MaxMiB int `yaml:"max_mib"`
}

// DefaultSpool keeps nothing until a folder is named.
func DefaultSpool() Spool { return Spool{MaxMiB: 64} }

func (s Spool) validate() error {
	switch {
	case s.Dir != "" && !filepath.IsAbs(s.Dir):
		return fmt.Errorf("spool.dir %q: want a path from the root", s.Dir)
	case s.MaxMiB < 1 || s.MaxMiB > 1<<16:
		return fmt.Errorf("spool.max_mib is %d, want 1 to 65536", s.MaxMiB)
	}
	return nil
}
