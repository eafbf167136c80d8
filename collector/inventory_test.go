package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

// shelf is a collector with an inventory file: names of nodes with their GPUs,
// one a line, or the word bad.
type shelf struct {
	*world
	path   string
	sent   []telemetry.Inventory
	fail   error
	active bool
	log    bytes.Buffer
}

func parseShelf(_ string, data []byte) (telemetry.Inventory, error) {
	var inv telemetry.Inventory
	for line := range strings.Lines(string(data)) {
		var n telemetry.InventoryNode
		if _, err := fmt.Sscanf(line, "%s %d", &n.Name, &n.ExpectedGPUs); err != nil {
			return inv, errors.New("line 1: this is no inventory")
		}
		n.Rack, n.Row, n.Feed, n.PowerDomain = "r1", "row", "f", "p"
		inv.Nodes = append(inv.Nodes, n)
	}
	inv.Budgets = []telemetry.PowerBudget{{Domain: "p", Watts: 4e4}}
	return inv, nil
}

func newShelf(t *testing.T, content string) *shelf {
	s := &shelf{path: filepath.Join(t.TempDir(), "inventory.yaml"), active: true}
	s.write(t, content)
	s.start(t)
	return s
}

// start is a collector as after a start, with nothing but the file.
func (s *shelf) start(t *testing.T) {
	s.world = newWorld(t, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(&s.log, nil))
		o.Inventory = &InventoryFile{
			Path: s.path, Parse: parseShelf, Active: func() bool { return s.active },
			Publish: func(_ context.Context, inv telemetry.Inventory) error {
				if s.fail == nil {
					s.sent = append(s.sent, inv)
					s.bus.inventories(inv) // what is sent comes back
				}
				return s.fail
			},
		}
	})
	s.file.look(true)
	s.file.tell(t.Context())
}

func (s *shelf) write(t *testing.T, content string) {
	t.Helper()
	if err := os.WriteFile(s.path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// poll is what happens in some seconds, one look in each.
func (s *shelf) poll(t *testing.T, seconds int) {
	for range seconds {
		s.clock.set(s.clock.now().Add(time.Second))
		s.file.look(false)
		s.file.tell(t.Context())
	}
}

// value is a series of /metrics, in the text's own words; empty if there is none.
func (w *world) value(series string) string {
	w.Helper()
	code, body := w.get("/metrics")
	if code != 200 {
		w.Fatalf("/metrics answers %d", code)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (.*)$`).FindStringSubmatch(body)
	if m == nil {
		return ""
	}
	return m[1]
}

func (w *world) want(series, value string) {
	w.Helper()
	if got := w.value(series); got != value {
		w.Errorf("%s = %q, want %q", series, got, value)
	}
}

// A file that is bad after it was good costs nothing but its news, is said once
// and seen in the metrics, and is taken when it is right again.
func TestInventoryFileKeepsTheOldWhenTheNewIsBad(t *testing.T) {
	s := newShelf(t, "a 8\nb 8\n")
	if len(s.sent) != 1 || s.sent[0].Source != telemetry.SourceFile || s.sent[0].Generation != 1 || len(s.sent[0].Nodes) != 2 {
		t.Fatalf("sent at the start: %+v", s.sent)
	}
	s.write(t, "bad")
	s.poll(t, 10)
	if s.View().NodeCount() != 2 || len(s.sent) != 1 {
		t.Errorf("%d nodes, %d sent", s.View().NodeCount(), len(s.sent))
	}
	s.clock.set(t0.Add(20 * time.Second))
	s.want("evenkeel_inventory_file_good", "0")
	s.want(`evenkeel_inventory_file_loads_total{result="refused"}`, "1")
	if n := strings.Count(s.log.String(), "this is no inventory"); n != 1 || !strings.Contains(s.log.String(), "what it said before stays in force, 2 nodes") {
		t.Errorf("said %d times:\n%s", n, s.log.String())
	}
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	s.poll(t, 3)
	if s.View().NodeCount() != 2 || s.value("evenkeel_inventory_file_good") != "0" {
		t.Error("a file that is gone took its nodes with it")
	}
	s.write(t, "a 8\nb 8\nc 4\n")
	s.poll(t, 3)
	s.want("evenkeel_inventory_file_good", "1")
	if s.View().NodeCount() != 3 || s.sent[len(s.sent)-1].Generation != 2 {
		t.Errorf("%d nodes, sent %+v", s.View().NodeCount(), s.sent[len(s.sent)-1])
	}
}

// One that stands there again as it was is right again.
func TestInventoryFilePutBack(t *testing.T) {
	s := newShelf(t, "a 8\n")
	s.write(t, "bad")
	s.poll(t, 3)
	s.write(t, "a 8\n")
	s.poll(t, 3)
	s.clock.set(t0.Add(20 * time.Second))
	s.want("evenkeel_inventory_file_good", "1")
	if len(s.sent) != 1 {
		t.Errorf("sent %d times, though nothing changed", len(s.sent))
	}
}

// Every minute and on change, and the generation grows with content alone.
func TestInventoryFileIsToldEachMinute(t *testing.T) {
	s := newShelf(t, "a 8\n")
	s.poll(t, 150)
	var at []int
	for _, inv := range s.sent {
		at = append(at, int(inv.Time.Sub(t0).Seconds()))
		if inv.Generation != 1 {
			t.Errorf("generation %d of the same content", inv.Generation)
		}
	}
	if fmt.Sprint(at) != "[0 60 120]" {
		t.Errorf("sent at %v", at)
	}
	s.write(t, "a 4\n")
	s.poll(t, 2)
	if last := s.sent[len(s.sent)-1]; len(s.sent) != 4 || last.Generation != 2 || last.Nodes[0].ExpectedGPUs != 4 {
		t.Errorf("after a change: %d sent, %+v", len(s.sent), last)
	}
	// A touch, and another layout of the same words, are no change.
	s.write(t, "a   4\n")
	s.poll(t, 5)
	if len(s.sent) != 4 {
		t.Error("sent though it says the same")
	}
}

// What is being written is not taken for the whole.
func TestInventoryFileHalfWritten(t *testing.T) {
	s := newShelf(t, "a 8\nb 8\nc 8\n")
	for _, part := range []string{"a 8\n", "a 8\nb 8\n", "a 8\nb 8\nc 8\nd 8\n"} {
		s.write(t, part)
		s.poll(t, 1)
		if n := s.View().NodeCount(); n != 3 {
			t.Errorf("%d nodes while it is written", n)
		}
	}
	s.poll(t, 1)
	if n := s.View().NodeCount(); n != 4 {
		t.Errorf("%d nodes once it stands", n)
	}
}

// A rename over the file, and the link that a ConfigMap swaps.
func TestInventoryFileIsReplaced(t *testing.T) {
	s := newShelf(t, "a 8\n")
	next := s.path + ".new"
	if err := errors.Join(os.WriteFile(next, []byte("a 8\nb 8\n"), 0o600), os.Rename(next, s.path)); err != nil {
		t.Fatal(err)
	}
	s.poll(t, 2)
	if n := s.View().NodeCount(); n != 2 {
		t.Errorf("%d nodes after a rename", n)
	}
	dir := t.TempDir()
	for i, content := range []string{"a 8\n", "a 8\nb 8\nc 8\n"} {
		version := filepath.Join(dir, fmt.Sprint("..", i))
		if err := errors.Join(os.Mkdir(version, 0o700), os.WriteFile(filepath.Join(version, "inventory.yaml"), []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	link, data := filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")
	if err := errors.Join(os.Symlink("..0", data), os.Symlink("..data/inventory.yaml", filepath.Join(dir, "inventory.yaml"))); err != nil {
		t.Fatal(err)
	}
	s.path = filepath.Join(dir, "inventory.yaml")
	s.start(t)
	if err := errors.Join(os.Symlink("..1", link), os.Rename(link, data)); err != nil {
		t.Fatal(err)
	}
	s.poll(t, 2)
	if n := s.View().NodeCount(); n != 3 {
		t.Errorf("%d nodes after the link was swapped", n)
	}
}

// A collector that is not active looks and says nothing; when it is, it goes on
// with the generation of the one before.
func TestInventoryFileOfAStandby(t *testing.T) {
	s := newShelf(t, "a 8\n")
	s.active, s.sent = false, nil
	s.start(t)
	s.bus.inventories(telemetry.Inventory{Source: telemetry.SourceFile, Generation: 7, Time: t0, Nodes: []telemetry.InventoryNode{{Name: "z"}}})
	s.poll(t, 90)
	if _, ok := s.View().Node("z"); !ok || len(s.sent) != 0 {
		t.Errorf("a standby sent %d times", len(s.sent))
	}
	s.want("evenkeel_inventory_file_good", "1")
	s.active = true
	s.poll(t, 1)
	if len(s.sent) != 1 || s.sent[0].Generation != 8 || s.sent[0].Nodes[0].Name != "a" {
		t.Fatalf("after the take-over: %+v", s.sent)
	}
	// The same content as that of the one before is no news.
	s.active = false
	s.poll(t, 1)
	s.active = true
	s.poll(t, 1)
	if len(s.sent) != 2 || s.sent[1].Generation != 8 {
		t.Errorf("take-over with the same content: generation %d", s.sent[len(s.sent)-1].Generation)
	}
}

// A bus that does not take it costs the others the news, not this process.
func TestInventoryFileWithoutABus(t *testing.T) {
	s := newShelf(t, "a 8\n")
	s.fail = errors.New("no storage left")
	s.write(t, "a 8\nb 8\n")
	s.poll(t, 12)
	if n := s.View().NodeCount(); n != 2 {
		t.Errorf("%d nodes here", n)
	}
	if n := strings.Count(s.log.String(), "no storage left"); n == 0 || n > 2 {
		t.Errorf("said %d times in ten seconds", n)
	}
	s.fail = nil
	s.poll(t, 6)
	if last := s.sent[len(s.sent)-1]; len(last.Nodes) != 2 || last.Generation != 2 {
		t.Errorf("sent once it can be: %+v", last)
	}
}

// What a file that cannot be read at the start says is nothing; judging goes on.
func TestInventoryFileBadAtTheStart(t *testing.T) {
	s := newShelf(t, "bad")
	s.tick(t0, newSender("a", 2))
	s.bus.inventories(telemetry.Inventory{Source: telemetry.SourceFile, Generation: 3, Nodes: []telemetry.InventoryNode{{Name: "z"}}})
	if s.View().NodeCount() != 2 || len(s.sent) != 0 {
		t.Errorf("%d nodes, %d sent", s.View().NodeCount(), len(s.sent))
	}
	s.clock.set(t0.Add(20 * time.Second))
	s.want("evenkeel_inventory_file_good", "0")
	if !strings.Contains(s.log.String(), "the last word on the bus holds") {
		t.Error(s.log.String())
	}
}

// What inventory expects and nobody hears is told, also by a collector that has
// just started and has nothing but the file.
func TestExpectedButSilent(t *testing.T) {
	s := newShelf(t, "a 8\nsilent 4\n")
	a := newSender("a", 7)
	for round := range 2 {
		if round == 1 {
			s.start(t) // a restart: nothing is known but the file
		}
		now := s.clock.now().Add(time.Second)
		s.tick(now, a)
		s.clock.set(now.Add(11 * time.Second))
		s.tick(now.Add(11*time.Second), a, newSender("unlisted", 1))
		s.want(`evenkeel_node_up{node="a"}`, "1")
		s.want(`evenkeel_node_up{node="silent"}`, "0")
		s.want(`evenkeel_node_up{node="unlisted"}`, "1")
		s.want(`evenkeel_node_gpus_expected{node="a"}`, "8")
		s.want(`evenkeel_node_gpus_expected{node="silent"}`, "4")
		s.want(`evenkeel_node_info{cluster="",feed="f",node="silent",rack="r1",row="row"}`, "1")
		s.want(`evenkeel_power_budget_watts{domain="p"}`, "40000")
		s.want("evenkeel_gpus_expected", "13")
		s.want("evenkeel_gpus_fresh", "8")
		s.want(`evenkeel_inventory_nodes{source="file"}`, "2")
		if got := s.value(`evenkeel_node_last_frame_timestamp_seconds{node="silent"}`); got != "" {
			t.Errorf("a node that was never heard has a last frame at %s", got)
		}
		// A month later the listed ones are still expected, the other is forgotten.
		s.clock.set(now.Add(30 * cluster.ForgetAfter))
		s.want(`evenkeel_node_up{node="a"}`, "0")
		s.want(`evenkeel_node_up{node="unlisted"}`, "")
		s.want("evenkeel_gpus_expected", "12")
		s.want("evenkeel_gpus_fresh", "0")
		a.start, a.seq = s.clock.now(), 0
	}
}

// A source that falls silent keeps its last word, and its age tells.
func TestSilentSourceOfInventory(t *testing.T) {
	w := newWorld(t, nil)
	w.bus.inventories(telemetry.Inventory{Source: "k8s-x", Generation: 4, Time: t0, Nodes: []telemetry.InventoryNode{{Name: "a", ExpectedGPUs: 8}}})
	w.clock.set(t0.Add(3 * time.Hour))
	w.want(`evenkeel_inventory_age_seconds{source="k8s-x"}`, "10800")
	w.want(`evenkeel_inventory_generation{source="k8s-x"}`, "4")
	w.want(`evenkeel_node_gpus_expected{node="a"}`, "8")
	// Refused words are counted by reason and do not make the source younger.
	w.bus.inventories(telemetry.Inventory{Source: "k8s-x", Generation: 3, Time: t0.Add(-time.Hour)})
	w.bus.inventories(telemetry.Inventory{Source: "k8s-x", Generation: 5, Time: t0.Add(time.Hour), Nodes: []telemetry.InventoryNode{{Name: "a", ExpectedGPUs: 1e9}}})
	w.bus.inventories(telemetry.Inventory{Source: "k8s-x", Generation: 5, Time: t0.Add(time.Hour), Nodes: []telemetry.InventoryNode{{}}})
	for why, n := range map[telemetry.DropReason]string{telemetry.DropReordered: "1", telemetry.DropTooMany: "1", telemetry.DropMalformed: "1", telemetry.DropShrunk: "0"} {
		w.want(fmt.Sprintf("evenkeel_inventory_refused_total{why=%q}", why), n)
	}
	w.want(`evenkeel_inventory_age_seconds{source="k8s-x"}`, "10800")
	if !slices.Equal(names(w.View()), []string{"a"}) {
		t.Errorf("nodes %v", names(w.View()))
	}
}

// The file over a real bus: who follows the inventory hears its content, and a
// change of it.
func TestInventoryFileOverTheBus(t *testing.T) {
	users := []bus.User{{Name: bus.UserCollector, Password: "secret"}, {Name: bus.UserRebalancer, Password: "secret"}}
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Users: users})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	connect := func(user string) *bus.Conn {
		c, err := bus.Connect(bus.Options{InProcess: server, User: user, Password: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if err := c.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		return c
	}
	conn, reader := connect(bus.UserCollector), connect(bus.UserRebalancer)
	streams := bus.DefaultStreams()
	for _, b := range []*bus.Bounds{&streams.Events, &streams.Receipts, &streams.Journal, &streams.Inventory} {
		b.MaxBytes = 8 << 20
	}
	if err := conn.EnsureStreams(ctx, streams); err != nil {
		t.Fatal(err)
	}
	heard := make(chan telemetry.Inventory, 16)
	stop, err := reader.Inventories(ctx, func(inv telemetry.Inventory) { heard <- inv })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	path := filepath.Join(t.TempDir(), "inventory")
	write := func(content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a 8\n")
	c, err := New(Options{Bus: conn, Log: slog.New(slog.DiscardHandler), Inventory: &InventoryFile{Path: path, Parse: parseShelf, Publish: conn.PublishInventory}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	running, end := context.WithCancel(ctx)
	go func() { done <- c.Run(running) }()
	defer func() { end(); <-done }()
	for generation, content := range []string{"a 8\n", "a 8\nb 4\n"} {
		write(content)
		for want := generation + 1; ; {
			select {
			case inv := <-heard:
				if inv.Source != telemetry.SourceFile || int(inv.Generation) > want {
					t.Fatalf("heard %+v, want generation %d", inv, want)
				}
				if int(inv.Generation) < want {
					continue // said again
				}
				if len(inv.Nodes) != want {
					t.Fatalf("generation %d has %d nodes", want, len(inv.Nodes))
				}
			case <-ctx.Done():
				t.Fatalf("generation %d is not heard", want)
			}
			break
		}
	}
	if got := names(c.View()); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the collector's own view has %v", got)
	}
}

func names(v *cluster.View) (out []string) {
	for n := range v.Nodes() {
		out = append(out, n.Name)
	}
	return out
}
