package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// card is one GPU in memory.
type card struct {
	mu    sync.Mutex
	limit float64
	sets  int
}

func (c *card) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if uuid != "GPU-1" {
		return telemetry.PowerLimits{}, fmt.Errorf("no device %s", uuid)
	}
	return telemetry.PowerLimits{Current: c.limit, Default: 700, Min: 200, Max: 700}, nil
}

func (c *card) SetPowerLimit(_ string, watts float64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = watts
	c.sets++
	return nil
}

// TestOverTheRealBus sends a signed order through a server with our users on
// it: an answer, a stored receipt, a second agent run that answers the same,
// and a lease that ends with nobody there.
func TestOverTheRealBus(t *testing.T) {
	const node = "node1"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	names := []string{bus.UserRebalancer, telemetry.AgentUser(node)}
	var users []bus.User
	for _, n := range names {
		users = append(users, bus.User{Name: n, Password: "p-" + n})
	}
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	connect := func(user string) *bus.Conn {
		c, err := bus.Connect(bus.Options{URLs: []string{server.URL()}, User: user, Password: "p-" + user})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if err := c.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		return c
	}
	leader, conn := connect(names[0]), connect(names[1])
	if err := leader.EnsureStreams(ctx, bus.DefaultStreams()); err != nil {
		t.Fatal(err)
	}
	receipts := make(chan telemetry.Receipt, 16)
	stopReceipts, err := leader.Receipts(func(subject string, r telemetry.Receipt) {
		if subject != telemetry.ReceiptSubject(node) {
			t.Errorf("receipt on %s", subject)
		}
		receipts <- r
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stopReceipts()

	seed, err := telemetry.NewSeed()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := telemetry.NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	dev := &card{limit: 700}
	cfg := agent.DefaultConfig(node)
	cfg.Ledger = filepath.Join(t.TempDir(), "agent.db")
	cfg.TrustedKeys = []string{signer.KeyID()}
	cfg.Allow = []telemetry.StepKind{telemetry.StepPowerCap}
	cfg.RequireSync = false // the clock of a test machine may not be kept
	start := func() (stop func()) {
		a, err := agent.New(agent.Options{Config: cfg, Writer: dev, Bus: conn})
		if err != nil {
			t.Fatal(err)
		}
		running, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- a.Run(running) }()
		return sync.OnceFunc(func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("run: %v", err)
			}
		})
	}
	watts, now := 400.0, time.Now()
	order := &telemetry.Order{
		ID: "s1", Decision: "d1", Kind: telemetry.StepPowerCap, Target: telemetry.Target{Node: node, UUID: "GPU-1"},
		Params: telemetry.Params{PowerLimitWatts: &watts}, Epoch: telemetry.Epoch{Incarnation: "b", Revision: 1},
		SentAt: now, Expires: now.Add(time.Minute), Lease: telemetry.Duration(2 * time.Second),
	}
	signed, err := signer.SignOrder(order)
	if err != nil {
		t.Fatal(err)
	}
	send := func() telemetry.Receipt {
		t.Helper()
		for {
			data, err := leader.RequestOrder(ctx, node, signed)
			if errors.Is(err, telemetry.ErrNoAgent) && ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			var r telemetry.Receipt
			if err := json.Unmarshal(data, &r); err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	next := func() telemetry.Receipt {
		t.Helper()
		select {
		case r := <-receipts:
			return r
		case <-ctx.Done():
			t.Fatal("no receipt")
			return telemetry.Receipt{}
		}
	}

	stop := start()
	if got := send(); got.Result != telemetry.Done || got.After["power_limit_watts"] != 400 {
		t.Fatalf("answer %+v", got)
	}
	if got := next(); got.StepID != "s1" || got.Result != telemetry.Done || got.Spontaneous {
		t.Fatalf("stored %+v", got)
	}
	stop()
	defer start()()
	if got := send(); got.Result != telemetry.Done {
		t.Errorf("answer of the second run %+v", got)
	}
	if got := next(); got.StepID != "s1" || !got.Spontaneous || got.After["power_limit_watts"] != 700 {
		t.Errorf("stored after the lease %+v", got)
	}
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if dev.limit != 700 || dev.sets != 2 {
		t.Errorf("limit %g after %d writes, want 700 after 2", dev.limit, dev.sets)
	}
}

type silent struct{}

func (silent) HandleOrders(string, func([]byte) []byte) (func(), error) { return func() {}, nil }
func (silent) PublishReceipt(string, telemetry.Receipt, func()) error   { return nil }

func TestMetricsAndHealth(t *testing.T) {
	seed, _ := telemetry.NewSeed()
	signer, err := telemetry.NewSigner(seed)
	if err != nil {
		t.Fatal(err)
	}
	cfg := agent.DefaultConfig("node1")
	cfg.Ledger = filepath.Join(t.TempDir(), "agent.db")
	cfg.TrustedKeys = []string{signer.KeyID()}
	cfg.Allow = []telemetry.StepKind{telemetry.StepPowerCap}
	reg := prometheus.NewRegistry()
	a, err := agent.New(agent.Options{Config: cfg, Writer: &card{limit: 700}, Bus: silent{}, Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	web := httptest.NewServer(a.Handler())
	t.Cleanup(web.Close)
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(web.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	_, text := get("/metrics")
	for _, k := range []string{"power_cap", "renew", "undo", "other"} {
		for _, r := range []string{"done", "refused", "failed", "pending"} {
			if want := fmt.Sprintf("evenkeel_orders_total{kind=%q,result=%q} 0\n", k, r); !strings.Contains(text, want) {
				t.Errorf("no series %s", want)
			}
		}
	}
	watts := 400.0
	signed, err := signer.SignOrder(&telemetry.Order{
		ID: "s1", Decision: "d1", Kind: telemetry.StepPowerCap, Target: telemetry.Target{Node: "node1", UUID: "GPU-1"},
		Params: telemetry.Params{PowerLimitWatts: &watts}, Epoch: telemetry.Epoch{Incarnation: "b", Revision: 1},
		SentAt: time.Now(), Expires: time.Now().Add(time.Minute), Lease: telemetry.Duration(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.Handle(signed)
	a.Handle([]byte("junk"))
	_, text = get("/metrics")
	for _, want := range []string{
		`evenkeel_orders_total{kind="power_cap",result="done"} 1`,
		`evenkeel_orders_total{kind="other",result="refused"} 1`,
		"evenkeel_caps_active 1",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	// Each family is the catalogue's, word for word.
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]telemetry.Row{}
	for _, r := range telemetry.Catalog {
		rows[r.Name] = r
	}
	for _, f := range families {
		row, ok := rows[f.GetName()]
		if !ok || row.Help != f.GetHelp() || len(row.Labels) != len(f.GetMetric()[0].GetLabel()) {
			t.Errorf("%s %q is not in the catalogue as such", f.GetName(), f.GetHelp())
		}
	}

	if code, _ := get("/-/healthy"); code != http.StatusServiceUnavailable {
		t.Errorf("healthy before it runs: %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if code, _ := get("/-/healthy"); code == http.StatusOK {
			break
		} else if time.Now().After(end) {
			t.Fatal("not healthy while it runs")
		}
	}
	cancel()
	<-done
}
