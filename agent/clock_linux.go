package agent

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/evenkeel-gpu/evenkeel/process"
)

// clockSynced asks the kernel whether something keeps its clock.
func clockSynced() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("adjtimex: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}

// bootID is the life of the node.
func bootID() (string, error) { return process.BootID() }
