package storetest

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Find is the path of a program: on the PATH, or where scripts/install unpacked
// it. Without it the test is skipped.
func Find(t testing.TB, name string) string {
	t.Helper()
	cache, _ := os.UserCacheDir()
	for _, p := range []string{name, filepath.Join(cache, "evenkeel/tools/debian/usr/bin", name)} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	t.Skip("no " + name + ": run scripts/install test")
	return ""
}

// FindLinked is the path of a program of the Prometheus whose packages we link,
// as scripts/test builds it. Without it the test is skipped.
func FindLinked(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("EVENKEEL_PROMETHEUS3")
	if dir == "" {
		version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/prometheus/prometheus").Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		cache, _ := os.UserCacheDir()
		dir = filepath.Join(cache, "evenkeel/tools/prometheus@"+string(bytes.TrimSpace(version)))
	}
	path, err := exec.LookPath(filepath.Join(dir, name))
	if err != nil {
		t.Skip("no " + name + " in " + dir + ": scripts/test builds it")
	}
	return path
}

// FreeAddr is an address on which nobody listens at the moment.
func FreeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	return ln.Addr().String()
}

// Program is a process that was started for a test.
type Program struct {
	t    testing.TB
	path string
	args []string
	cmd  *exec.Cmd
	out  output
	done chan struct{}
}

// Start starts a program, and kills it when the test ends. What it said is shown
// if the test fails.
func Start(t testing.TB, binary string, args ...string) *Program {
	t.Helper()
	p := &Program{t: t, path: binary, args: args}
	p.Again()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(binary), p.out.tail())
		}
	})
	return p
}

// Again starts the program with the same arguments once it has ended.
func (p *Program) Again() {
	p.t.Helper()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done, cmd := make(chan struct{}), p.cmd
	p.done = done
	go func() { defer close(done); _ = cmd.Wait() }()
}

// Kill ends it at once, as a loss of power would.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks it to end, and waits until it has.
func (p *Program) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
}

// Ready waits until url answers with 200.
func (p *Program) Ready(url string) {
	p.t.Helper()
	p.until(30*time.Second, url, func() bool {
		resp, err := http.Get(url)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (p *Program) until(limit time.Duration, what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		select {
		case <-p.done:
			p.t.Fatalf("%s ended:\n%s", filepath.Base(p.path), p.out.tail())
		default:
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: not within %s: %s\n%s", filepath.Base(p.path), limit, what, p.out.tail())
		}
	}
}

// Until waits for a condition, with a limit that only a failure reaches; then it
// shows how things are.
func Until(t testing.TB, what string, ok func() bool, show ...func() string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			for _, s := range show {
				what += "\n" + s()
			}
			t.Fatal("not within a minute: " + what)
		}
	}
}

// output keeps the end of what a program says.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.b.Len() > 1<<20 {
		o.b.Reset()
	}
	return o.b.Write(p)
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.b.Bytes()
	return string(b[max(0, len(b)-4096):])
}
