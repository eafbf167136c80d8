package process

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrGone says that a process has ended, or that its pid is another's now.
var ErrGone = errors.New("no such process")

// ID is one process for all time since boot: the kernel reuses a pid, but not
// within one clock tick.
type ID struct {
	PID int `json:"pid"`
	// Start is in clock ticks since boot, field 22 of /proc/PID/stat.
	Start uint64 `json:"start"`
}

// String is the form that Parse reads: 412@8812.
func (id ID) String() string { return fmt.Sprintf("%d@%d", id.PID, id.Start) }

// Parse reads 412@8812.
func Parse(s string) (ID, error) {
	pid, start, ok := strings.Cut(s, "@")
	n, err := strconv.ParseInt(pid, 10, 32)
	ticks, errStart := strconv.ParseUint(start, 10, 64)
	if !ok || err != nil || errStart != nil || n <= 0 || pid[0] == '+' {
		return ID{}, fmt.Errorf("process %q: want <pid>@<start in clock ticks since boot>, such as 412@8812", s)
	}
	return ID{int(n), ticks}, nil
}

// Ref names a workload by its node and root, as telemetry.WorkloadRef does.
func Ref(node string, root ID) string { return "proc:" + node + "/" + root.String() }
