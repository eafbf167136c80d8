package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/alerts"
	"github.com/evenkeel-gpu/evenkeel/app/connect"
	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/collector/store"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// UpOptions are the flags of `evenkeel up`.
type UpOptions struct {
	Source   string // sim, nvml, or empty for what is there
	Scenario string
	Seed     uint64
	Listen   string
	Data     string
	// Inventory is a file that says what the fleet should be.
	Inventory string
	LogLevel  string // of the process beside this one
	Out       io.Writer
}

const (
	// worldTick is how often the simulated world moves.
	worldTick = 25 * time.Millisecond
	// upInterval is shorter than a fleet's, as somebody sits before it.
	upInterval       = 5 * time.Second
	upRetention      = 7 * 24 * time.Hour
	upRetentionBytes = 1 << 30
)

// Up runs everything in one process until ctx ends: the real exporters and
// agents over a simulated world, or this machine's exporter beside it.
func Up(ctx context.Context, o UpOptions, log *slog.Logger) error {
	// The port first: it is what most often stands in the way.
	ln, err := lifecycle.Listen("page", o.Listen)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	if o.Source == "" {
		o.Source = "sim"
		if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
			o.Source = "nvml"
		}
	}
	if o.Inventory != "" {
		if _, err := config.LoadInventory(o.Inventory); err != nil {
			return err
		}
	}
	u := &up{options: o, log: log, process: lifecycle.New(ctx)}
	if o.Source == "nvml" {
		if u.node, err = nodeBinary(); err != nil {
			return err
		}
	}
	data, cleanup, err := dataFolder(o.Data)
	if err != nil {
		return err
	}
	defer cleanup()
	u.data = data
	defer u.close()
	if err := u.start(ctx, ln); err != nil {
		return err
	}
	server := u.server(ln.Addr())
	fmt.Fprintf(o.Out, "Evenkeel is up: http://%s\n", ln.Addr())
	fmt.Fprintf(o.Out, "  %s\n", u.what)
	fmt.Fprintf(o.Out, "  evenkeel get gpus --sort-by headroom_celsius%s\n  evenkeel get decisions%s\n  evenkeel explain d-000001%s\n", server, server, server)
	return u.process.Run()
}

type up struct {
	options UpOptions
	data    string
	log     *slog.Logger
	process *lifecycle.Process
	bus     *embedded.Server
	conns   []*bus.Conn
	what    string
	node    string // the evenkeel-node binary
}

// server is the flag that commands need when the page is not where they look.
func (u *up) server(at net.Addr) string {
	if u.options.Listen == "127.0.0.1:9837" {
		return ""
	}
	return " --server " + at.String()
}

// start is one straight line, in the order in which things must be there: bus,
// collector, rebalancer, then who speaks and obeys.
func (u *up) start(ctx context.Context, ln net.Listener) error {
	port := 0
	if u.options.Source == "nvml" {
		port = embedded.Random
	}
	server, err := embedded.Start(embedded.Options{StoreDir: filepath.Join(u.data, "bus"), Port: port, Log: u.log.With("component", "nats")})
	if err != nil {
		return err
	}
	u.bus = server

	signer, _, err := signingKey(filepath.Join(u.data, "rebalancer.nk"))
	if err != nil {
		return err
	}
	collectorConn, err := u.connect(bus.UserCollector)
	if err != nil {
		return err
	}
	if err := ensureStreams(ctx, collectorConn, u.log); err != nil {
		return err
	}
	kept := &store.Options{
		Dir: filepath.Join(u.data, "store"), Interval: upInterval, Retention: upRetention, RetentionBytes: upRetentionBytes,
		Rules: alerts.Files(), ExternalURL: "http://" + ln.Addr().String(),
	}
	if err := addCollector(u.process, collectorParts{conn: collectorConn, maxNodes: 1024, inventory: u.options.Inventory, log: u.log, store: kept}, ln); err != nil {
		return err
	}

	parts := rebalancerParts{name: "up", signer: signer, log: u.log}
	if parts.conn, err = u.connect(bus.UserRebalancer); err != nil {
		return err
	}
	var world *sim.World
	mode := telemetry.Recommend // on real GPUs `up` never acts unasked
	if u.options.Source == "sim" {
		if world, err = u.world(); err != nil {
			return err
		}
		mode = telemetry.Enforce
		parts.sources = []rebalancer.InventorySource{world.InventorySource()}
	}
	if parts.policies, err = policySpecs(mode, nil); err != nil {
		return err
	}
	if err := addRebalancer(ctx, u.process, parts, nil); err != nil {
		return err
	}
	if world == nil {
		return u.addExporter()
	}
	return u.addWorld(world, signer)
}

func (u *up) world() (*sim.World, error) {
	s, err := Scenario(u.options.Scenario)
	if err != nil {
		return nil, err
	}
	seed := u.options.Seed
	if seed == 0 {
		seed = s.Seed
	}
	return sim.New(s, seed)
}

// addWorld runs the world and, on each of its nodes, the real exporter and
// agent.
func (u *up) addWorld(world *sim.World, signer *telemetry.Signer) error {
	for _, name := range world.NodeNames() {
		if err := u.addNode(world, name, signer); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	u.what = fmt.Sprintf("a simulated fleet of %d nodes (scenario %s); acts are carried out", len(world.NodeNames()), u.options.Scenario)
	u.process.Add("world", func(ctx context.Context) error { world.Run(ctx, worldTick); return nil })
	return nil
}

func (u *up) addNode(world *sim.World, name string, signer *telemetry.Signer) error {
	log := u.log.With("node", name)
	source, err := world.Source(name)
	if err != nil {
		return err
	}
	x, err := u.connect(telemetry.ExporterUser(name))
	if err != nil {
		return err
	}
	exp, err := exporter.New(exporter.Options{Node: name, Cluster: "up", Source: source, Sink: connect.NodeSink(x, name), Log: log})
	if err != nil {
		return err
	}
	u.process.Add("exporter "+name, exp.Run)

	writer, err := world.Writer(name)
	if err != nil {
		return err
	}
	a, err := u.connect(telemetry.AgentUser(name))
	if err != nil {
		return err
	}
	cfg := agent.DefaultConfig(name)
	cfg.TrustedKeys = []string{signer.KeyID()}
	cfg.Allow = agent.Caps
	cfg.RequireSync = false // the fleet is simulated, its clock is this machine's
	cfg.Ledger = filepath.Join(u.data, "agent-"+telemetry.EncodeNode(name)+".db")
	ag, err := agent.New(agent.Options{Config: cfg, Bus: a, Writer: writer, Headroom: writer.Headroom, Log: u.log})
	if err != nil {
		return err
	}
	u.process.Add("agent "+name, ag.Run)
	return nil
}

// addExporter starts evenkeel-node beside this process. If either ends, so does
// the other.
func (u *up) addExporter() error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this machine has no name to give its node: %w", err)
	}
	u.what = fmt.Sprintf("this machine's GPUs (node %s), read only; acts are recommended, not carried out", name)
	u.process.Add("evenkeel-node export", func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, u.node, "export", "--node", name, "--nats", u.bus.URL(), "--listen", "127.0.0.1:0", "--log-level", u.options.LogLevel)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 5 * time.Second
		err := runChild(cmd)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			err = errors.New("ended by itself")
		}
		return fmt.Errorf("%s: %w", u.node, err)
	})
	return nil
}

func nodeBinary() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), "evenkeel-node"); fileExists(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath("evenkeel-node")
	if err != nil {
		return "", errors.New("evenkeel-node is neither beside evenkeel nor on the PATH; build it with `make build`, or use --source sim")
	}
	return path, nil
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (u *up) connect(user string) (*bus.Conn, error) {
	c, err := bus.Connect(bus.Options{InProcess: u.bus, User: user, Log: u.log.With("component", "bus", "user", user)})
	if err == nil {
		u.conns = append(u.conns, c)
	}
	return c, err
}

func (u *up) close() {
	for _, c := range u.conns {
		c.Close()
	}
	if u.bus != nil {
		u.bus.Shutdown()
	}
}

// dataFolder is where the journal lives; without a name a fresh one that goes
// with the process.
func dataFolder(name string) (dir string, cleanup func(), err error) {
	if name != "" {
		return name, func() {}, os.MkdirAll(name, 0o700)
	}
	dir, err = os.MkdirTemp("", "evenkeel-up-")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// ensureStreams waits for the streams, so that the first decision need not.
func ensureStreams(ctx context.Context, conn *bus.Conn, log *slog.Logger) error {
	for {
		err := conn.Ready(ctx)
		if err == nil {
			if err = conn.EnsureStreams(ctx, bus.DefaultStreams()); err == nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Warn("the bus's streams are not there yet; trying again", "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
