package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// startCluster runs three servers that are one bus.
func (s *stack) startCluster(nodes ...string) map[string]*proc {
	s.t.Helper()
	s.env = append(s.env, "EK_PASSWORD=pw")
	s.servers = []string{"nats-1", "nats-2", "nats-3"}
	var routes []string
	for _, role := range s.servers {
		s.addr[role], s.addr[role+" route"] = freeAddr(s.t), freeAddr(s.t)
		routes = append(routes, s.addr[role+" route"])
	}
	servers := map[string]*proc{}
	for i, role := range s.servers {
		cluster := bus.ClusterOptions{Name: "evenkeel", Routes: routes, User: "route", Password: "route-pw"}
		cluster.Host, _, _ = strings.Cut(routes[i], ":")
		_, _ = fmt.Sscan(routes[i][len(cluster.Host)+1:], &cluster.Port)
		servers[role] = s.startServer(role, bus.ServerOptions{Name: role, StoreDir: filepath.Join(s.dir, role), Users: users(nodes), Cluster: &cluster})
	}
	return servers
}

// TestClusterOfThree kills the server that leads the streams of lease and journal
// while frames flow and a cap is held: everybody goes on with the other two, one
// collector speaks at a time, and nothing that was stored is lost. Then the
// collector that speaks is killed: two servers are enough for its standby.
func TestClusterOfThree(t *testing.T) {
	t.Parallel()
	world, err := os.ReadFile("testdata/quick-world.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := &crashRig{stack: newStack(t), lives: map[string]int{}}
	r.policy = "testdata/quick.yaml"
	load := make([]string, 30)
	for i := range load {
		load[i] = fmt.Sprintf("load-%d", i)
	}
	servers := r.startCluster(append(slices.Clone(load), crashNode)...)
	r.cfg = r.configs(crashNode)
	collectors := map[string]*proc{}
	for _, role := range []string{"collector", "collector-2"} {
		collectors[role] = r.start(role, "evenkeel", "collector", "-c", r.cfg[role])
	}
	var speaker, other string
	r.eventually(40*time.Second, "one speaks, one stands by", func() error {
		for _, pair := range [][2]string{{"collector", "collector-2"}, {"collector-2", "collector"}} {
			if errors.Join(r.standing(pair[0], speaks), r.standing(pair[1], standby)) == nil {
				speaker, other = pair[0], pair[1]
				return nil
			}
		}
		return errors.Join(r.standing("collector", speaks), r.standing("collector-2", standby))
	})
	two := []event{{gpu: 0, at: 2 * time.Second, lasts: 30 * time.Second, factor: hot}, {gpu: 1, at: 25 * time.Second, lasts: 30 * time.Second, factor: hot}}
	r.world = r.start("sim", "evenkeel", "sim", "serve", "--scenario", r.file("world.yaml", string(world)+two[0].String()+two[1].String()), "--node", crashNode, "--shm", r.shm)
	r.start("exporter", "evenkeel-node", "export", "-c", r.cfg["exporter"])
	r.listen()
	watch := r.watch()
	r.run("rebalancer")
	r.run("agent")
	sent := r.load(load)
	leaders := r.countLeaders()
	r.eventually(60*time.Second, "the first is capped", func() error { return r.holds(1) })

	lease := r.leaderOf("KV_" + bus.BucketLease)
	if journal := r.leaderOf(bus.StreamJournal); journal != lease {
		t.Logf("lease at %s, journal at %s", lease, journal)
	}
	before, receipts := r.journal(), r.reported()
	killed := time.Now()
	servers[lease].kill()
	r.eventually(60*time.Second, "the second is capped too", func() error { return r.holds(2) })
	t.Logf("FIGURE longest silence on the bus after kill -9 of the server that leads the lease's stream: %.1f s", watch.silence(killed).Seconds())
	r.eventually(20*time.Second, "every node is heard", func() error { return r.heard(append(slices.Clone(load), crashNode)) })

	if r.standing(speaker, speaks) != nil { // the lease may have changed hands meanwhile
		speaker, other = other, speaker
	}
	r.eventually(20*time.Second, "one speaks", func() error { return r.standing(speaker, speaks) })
	dead := time.Now()
	collectors[speaker].kill()
	r.takenOver(watch, "kill -9 with two servers of three", dead)
	r.eventually(20*time.Second, "the standby speaks", func() error { return r.standing(other, speaks) })

	r.start(lease, "nats-server", "-c", filepath.Join(r.dir, lease+".conf"))
	sent()
	if most := leaders(); most > 1 {
		t.Errorf("%d collectors spoke at a time", most)
	}
	if d := watch.doubles(); len(d) > 0 {
		t.Errorf("published twice: %v", d)
	}
	r.kept(before, receipts)
}

// load sends frames of nodes ten times a second each, until stopped.
func (s *stack) load(nodes []string) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	for i, name := range nodes {
		conn, err := bus.Connect(bus.Options{URLs: s.urls(), User: telemetry.ExporterUser(name), Password: "pw", ReconnectWait: 100 * time.Millisecond, ReconnectJitter: 10 * time.Millisecond})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(conn.Close)
		wg.Go(func() {
			start := time.Now()
			time.Sleep(time.Duration(i) * 3 * time.Millisecond)
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				if data, err := telemetry.AppendFrame(nil, loadFrame(name, start, seq)); err == nil {
					_ = conn.PublishFrame(name, data) // while its server is away it is lost, as in life
				}
				<-tick.C
			}
		})
	}
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func loadFrame(node string, start time.Time, seq uint64) *telemetry.Frame {
	now := time.Now()
	f := telemetry.Frame_builder{
		Schema: telemetry.Schema, Cluster: "test", Node: node, BootId: "boot", Incarnation: uint64(start.UnixNano()), Sequence: seq,
		SampleTimeUnixNano: now.UnixNano(), SendTimeUnixNano: now.UnixNano(), MonotonicNano: int64(now.Sub(start)) + 1,
		PeriodNano: uint64(100 * time.Millisecond), ClockSynchronized: true, HasSlowPart: true,
	}.Build()
	var gpus []*telemetry.GPU
	for i := range 8 {
		g := &telemetry.GPU{}
		g.SetUuid(fmt.Sprintf("GPU-%s-%d", node, i))
		g.SetValue(telemetry.GPUPowerWatts, 500)
		g.SetValue(telemetry.GPUUp, 1)
		gpus = append(gpus, g)
	}
	f.SetGpus(gpus)
	return f
}

// countLeaders looks ten times a second at how many collectors say that they
// speak, until it is asked for the most.
func (s *stack) countLeaders() (most func() int) {
	var worst atomic.Int64
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			n := int64(0)
			for _, role := range []string{"collector", "collector-2"} {
				if s.standing(role, speaks) == nil {
					n++
				}
			}
			worst.Store(max(worst.Load(), n))
			time.Sleep(100 * time.Millisecond)
		}
	})
	return func() int { cancel(); wg.Wait(); return int(worst.Load()) }
}

// leaderOf is the server that leads a stream.
func (s *stack) leaderOf(stream string) string {
	s.t.Helper()
	nc, err := nats.Connect(strings.Join(s.urls(), ","), nats.UserInfo(bus.UserCollector, "pw"), nats.CustomInboxPrefix(telemetry.InboxPrefix(bus.UserCollector)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	have, err := js.Stream(s.t.Context(), stream)
	if err != nil {
		s.t.Fatal(err)
	}
	info := have.CachedInfo()
	if info.Config.Replicas != 3 || info.Cluster == nil || len(info.Cluster.Replicas) != 2 {
		s.t.Fatalf("%s has %d replicas: %+v", stream, info.Config.Replicas, info.Cluster)
	}
	return info.Cluster.Leader
}

// heard wants nodes to be up at the collector that speaks.
func (s *stack) heard(nodes []string) error {
	for _, role := range []string{"collector", "collector-2"} {
		if s.standing(role, speaks) != nil {
			continue
		}
		body, err := s.metrics(role)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if !strings.Contains(body, fmt.Sprintf("evenkeel_node_up{node=%q} 1\n", n)) {
				return fmt.Errorf("%s is not up at %s", n, role)
			}
		}
		return nil
	}
	return errors.New("no collector speaks")
}

// kept wants what the bus had stored to be told again in the same order.
func (r *crashRig) kept(records []telemetry.Record, receipts []telemetry.Receipt) {
	r.t.Helper()
	conn, err := bus.Connect(bus.Options{URLs: r.urls(), User: bus.UserCollector, Password: "pw", ReconnectWait: 100 * time.Millisecond, ReconnectJitter: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	var mu sync.Mutex
	var again []telemetry.Record
	var reported []telemetry.Receipt
	ctx, cancel := context.WithCancel(r.t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		_ = conn.FollowJournal(ctx, func(_ uint64, rec telemetry.Record) { mu.Lock(); defer mu.Unlock(); again = append(again, rec) })
	})
	stop, err := conn.Receipts(func(_ string, rec telemetry.Receipt) { mu.Lock(); defer mu.Unlock(); reported = append(reported, rec) })
	if err != nil {
		r.t.Fatal(err)
	}
	defer stop()
	all := r.journal()
	r.eventually(20*time.Second, "journal and receipts are there", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(again) < len(all) || len(reported) < len(receipts) {
			return fmt.Errorf("%d of %d records, %d of %d receipts", len(again), len(all), len(reported), len(receipts))
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if len(records) == 0 || len(receipts) == 0 || !reflect.DeepEqual(again[:len(all)], all) || !reflect.DeepEqual(all[:len(records)], records) || !reflect.DeepEqual(reported[:len(receipts)], receipts) {
		r.t.Errorf("of %d records and %d receipts not all were kept in order", len(all), len(receipts))
	}
}
