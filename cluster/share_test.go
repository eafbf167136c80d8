package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestShare: a state of a share expects its own nodes alone, knows the place of
// whatever is heard, and one that was expected by another name is not there
// twice.
func TestShare(t *testing.T) {
	s := NewShare(func(name string) bool { return strings.HasPrefix(name, "low") })
	now := time.Unix(1e9, 0)
	s.Inventory(now, telemetry.Inventory{Source: "file", Generation: 1, Time: now, Nodes: []telemetry.InventoryNode{
		{Name: "low-1", Rack: "r1"}, {Name: "high-1", Rack: "r2"}, {Name: "low-2", Aliases: []string{"high-2"}, Rack: "r3"},
		{Name: "high-3", Aliases: []string{"low-3"}, Rack: "r4"}, {Name: "low-4", Aliases: []string{"low-4.example"}, Rack: "r5"},
	}})
	names := func() (all []string) {
		for n := range s.View(now).Nodes() {
			all = append(all, n.Name)
		}
		return all
	}
	if got := names(); !slices.Equal(got, []string{"low-1", "low-4"}) {
		t.Errorf("expected are %v", got)
	}
	for _, name := range []string{"low-2", "low-3", "low-4.example"} {
		o := telemetry.Observation_builder{Node: name, Incarnation: 1, Sequence: 1, BootId: "b", SampleTimeUnixNano: now.UnixNano()}.Build()
		if err := s.Observe(now, o); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(); !slices.Equal(got, []string{"low-1", "low-2", "low-3", "low-4.example"}) {
		t.Errorf("with those heard they are %v", got)
	}
	v := s.View(now)
	for name, rack := range map[string]string{"low-2": "r3", "low-3": "r4", "low-4.example": "r5"} {
		if n, ok := v.Node(name); !ok || n.Rack != rack {
			t.Errorf("%s: %+v, want rack %s", name, n, rack)
		}
	}
}
