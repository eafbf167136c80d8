package bus_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

const within = 15 * time.Second

// world is one kind of server with our users on it.
type world struct {
	url       string
	inProcess bus.InProcess
}

func password(user string) string { return "secret-of-" + user }

func users(nodes ...string) []bus.User {
	names := []string{bus.UserCollector, bus.UserRebalancer, bus.UserReader}
	for _, n := range nodes {
		names = append(names, telemetry.ExporterUser(n), telemetry.AgentUser(n))
	}
	var all []bus.User
	for _, n := range names {
		all = append(all, bus.User{Name: n, Password: password(n)})
	}
	return all
}

// connect gives a connection of a user that stands.
func (w world) connect(t *testing.T, user string) *bus.Conn {
	t.Helper()
	o := bus.Options{User: user, Password: password(user), InProcess: w.inProcess, ReconnectWait: 20 * time.Millisecond, ReconnectJitter: 20 * time.Millisecond}
	if w.inProcess == nil {
		o.URLs = []string{w.url}
	}
	return connect(t, o)
}

func connect(t *testing.T, o bus.Options) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Ready(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx
}

// everywhere runs a contract over each kind of server, with the streams made.
func everywhere(t *testing.T, contract func(t *testing.T, w world)) {
	t.Helper()
	nodes := []string{"node1", "node2", "Rack-7.Node 3"}
	for _, kind := range []struct {
		name  string
		start func(t *testing.T, nodes []string) world
	}{
		{"in-process", startInProcess},
		{"tcp", startTCP},
		{"nats-server", startBinary},
	} {
		t.Run(kind.name, func(t *testing.T) {
			w := kind.start(t, nodes)
			if err := w.connect(t, bus.UserCollector).EnsureStreams(bounded(t), small()); err != nil {
				t.Fatal(err)
			}
			contract(t, w)
		})
	}
}

// small bounds let the tests run on a small disk.
func small() bus.Streams {
	s := bus.DefaultStreams()
	for _, b := range []*bus.Bounds{&s.Events, &s.Receipts, &s.Journal, &s.Inventory} {
		b.MaxBytes = 8 << 20
	}
	return s
}

func startInProcess(t *testing.T, nodes []string) world {
	return world{inProcess: startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Users: users(nodes...)})}
}

func startTCP(t *testing.T, nodes []string) world {
	s := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, Users: users(nodes...)})
	return world{url: s.URL()}
}

func startEmbedded(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// builds is where this run puts programs; TestMain makes and removes it.
var builds string

// natsServer builds the server's own program once, if a test asks for it.
var natsServer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(builds, "nats-server")
	out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build nats-server: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "evenkeel-bus-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	builds = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func startBinary(t *testing.T, nodes []string) world {
	t.Helper()
	path, err := natsServer()
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	conf, err := bus.ServerConfig(bus.ServerOptions{Name: "test", Port: port, StoreDir: t.TempDir(), Users: users(nodes...)})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(path, "-t", "-c", file).CombinedOutput(); err != nil {
		t.Fatalf("the server refuses the configuration: %v\n%s\n%s", err, out, conf)
	}
	cmd := exec.Command(path, "-c", file)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return world{url: fmt.Sprintf("nats://127.0.0.1:%d", port)}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// eventually waits, bounded, for what comes about elsewhere.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %s: %s", within, what)
}

// list is a list that handlers may fill.
type list[T any] struct {
	mu  sync.Mutex
	all []T
}

func (l *list[T]) add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, v)
}

func (l *list[T]) get() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]T(nil), l.all...)
}

func (l *list[T]) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}
