//go:build !linux

package sim

import "errors"

var errNoTable = errors.New("a process table: the NVML stand-in runs on Linux only")

// Table needs Linux, where the NVML stand-in runs.
type Table struct{}

// OpenTable needs Linux, where the NVML stand-in runs.
func OpenTable(string) (*Table, error) { return nil, errNoTable }

// Close does nothing here.
func (*Table) Close() error { return nil }

// Claim needs Linux.
func (*Table) Claim([]int, Claim) error { return errNoTable }

// Claims needs Linux.
func (*Table) Claims() ([]GPUClaim, error) { return nil, errNoTable }
