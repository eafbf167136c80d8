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
	"slices"
	"strconv"
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
		{"make", "--no-print-directory", "build", "crashpoints", "standin"},
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
	// servers are the roles of the bus's servers.
	servers []string
	// procs are the processes started last, by name.
	procs map[string]*proc
	// policy is the rebalancers' file, tick the exporter's, rules are added to the
	// agent's file.
	policy string
	tick   time.Duration
	rules  string
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
	s := &stack{t: t, bin: bin, dir: t.TempDir(), addr: map[string]string{}, procs: map[string]*proc{}, servers: []string{"nats"}, policy: "testdata/thermal.yaml", tick: time.Second}
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
	for _, name := range []string{"nats", "exporter", "agent", "collector", "collector-2", "rebalancer", "standby"} {
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
	return s.startWith(nil, name, args...)
}

// startWith is start with more environment.
func (s *stack) startWith(env []string, name string, args ...string) *proc {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	if !filepath.IsAbs(args[0]) {
		args = append([]string{filepath.Join(s.bin, args[0])}, args[1:]...)
	}
	if os.Geteuid() == 0 { // a machine that is busy with other tests is no sick node
		args = append([]string{"nice", "-n", "-10"}, args...)
	}
	p := &proc{name: name, cmd: exec.Command(args[0], args[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Env = slices.Concat(os.Environ(), s.env, env)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.procs[name] = p
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
	s.env = append(s.env, "EK_PASSWORD=pw")
	return s.startServer("nats", bus.ServerOptions{StoreDir: filepath.Join(s.dir, "js"), Users: users(nodes)})
}

// users are those of an installation with these nodes.
func users(nodes []string) []bus.User {
	users := []bus.User{{Name: bus.UserCollector, Password: "pw"}, {Name: bus.UserRebalancer, Password: "pw"}, {Name: bus.UserReader, Password: "pw"}}
	for _, n := range nodes {
		users = append(users, bus.User{Name: telemetry.ExporterUser(n), Password: "pw"}, bus.User{Name: telemetry.AgentUser(n), Password: "pw"})
	}
	return users
}

// startServer runs one server of the bus, as role, from its options.
func (s *stack) startServer(role string, o bus.ServerOptions) *proc {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(s.addr[role])
	o.Host = host
	_, _ = fmt.Sscan(port, &o.Port)
	conf, err := bus.ServerConfig(o)
	if err != nil {
		s.t.Fatal(err)
	}
	p := s.start(role, "nats-server", "-c", s.file(role+".conf", conf))
	s.eventually(15*time.Second, role+" listens", func() error {
		c, err := net.DialTimeout("tcp", s.addr[role], time.Second)
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
		return fmt.Sprintf("nats: {url: %q, replicas: %d, user: %s, password: {env: EK_PASSWORD}}\n", strings.Join(s.urls(), ","), len(s.urls()), user)
	}
	head := func(kind, role string) string {
		return fmt.Sprintf("apiVersion: evenkeel/v1\nkind: %s\nlisten: %s\ncluster: test\n", kind, s.addr[role])
	}
	rebalancer := func(role, name string) string {
		return s.file(role+".yaml", head("Rebalancer", role)+"name: "+name+"\nmode: enforce\nsigning_key: "+key+"\npolicies: ["+s.policy+"]\n"+nats(bus.UserRebalancer))
	}
	collector := func(role string) string {
		return s.file(role+".yaml", head("Collector", role)+"name: "+role+"\nstore: {dir: "+strconv.Quote(filepath.Join(s.dir, role+"-store"))+"}\n"+nats(bus.UserCollector))
	}
	return map[string]string{
		"exporter":  s.file("exporter.yaml", head("Exporter", "exporter")+"node: "+node+"\ntick: "+s.tick.String()+"\nagent_file: "+filepath.Join(s.dir, "agent.yaml")+"\n"+nats(telemetry.ExporterUser(node))),
		"collector": collector("collector"), "collector-2": collector("collector-2"),
		"rebalancer": rebalancer("rebalancer", "r1"), "standby": rebalancer("standby", "r2"),
		"agent": s.file("agent.yaml", head("Agent", "agent")+"node: "+node+"\nledger: "+filepath.Join(s.dir, "agent.db")+
			"\ntrusted_keys: ["+signer.KeyID()+"]\nclock: {require_sync: false}\n"+s.rules+nats(telemetry.AgentUser(node))),
	}
}

// eventually polls until check returns nil; the bound is far above what is
// expected, since the machine may be busy.
func (s *stack) eventually(bound time.Duration, what string, check func() error) {
	s.t.Helper()
	eventually(s.t, bound, what, check)
}

func eventually(t *testing.T, bound time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(bound)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", bound, what, err)
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

func (s *stack) metrics(role string) (string, error) { return s.get(role, "/metrics") }

// urls are where the bus is.
func (s *stack) urls() (urls []string) {
	for _, role := range s.servers {
		urls = append(urls, "nats://"+s.addr[role])
	}
	return urls
}

func (s *stack) get(role, path string) (string, error) {
	resp, err := http.Get("http://" + s.addr[role] + path)
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

// metric is the value of a series without labels.
func (s *stack) metric(role, name string) (v float64, err error) {
	m, err := s.metrics(role)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(m) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			_, err = fmt.Sscan(text, &v)
			return v, err
		}
	}
	return 0, fmt.Errorf("%s serves no %s", role, name)
}
