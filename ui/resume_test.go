package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// changing is a fleet that a property test changes at will: nodes and devices
// come and go, values move, work moves, decisions are made, change and are
// forgotten.
type changing struct {
	now       time.Time
	nodes     map[string]*cluster.Node
	held      map[string]telemetry.WorkloadRef // by uuid
	decisions []*telemetry.Decision
	made      int
}

func (c *changing) View() *cluster.View {
	var nodes []*cluster.Node
	of := map[telemetry.WorkloadRef]*cluster.Workload{}
	for _, n := range c.nodes {
		one := *n
		one.GPUs = slices.Clone(n.GPUs)
		nodes = append(nodes, &one)
		for _, g := range one.GPUs {
			if ref := c.held[g.UUID]; ref != "" {
				w := cmp.Or(of[ref], &cluster.Workload{InventoryWorkload: telemetry.InventoryWorkload{Ref: ref, Owner: "o"}})
				w.GPUs, of[ref] = append(w.GPUs, g), w
			}
		}
	}
	return cluster.NewView(c.now, nodes, slices.Collect(maps.Values(of)))
}

func (c *changing) History(string) []Point                      { return nil }
func (c *changing) Changes(context.Context) <-chan struct{}     { return nil }
func (c *changing) Decisions() []*telemetry.Decision            { return c.decisions }
func (c *changing) Decision(string) (*telemetry.Decision, bool) { return nil, false }
func (c *changing) gpu(uuid, node string, i int, core float64) *cluster.GPU {
	return cluster.NewGPU(cluster.GPU{UUID: uuid, Node: node, Index: i, Model: "H100", State: cluster.GPUOK, HeadroomC: cluster.Some(87 - core)},
		cluster.Reading{ID: telemetry.GPUTemperatureCelsiusCore, V: core, At: c.now, Quality: telemetry.Quality_QUALITY_OK})
}

func newChanging() *changing {
	c := &changing{now: testTime, nodes: map[string]*cluster.Node{}, held: map[string]telemetry.WorkloadRef{}}
	for i := range 4 {
		name := fmt.Sprintf("n%d", i)
		n := &cluster.Node{Name: name, State: cluster.NodeUp, Period: time.Second, Expected: 4, Rack: "r1"}
		for slot := range 3 {
			n.GPUs = append(n.GPUs, c.gpu(fmt.Sprintf("GPU-%s-%d", name, slot), name, slot, 50))
		}
		c.nodes[name] = n
	}
	return c
}

// change does one thing of those that happen to a fleet.
func (c *changing) change(t *rapid.T) {
	name := fmt.Sprintf("n%d", rapid.IntRange(0, 5).Draw(t, "node"))
	n, known := c.nodes[name]
	slot := rapid.IntRange(0, 3).Draw(t, "slot")
	uuid := fmt.Sprintf("GPU-%s-%d", name, slot)
	switch what := rapid.SampledFrom([]string{"node", "no node", "gpu", "no gpu", "value", "value", "value", "rack", "silent", "work", "work", "decide", "decide", "go on", "forget", "clear", "time"}).Draw(t, "what"); {
	case what == "node":
		c.nodes[name] = &cluster.Node{Name: name, State: cluster.NodeUp, Period: time.Second, Expected: 2, Rack: "r1"}
	case what == "time":
		c.now = c.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
	case what == "decide":
		c.made++
		d := &telemetry.Decision{ID: fmt.Sprintf("d-%06d", c.made), Time: c.now, Policy: "thermal", Outcome: telemetry.OutcomeIntended, Target: telemetry.Target{UUID: uuid}}
		c.decisions = slices.Insert(slices.Clone(c.decisions), 0, d)
	case what == "clear":
		c.decisions = nil
	case len(c.decisions) > 0 && (what == "go on" || what == "forget"):
		at := rapid.IntRange(0, len(c.decisions)-1).Draw(t, "decision")
		c.decisions = slices.Clone(c.decisions)
		if what == "forget" {
			c.decisions = slices.Delete(c.decisions, at, at+1)
			break
		}
		next := *c.decisions[at]
		next.Outcome = rapid.SampledFrom(telemetry.Outcomes).Draw(t, "outcome")
		c.decisions[at] = &next
	case !known:
	case what == "no node":
		delete(c.nodes, name)
	case what == "rack":
		n.Rack = rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "rack")
	case what == "silent":
		n.State, n.DriverFault = cluster.NodeGone, "driver not loaded"
	case what == "work":
		c.held[uuid] = rapid.SampledFrom([]telemetry.WorkloadRef{"", "slurm:1", "slurm:2"}).Draw(t, "work")
	case what == "gpu", what == "value":
		at := slices.IndexFunc(n.GPUs, func(g *cluster.GPU) bool { return g.UUID == uuid })
		g := c.gpu(uuid, name, slot, float64(rapid.IntRange(30, 90).Draw(t, "core")))
		if n.State = cluster.NodeUp; at >= 0 {
			n.GPUs[at] = g
		} else if what == "gpu" {
			n.GPUs = append(n.GPUs, g)
		}
	case what == "no gpu":
		n.GPUs = slices.DeleteFunc(n.GPUs, func(g *cluster.GPU) bool { return g.UUID == uuid })
	}
}

// reader folds events as any client would, from what openapi.yaml says alone.
type reader struct {
	client *client
	lastID string
	state  map[string]any
	of     map[string]map[string]any // part → key → item
}

func (r *reader) take(t *rapid.T, e *event) {
	var u map[string]any
	if err := json.Unmarshal(e.data, &u); err != nil {
		t.Fatal(err)
	}
	r.lastID, _ = u["id"].(string)
	items := func(part string) []any { l, _ := u[part].([]any); return l }
	keyed := func(part, key string) {
		for _, item := range items(part) {
			var k any
			if m, ok := item.(map[string]any); ok {
				k = m[key]
			} else {
				k = item.([]any)[0]
			}
			r.of[part][fmt.Sprint(k)] = item
		}
	}
	if e.name == "snapshot" {
		r.of = map[string]map[string]any{"nodes": {}, "rows": {}, "placements": {}, "decisions": {}}
		r.state = map[string]any{"gpus": u["gpus"], "columns": u["columns"], "states": u["states"]}
	}
	keyed("nodes", "name")
	keyed("rows", "")
	keyed("placements", "gpu")
	keyed("decisions", "id")
	for _, id := range items("decisions_gone") {
		delete(r.of["decisions"], id.(string))
	}
	if s, ok := u["summary"].(map[string]any); ok {
		delete(s, "view_time")
		r.state["summary"] = s
	}
}

// sees is the state in one form.
func (r *reader) sees(t *rapid.T) string {
	for key, item := range r.of["placements"] {
		if held, _ := item.(map[string]any)["workloads"].([]any); len(held) == 0 {
			delete(r.of["placements"], key)
		}
	}
	data, err := json.MarshalIndent([]any{r.state, r.of}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestChangesGiveTheSnapshot: whoever folds the changes, with whatever breaks
// between them, sees what a snapshot of that moment holds.
func TestChangesGiveTheSnapshot(t *testing.T) {
	resumed, fresh := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := newChanging()
		h := newHub(Options{Fleet: c, Decisions: c, Now: func() time.Time { return c.now }})
		h.begin() // followed by hand
		readers := make([]*reader, 3)
		for i := range readers {
			readers[i] = &reader{}
		}
		for range rapid.IntRange(5, 40).Draw(t, "steps") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				c.change(t)
			}
			h.step()
			for _, r := range readers {
				connected := r.client != nil
				switch move := rapid.SampledFrom([]string{"read", "read", "sleep", "leave", "read"}).Draw(t, "move"); {
				case move == "leave" && connected:
					h.leave(r.client)
					r.client = nil
				case move == "read" && !connected:
					id := rapid.SampledFrom([]string{r.lastID, r.lastID, r.lastID, "OTHERHUB-3", "rubbish", ""}).Draw(t, "id")
					var missed []*event
					var err error
					if r.client, missed, err = h.join(id); err != nil {
						t.Fatal(err)
					}
					for _, e := range missed {
						r.take(t, e)
					}
					if len(missed) > 0 && missed[0].name == "change" {
						resumed++
					} else if len(missed) > 0 {
						fresh++
					}
				case move == "read":
					for _, e := range drain(r.client) {
						r.take(t, e)
					}
				}
				if r.client == nil {
					continue
				}
				if _, still := h.clients[r.client]; !still { // let go for sleeping
					r.client = nil
					continue
				}
				if len(r.client.queue) > 0 {
					continue
				}
				whole, err := h.snapshot()
				if err != nil {
					t.Fatal(err)
				}
				now := &reader{}
				now.take(t, whole)
				if got, want := r.sees(t), now.sees(t); got != want {
					t.Fatalf("a reader sees\n%s\nand the snapshot is\n%s", got, want)
				}
			}
		}
	})
	if resumed == 0 || fresh == 0 {
		t.Errorf("%d resumed with changes, %d with a snapshot", resumed, fresh)
	}
}

// TestWhatIsKeptIsBounded: by number and by size; what is older is answered by
// a snapshot, and so is the id of another process.
func TestWhatIsKeptIsBounded(t *testing.T) {
	c := newChanging()
	h := newHub(Options{Fleet: c, Decisions: c, Now: func() time.Time { return c.now }})
	h.begin()
	decide := func(words int) {
		c.made++
		d := &telemetry.Decision{ID: fmt.Sprintf("d-%06d", c.made), Time: c.now, Why: strings.Repeat("why ", words)}
		c.decisions = slices.Insert(slices.Clone(c.decisions), 0, d)
		h.step()
	}
	first := h.seq
	for range streamKept {
		decide(1)
	}
	missedFrom := func(seq uint64) (events int, name string) {
		client, missed := join(t, h, h.id(seq))
		defer h.leave(client)
		if len(missed) == 0 {
			return 0, ""
		}
		return len(missed), missed[0].name
	}
	if n, name := missedFrom(first); n != streamKept || name != "change" {
		t.Errorf("%d events after the first: %d, the first a %s", streamKept, n, name)
	}
	decide(1)
	if n, name := missedFrom(first); n != 1 || name != "snapshot" {
		t.Errorf("one more than are kept: %d, the first a %s, want one snapshot", n, name)
	}
	if n, name := missedFrom(h.seq); n != 0 {
		t.Errorf("who missed nothing gets %d, the first a %s", n, name)
	}
	for range 20 {
		decide(streamKeptBytes / 40) // a tenth of what may be kept
	}
	sum := 0
	for _, e := range h.kept {
		sum += len(e.text)
	}
	if sum > streamKeptBytes || len(h.kept) < 5 || sum != h.bytes {
		t.Errorf("%d events of %d bytes are kept, counted as %d; at most %d may be", len(h.kept), sum, h.bytes, streamKeptBytes)
	}
	other := newHub(h.opts)
	other.begin()
	if _, missed := join(t, other, h.id(other.seq)); len(missed) != 1 || missed[0].name != "snapshot" {
		t.Errorf("the id of another process: %d events", len(missed))
	}
}
