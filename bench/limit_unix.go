//go:build unix

package bench

import (
	"fmt"
	"syscall"
)

// spareFiles are those that are open besides the connections.
const spareFiles = 64

// checkFiles says what to do if a process may not open so many connections.
func checkFiles(connections int) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if want := uint64(connections + spareFiles); l.Cur < want {
		return fmt.Errorf("%d connections need %d open files, and this process may open %d; run `ulimit -n %d` first (LimitNOFILE in a unit), or use fewer --connections", connections, want, l.Cur, want)
	}
	return nil
}
