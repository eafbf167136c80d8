package rebalancer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// fed is a feed that runs in a bubble, and the Views that it has handed on.
type fed struct {
	*rebalancer.Feed
	views []*cluster.View
	said  bytes.Buffer
	stop  context.CancelFunc
	ended chan error
}

func newFed(t *testing.T) *fed {
	f := &fed{ended: make(chan error, 1)}
	f.Feed = rebalancer.NewFeed(time.Now, slog.New(slog.NewTextHandler(&f.said, nil)))
	return f
}

func (f *fed) begin(t *testing.T) {
	var ctx context.Context
	ctx, f.stop = context.WithCancel(t.Context())
	go func() { f.ended <- f.Run(ctx, func(v *cluster.View) { f.views = append(f.views, v) }) }()
	synctest.Wait()
}

func (f *fed) newest() *cluster.View { return f.views[len(f.views)-1] }

// observation is an encoded observation of a node without devices.
func observation(t *testing.T, node string, seq uint64) []byte {
	t.Helper()
	var o telemetry.Observation
	o.SetSchema(telemetry.Schema)
	o.SetCluster("test")
	o.SetNode(node)
	o.SetBootId("boot")
	o.SetIncarnation(1)
	o.SetSequence(seq)
	o.SetSampleTimeUnixNano(time.Now().UnixNano())
	data, err := proto.Marshal(&o)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// However much arrives at once, it costs one View.
func TestFeedOneViewPerBurst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFed(t)
		for i := range 500 {
			node := fmt.Sprintf("n%d", i)
			f.Observation(telemetry.PartitionSubject("obs", node), observation(t, node, 1))
		}
		f.begin(t)
		defer f.stop()
		if len(f.views) != 1 || f.newest().NodeCount() != 500 {
			t.Fatalf("%d Views, the last of %d nodes; want one of 500", len(f.views), f.newest().NodeCount())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.views) != 1 {
			t.Errorf("%d Views though nothing came", len(f.views))
		}
		f.Observation(telemetry.PartitionSubject("obs", "n7"), observation(t, "n7", 2))
		synctest.Wait()
		if len(f.views) != 2 || !f.newest().Time.After(f.views[0].Time) {
			t.Errorf("%d Views after one more observation", len(f.views))
		}
		n7, _ := f.newest().Node("n7")
		n8, _ := f.newest().Node("n8")
		if n7.State != cluster.NodeUp || n8.State != cluster.NodeGone {
			t.Errorf("n7 is %s, n8 %s; want what was heard and what was not", n7.State, n8.State)
		}
	})
}

// A full queue loses the oldest, says how many, and blocks nobody.
func TestFeedDropsTheOldest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const room, more = 1 << 15, 10
		f := newFed(t)
		for i := range room + more {
			node := fmt.Sprintf("n%d", i)
			f.Inventory(telemetry.Inventory{Source: "s" + node, Generation: 1, Nodes: []telemetry.InventoryNode{{Name: node}}})
			if i == 0 && f.Dropped() != 0 {
				t.Fatal("dropped while there is room")
			}
		}
		if f.Dropped() != more {
			t.Fatalf("%d dropped, want %d", f.Dropped(), more)
		}
	})
	bubble(t, func(t *testing.T) {
		const room = 1 << 15
		f := newFed(t)
		for i := range room + 2 {
			f.Observation(telemetry.PartitionSubject("obs", fmt.Sprintf("n%d", min(i, 3))), observation(t, fmt.Sprintf("n%d", min(i, 3)), uint64(i+1)))
		}
		f.begin(t)
		defer f.stop()
		_, first := f.newest().Node("n0")
		_, last := f.newest().Node("n3")
		if first || !last || f.Dropped() != 2 {
			t.Errorf("n0 there %v, n3 there %v, %d dropped: want the oldest gone", first, last, f.Dropped())
		}
	})
}

// What is not what it should be is said and left out; the rest is not held up.
func TestFeedRefuses(t *testing.T) {
	cases := []struct {
		name, subject string
		data          func(t *testing.T) []byte
	}{
		{"another partition", "ek.v1.obs.64.n1", func(t *testing.T) []byte { return observation(t, "n1", 1) }},
		{"not an observation", telemetry.PartitionSubject("obs", "n1"), func(*testing.T) []byte { return []byte("\xff\xff\xff") }},
		{"another node's name", telemetry.PartitionSubject("obs", "n1"), func(t *testing.T) []byte { return observation(t, "n2", 1) }},
		{"no name", telemetry.PartitionSubject("obs", "n1"), func(t *testing.T) []byte { return observation(t, "", 1) }},
		{"empty", telemetry.PartitionSubject("obs", "n1"), func(*testing.T) []byte { return nil }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFed(t)
				f.Observation(c.subject, c.data(t))
				f.Observation(telemetry.PartitionSubject("obs", "n9"), observation(t, "n9", 1))
				f.begin(t)
				defer f.stop()
				if _, ok := f.newest().Node("n9"); !ok || f.newest().NodeCount() != 1 {
					t.Errorf("%d nodes, the good one there: %v", f.newest().NodeCount(), ok)
				}
				if got := f.said.String(); !strings.Contains(got, "observation refused") || !strings.Contains(got, c.subject) || !strings.Contains(got, "why=") {
					t.Errorf("said %q", got)
				}
			})
		})
	}
}

// An observation from before a newer one does not turn the clock back.
func TestFeedTakesNoOldObservation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFed(t)
		old := observation(t, "n1", 1)
		time.Sleep(5 * time.Second)
		f.Observation(telemetry.PartitionSubject("obs", "n1"), observation(t, "n1", 2))
		f.begin(t)
		defer f.stop()
		before, _ := f.newest().Node("n1")
		f.Observation(telemetry.PartitionSubject("obs", "n1"), old)
		synctest.Wait()
		after, _ := f.newest().Node("n1")
		if after.Seen.Before(before.Seen) {
			t.Errorf("seen went back from %s to %s", before.Seen, after.Seen)
		}
	})
}

// Inventory and receipts come in by the same queue; each gives a View.
func TestFeedTakesInventoryAndReceipts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFed(t)
		f.begin(t)
		f.Inventory(telemetry.Inventory{Source: "file", Generation: 1, Nodes: []telemetry.InventoryNode{{Name: "n1", Row: "r1", ExpectedUUIDs: []string{"GPU-1", "GPU-2"}}}})
		synctest.Wait()
		n, ok := f.newest().Node("n1")
		if !ok || n.Row != "r1" || n.Expected != 2 || n.State != cluster.NodeUnknown {
			t.Fatalf("node %+v", n)
		}
		views := len(f.views)
		f.Receipt(telemetry.Receipt{StepID: "d-000001.1", Result: telemetry.Done, Node: "n1", Target: telemetry.Target{Node: "n1", UUID: "GPU-1"}})
		synctest.Wait()
		if len(f.views) != views+1 {
			t.Errorf("%d Views after a receipt, want one more than %d", len(f.views), views)
		}
		f.stop()
		if err := <-f.ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}
