//go:build !linux

package exporter

// clockSynchronized is not known here, and what is not known is not claimed.
func clockSynchronized() bool { return false }
