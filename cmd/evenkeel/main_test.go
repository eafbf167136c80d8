package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestExitCodes: 0 for an answer, 1 for a failure, 2 for a wrong call, with the
// message on standard error.
func TestExitCodes(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := ln.Addr().String()
	defer ln.Close()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: evenkeel/v1\nkind: Collector\nlisten: 127.0.0.1:0\nlissten: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	misspelt := filepath.Join(t.TempDir(), "misspelt.yaml")
	if err := os.WriteFile(misspelt, []byte("groups: [{name: g, rules: [{alert: X, expr: gpu_up_ == 0}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	norules := filepath.Join(t.TempDir(), "norules.yaml")
	if err := os.WriteFile(norules, []byte("apiVersion: evenkeel/v1\nkind: Collector\nnats: {url: nats://127.0.0.1:4222}\nrule_files: [none.yaml]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 0, ""},
		{"--help", 0, ""},
		{"version", 0, ""},
		{"completion bash", 0, ""},
		{"check", 0, ""},
		{"sim", 0, ""},
		{"check policy --defaults", 0, ""},
		{"nosuch", 2, `no command "nosuch"; see ` + "`evenkeel --help`"},
		{"check nosuch", 2, `no command "nosuch"; see ` + "`evenkeel check --help`"},
		{"sim nosuch", 2, "no command"},
		{"completion nosuch", 2, "no command"},
		{"completion bash x", 2, "unknown command"},
		{"version x", 2, "no arguments"},
		{"--nosuch", 2, "unknown flag: --nosuch"},
		{"get", 2, "nodes, gpus, workloads, decisions or alerts"},
		{"get decisions --limit -1", 2, "0 for all"},
		{"get gpus -w --server 127.0.0.1:1", 1, "no collector answers"},
		{"describe", 2, "a kind (node, gpu, workload or decision) and a name"},
		{"describe gpu", 2, "a kind"},
		{"describe pod x", 2, `no kind "pod"`},
		{"describe alert x", 2, "not described one by one"},
		{"describe workload x", 2, "want <kind>:<name>"},
		{"describe gpu a-1/x", 2, "node/index"},
		{"describe node a-1 --server 127.0.0.1:1", 1, "no collector answers"},
		{"get nosuch", 2, `no kind "nosuch"`},
		{"get gpus -o nosuch", 2, "table, wide, json or yaml"},
		{"get gpus -l nonsense", 2, "field=value"},
		{"get gpus --sort-by", 2, "needs an argument"},
		{"get gpus --server 127.0.0.1:1", 1, "no collector answers at http://127.0.0.1:1"},
		{"explain", 2, "a decision's id"},
		{"explain d-1 -o nosuch", 2, "text, json or yaml"},
		{"explain workload/x", 2, "x"},
		{"explain d-1 --server 127.0.0.1:1", 1, "no collector answers"},
		{"explain llm-pretrain", 2, "workload/REF"},
		{"explain nothing -o json", 2, "decisions only"},
		{"explain workload/slurm:1 -o yaml", 2, "decisions only"},
		{"get nodes --log-level x", 2, "want debug, info, warn or error"},
		{"plan -o nosuch", 2, "text, json or yaml"},
		{"plan --server 127.0.0.1:1", 1, "no collector answers"},
		{"check config /nonexistent", 1, "no such file"},
		{"check config " + bad, 1, `bad.yaml:4: unknown key "lissten"; did you mean "listen"?`},
		{"check config " + norules, 1, "norules.yaml: rule_files: " + filepath.Join(filepath.Dir(norules), "none.yaml") + ": no such file"},
		{"check policy", 2, "one file, or --defaults"},
		{"check policy --defaults x", 2, "one file, or --defaults"},
		{"check alerts --defaults", 0, ""},
		{"check alerts", 2, "rule files, or --defaults"},
		{"check alerts --defaults x", 2, "rule files, or --defaults"},
		{"check alerts --runbooks x y", 2, "--runbooks goes with --defaults"},
		{"check alerts /nonexistent", 1, "no such file"},
		{"check alerts " + misspelt, 1, `rule "X": no metric "gpu_up_": it is neither in docs/metrics.md nor recorded by these files; did you mean "gpu_up"?`},
		{"check alerts " + bad, 1, "bad.yaml: "},
		{"sim claims x", 2, "no arguments"},
		{"sim claims --shm /nonexistent", 1, "no world is served at /nonexistent: start one with `evenkeel sim serve --shm /nonexistent`"},
		{"sim claim --share 0.5 --pid 1", 2, "--gpu: name a GPU"},
		{"sim claim --gpu 0,x", 2, "invalid argument"},
		{"sim claim --gpu 0", 2, "--pid N, or -- COMMAND ARGS"},
		{"sim claim --gpu 0 --pid 1 -- true", 2, "exclude each other"},
		{"sim claim --gpu 0 --memory 10 --pid 1", 2, `"10": want a size with its unit, such as 10GiB`},
		{"sim claim --gpu 0 --memory -1GiB --pid 1", 2, "want a size"},
		{"sim claim --gpu 0 --shm /nonexistent --pid 1", 1, "no world is served at /nonexistent"},
		{"sim claim --gpu 0 --shm " + bad + " --pid 1", 1, "not the file of a world"},
		{"sim claim --gpu 0 nosuchprogram", 1, "nosuchprogram"},
		{"collector -c " + bad, 1, "lissten"},
		{"collector x", 2, "no arguments"},
		{"bench x", 2, "no arguments"},
		{"bench --nodes 0", 2, "0 nodes: want 1 to 99999"},
		{"bench --faults lots=0.1", 2, "--faults: fault \"lots\" is not known; there are lost, dup"},
		{"bench --expect speed=1", 2, "--expect: expectation \"speed\" is not known; there are max-loss"},
		{"bench --connections many", 2, "want a number, or shared"},
		{"bench -o xml", 2, "want text, json or row"},
		{"bench --rate 1ms", 2, "a node's tick is 100ms to 10s"},
		{"bench --hot 3 --duration 5s", 2, "for at least 15s"},
		{"bench --hot 3 --nats nats://127.0.0.1:1", 2, "leave out --nats"},
		{"bench --collector 127.0.0.1:1", 2, "go with --nats"},
		{"bench --nats nats://127.0.0.1:1 --scrapes 1", 1, "name it with --collector"},
		{"bench --nats 127.0.0.1", 1, "want nats://HOST:PORT"},
		{"bench --nats nats://127.0.0.1:1 --ca " + bad, 1, "holds no certificate in PEM"},
		{"rebalancer -c /nonexistent", 1, "no such file"},
		{"up --source x", 2, "want sim or nvml"},
		{"up --log-level x", 2, "want debug, info, warn or error"},
		{"up --source sim --listen " + taken, 1, taken + " is taken by another process"},
		{"up --source sim --scenario nosuch --listen 127.0.0.1:0", 1, `scenario "nosuch" is neither a file`},
	} {
		var out, errOut bytes.Buffer
		code := run(context.Background(), strings.Fields(c.args), &out, &errOut)
		if code != c.code {
			t.Errorf("evenkeel %s: exit code %d, want %d: %s", c.args, code, c.code, errOut.String())
		}
		switch {
		case c.code == 0 && (out.Len() == 0 || errOut.Len() > 0):
			t.Errorf("evenkeel %s: %d bytes of answer, on standard error: %s", c.args, out.Len(), errOut.String())
		case c.code != 0 && (out.Len() > 0 || !strings.HasPrefix(errOut.String(), "evenkeel: ") || !strings.Contains(errOut.String(), c.says)):
			t.Errorf("evenkeel %s: %s%s, want %q on standard error alone", c.args, out.String(), errOut.String(), c.says)
		}
	}
}

// TestHelpFitsATerminal of 80 columns, for every command.
func TestHelpFitsATerminal(t *testing.T) {
	n := 0
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		n++
		var out, errOut bytes.Buffer
		if code := run(context.Background(), append(path[:len(path):len(path)], "--help"), &out, &errOut); code != 0 || out.Len() == 0 {
			t.Errorf("%v --help: %d, %s", path, code, errOut.String())
		}
		for line := range strings.Lines(out.String()) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("evenkeel %s --help: wider than 80 columns: %s", strings.Join(path, " "), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	walk(tree(), nil)
	if n < 14 {
		t.Errorf("%d commands", n)
	}
}

// TestCompletion: each shell's script is there, bash takes its own, and kinds
// are completed.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var out, errOut bytes.Buffer
		if code := run(context.Background(), []string{"completion", shell}, &out, &errOut); code != 0 || !strings.Contains(out.String(), "evenkeel") {
			t.Errorf("%s: %d, %s", shell, code, errOut.String())
		}
		if shell != "bash" {
			continue
		}
		bash, err := exec.LookPath("bash")
		if err != nil {
			t.Skip("no bash to read its completion script")
		}
		cmd := exec.Command(bash, "-n")
		cmd.Stdin = &out
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("bash: %v\n%s", err, text)
		}
	}
	var out, errOut bytes.Buffer
	run(context.Background(), []string{"__complete", "get", ""}, &out, &errOut)
	if got := strings.Fields(out.String()); len(got) < 5 || strings.Join(got[:5], " ") != "nodes gpus workloads decisions alerts" {
		t.Errorf("completion of get: %v", got)
	}
}
