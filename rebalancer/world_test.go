package rebalancer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/rebalancer/policy"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// journal keeps records in memory, with the compare-and-append of the port.
type journal struct {
	mu      sync.Mutex
	records []telemetry.Record
	// before is asked before a record is kept; its error is returned instead.
	before func(telemetry.Record) error
	// after is asked once it is kept: the answer may be lost on its way back.
	after func(telemetry.Record) error
	fail  error // of Replay
}

func (j *journal) Append(_ context.Context, expect uint64, r telemetry.Record) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.before != nil {
		if err := j.before(r); err != nil {
			return 0, err
		}
	}
	if expect != uint64(len(j.records)) {
		return 0, fmt.Errorf("at %d, expected %d: %w", len(j.records), expect, rebalancer.ErrConflict)
	}
	j.records = append(j.records, r)
	if j.after != nil {
		if err := j.after(r); err != nil {
			return 0, err
		}
	}
	return uint64(len(j.records)), nil
}

func (j *journal) AppendAll(ctx context.Context, expect uint64, rs []telemetry.Record, stored func(uint64)) error {
	for _, r := range rs {
		seq, err := j.Append(ctx, expect, r)
		if err != nil {
			return err
		}
		stored(seq)
		expect = seq
	}
	return nil
}

func (j *journal) Replay(_ context.Context, fn func(uint64, telemetry.Record) error) (uint64, error) {
	return j.read(func([]telemetry.Record) int { return 0 }, fn)
}

func (j *journal) Resume(_ context.Context, fn func(uint64, telemetry.Record) error) (uint64, error) {
	return j.read(func(all []telemetry.Record) int {
		for i, r := range slices.Backward(all) {
			if r.Topic == telemetry.TopicSnapshot {
				return i
			}
		}
		return 0
	}, fn)
}

func (j *journal) read(from func([]telemetry.Record) int, fn func(uint64, telemetry.Record) error) (uint64, error) {
	j.mu.Lock()
	records := slices.Clone(j.records)
	fail := j.fail
	j.mu.Unlock()
	if fail != nil {
		return 0, fail
	}
	for i := from(records); i < len(records); i++ {
		if err := fn(uint64(i+1), records[i]); err != nil {
			return 0, err
		}
	}
	return uint64(len(records)), nil
}

// hook sets what is asked around an append, and how Replay fails.
func (j *journal) hook(before, after func(telemetry.Record) error, fail error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.before, j.after, j.fail = before, after, fail
}

func (j *journal) all() []telemetry.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.records)
}

func (j *journal) fold(t testing.TB) rebalancer.Memory {
	t.Helper()
	var m rebalancer.Memory
	for i, r := range j.all() {
		if err := m.Fold(uint64(i+1), r); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// device is a GPU whose heat follows a first-order model.
type device struct {
	uuid      string
	node      string
	index     int
	load      float64 // watts that its work would draw without a limit
	limit     float64
	r, tau    float64
	temp      float64
	slope     float64
	sets      int // how often its limit was set
	leaseEnds time.Time
}

const (
	slowdownC = 90.0
	defaultW  = 700.0
	minW      = 200.0
	leastCapW = 350.0 // the floor of the default policy
)

// draws is what the device draws: its own load and its processes', under its
// limit.
func (w *world) draws(d *device) float64 {
	load := d.load
	for _, t := range w.trees {
		if !t.over && slices.Contains(t.gpus, d.uuid) {
			load += t.watts
		}
	}
	return min(load, d.limit)
}

func (d *device) power() float64    { return min(d.load, d.limit) }
func (d *device) headroom() float64 { return slowdownC - d.temp }

// world is nodes of devices, their agents, and the air they share.
type world struct {
	mu      sync.Mutex
	now     time.Time
	inlet   map[string]float64 // by node
	devices []*device
	rows    map[string]string
	ledger  map[string]telemetry.Receipt
	calls   map[string]int // effects by step id; never more than one
	down    map[string]bool
	refuse  telemetry.RefuseReason
	// refuseKind refuses one kind of step.
	refuseKind map[telemetry.StepKind]telemetry.RefuseReason
	mute       bool // nobody answers anything
	lost       bool // orders arrive, and no answer does
	since      time.Time
	jobs       []telemetry.InventoryWorkload
	trees      []*tree
}

func newWorld(nodes, gpus int) *world {
	w := &world{now: start, inlet: map[string]float64{}, rows: map[string]string{}, ledger: map[string]telemetry.Receipt{}, calls: map[string]int{}, down: map[string]bool{}, since: start.Add(-time.Hour)}
	for n := range nodes {
		name := fmt.Sprintf("n%02d", n)
		w.inlet[name] = 30
		w.rows[name] = fmt.Sprintf("row%d", n/2)
		for i := range gpus {
			d := &device{uuid: fmt.Sprintf("GPU-%02d-%d", n, i), node: name, index: i, load: 650, limit: defaultW, r: 0.06, tau: 20}
			d.temp = w.inlet[name] + d.r*d.power()
			w.devices = append(w.devices, d)
		}
	}
	return w
}

func (w *world) device(uuid string) *device {
	i := slices.IndexFunc(w.devices, func(d *device) bool { return d.uuid == uuid })
	return w.devices[i]
}

// advance lets time pass.
func (w *world) advance(dt time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(dt)
	for _, d := range w.devices {
		steady := w.inlet[d.node] + d.r*w.draws(d)
		d.slope = (steady - d.temp) / d.tau
		d.temp = steady + (d.temp-steady)*math.Exp(-dt.Seconds()/d.tau)
	}
	w.endTrees()
}

// gpu is a device as a judge with a perfect fit would show it.
func (w *world) gpu(d *device) *cluster.GPU {
	ok := func(id telemetry.ID, v float64) cluster.Reading {
		return cluster.Reading{ID: id, V: v, At: w.now, Quality: telemetry.Quality_QUALITY_OK}
	}
	h, out := d.headroom(), cluster.Opt{}
	if d.slope > 0 {
		out = cluster.Some(max(h, 0) / d.slope)
	}
	return cluster.NewGPU(cluster.GPU{
		UUID: d.uuid, Node: d.node, Index: d.index, Model: "H100", State: cluster.GPUOK, Generation: 1, Members: w.membersOn(d),
		HeadroomC: cluster.Some(h), SlopeCPerS: cluster.Some(-d.slope), SecondsToSlowdown: out,
		RCPerW: cluster.Some(d.r), TauS: cluster.Some(d.tau), BaseC: cluster.Some(w.inlet[d.node]),
		LimitW: cluster.Some(d.limit), MinW: cluster.Some(minW), DefaultW: cluster.Some(defaultW), MaxW: cluster.Some(defaultW),
	}, ok(telemetry.GPUThermalHeadroomCelsius, h), ok(telemetry.GPUTemperatureCelsiusCore, d.temp), ok(telemetry.GPUPowerWatts, w.draws(d)),
		ok(telemetry.GPUPowerLimitWatts, d.limit), ok(telemetry.GPUThrottleActiveSWThermal, bit(h <= 0)))
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (w *world) view() *cluster.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := map[string]*cluster.Node{}
	gpus := map[string]*cluster.GPU{}
	for _, d := range w.devices {
		n := nodes[d.node]
		if n == nil {
			n = &cluster.Node{Name: d.node, State: cluster.NodeUp, Seen: w.now, Since: w.since, Period: time.Second, Incarnation: 1, Row: w.rows[d.node], Rack: "rack-" + d.node, BootID: bootID}
			nodes[d.node] = n
		}
		g := w.gpu(d)
		n.GPUs, gpus[d.uuid] = append(n.GPUs, g), g
		n.Expected++
	}
	var jobs []*cluster.Workload
	for _, j := range w.jobs {
		work := &cluster.Workload{InventoryWorkload: j}
		for _, m := range j.Members {
			for _, uuid := range m.GPUs {
				work.GPUs = append(work.GPUs, gpus[uuid])
			}
		}
		jobs = append(jobs, work)
	}
	return cluster.NewView(w.now, slices.Collect(maps.Values(nodes)), jobs)
}

// The world's agents: at most once by a ledger, undo by compare-and-set.

func (w *world) Name() string { return "node" }

func (w *world) Can(*cluster.View, telemetry.Step) []telemetry.Refusal { return nil }

var errNoAgent = errors.New("no agent answers")

func (w *world) Do(_ context.Context, s telemetry.Step) (r telemetry.Receipt, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() {
		if w.lost {
			r, err = telemetry.Receipt{}, errNoAgent
		}
	}()
	if w.mute || w.down[s.Target.Node] {
		return telemetry.Receipt{}, errNoAgent
	}
	if r, ok := w.ledger[s.ID]; ok {
		return r, nil
	}
	if !w.now.Before(rebalancer.BeginBy(s)) {
		return telemetry.Receipt{StepID: s.ID, Result: telemetry.Refused, Why: telemetry.RefuseExpired, Node: s.Target.Node}, nil
	}
	r = telemetry.Receipt{StepID: s.ID, Decision: s.Decision, Kind: s.Kind, Target: s.Target, Result: telemetry.Done, Node: s.Target.Node, Started: w.now, Ended: w.now}
	d := w.device(s.Target.UUID)
	switch {
	case w.refuseKind[s.Kind] != "":
		r.Result, r.Why, r.Detail = telemetry.Refused, w.refuseKind[s.Kind], "as the test wants"
	case s.Kind == telemetry.StepPreempt && w.refuse == "":
		return w.preempt(s, r), nil
	case w.refuse != "":
		r.Result, r.Why, r.Detail = telemetry.Refused, w.refuse, "as the test wants"
	case s.Kind == telemetry.StepPowerCap:
		w.set(d, &r, *s.Params.PowerLimitWatts)
		d.leaseEnds = w.now.Add(time.Duration(s.Lease))
	case s.Kind == telemetry.StepUndo && d.limit != *s.Params.PowerLimitWatts:
		r.Result, r.Why, r.Detail = telemetry.Refused, telemetry.RefuseNotOurs, "the limit was changed by another"
	case s.Kind == telemetry.StepUndo:
		w.set(d, &r, *s.Params.FoundWatts)
		d.leaseEnds = time.Time{}
	case s.Kind == telemetry.StepRenew:
		d.leaseEnds = w.now.Add(time.Duration(s.Lease))
	}
	w.ledger[s.ID] = r
	w.calls[s.ID]++
	return r, nil
}

func (w *world) set(d *device, r *telemetry.Receipt, watts float64) {
	r.Before = map[string]float64{"power_limit_watts": d.limit}
	d.limit = watts
	d.sets++
	r.After = map[string]float64{"power_limit_watts": watts}
}

func (w *world) Observe(_ context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	over := s.Kind != telemetry.StepPreempt && !w.now.Before(s.Deadline) // then nobody is asked
	if w.mute || w.lost || w.down[s.Target.Node] && !over {
		return telemetry.Receipt{}, errNoAgent
	}
	if r, ok := w.ledger[s.ID]; ok && !w.down[s.Target.Node] {
		return r, nil
	}
	return telemetry.Receipt{StepID: s.ID, Result: telemetry.Unknown}, nil
}

// enforcing are the default policies with acts carried out and, unless the
// test changes it, no budget in the way.
func enforcing(change ...func(*rebalancer.PolicySpec)) []rebalancer.Policy {
	specs := policy.Defaults()
	for i := range specs {
		specs[i].Mode = telemetry.Enforce
		specs[i].Budget.Percent = 100
		for _, f := range change {
			f(&specs[i])
		}
	}
	ps, err := policy.New(specs)
	if err != nil {
		panic(err)
	}
	return ps
}

// bench runs Step over a world without an engine: every entry is written and
// done before time goes on.
type bench struct {
	t       testing.TB
	w       *world
	planner rebalancer.Planner
	mem     rebalancer.Memory
	journal journal
	last    rebalancer.Plan
	// deaf keeps receipts from coming back.
	deaf bool
	// waiting are steps whose backend is still at them.
	waiting []telemetry.Step
}

var epoch = telemetry.Epoch{Incarnation: "test", Revision: 1}

func newBench(t testing.TB, w *world, policies ...rebalancer.Policy) *bench {
	if len(policies) == 0 {
		policies = enforcing()
	}
	b := &bench{t: t, w: w, planner: rebalancer.Planner{Policies: policies, Actuators: []rebalancer.Actuator{w}, Breaker: rebalancer.DefaultBreaker, Expiry: 30 * time.Second}}
	b.mem.Leading, b.mem.Epoch = true, epoch
	return b
}

func (b *bench) write(r telemetry.Record) {
	b.t.Helper()
	r.ID, r.Time, r.Epoch = fmt.Sprintf("test-%d", b.mem.Seq+1), b.w.now, epoch
	seq, err := b.journal.Append(context.Background(), b.mem.Seq, r)
	if err == nil {
		err = b.mem.Fold(seq, r)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// pass plans on the world as it is, or on the given View, and does it all.
func (b *bench) pass(views ...*cluster.View) rebalancer.Plan {
	b.t.Helper()
	v := b.w.view()
	if len(views) > 0 {
		v = views[0]
	}
	b.last, b.mem = b.planner.Step(b.w.now, v, b.mem)
	waiting := b.waiting
	b.waiting = nil
	for _, s := range waiting {
		b.answered(s, b.w.Observe)
	}
	for _, e := range b.last.Entries {
		b.write(telemetry.Record{Topic: e.Topic, Decision: e.Decision, Breaker: e.Breaker, Refused: e.Refused})
		if e.Do != nil && !b.deaf {
			b.answered(*e.Do, b.w.Do)
		}
	}
	return b.last
}

// answered writes the receipt of a step, if there is one yet.
func (b *bench) answered(s telemetry.Step, call func(context.Context, telemetry.Step) (telemetry.Receipt, error)) {
	b.t.Helper()
	r, err := call(context.Background(), s)
	switch d := b.mem.Decisions[s.Decision]; {
	case err != nil || d == nil:
	case r.Result == telemetry.Pending:
		b.waiting = append(b.waiting, s)
	default:
		next := rebalancer.WithReceipt(d, r, b.w.now)
		if next == nil {
			b.t.Fatalf("receipt of %s fits no step of %s", r.StepID, s.Decision)
		}
		b.write(telemetry.Record{Topic: telemetry.TopicOutcome, Decision: next})
	}
}

// run passes once a second.
func (b *bench) run(d time.Duration) {
	b.t.Helper()
	for range int(d / time.Second) {
		b.w.advance(time.Second)
		b.pass()
	}
}

func (b *bench) until(limit time.Duration, what string, done func() bool) {
	b.t.Helper()
	for range int(limit / time.Second) {
		b.run(time.Second)
		if done() {
			return
		}
	}
	b.t.Fatalf("not within %s: %s", limit, what)
}

// decisions are all decisions ever written, as last written, by id.
func (b *bench) decisions() []*telemetry.Decision {
	last := map[string]*telemetry.Decision{}
	for _, r := range b.journal.all() {
		if r.Decision != nil {
			last[r.Decision.ID] = r.Decision
		}
	}
	out := slices.Collect(maps.Values(last))
	slices.SortFunc(out, func(a, b *telemetry.Decision) int { return a.Time.Compare(b.Time)*2 + compare(a.ID, b.ID) })
	return out
}

// on are the decisions on one device.
func (b *bench) on(d *device) []*telemetry.Decision {
	return slices.DeleteFunc(b.decisions(), func(x *telemetry.Decision) bool { return x.Target.UUID != d.uuid })
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (b *bench) only() *telemetry.Decision {
	b.t.Helper()
	ds := b.decisions()
	if len(ds) != 1 {
		b.t.Fatalf("%d decisions, want 1: %v", len(ds), ds)
	}
	return ds[0]
}

func reasonsOf(p rebalancer.Plan) []telemetry.RefusalReason {
	var out []telemetry.RefusalReason
	for _, r := range telemetry.RefusalReasons {
		if p.Refused.Counts[r] > 0 {
			out = append(out, r)
		}
	}
	return out
}

// steps are what a plan wants done.
func steps(p rebalancer.Plan) []telemetry.Step {
	var out []telemetry.Step
	for _, e := range p.Entries {
		if e.Do != nil {
			out = append(out, *e.Do)
		}
	}
	return out
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func metricsOf(ps []rebalancer.Policy) (*rebalancer.Metrics, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	return rebalancer.NewMetrics(reg, ps), reg
}
