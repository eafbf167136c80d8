package telemetry

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestWireLabelsAreNeverRenamed: a metric that was once there keeps its name,
// type and labels, since every query of somebody's rests on them. What is to be
// called otherwise comes beside it, and the old one stays for a release. A row
// may be added.
func TestWireLabelsAreNeverRenamed(t *testing.T) {
	const lock = "testdata/labels.lock"
	var now []string
	for _, r := range Catalog {
		now = append(now, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Name, r.Type, strings.Join(r.Labels, ","))))
	}
	slices.Sort(now)
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	locked := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range locked {
		if !slices.Contains(now, line) {
			t.Errorf("%q was promised and is not there any more; keep it beside its successor", line)
		}
	}
	for _, line := range now {
		switch {
		case slices.Contains(locked, line):
		case *update:
			locked = append(locked, line)
		default:
			t.Errorf("%q is new and not in %s; run `go test ./telemetry -run Wire -update` and commit", line, lock)
		}
	}
	if *update {
		slices.Sort(locked)
		if err := os.WriteFile(lock, []byte(strings.Join(locked, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
