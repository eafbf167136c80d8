package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/app/lifecycle"
	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// pairs is a fleet whose frames several collectors hear, over sockets, with the
// users and rights of an installation.
type pairs struct {
	*testing.T
	server *embedded.Server
	nodes  []string
	seen   *published
}

// published are the observations on the bus, as often as each was there.
type published struct {
	mu    sync.Mutex
	times map[string]int // by node and sequence
	first map[string]uint64
	last  map[string]uint64
	data  map[string][]byte // the first of each node
	twice []string
}

func (p *published) add(subject string, data []byte) {
	var o telemetry.Observation
	if telemetry.DecodeObservation(data, &o) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	node, seq := o.GetNode(), o.GetSequence()
	key := fmt.Sprintf("%s %d", node, seq)
	if p.times[key]++; p.times[key] > 1 {
		p.twice = append(p.twice, key)
	}
	if _, ok := p.first[node]; !ok {
		p.first[node], p.data[subject] = seq, slices.Clone(data)
	}
	p.last[node] = max(p.last[node], seq)
}

// gaps counts, for each node, sequences between its first and last that nobody
// published.
func (p *published) gaps() (nodes, missing int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for node, first := range p.first {
		for seq := first; seq <= p.last[node]; seq++ {
			if p.times[fmt.Sprintf("%s %d", node, seq)] == 0 {
				missing++
			}
		}
	}
	return len(p.first), missing
}

func newPairs(t *testing.T, nodes int, shares ...string) *pairs {
	p := &pairs{T: t, seen: &published{times: map[string]int{}, first: map[string]uint64{}, last: map[string]uint64{}, data: map[string][]byte{}}}
	names := []string{bus.UserRebalancer, bus.UserReader}
	for _, s := range shares {
		names = append(names, "collector."+s)
	}
	for i := range nodes {
		name := fmt.Sprintf("gpu-%04d", i)
		p.nodes = append(p.nodes, name)
		names = append(names, telemetry.ExporterUser(name))
	}
	var users []bus.User
	for _, n := range names {
		users = append(users, bus.User{Name: n, Password: linePassword})
	}
	var err error
	if p.server, err = embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random, Users: users}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.server.Shutdown)
	if _, err := p.connect(bus.UserReader).Observations(p.seen.add); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pairs) connect(user string) *bus.Conn {
	p.Helper()
	c, err := bus.Connect(bus.Options{URLs: []string{p.server.URL()}, User: user, Password: linePassword, ReconnectWait: 50 * time.Millisecond, ReconnectJitter: time.Millisecond})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(p.Context(), 20*time.Second)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		p.Fatal(err)
	}
	return c
}

// running is a collector as the program wires it.
type running struct {
	addr, partitions string
	stop             func()
}

func (p *pairs) collector(name, partitions string) *running {
	p.Helper()
	conn := p.connect("collector." + partitions)
	s, err := shareOf(&config.Collector{Name: name, Partitions: partitions}, conn)
	if err != nil {
		p.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	proc := lifecycle.New(ctx)
	proc.Add("streams", func(ctx context.Context) error { return conn.KeepStreams(ctx, bus.DefaultStreams()) })
	if err := addCollector(proc, collectorParts{conn: conn, maxNodes: 1024, log: slog.New(slog.DiscardHandler), share: s}, ln); err != nil {
		p.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- proc.Run() }()
	r := &running{addr: ln.Addr().String(), partitions: partitions}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			p.Errorf("collector %s ended: %v", name, err)
		}
	})
	p.Cleanup(r.stop)
	return r
}

func (r *running) get(path string) string {
	resp, err := http.Get("http://" + r.addr + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

func (r *running) speaks() bool { return r.get("/-/ready") == "ready\n" }

func (r *running) waits() bool { return strings.Contains(r.get("/-/ready"), "standby") }

func (p *pairs) eventually(what string, ok func() bool) {
	p.Helper()
	for end := time.Now().Add(40 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("not within 40 s: %s", what)
		}
	}
}

// speak lets every node send a frame a second, spread over it, until stopped.
func (p *pairs) speak() (stop func()) {
	ctx, cancel := context.WithCancel(p.Context())
	var wg sync.WaitGroup
	for i, name := range p.nodes {
		conn := p.connect(telemetry.ExporterUser(name))
		start := time.Now()
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / time.Duration(len(p.nodes)))
			t := time.NewTicker(time.Second)
			defer t.Stop()
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				data, err := telemetry.AppendFrame(nil, pairFrame(name, start, seq))
				if err == nil {
					err = conn.PublishFrame(name, data)
				}
				if err != nil && ctx.Err() == nil {
					p.Error(err)
				}
				select {
				case <-t.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func pairFrame(node string, start time.Time, seq uint64) *telemetry.Frame {
	now := time.Now()
	g := &telemetry.GPU{}
	g.SetUuid("GPU-" + node)
	g.SetValue(telemetry.GPUPowerWatts, 500)
	g.SetValue(telemetry.GPUUp, 1)
	return telemetry.Frame_builder{
		Schema: telemetry.Schema, Cluster: "test", Node: node, BootId: "boot", Incarnation: uint64(start.UnixNano()), Sequence: seq,
		SampleTimeUnixNano: now.UnixNano(), SendTimeUnixNano: now.UnixNano(), MonotonicNano: int64(now.Sub(start)) + 1,
		PeriodNano: uint64(time.Second), ClockSynchronized: true, Gpus: []*telemetry.GPU{g}, HasSlowPart: true,
	}.Build()
}

// TestSharesOfTheFleet: two pairs, each of half the fleet. Every node's every
// observation is on the bus once, whoever speaks; each page knows its own nodes
// alone, heard or only expected; the rebalancer sees all; and what the one that
// stopped may still have had on its way is not folded.
func TestSharesOfTheFleet(t *testing.T) {
	const low, high = "0-31", "32-63"
	p := newPairs(t, 24, low, high)
	shares := map[string]telemetry.PartitionSet{}
	for _, s := range []string{low, high} {
		set, err := telemetry.ParsePartitions(s)
		if err != nil {
			t.Fatal(err)
		}
		shares[s] = set
	}
	a1 := p.collector("a1", low)
	p.eventually("the first of a pair leads it", a1.leads)
	b1 := p.collector("b1", high)
	p.eventually("the other pair is led", b1.leads)
	a2, b2 := p.collector("a2", low), p.collector("b2", high)

	reb := p.connect(bus.UserRebalancer)
	silent := []string{"silent-1", "silent-2", "silent-3", "silent-4", "silent-5", "silent-6", "silent-7", "silent-8"}
	inv := telemetry.Inventory{Source: "file", Generation: 1, Time: time.Now()}
	for _, n := range append(slices.Clone(silent), p.nodes...) {
		inv.Nodes = append(inv.Nodes, telemetry.InventoryNode{Name: n, Rack: "r", ExpectedGPUs: 1})
	}
	if err := reb.PublishInventory(t.Context(), inv); err != nil {
		t.Fatal(err)
	}
	feed := rebalancer.NewFeed(time.Now, slog.New(slog.DiscardHandler))
	views := newest{}
	if _, err := reb.Observations(feed.Observation); err != nil {
		t.Fatal(err)
	}
	go func() { _ = feed.Run(t.Context(), views.set) }()

	stop := p.speak()
	defer stop()
	p.eventually("both standbys are ready", func() bool { return a2.waits() && b2.waits() })
	p.eventually("both pairs speak", func() bool { return a1.speaks() && b1.speaks() })
	p.eventually("every node is published", func() bool { n, _ := p.seen.gaps(); return n == len(p.nodes) })
	time.Sleep(3 * time.Second)
	if _, missing := p.seen.gaps(); missing > 0 {
		t.Errorf("%d observations are missing although nobody changed", missing)
	}

	// One pair changes hands; the other does not notice.
	a1.stop()
	p.eventually("its standby speaks", a2.speaks)
	if !b1.speaks() || !b2.waits() {
		t.Error("the other pair changed hands")
	}
	time.Sleep(3 * time.Second)
	stop()
	p.seen.mu.Lock()
	if len(p.seen.twice) > 0 {
		t.Errorf("published more than once: %v", p.seen.twice)
	}
	p.seen.mu.Unlock()
	if _, missing := p.seen.gaps(); missing > len(p.nodes) {
		t.Errorf("%d observations are missing; a clean change of hands costs a second at most", missing)
	}

	for name, r := range map[string]*running{low: a2, high: b1} {
		share := shares[name]
		var want []string
		for _, n := range append(slices.Clone(silent), p.nodes...) {
			if share.HasNode(n) {
				want = append(want, n)
			}
		}
		slices.Sort(want)
		if got := r.nodes(t); !slices.Equal(got, want) {
			t.Errorf("the page of %s has %v, want %v", name, got, want)
		}
		body := r.get("/metrics")
		for _, n := range append(slices.Clone(silent), p.nodes...) {
			if strings.Contains(body, `evenkeel_node_up{node="`+n+`"}`) != share.HasNode(n) {
				t.Errorf("/metrics of %s: %s", name, n)
			}
		}
	}

	// The rebalancer has them all, and what comes late changes nothing.
	v := views.get()
	for _, n := range p.nodes {
		if x, ok := v.Node(n); !ok || x.State != cluster.NodeUp {
			t.Errorf("the rebalancer has %s: %+v", n, x)
		}
	}
	before := views.get()
	p.seen.mu.Lock()
	late := p.seen.data
	p.seen.mu.Unlock()
	old := map[string]telemetry.PartitionSet{low: shares[low], high: shares[high]}
	for name, share := range old {
		conn := p.connect("collector." + name)
		for subject, data := range late {
			if node, err := telemetry.SubjectNode(subject); err != nil {
				t.Fatal(err)
			} else if share.HasNode(node) {
				if err := conn.PublishObservation(node, data); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	p.eventually("the late ones are there", func() bool {
		p.seen.mu.Lock()
		defer p.seen.mu.Unlock()
		return len(p.seen.twice) == len(p.nodes)
	})
	feed.Inventory(inv) // behind them; its View is the one to look at
	p.eventually("a later View", func() bool { return views.get() != before })
	for _, n := range p.nodes {
		was, _ := before.Node(n)
		is, ok := views.get().Node(n)
		if !ok || !is.Seen.Equal(was.Seen) || !is.Heard.Equal(was.Heard) {
			t.Errorf("a late observation of %s was folded: %v, then %v", n, was.Seen, is.Seen)
		}
	}
}

// leads is speaks of one that has not heard anybody yet.
func (r *running) leads() bool {
	return strings.Contains(r.get("/metrics"), `evenkeel_collector_leader{partitions="`+r.partitions+`"} 1`)
}

func (r *running) nodes(t *testing.T) (names []string) {
	t.Helper()
	var v struct{ Items []struct{ Name string } }
	if body := r.get("/api/evenkeel/v1/nodes"); json.Unmarshal([]byte(body), &v) != nil {
		t.Fatalf("nodes: %s", body)
	}
	for _, n := range v.Items {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names
}

// newest is the newest View.
type newest struct {
	mu sync.Mutex
	v  *cluster.View
}

func (n *newest) set(v *cluster.View) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.v = v
}

func (n *newest) get() *cluster.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.v
}
