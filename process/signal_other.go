//go:build !linux

package process

import (
	"errors"
	"syscall"
	"time"
)

// errNoHandle: only Linux tells processes apart for certain, so that nothing is
// signalled elsewhere.
var errNoHandle = errors.New("processes can be held on Linux alone")

// Handle is a hold on one process; there is none on this system.
type Handle struct{ ID }

// Open takes hold of nothing here.
func (p Proc) Open(id ID) (*Handle, Info, error) { return nil, Info{}, errNoHandle }

// Signal sends nothing here.
func (h *Handle) Signal(s syscall.Signal) error { return errNoHandle }

// Runs says no: nothing is held here.
func (h *Handle) Runs() bool { return false }

// Close does nothing here.
func (h *Handle) Close() {}

// Ended waits.
func Ended(hs []*Handle, wait time.Duration) []*Handle {
	time.Sleep(wait)
	return nil
}

// Signal sends nothing here.
func (p Proc) Signal(h *Handle, s syscall.Signal) error { return errNoHandle }

// Say says nothing here.
func (p Proc) Say(i Info, line string) error { return errNoHandle }
