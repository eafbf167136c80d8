package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestAgentProcesses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = "apiVersion: evenkeel/v1\nkind: Agent\n"
	for name, want := range map[string]Processes{
		"": {}, filepath.Join(dir, "none.yaml"): {}, write("empty.yaml", head): {},
		// What the exporter does not need may be wrong.
		write("good.yaml", head+"allow: [fly]\nprocesses: {users: [alice], cgroups: [/m/]}\n"): {Users: []string{"alice"}, Cgroups: []string{"/m/"}},
	} {
		if got, err := AgentProcesses(name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		dir: "is a directory; let the exporter's user read it", // as any file that cannot be read
		write("kind.yaml", "apiVersion: evenkeel/v1\nkind: Exporter\n"):    `kind is "Exporter"`,
		write("key.yaml", head+"process: {}\n"):                            `did you mean "processes"?`,
		write("cgroup.yaml", head+"processes: {cgroups: [/]}\n"):           "every process of the node",
		write("slashes.yaml", head+"processes: {cgroups: [//]}\n"):         "every process of the node",
		write("syntax.yaml", head+"processes: {users: [alice\n"):           "syntax.yaml:",
		write("words.yaml", "apiVersion: evenkeel/v1\nkind: Agent\n---\n"): "more than one document",
	} {
		if got, err := AgentProcesses(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", name, got, err, want)
		}
	}
}

func TestPreemptIsOptedInto(t *testing.T) {
	c := DefaultAgent()
	for _, k := range c.Allow {
		if k == preempt {
			t.Error("preempt is allowed without being named")
		}
	}
	if len(c.Processes.Users)+len(c.Processes.Cgroups) != 0 {
		t.Errorf("somebody's processes are ours by default: %+v", c.Processes)
	}
}
