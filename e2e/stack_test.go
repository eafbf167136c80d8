package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// root is the repository, from this package's folder.
const root = ".."

// build makes the binaries once per test run: ours as the Makefile does it, and
// a NATS server from its module.
var build = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs(filepath.Join(root, "build"))
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"make", "--no-print-directory", "build", "standin"},
		{"go", "build", "-o", filepath.Join(dir, "nats-server"), "github.com/nats-io/nats-server/v2"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir, nil
})

// stack is a running installation on one machine.
type stack struct {
	t    *testing.T
	bin  string
	dir  string
	shm  string
	addr map[string]string
	env  []string
}

// proc is one process of the stack; it is ended by its pid.
type proc struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
}

func newStack(t *testing.T) *stack {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, bin: bin, dir: t.TempDir(), addr: map[string]string{}}
	s.shm = filepath.Join(s.dir, "world.shm")
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		f, err := os.CreateTemp("/dev/shm", "evenkeel-e2e-*")
		if err != nil {
			t.Fatal(err)
		}
		s.shm = f.Name()
		_ = f.Close()
		_ = os.Remove(s.shm)
		t.Cleanup(func() { _ = os.Remove(s.shm) })
	}
	for _, name := range []string{"nats", "exporter", "agent", "collector", "rebalancer"} {
		s.addr[name] = freeAddr(t)
	}
	s.env = []string{"LD_LIBRARY_PATH=" + filepath.Join(bin, "standin"), "EVENKEEL_STANDIN_SHM=" + s.shm}
	return s
}

func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// start runs a process until the test ends; its log is shown if the test fails.
func (s *stack) start(name string, args ...string) *proc {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	p := &proc{name: name, cmd: exec.Command(filepath.Join(s.bin, args[0]), args[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), s.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	s.t.Cleanup(func() {
		p.stop(s.t)
		if s.t.Failed() {
			out, _ := os.ReadFile(log.Name())
			if len(out) > 6000 {
				out = out[len(out)-6000:]
			}
			s.t.Logf("── %s\n%s", name, out)
		}
	})
	return p
}

// stop ends a process as an init system would: TERM, then KILL after a bound.
func (p *proc) stop(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		t.Errorf("%s does not end within 10 s of TERM", p.name)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (s *stack) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// startNATS runs a server with users and permissions as in production.
func (s *stack) startNATS(nodes ...string) *proc {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(s.addr["nats"])
	users := []bus.User{{Name: bus.UserCollector, Password: "pw"}, {Name: bus.UserRebalancer, Password: "pw"}, {Name: bus.UserReader, Password: "pw"}}
	for _, n := range nodes {
		users = append(users, bus.User{Name: telemetry.ExporterUser(n), Password: "pw"}, bus.User{Name: telemetry.AgentUser(n), Password: "pw"})
	}
	var portNumber int
	_, _ = fmt.Sscan(port, &portNumber)
	conf, err := bus.ServerConfig(bus.ServerOptions{Host: host, Port: portNumber, StoreDir: filepath.Join(s.dir, "js"), Users: users})
	if err != nil {
		s.t.Fatal(err)
	}
	s.env = append(s.env, "EK_PASSWORD=pw")
	p := s.start("nats", "nats-server", "-c", s.file("nats.conf", conf))
	s.eventually(15*time.Second, "the bus listens", func() error {
		c, err := net.DialTimeout("tcp", s.addr["nats"], time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	return p
}

// configs writes the file of each process and returns their paths.
func (s *stack) configs(node string) map[string]string {
	s.t.Helper()
	seed, err := telemetry.NewSeed()
	if err != nil {
		s.t.Fatal(err)
	}
	signer, err := telemetry.NewSigner(seed)
	if err != nil {
		s.t.Fatal(err)
	}
	key := s.file("rebalancer.nk", string(seed))
	nats := func(user string) string {
		return fmt.Sprintf("nats: {url: \"nats://%s\", user: %s, password: {env: EK_PASSWORD}}\n", s.addr["nats"], user)
	}
	head := func(kind, role string) string {
		return fmt.Sprintf("apiVersion: evenkeel/v1\nkind: %s\nlisten: %s\ncluster: test\n", kind, s.addr[role])
	}
	return map[string]string{
		"exporter":   s.file("exporter.yaml", head("Exporter", "exporter")+"node: "+node+"\n"+nats(telemetry.ExporterUser(node))),
		"collector":  s.file("collector.yaml", head("Collector", "collector")+nats(bus.UserCollector)),
		"rebalancer": s.file("rebalancer.yaml", head("Rebalancer", "rebalancer")+"name: r1\nmode: enforce\nsigning_key: "+key+"\npolicies: [testdata/thermal.yaml]\n"+nats(bus.UserRebalancer)),
		"agent": s.file("agent.yaml", head("Agent", "agent")+"node: "+node+"\nledger: "+filepath.Join(s.dir, "agent.db")+
			"\ntrusted_keys: ["+signer.KeyID()+"]\nclock: {require_sync: false}\n"+nats(telemetry.AgentUser(node))),
	}
}

// eventually polls until check returns nil; the bound is far above what is
// expected, since the machine may be busy.
func (s *stack) eventually(bound time.Duration, what string, check func() error) {
	s.t.Helper()
	deadline := time.Now().Add(bound)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %s: %s: %v", bound, what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// evenkeel runs the command line and returns its standard output.
func (s *stack) evenkeel(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "evenkeel"), args...)
	cmd.Env = append(os.Environ(), "EVENKEEL_SERVER="+s.addr["collector"])
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("evenkeel %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

// list is `get KIND -o json`.
func list[T any](s *stack, kind string) ([]T, error) {
	out, err := s.evenkeel("get", kind, "-o", "json")
	if err != nil {
		return nil, err
	}
	var v struct {
		APIVersion string `json:"apiVersion"`
		Items      []T    `json:"items"`
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		return nil, err
	}
	if v.APIVersion != "evenkeel/v1" {
		return nil, fmt.Errorf("apiVersion %q", v.APIVersion)
	}
	return v.Items, nil
}

func (s *stack) metrics(role string) (string, error) {
	resp, err := http.Get("http://" + s.addr[role] + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
