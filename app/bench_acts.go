package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/bench"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// filterTicks is how many samples beyond the mark the default thermal policy
// wants before it acts.
const filterTicks = 3

// comfortable is how many ticks come before the heat.
const comfortable = 2

// hotIndex is which node is the ith of those that get hot. They are far apart:
// neighbours by name tick at nearly the same time.
func hotIndex(i, nodes, hot int) int { return i * (nodes / hot) }

// actsReport is how long it took from the frame that completes the filter of the
// policy to the receipt of the act.
type actsReport struct {
	Hot    int           `json:"hot_nodes"`
	Acts   int           `json:"acts"`
	Stages []stageReport `json:"stages"`
	// Wrong is what should not have been seen, such as a device without a receipt.
	Wrong []string `json:"wrong,omitempty"`
	Text  string   `json:"-"`
}

type stageReport struct {
	Stage string  `json:"stage"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// hotNode is a node that gets hot at a tick, and the driver that its agent
// writes to.
type hotNode struct {
	*memoryDevices
	name string
	from int

	sent sync.Mutex
	last completing // the frame that completes the filter
}

// Say implements bench.Devices. A device is beyond the mark by one value alone,
// so the filter wants its full run of samples; once capped it is comfortable.
func (h *hotNode) Say(tick int, f *telemetry.Frame) {
	f.SetHasSlowPart(true)
	for _, g := range f.GetGpus() {
		l, err := h.PowerLimits(g.GetUuid())
		if err != nil {
			continue
		}
		core, headroom := 58.0, 27.0
		if tick >= h.from && l.Current >= l.Default {
			core, headroom = 82, 3
		}
		for _, v := range []struct {
			id telemetry.ID
			v  float64
		}{
			{telemetry.GPUUtilizationRatio, 0.97}, {telemetry.GPUTemperatureCelsiusCore, core}, {telemetry.GPUThermalHeadroomCelsius, headroom},
			{telemetry.GPUTemperatureCelsiusMemory, core}, {telemetry.GPUPowerWatts, min(640, l.Current)}, {telemetry.GPUPowerLimitWatts, l.Current},
			{telemetry.GPUPowerLimitMinWatts, l.Min}, {telemetry.GPUPowerLimitDefaultWatts, l.Default}, {telemetry.GPUPowerLimitMaxWatts, l.Max},
		} {
			g.SetValue(v.id, v.v)
		}
	}
}

// Sent implements bench.Devices.
func (h *hotNode) Sent(tick int, sequence uint64, at time.Time) {
	h.sent.Lock()
	defer h.sent.Unlock()
	if tick == h.from+filterTicks-1 {
		h.last = completing{sequence, at}
	}
}

// acts is the part of a run that is carried out: nodes that get hot, their
// agents, and what was seen of the acts.
type acts struct {
	rig   *benchRig
	log   *slog.Logger
	nodes []*hotNode
	conns []*bus.Conn
	seen  *sightings
	run   sync.WaitGroup
}

// benchActs is a run in which nodes get hot.
func benchActs(ctx context.Context, o BenchOptions, rig *benchRig, log *slog.Logger) (*benchReport, error) {
	a := &acts{rig: rig, log: log, seen: newSightings()}
	warm := int((o.Run.Warmup + o.Run.Period - 1) / o.Run.Period)
	for i := range o.Hot {
		var uuids []string
		for k := range o.Run.GPUs {
			uuids = append(uuids, bench.DeviceUUID(hotIndex(i, o.Run.Nodes, o.Hot), k, o.Run.Seed))
		}
		name := bench.NodeName(o.Run.Prefix, hotIndex(i, o.Run.Nodes, o.Hot))
		a.nodes = append(a.nodes, &hotNode{memoryDevices: newMemoryDevices(uuids), name: name, from: warm + comfortable})
	}
	o.Run.Steady = true
	o.Run.Devices = func(node int) bench.Devices {
		for i, h := range a.nodes {
			if node == hotIndex(i, o.Run.Nodes, o.Hot) {
				return h
			}
		}
		return nil
	}
	running, cancel := context.WithCancel(ctx)
	defer a.end(cancel)
	if err := a.start(running); err != nil {
		return nil, err
	}
	report, err := bench.Run(ctx, o.Run, log)
	if err != nil {
		return nil, err
	}
	return &benchReport{report, a.report()}, nil
}

// connect opens a connection of a user.
func (a *acts) connect(user string) (*bus.Conn, error) {
	c, err := bus.Connect(bus.Options{URLs: []string{a.rig.url}, User: user, Password: a.rig.password, Log: a.log.With("component", "bus")})
	if err == nil {
		a.conns = append(a.conns, c)
	}
	return c, err
}

// start runs the agents and who watches, and returns when a rebalancer leads
// and every agent takes orders.
func (a *acts) start(ctx context.Context) error {
	watch, err := a.connect(bus.UserCollector)
	if err != nil {
		return err
	}
	order, err := a.connect(bus.UserRebalancer)
	if err != nil {
		return err
	}
	if err := ensureStreams(ctx, watch, a.log); err != nil {
		return err
	}
	a.run.Go(func() { _ = watch.FollowJournal(ctx, a.seen.record) }) // until ctx ends
	if _, err := watch.Observations(a.seen.observation); err != nil {
		return err
	}
	if _, err := watch.Receipts(a.seen.receipt); err != nil {
		return err
	}
	for _, h := range a.nodes {
		if err := a.agent(ctx, h); err != nil {
			return fmt.Errorf("agent of %s: %w", h.name, err)
		}
	}
	if err := eventually(ctx, "a rebalancer leads", func() error { _, err := watch.Control(ctx, "plan", nil); return err }); err != nil {
		return err
	}
	for _, h := range a.nodes {
		if err := eventually(ctx, "the agent of "+h.name+" takes orders", func() error {
			_, err := order.RequestOrder(ctx, h.name, []byte("not an order"))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (a *acts) agent(ctx context.Context, h *hotNode) error {
	conn, err := a.connect(telemetry.AgentUser(h.name))
	if err != nil {
		return err
	}
	cfg := agent.DefaultConfig(h.name)
	cfg.TrustedKeys, cfg.Allow, cfg.RequireSync = []string{a.rig.signer.KeyID()}, agent.Caps, false
	cfg.Ledger = filepath.Join(a.rig.dir, h.name+".db")
	// What it does not do is in the report.
	x, err := agent.New(agent.Options{Config: cfg, Bus: conn, Writer: h, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	a.run.Go(func() {
		if err := x.Run(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("an agent ended", "node", h.name, "err", err)
		}
	})
	return nil
}

// eventually tries until it succeeds.
func eventually(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within 30 s: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (a *acts) end(cancel func()) {
	cancel()
	a.run.Wait()
	for _, c := range a.conns {
		c.Close()
	}
}

// report tells the stages of every act.
func (a *acts) report() *actsReport {
	out := &actsReport{Hot: len(a.nodes)}
	var all []stages
	want := 0
	for _, h := range a.nodes {
		h.sent.Lock()
		last := h.last
		h.sent.Unlock()
		for _, uuid := range h.uuids {
			want++
			s, err := a.seen.of(h.name, uuid, last)
			if err != nil {
				out.Wrong = append(out.Wrong, err.Error())
				continue
			}
			all = append(all, s)
		}
	}
	a.seen.mu.Lock()
	out.Wrong = append(out.Wrong, a.seen.disorder...)
	if n := len(a.seen.intents); n > want {
		out.Wrong = append(out.Wrong, fmt.Sprintf("%d devices were acted on, %d got hot", n, want))
	}
	a.seen.mu.Unlock()
	slices.Sort(out.Wrong)
	out.Acts = len(all)
	for _, row := range stageRows {
		d := spread(all, row.of)
		out.Stages = append(out.Stages, stageReport{row.key, ms(d[0]), ms(d[1]), ms(d[2])})
	}
	out.Text = table(all)
	if len(out.Wrong) > 0 {
		out.Text += fmt.Sprintf("%d things went wrong:\n  %s\n", len(out.Wrong), strings.Join(out.Wrong, "\n  "))
	}
	return out
}
