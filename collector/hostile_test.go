package collector

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// invent fills a frame with names that were never there before: labels, devices,
// descriptions, processes, calls. It is near a million a minute at a frame a
// second, as much as a frame can carry and more.
func invent(s *sender, at time.Time, i int) *telemetry.Frame {
	f := s.frame(at)
	gpus := []*telemetry.GPU{newGPU("GPU-bad-0", 0)}
	for k := range 40 {
		g := newGPU(fmt.Sprintf("GPU-bad-%d-%d", i, k), k+1)
		g.SetHung(telemetry.HungCall_builder{Call: fmt.Sprint("call-", i), ForMs: 1}.Build())
		gpus = append(gpus, g)
	}
	gpus[0].SetDescription(telemetry.Description_builder{Index: 0, Pci: "0000:00:00.0", Model: fmt.Sprint("model-", i), Driver: fmt.Sprint("driver-", i)}.Build())
	var members []*telemetry.Member
	for k := range 256 {
		members = append(members, telemetry.Member_builder{Id: fmt.Sprintf("%d+%d", i, k), Kind: "proc", Uuid: "GPU-bad-0", Workload: fmt.Sprintf("proc:bad/%d@%d", i, k), Owner: fmt.Sprint("owner-", i, k)}.Build())
	}
	gpus[0].SetMembers(members)
	f.SetGpus(gpus)
	var samples []*telemetry.Sample
	for k := range 6000 {
		samples = append(samples, telemetry.Sample_builder{Id: uint32(telemetry.NodeHostNetworkBytes), Labels: []string{fmt.Sprintf("e%d-%d", i, k), "rx"}, Value: 1}.Build())
	}
	f.SetSamples(samples)
	f.SetCluster(fmt.Sprint("cluster-", i))
	return f
}

// seriesOf lists the series of a node with their values.
func (w *world) seriesOf(node string) map[string]string {
	w.Helper()
	_, body := w.get("/metrics")
	out := map[string]string{}
	for sc := bufio.NewScanner(strings.NewReader(body)); sc.Scan(); {
		if at := strings.LastIndexByte(sc.Text(), ' '); at > 0 && strings.Contains(sc.Text(), fmt.Sprintf("node=%q", node)) {
			out[sc.Text()[:at]] = sc.Text()[at+1:]
		}
	}
	return out
}

// A node that invents a million series a minute gets its share of them and no
// more, however long it goes on: in an exposition, in all of them together,
// which is what a store sees, and in memory. It is named, and the others are as
// they would be without it.
func TestNodeThatInventsSeries(t *testing.T) {
	bad := newSender("bad", 1)
	good := []*sender{newSender("good-1", 8), newSender("good-2", 8)}
	control := []*sender{newSender("good-1", 8), newSender("good-2", 8)}
	w, quiet := newWorld(t, nil), newWorld(t, nil)
	ever := map[string]bool{}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var early uint64
	most := 0
	const seconds = 240
	for i := range seconds {
		at := t0.Add(time.Duration(i) * time.Second)
		w.bus.observed = map[string][][]byte{}
		w.tick(at, good...)
		data := encode(t, invent(bad, at, i))
		w.bus.send(frameSubject("bad"), data)
		w.settle()
		quiet.tick(at, control...)
		if i%15 != 14 {
			continue
		}
		now := w.seriesOf("bad")
		most = max(most, len(now))
		for s := range now {
			ever[s] = true
		}
		for _, s := range good {
			a, b := w.seriesOf(s.name), quiet.seriesOf(s.name)
			if len(a) != len(b) || len(a) < 100 {
				t.Fatalf("%s has %d series, without the other node %d", s.name, len(a), len(b))
			}
			for k, v := range b {
				if a[k] != v {
					t.Errorf("%s is %s, without the other node %s", k, a[k], v)
				}
			}
		}
		if i == 89 {
			early = heap()
		}
	}
	// A name is one series or, for a device, the few dozen that a device has.
	perName := 30
	if bound := 256*perName + 4096 + 2*seconds; most > bound {
		t.Errorf("%d series in one exposition, want at most %d", most, bound)
	}
	if bound := 256*perName + 4096 + 2*seconds; len(ever) > bound {
		t.Errorf("%d series in all expositions, want at most %d", len(ever), bound)
	}
	if late := heap(); float64(late) > 1.25*float64(early)+4<<20 {
		t.Errorf("%d MiB after 90 s and %d MiB after %d s", early>>20, late>>20, seconds)
	}
	if v := w.value(`evenkeel_node_values_refused_total{node="bad",why="name"}`); v == "" {
		t.Error("nobody is told that the node invents names")
	}
	if w.value(`evenkeel_node_values_refused_total{node="good-1",why="name"}`) != "" {
		t.Error("an honest node is told of")
	}
	t.Logf("%d series at most in one exposition, %d in all", most, len(ever))
}

// A real collector on a real bus: a node may lie about its name, its time, its
// counts and its units, and flood, and costs nobody but itself.
func TestLiarsOverTheBus(t *testing.T) {
	var users []bus.User
	for _, u := range []string{bus.UserCollector, telemetry.ExporterUser("good"), telemetry.ExporterUser("bad")} {
		users = append(users, bus.User{Name: u, Password: "secret"})
	}
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Users: users})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	connect := func(user string) *bus.Conn {
		c, err := bus.Connect(bus.Options{InProcess: server, User: user, Password: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := c.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		return c
	}
	conn, goodBus, badBus := connect(bus.UserCollector), connect(telemetry.ExporterUser("good")), connect(telemetry.ExporterUser("bad"))
	c, err := New(Options{Bus: conn, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, Collector: c}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	defer func() { cancel(); <-done }()

	start := time.Now().Add(-time.Hour)
	good, bad := newSender("good", 4), newSender("bad", 4)
	good.start, bad.start = start, start
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if ok() {
				return
			}
		}
		t.Fatalf("not within 15 s: %s", what)
	}
	heard := func(name string) bool {
		n, ok := c.View().Node(name)
		return ok && n.State == cluster.NodeUp
	}
	until("both nodes are heard", func() bool {
		_ = goodBus.PublishFrame("good", encode(t, good.frame(time.Now())))
		_ = badBus.PublishFrame("bad", encode(t, bad.frame(time.Now())))
		return heard("good") && heard("bad")
	})
	lie := func(change func(f *telemetry.Frame)) []byte {
		f := bad.frame(time.Now())
		f.SetGpus([]*telemetry.GPU{newGPU("GPU-bad-0", 0)})
		change(f)
		return encode(t, f)
	}
	for _, l := range []struct {
		what string
		why  telemetry.DropReason
		data []byte
	}{
		{"its name", telemetry.DropForeign, lie(func(f *telemetry.Frame) { f.SetNode("good") })},
		{"its time", telemetry.DropClock, lie(func(f *telemetry.Frame) { f.SetSampleTimeUnixNano(-1) })},
		{"its counts", telemetry.DropTooMany, encode(t, newSender("bad", telemetry.MaxGPUs+1).frame(time.Now()))},
		{"everything", telemetry.DropMalformed, []byte(strings.Repeat("\xff", 1000))},
	} {
		before := w.dropped(l.why)
		if err := badBus.PublishFrame("bad", l.data); err != nil {
			t.Fatal(err)
		}
		until("the lie about "+l.what+" is counted", func() bool { return w.dropped(l.why) > before })
	}
	// Its units: a temperature in thousandths, a power in milliwatts.
	if err := badBus.PublishFrame("bad", lie(func(f *telemetry.Frame) {
		f.GetGpus()[0].SetValue(telemetry.GPUTemperatureCelsiusCore, 60000)
		f.GetGpus()[0].SetValue(telemetry.GPUPowerWatts, 500000)
	})); err != nil {
		t.Fatal(err)
	}
	until("values in other units are counted", func() bool {
		e := c.nodes.get("bad")
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.refused[cluster.RefusedOutOfRange] >= 1
	})
	// Another's subject is refused by the server itself.
	if err := badBus.PublishFrame("good", encode(t, good.frame(time.Now().Add(time.Hour)))); err != nil {
		t.Fatal(err)
	}
	until("the server refuses another's subject", func() bool { return badBus.Stats().AsyncErrors[bus.ErrorPermission] > 0 })
	// A flood: the other node's next frame is heard beside it.
	n, _ := c.View().Node("good")
	seen := n.Seen
	for range 5000 {
		if err := badBus.PublishFrame("bad", encode(t, bad.frame(time.Now()))); err != nil {
			t.Fatal(err)
		}
	}
	until("the other node is heard", func() bool {
		_ = goodBus.PublishFrame("good", encode(t, good.frame(time.Now())))
		n, _ := c.View().Node("good")
		return n.Seen.After(seen) && n.Doubt == "" && len(n.GPUs) == 4
	})
	for _, g := range must(c.View().Node("good")).GPUs {
		if g.State != cluster.GPUOK || g.DoubtfulIdentity {
			t.Errorf("%s: %s", g.UUID, g.State)
		}
	}
}

func must(n *cluster.Node, ok bool) *cluster.Node {
	if !ok {
		return &cluster.Node{}
	}
	return n
}
