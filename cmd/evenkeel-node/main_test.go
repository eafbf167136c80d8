package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// file writes a configuration and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: evenkeel/v1\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func taken(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

const noDriver = "library: /nonexistent/libnvidia-ml.so.1\n"

func TestExitCodes(t *testing.T) {
	busy := taken(t)
	absent := file(t, "kind: Exporter\nnode: n\n"+noDriver)
	listens := file(t, "kind: Exporter\nnode: n\nlisten: "+busy+"\n"+noDriver)
	trusts := file(t, "kind: Agent\nnode: n\nnats: {url: nats://127.0.0.1:1}\n")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 0, ""},
		{"--help", 0, ""},
		{"version", 0, ""},
		{"completion bash", 0, ""},
		{"nosuch", 2, `no command "nosuch"`},
		{"export x", 2, "no arguments"},
		{"export --nosuch", 2, "unknown flag"},
		{"export --once -o x", 2, "prom or json"},
		{"export --metrics.compat nvidia", 2, "want dcgm or nothing"},
		{"export --log-level x", 2, "debug, info, warn or error"},
		{"export --listen nonsense", 2, "want host:port"},
		{"export -c " + absent + " --node=", 2, "name is empty"},
		{"export -c /nonexistent", 1, "no such file"},
		{"export -c " + listens, 1, "exporter: " + busy + " is taken by another process; stop it or choose another address"},
		{"export -c " + absent + " --listen " + busy, 1, busy + " is taken by another process"},
		{"export --once -c " + absent, 1, "no GPU was read: no_library; `evenkeel-node doctor` says more"},
		{"agent -c /nonexistent", 1, "no such file"},
		{"agent -c " + trusts, 1, "trusted_keys is empty"},
		{"agent x", 2, "no arguments"},
		{"doctor x", 2, "no arguments"},
		{"doctor --library /nonexistent", 1, "this node is not healthy"},
	} {
		var out, errOut bytes.Buffer
		code := run(context.Background(), strings.Fields(c.args), &out, &errOut)
		if code != c.code || !strings.Contains(errOut.String(), c.says) {
			t.Errorf("evenkeel-node %s: exit code %d, want %d and %q: %s", c.args, code, c.code, c.says, errOut.String())
		}
		if c.code == 0 && (out.Len() == 0 || errOut.Len() > 0) {
			t.Errorf("evenkeel-node %s: %d bytes of answer, on standard error: %s", c.args, out.Len(), errOut.String())
		}
	}
}

// TestOnceWithoutADriver still says what there is: that the driver is down, and
// of which node; a flag beats the file.
func TestOnceWithoutADriver(t *testing.T) {
	path := file(t, "kind: Exporter\nnode: from-file\ncluster: c\n"+noDriver)
	for _, c := range []struct{ flags, node string }{{"", "from-file"}, {"--node from-flag", "from-flag"}} {
		args := strings.Fields("export --once -c " + path + " " + c.flags)
		var out, errOut bytes.Buffer
		if code := run(context.Background(), append(args, "-o", "json"), &out, &errOut); code != 1 {
			t.Errorf("exit code %d: %s", code, errOut.String())
		}
		var frame struct {
			Node, Cluster string
			Fault         string `json:"driverFault"`
			GPUs          []any  `json:"gpus"`
		}
		if err := json.Unmarshal(out.Bytes(), &frame); err != nil || frame.Node != c.node || frame.Cluster != "c" || frame.Fault != "no_library" || len(frame.GPUs) != 0 {
			t.Errorf("frame %+v, %v, want node %s: %s", frame, err, c.node, out.String())
		}
		out.Reset()
		if code := run(context.Background(), args, &out, &errOut); code != 1 {
			t.Errorf("exit code %d: %s", code, errOut.String())
		}
		if want := `evenkeel_driver_up{node="` + c.node + `",reason="no_library"} 0`; !strings.Contains(out.String(), want) || strings.Contains(out.String(), "gpu_up") {
			t.Errorf("no %s in:\n%s", want, out.String())
		}
	}
}

// TestFlagsBeatTheFile: the exporter listens where the flag says though the
// file names an address that is taken, and ends with 0 when told to.
func TestFlagsBeatTheFile(t *testing.T) {
	path := file(t, "kind: Exporter\nnode: n\nlisten: "+taken(t)+"\nnats: {url: nats://127.0.0.1:1}\n"+noDriver)
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	var log buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"export", "-c", path, "--listen", "127.0.0.1:0", "--nats=", "--node", "flagged"}, &out, &log)
	}()
	for end := time.Now().Add(10 * time.Second); !strings.Contains(log.String(), "exporter started"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not started: %s", log.String())
		}
	}
	if text := log.String(); !strings.Contains(text, "node=flagged") || !strings.Contains(text, `bus=""`) {
		t.Errorf("the file won: %s", text)
	}
	cancel()
	select {
	case code := <-done:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, log.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("does not end")
	}
}

// buffer is written by the process and read by the test.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestHelpFitsATerminal(t *testing.T) {
	for _, c := range append([]string{""}, names()...) {
		var out, errOut bytes.Buffer
		if code := run(context.Background(), append(strings.Fields(c), "--help"), &out, &errOut); code != 0 || out.Len() == 0 {
			t.Errorf("%s --help: %d, %s", c, code, errOut.String())
		}
		for line := range strings.Lines(out.String()) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("evenkeel-node %s --help: wider than 80 columns: %s", c, line)
			}
		}
	}
}

func names() (list []string) {
	for _, c := range tree().Commands() {
		list = append(list, c.Name())
	}
	return list
}
