package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used of the machine, as the kernel counts it for
// all of its threads.
func usage(pid int) (Used, error) {
	var u Used
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return u, fmt.Errorf("process %d has ended", pid)
	}
	for _, name := range tasks {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended; few do
		}
		first, _, _ := bytes.Cut(data, []byte(" "))
		ns, _ := strconv.ParseInt(string(first), 10, 64)
		u.CPU += time.Duration(ns)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, fmt.Errorf("process %d has ended", pid)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			u.Resident = kib << 10
		}
	}
	return u, nil
}

// load is the machine's load average over a minute.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}
