package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// crashRig is a stack whose rebalancers and agent are those of the test build,
// so that each can be told where to die. It hears the journal and the receipts
// as the bus has stored them.
type crashRig struct {
	*stack
	cfg   map[string]string
	lives map[string]int
	world *proc
	calm  time.Time // when the last event of the world is over
	conn  *bus.Conn

	mu       sync.Mutex
	records  []telemetry.Record
	receipts []telemetry.Receipt
}

const crashNode = "gpu-1"

// event is what happens in the quick world: the cooling of a GPU gets worse for
// a while, so that it asks for a cap.
type event struct {
	gpu       int
	at, lasts time.Duration
	factor    float64
}

// At hot a GPU of the quick world needs a cap, at hotter a deeper one.
const hot, hotter = 1.7, 2.6

func (e event) String() string {
	return fmt.Sprintf("  - {at: %s, for: %s, gpu: %s/%d, cooling: %g}\n", e.at, e.lasts, crashNode, e.gpu, e.factor)
}

// setting is what the stacks differ in: the rebalancers' policy, what is added to
// the agent's file, and what happens to the world.
type setting struct {
	policy, rules string
	events        []event
}

// quick is the setting of most.
func quick(events ...event) setting { return setting{policy: "testdata/quick.yaml", events: events} }

// newCrashRig starts bus, collector, world and exporter; the rest is started by
// whoever kills it.
func newCrashRig(t *testing.T, what setting) *crashRig {
	t.Helper()
	world, err := os.ReadFile("testdata/quick-world.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := &crashRig{stack: newStack(t), lives: map[string]int{}}
	if err := openWay(r.dir); err != nil { // owners must get to their notices
		t.Fatal(err)
	}
	r.policy, r.rules = what.policy, strings.Replace(what.rules, "NOTICES", filepath.Join(r.dir, "notices"), 1)
	text, last := string(world), time.Duration(0)
	for _, e := range what.events {
		text += e.String()
		last = max(last, e.at+e.lasts)
	}
	r.startNATS(crashNode)
	r.cfg = r.configs(crashNode)
	r.start("collector", "evenkeel", "collector", "-c", r.cfg["collector"])
	r.world = r.start("sim", "evenkeel", "sim", "serve", "--scenario", r.file("world.yaml", text), "--node", crashNode, "--shm", r.shm)
	r.calm = time.Now().Add(last)
	r.start("exporter", "evenkeel-node", "export", "-c", r.cfg["exporter"])
	r.listen()
	return r
}

// listen follows journal and receipts until the test ends.
func (r *crashRig) listen() {
	r.t.Helper()
	var err error
	if r.conn, err = bus.Connect(bus.Options{URLs: r.urls(), ReconnectWait: 100 * time.Millisecond, ReconnectJitter: time.Millisecond, User: bus.UserCollector, Password: "pw"}); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		_ = r.conn.FollowJournal(ctx, func(_ uint64, rec telemetry.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.records = append(r.records, rec)
		})
	})
	stop, err := r.conn.Receipts(func(_ string, receipt telemetry.Receipt) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.receipts = append(r.receipts, receipt)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		cancel()
		stop()
		following.Wait()
		r.conn.Close()
	})
}

// run starts the next life of a rebalancer, its standby or the agent.
func (r *crashRig) run(role string, env ...string) *proc {
	r.t.Helper()
	r.lives[role]++
	args := map[string][]string{
		"rebalancer": {"crashpoints/evenkeel", "rebalancer", "-c", r.cfg["rebalancer"]},
		"standby":    {"crashpoints/evenkeel", "rebalancer", "-c", r.cfg["standby"]},
		"agent":      {"crashpoints/evenkeel-node", "agent", "-c", r.cfg["agent"]},
	}[role]
	return r.startWith(env, fmt.Sprintf("%s-%d", role, r.lives[role]), args...)
}

// journal is what has been written so far, in order.
func (r *crashRig) journal() []telemetry.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records)
}

// reported is every receipt that the bus has stored.
func (r *crashRig) reported() []telemetry.Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.receipts)
}

// decisions are as the journal's last record of each has them, by id.
func (r *crashRig) decisions() []*telemetry.Decision {
	last := map[string]*telemetry.Decision{}
	for _, rec := range r.journal() {
		if rec.Decision != nil {
			last[rec.Decision.ID] = rec.Decision
		}
	}
	return slices.SortedFunc(maps.Values(last), func(a, b *telemetry.Decision) int { return strings.Compare(a.ID, b.ID) })
}

// diesAt waits for a process to be killed, and wants SIGKILL at the point.
func (p *proc) diesAt(t *testing.T, point string, bound time.Duration) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(bound):
		t.Fatalf("%s did not come to %s within %s", p.name, point, bound)
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("%s ended with %s, want SIGKILL", p.name, p.cmd.ProcessState)
	}
	said, err := os.ReadFile(p.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if name, _, counted := strings.Cut(point, "#"); !counted {
		point = name + "#1"
	}
	if !strings.HasSuffix(string(said), "crash point "+point+": killed\n") {
		t.Fatalf("%s was killed, but not at %s", p.name, point)
	}
}

// write is a change of a limit in the world, as the world saw it.
type write struct {
	at     time.Time
	watts  float64
	writes int
}

var powerLimit = regexp.MustCompile(`(?m)^time=(\S+) .*msg="power limit" .*gpu=(\d+) watts=(\S+) writes=(\d+)$`)

// writes are the changes of limits that reached the world, by GPU index.
func (r *crashRig) writes() map[int][]write {
	r.t.Helper()
	log, err := os.ReadFile(r.world.log.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[int][]write{}
	for _, hit := range powerLimit.FindAllStringSubmatch(string(log), -1) {
		var gpu int
		var w write
		if w.at, err = time.Parse(time.RFC3339Nano, hit[1]); err == nil {
			_, err = fmt.Sscan(strings.Join(hit[2:], " "), &gpu, &w.watts, &w.writes)
		}
		if err != nil {
			r.t.Fatalf("%s: %v", hit[0], err)
		}
		out[gpu] = append(out[gpu], w)
	}
	return out
}

// openWay lets everybody through to a folder for tests.
func openWay(dir string) error {
	for ; dir != os.TempDir() && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
