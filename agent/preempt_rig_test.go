package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/process/processtest"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const gib = 1 << 30

// cards are GPUs that real processes hold until they have ended, as a driver
// sees it, with what goes wrong with real ones.
type cards struct {
	mu     sync.Mutex
	of     map[string][]process.ID
	err    map[string]error         // by uuid; "": no device can be found
	silent map[string]chan struct{} // does not answer until closed
	sticky bool                     // lists who has ended, too
	calls  map[string]int
}

func newCards() *cards {
	return &cards{of: map[string][]process.ID{"GPU-1": nil, "GPU-2": nil}, err: map[string]error{}, silent: map[string]chan struct{}{}, calls: map[string]int{}}
}

func (c *cards) change(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}

func (c *cards) Devices() (uuids []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[""]++
	if err := c.err[""]; err != nil {
		return nil, err
	}
	for uuid := range c.of {
		uuids = append(uuids, uuid)
	}
	slices.Sort(uuids)
	return uuids, nil
}

func (c *cards) Holders(uuid string) (holders []Holder, err error) {
	c.mu.Lock()
	silent := c.silent[uuid]
	c.calls[uuid]++
	c.mu.Unlock()
	if silent != nil {
		<-silent
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.of[uuid] {
		if c.sticky || processtest.Alive(id) {
			holders = append(holders, Holder{PID: id.PID, MemoryBytes: gib})
		}
	}
	return holders, c.err[uuid]
}

// hooked are the node's processes with a hook before each call; one that
// returns false is a kill of the agent there: nothing comes after it.
type hooked struct {
	Processes
	mu   sync.Mutex
	hook func(call string) bool
}

func (h *hooked) pass(call string) {
	h.mu.Lock()
	hook := h.hook
	h.mu.Unlock()
	if hook != nil && !hook(call) {
		runtime.Goexit()
	}
}

func (h *hooked) set(hook func(call string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

func (h *hooked) Snapshot() (process.Table, error) { h.pass("look"); return h.Processes.Snapshot() }

func (h *hooked) Signal(p *process.Handle, s syscall.Signal) error {
	h.pass("before " + s.String())
	err := h.Processes.Signal(p, s)
	h.pass("after " + s.String())
	return err
}

// ending is a rig whose agent may end processes.
type ending struct {
	*rig
	cards *cards
	procs *hooked
}

func newEnding(t *testing.T, change ...func(*Options)) *ending {
	t.Helper()
	e := &ending{cards: newCards(), procs: &hooked{Processes: process.Proc{}}}
	e.rig = newRig(t, append([]func(*Options){func(o *Options) {
		o.Allow = []telemetry.StepKind{telemetry.StepPowerCap, telemetry.StepPreempt}
		o.Processes, o.Lister, o.Config.Processes = e.procs, e.cards, processtest.Rules()
		o.Notices = filepath.Join(openDir(t), "notices")
		o.Grace = 20 * time.Second
	}}, change...)...)
	return e
}

// start runs a script that holds GPU-1.
func (e *ending) start(script string) *processtest.Run {
	e.t.Helper()
	run := processtest.Start(e.t, script)
	if i, err := process.Read(run.PID); err != nil {
		e.t.Fatal(err)
	} else if ours, why := processtest.Rules().Ours(i); !ours {
		e.t.Skipf("tests run where nothing is ours: %s", why)
	}
	e.holds("GPU-1", run.ID)
	go run.Reap()
	return run
}

func (e *ending) holds(uuid string, id process.ID) {
	e.cards.change(func() { e.cards.of[uuid] = append(e.cards.of[uuid], id) })
}

func (e *ending) preempt(id process.ID, change ...func(*telemetry.Order)) *telemetry.Order {
	return e.order(telemetry.StepPreempt, append([]func(*telemetry.Order){func(o *telemetry.Order) {
		o.Lease = 0
		o.Target = telemetry.Target{Node: node, PID: id.PID, PIDStart: id.Start, BootID: "boot-1"}
		o.Params.Message = "GPU-1 is needed by another."
	}}, change...)...)
}

// openDir is a folder that every user may look into.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Dir(d) && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func grace(d time.Duration) func(*telemetry.Order) {
	return func(o *telemetry.Order) { o.Params.Grace = telemetry.Duration(d) }
}

// finally repeats an order until it has ended.
func (e *ending) finally(o *telemetry.Order) telemetry.Receipt {
	e.t.Helper()
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got := e.do(o); got.Result != telemetry.Pending {
			return got
		} else if time.Now().After(end) {
			e.t.Fatalf("still pending: %s", got.Detail)
		}
	}
}

// waitFor waits until something is so.
func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

func wantDetail(t *testing.T, r telemetry.Receipt, result telemetry.Result, says ...string) {
	t.Helper()
	if r.Result != result {
		t.Fatalf("%s %s (%s), want %s", r.Result, r.Why, r.Detail, result)
	}
	for _, s := range says {
		if !strings.Contains(r.Detail, s) {
			t.Errorf("says %q, want it to say %q", r.Detail, s)
		}
	}
}

func wantNumbers(t *testing.T, what string, got map[string]float64, want string) {
	t.Helper()
	if text := fmt.Sprint(got); text != "map["+want+"]" {
		t.Errorf("%s is %s, want %s", what, text, want)
	}
}

// family is a shell with a child, one in a session of its own, and one whose
// parent has ended.
const family = `
sleep 1000 & echo child $!
setsid sleep 1000 & echo session $!
(sleep 1000 & echo orphan $!)
echo ready
wait`

var errAway = errors.New("the driver is away")
