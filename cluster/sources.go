package cluster

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// maxSources bounds how many may tell of the fleet, maxPlaces how many nodes
	// they may expect together.
	maxSources = 64
	maxPlaces  = 200_000
	// A snapshot that takes away most of its source's nodes is more often the
	// word of a source that failed to look than that of a fleet that is gone. It
	// is taken once the source has said so for confirmShrink.
	shrinkFrom    = 8
	confirmShrink = 50 * time.Second
)

// told is the last word of one inventory.
type told struct {
	inv *telemetry.Inventory
	at  time.Time // when it was spoken, or heard if it does not say
	// shrunk is since when it says that most of its nodes are gone.
	shrunk time.Time
}

// SourceState is what is known of a source of inventory.
type SourceState struct {
	Name       string
	Generation uint64
	// Told is when the source last spoke, by its own clock and never later than
	// it was heard.
	Told             time.Time
	Nodes, Workloads int
}

// Sources lists the sources of inventory in the order in which they are merged.
func (s *State) Sources() []SourceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]SourceState, 0, len(s.sources))
	for _, name := range slices.Sorted(maps.Keys(s.sources)) {
		x := s.sources[name]
		out = append(out, SourceState{name, x.inv.Generation, x.at, len(x.inv.Nodes), len(x.inv.Workloads)})
	}
	return out
}

// Budgets lists the power budgets by domain; of two for one domain that of the
// first source by name holds.
func (s *State) Budgets() []telemetry.PowerBudget {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string]telemetry.PowerBudget{}
	for _, name := range slices.Sorted(maps.Keys(s.sources)) {
		for _, b := range s.sources[name].inv.Budgets {
			if _, there := of[b.Domain]; !there {
				of[b.Domain] = b
			}
		}
	}
	return slices.SortedFunc(maps.Values(of), func(a, b telemetry.PowerBudget) int { return strings.Compare(a.Domain, b.Domain) })
}

// admit says whether a snapshot is taken, and whether it says anything new. A
// refused one is a *telemetry.DropError and leaves the source's last word.
func (s *State) admit(now time.Time, inv *telemetry.Inventory) (news bool, err error) {
	if err := telemetry.CheckInventory(inv); err != nil {
		return false, err
	}
	if inv.Time.After(now) {
		inv.Time = now // a clock that runs ahead must not outdate what comes after it
	}
	held := s.sources[inv.Source]
	if held == nil {
		if len(s.sources) >= maxSources {
			return false, refuse(telemetry.DropTooMany, "a source beyond the most taken")
		}
		held = &told{inv: &telemetry.Inventory{}}
	}
	if inv.Generation < held.inv.Generation && !inv.Time.After(held.inv.Time) {
		return false, refuse(telemetry.DropReordered, "inventory older than the last one of its source")
	}
	places := len(inv.Nodes)
	for name, other := range s.sources {
		if name != inv.Source {
			places += len(other.inv.Nodes)
		}
	}
	if places > maxPlaces {
		return false, refuse(telemetry.DropTooMany, "more nodes than are taken from all sources together")
	}
	if had := len(held.inv.Nodes); had >= shrinkFrom && 2*len(inv.Nodes) < had {
		if held.shrunk.IsZero() {
			held.shrunk = now
		}
		if now.Sub(held.shrunk) < confirmShrink {
			return false, refuse(telemetry.DropShrunk, "inventory without most of its source's nodes; it is taken if the source goes on saying so for a minute")
		}
	}
	news = s.sources[inv.Source] == nil || !sameWords(held.inv, inv)
	at := inv.Time
	if at.IsZero() {
		at = now
	}
	s.sources[inv.Source] = &told{inv: inv, at: at}
	return news, nil
}

// sameWords says that two snapshots differ in nothing but when they were sent.
func sameWords(a, b *telemetry.Inventory) bool {
	x, y := *a, *b
	x.Time, x.Generation = y.Time, y.Generation
	return reflect.DeepEqual(&x, &y)
}
