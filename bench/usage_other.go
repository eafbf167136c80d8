//go:build !linux

package bench

import "errors"

// usage is not known on this system.
func usage(int) (Used, error) {
	return Used{}, errors.New("what a process uses is not known on this system")
}

// load is not known on this system.
func load() string { return "unknown" }
