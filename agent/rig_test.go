package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// devices are GPUs in memory with what goes wrong with real ones.
type devices struct {
	mu     sync.Mutex
	limits map[string]telemetry.PowerLimits
	sets   int
	// onSet runs before each write takes effect, onRead before each read; an
	// error of theirs is the driver's.
	onSet  func(uuid string, watts float64) error
	onRead func(uuid string) error
	// after alters what a write brings about.
	after func(watts float64) float64
}

func newDevices(uuids ...string) *devices {
	d := &devices{limits: map[string]telemetry.PowerLimits{}}
	for _, u := range uuids {
		d.limits[u] = telemetry.PowerLimits{Current: 700, Default: 700, Min: 200, Max: 700}
	}
	return d
}

func (d *devices) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	if hook := d.hook(func() any { return d.onRead }).(func(string) error); hook != nil {
		if err := hook(uuid); err != nil {
			return telemetry.PowerLimits{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.limits[uuid]
	if !ok {
		return l, fmt.Errorf("no device %s", uuid)
	}
	return l, nil
}

func (d *devices) SetPowerLimit(uuid string, watts float64) error {
	if hook := d.hook(func() any { return d.onSet }).(func(string, float64) error); hook != nil {
		if err := hook(uuid, watts); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.limits[uuid]
	if !ok {
		return fmt.Errorf("no device %s", uuid)
	}
	if d.after != nil {
		watts = d.after(watts)
	}
	l.Current = watts
	d.limits[uuid] = l
	d.sets++
	return nil
}

// hook reads a hook, change sets one while the agent runs.
func (d *devices) hook(which func() any) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return which()
}

func (d *devices) change(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn()
}

func (d *devices) now(uuid string) float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limits[uuid].Current
}

func (d *devices) force(uuid string, watts float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.limits[uuid]
	l.Current = watts
	d.limits[uuid] = l
}

func (d *devices) writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sets
}

// outlet is a bus that stores each receipt at once, or not at all while away.
type outlet struct {
	mu       sync.Mutex
	receipts []telemetry.Receipt
	away     bool
}

func (b *outlet) HandleOrders(string, func([]byte) []byte) (func(), error) { return func() {}, nil }

func (b *outlet) PublishReceipt(_ string, r telemetry.Receipt, stored func()) error {
	b.mu.Lock()
	away := b.away
	if !away {
		b.receipts = append(b.receipts, r)
	}
	b.mu.Unlock()
	if !away {
		stored()
	}
	return nil
}

func (b *outlet) get() []telemetry.Receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]telemetry.Receipt(nil), b.receipts...)
}

func (b *outlet) setAway(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

const node, gpu = "node1", "GPU-1"

// rig is an agent with its surroundings.
type rig struct {
	t      *testing.T
	dev    *devices
	bus    *outlet
	signer *telemetry.Signer
	o      Options
	a      *Agent
	orders int
}

func newSigner(t *testing.T) *telemetry.Signer {
	t.Helper()
	seed, err := telemetry.NewSeed()
	if err != nil {
		t.Fatal(err)
	}
	s, err := telemetry.NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, dev: newDevices("GPU-1", "GPU-2", "GPU-3", "GPU-4"), bus: &outlet{}, signer: newSigner(t)}
	r.o = Options{Config: DefaultConfig(node), Writer: r.dev, Bus: r.bus, BootID: "boot-1",
		ClockSynced: func() (bool, error) { return true, nil }}
	r.o.Ledger = filepath.Join(t.TempDir(), "agent.db")
	r.o.TrustedKeys = []string{r.signer.KeyID()}
	r.o.Allow = []telemetry.StepKind{telemetry.StepPowerCap}
	for _, c := range change {
		c(&r.o)
	}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	a, err := New(r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.a = a
	r.t.Cleanup(a.Close)
}

// reopen is a restart: what counts is in the ledger.
func (r *rig) reopen(change ...func(*Options)) {
	r.t.Helper()
	r.a.Close()
	for _, c := range change {
		c(&r.o)
	}
	r.o.Registry = nil
	r.open()
}

// order is one that is done unless changed.
func (r *rig) order(kind telemetry.StepKind, change ...func(*telemetry.Order)) *telemetry.Order {
	r.orders++
	now := time.Now()
	o := &telemetry.Order{
		ID: fmt.Sprintf("step-%d", r.orders), Decision: "d1", Kind: kind,
		Target: telemetry.Target{Node: node, UUID: gpu},
		Epoch:  telemetry.Epoch{Incarnation: "bucket-1", Revision: 10},
		SentAt: now, Expires: now.Add(30 * time.Second), Lease: telemetry.Duration(10 * time.Minute),
	}
	for _, c := range change {
		c(o)
	}
	return o
}

func (r *rig) cap(w float64, change ...func(*telemetry.Order)) *telemetry.Order {
	return r.order(telemetry.StepPowerCap, append([]func(*telemetry.Order){func(o *telemetry.Order) { o.Params.PowerLimitWatts = &w }}, change...)...)
}

func of(step string) func(*telemetry.Order) {
	return func(o *telemetry.Order) { o.Params.Of = step }
}

func on(uuid string) func(*telemetry.Order) {
	return func(o *telemetry.Order) { o.Target.UUID = uuid }
}

func dry(o *telemetry.Order) { o.DryRun = true }

func (r *rig) sign(o *telemetry.Order) []byte {
	r.t.Helper()
	data, err := r.signer.SignOrder(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return data
}

func (r *rig) do(o *telemetry.Order) telemetry.Receipt {
	r.t.Helper()
	return r.handle(r.sign(o))
}

func (r *rig) handle(data []byte) telemetry.Receipt {
	r.t.Helper()
	var receipt telemetry.Receipt
	if err := json.Unmarshal(r.a.Handle(data), &receipt); err != nil {
		r.t.Fatal(err)
	}
	return receipt
}

// mustDo wants the order done.
func (r *rig) mustDo(o *telemetry.Order) telemetry.Receipt {
	r.t.Helper()
	got := r.do(o)
	if got.Result != telemetry.Done {
		r.t.Fatalf("%s %s: %s %s (%s)", o.Kind, o.ID, got.Result, got.Why, got.Detail)
	}
	return got
}

func (r *rig) wantRefused(o *telemetry.Order, why telemetry.RefuseReason) telemetry.Receipt {
	r.t.Helper()
	got := r.do(o)
	if got.Result != telemetry.Refused || got.Why != why || got.Detail == "" {
		r.t.Fatalf("%s %s: %s %q (%s), want refused %q", o.Kind, o.ID, got.Result, got.Why, got.Detail, why)
	}
	return got
}

func (r *rig) wantLimit(uuid string, w float64) {
	r.t.Helper()
	if got := r.dev.now(uuid); got != w {
		r.t.Fatalf("limit of %s is %g W, want %g", uuid, got, w)
	}
}

// run runs the agent until stop.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	a := r.a
	go func() { done <- a.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("run ended with %v", err)
		}
	})
}

// image is the ledger as a kill would leave it at this moment.
func (r *rig) image(to string) {
	data, err := os.ReadFile(r.o.Ledger)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		r.t.Error(err)
	}
}
