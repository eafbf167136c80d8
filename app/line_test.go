package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

const linePassword = "pw"

// line is the product in one process, but with everything that crosses the bus
// crossing a socket: collector, rebalancer and agents as they are wired for
// real. The test speaks in the place of the exporters.
type line struct {
	testing.TB
	shape  lineShape
	server *embedded.Server
	signer *telemetry.Signer
	watch  *bus.Conn // the collector's rights: hears all of it
	order  *bus.Conn // the rebalancer's
	nodes  []*lineNode
	seen   *sightings
	ends   []func()
}

// onEnd is Cleanup for a line that ends before its test does.
func (l *line) onEnd(fn func()) { l.ends = append(l.ends, fn) }

// end stops the parts, then their connections, then the server.
func (l *line) end() {
	for _, fn := range slices.Backward(l.ends) {
		fn()
	}
	l.ends = nil
}

// lineShape is how large it is, and which of it gets hot.
type lineShape struct {
	nodes, gpus int
	hot         int  // the first nodes get hot
	burst       bool // all nodes tick at once, instead of spread over the second
}

func (s lineShape) acts() int { return s.hot * s.gpus }

// lineNode is an exporter's place and the devices that the agent writes to.
type lineNode struct {
	name    string
	conn    *bus.Conn
	start   time.Time
	seq     uint64
	devices *memoryDevices
}

// startLine returns when agents and leader answer.
func startLine(tb testing.TB, shape lineShape) *line {
	tb.Helper()
	l := &line{TB: tb, shape: shape, seen: newSightings()}
	users := []bus.User{{Name: bus.UserCollector, Password: linePassword}, {Name: bus.UserRebalancer, Password: linePassword}}
	for i := range shape.nodes {
		name := fmt.Sprintf("gpu-%04d", i)
		var uuids []string
		for k := range shape.gpus {
			uuids = append(uuids, fmt.Sprintf("GPU-%s-%d", name, k))
		}
		l.nodes = append(l.nodes, &lineNode{name: name, devices: newMemoryDevices(uuids)})
		users = append(users, bus.User{Name: telemetry.ExporterUser(name), Password: linePassword}, bus.User{Name: telemetry.AgentUser(name), Password: linePassword})
	}
	tb.Cleanup(l.end)
	dir := tb.TempDir()
	var err error
	if l.server, err = embedded.Start(embedded.Options{StoreDir: filepath.Join(dir, "bus"), Port: embedded.Random, Users: users}); err != nil {
		tb.Fatal(err)
	}
	l.onEnd(l.server.Shutdown)
	seed, err := telemetry.NewSeed()
	if err != nil {
		tb.Fatal(err)
	}
	if l.signer, err = telemetry.NewSigner(seed); err != nil {
		tb.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	p := lifecycle.New(ctx)
	l.addParts(ctx, p, dir)
	ended := make(chan error, 1)
	go func() { ended <- p.Run() }()
	l.onEnd(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("a part ended: %v", err)
		}
	})
	l.awaitParts(ctx)
	return l
}

// connect opens a socket of a user; it closes after the parts have ended.
func (l *line) connect(user string) *bus.Conn {
	l.Helper()
	c, err := bus.Connect(bus.Options{URLs: []string{l.server.URL()}, User: user, Password: linePassword})
	if err != nil {
		l.Fatal(err)
	}
	l.onEnd(c.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		l.Fatal(err)
	}
	return c
}

// addParts wires collector, rebalancer and agents, and what listens to them.
func (l *line) addParts(ctx context.Context, p *lifecycle.Process, dir string) {
	l.Helper()
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		if err != nil {
			l.Fatal(err)
		}
	}
	collectorConn := l.connect(bus.UserCollector)
	must(ensureStreams(ctx, collectorConn, log))
	page, err := lifecycle.Listen("page", "127.0.0.1:0")
	must(err)
	must(addCollector(p, collectorParts{conn: collectorConn, maxNodes: l.shape.nodes, log: log}, page))

	// The budget is opened: what is measured is acts, not their refusal.
	specs := policy.Defaults()
	for i := range specs {
		specs[i].Mode = telemetry.Enforce
		specs[i].Budget.Percent, specs[i].Budget.Max = 100, 0
	}
	l.order = l.connect(bus.UserRebalancer)
	must(addRebalancer(ctx, p, rebalancerParts{name: "line", conn: l.order, signer: l.signer, policies: specs, log: log}, nil))

	for _, n := range l.nodes {
		n.start = time.Now()
		n.conn = l.connect(telemetry.ExporterUser(n.name))
	}
	for _, n := range l.nodes[:l.shape.hot] {
		cfg := agent.DefaultConfig(n.name)
		cfg.TrustedKeys, cfg.Allow, cfg.RequireSync = []string{l.signer.KeyID()}, agent.Caps, false
		cfg.Ledger = filepath.Join(dir, n.name+".db")
		a, err := agent.New(agent.Options{Config: cfg, Bus: l.connect(telemetry.AgentUser(n.name)), Writer: n.devices, Log: log})
		must(err)
		p.Add("agent "+n.name, a.Run)
	}
	l.watch = l.connect(bus.UserCollector)
	p.Add("follow the journal", func(ctx context.Context) error { return l.watch.FollowJournal(ctx, l.seen.record) })
	_, err = l.watch.Observations(l.seen.observation)
	must(err)
	_, err = l.watch.Receipts(l.seen.receipt)
	must(err)
}

// awaitParts asks each part something that it can only answer when it works.
func (l *line) awaitParts(ctx context.Context) {
	l.Helper()
	l.eventually("a rebalancer leads", func() error {
		_, err := l.watch.Control(ctx, "plan", nil)
		return err
	})
	for _, n := range l.nodes[:l.shape.hot] {
		l.eventually("the agent of "+n.name+" takes orders", func() error {
			_, err := l.order.RequestOrder(ctx, n.name, []byte("not an order"))
			return err
		})
	}
}

func (l *line) eventually(what string, try func() error) {
	l.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	l.Fatalf("%s: not within 30 s: %v", what, err)
}

// frame is the node's next one.
func (n *lineNode) frame(at time.Time, hot bool) ([]byte, error) {
	n.seq++
	f := telemetry.Frame_builder{
		Schema: telemetry.Schema, Cluster: "line", Node: n.name, BootId: "boot-" + n.name, Incarnation: uint64(n.start.UnixNano()), Sequence: n.seq,
		SampleTimeUnixNano: at.UnixNano(), SendTimeUnixNano: at.UnixNano(), MonotonicNano: int64(at.Sub(n.start)),
		PeriodNano: uint64(time.Second), ClockSynchronized: true, HasSlowPart: true,
	}.Build()
	f.SetGpus(n.devices.gpus(hot))
	return telemetry.AppendFrame(nil, f)
}

// gpus are the devices as an exporter would read them. Hot ones are beyond the
// mark by one value alone, so the filter wants its full run of samples.
func (d *memoryDevices) gpus(hot bool) []*telemetry.GPU {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*telemetry.GPU, len(d.uuids))
	for i, uuid := range d.uuids {
		l := d.limits[uuid]
		g := &telemetry.GPU{}
		g.SetUuid(uuid)
		g.SetDescription(telemetry.Description_builder{Index: uint32(i), Pci: fmt.Sprintf("0000:%02x:00.0", i), Model: "NVIDIA H100 80GB HBM3", Driver: "570.1", Arch: "hopper"}.Build())
		core, headroom := 58.0, 27.0
		if hot {
			core, headroom = 82, 3
		}
		for id, v := range map[telemetry.ID]float64{
			telemetry.GPUUp: 1, telemetry.GPUUtilizationRatio: 0.97, telemetry.GPUTemperatureCelsiusCore: core, telemetry.GPUThermalHeadroomCelsius: headroom,
			telemetry.GPUPowerWatts: min(640, l.Current), telemetry.GPUPowerLimitWatts: l.Current, telemetry.GPUPowerLimitMinWatts: l.Min,
			telemetry.GPUPowerLimitDefaultWatts: l.Default, telemetry.GPUPowerLimitMaxWatts: l.Max,
			telemetry.GPUThrottleActiveSWThermal: 0, telemetry.GPUThrottleActiveHWThermal: 0, telemetry.GPUClockHertzSM: 1.98e9,
		} {
			g.SetValue(id, v)
		}
		out[i] = g
	}
	return out
}
