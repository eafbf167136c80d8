package ui

import (
	"maps"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// streamDecisions is how many decisions the stream keeps a page informed of;
// older ones are asked for.
const streamDecisions = 200

// picture is the fleet as last sent on the stream. It is compared with the
// next one to find what changed.
type picture struct {
	summary    *Summary
	nodes      []NodePlace
	gpus       []GPUPlace
	rows       []Row
	placements [][]WorkloadName
	decisions  []*telemetry.Decision
}

func take(o Options) *picture {
	v, decisions, now := o.Fleet.View(), o.Decisions.Decisions(), o.Now()
	p := &picture{summary: summaryOf(v, o, decisions, now), decisions: decisions[:min(streamDecisions, len(decisions))]}
	for n := range v.Nodes() {
		p.nodes = append(p.nodes, NodePlace{Name: n.Name, Row: n.Row, Rack: n.Rack, State: string(n.State), Expected: max(n.Expected, len(n.GPUs)), DriverFault: n.DriverFault})
		for _, g := range n.GPUs {
			i := len(p.gpus)
			p.gpus = append(p.gpus, GPUPlace{UUID: g.UUID, Node: len(p.nodes) - 1, Index: g.Index, Model: g.Model})
			p.rows = append(p.rows, rowOf(i, n, g, now))
			p.placements = append(p.placements, workloadNames(v, g.UUID))
		}
	}
	return p
}

// snapshot is the whole picture.
func (p *picture) snapshot(id string, now time.Time) *Update {
	u := &Update{
		APIVersion: APIVersion, ID: id, Time: now, Summary: p.summary, Columns: rowColumns, States: rowStates, ThrottleReasons: telemetry.ThrottleReasons,
		Nodes: p.nodes, GPUs: p.gpus, Rows: p.rows,
	}
	for i, w := range p.placements {
		if len(w) > 0 {
			u.Placements = append(u.Placements, Placement{i, w})
		}
	}
	for _, d := range p.decisions {
		u.Decisions = append(u.Decisions, decisionLine(d))
	}
	return u
}

// since is what changed from an older picture; nil is nothing. Where the set
// of devices itself changed, places mean other devices and only a snapshot
// will do: same is false.
func (p *picture) since(old *picture, now time.Time) (u *Update, same bool) {
	if !slices.Equal(p.gpus, old.gpus) || !slices.EqualFunc(p.nodes, old.nodes, func(a, b NodePlace) bool {
		return a.Name == b.Name && a.Row == b.Row && a.Rack == b.Rack
	}) {
		return nil, false
	}
	u = &Update{Time: now, Summary: p.summary}
	for i, n := range p.nodes {
		if n != old.nodes[i] {
			u.Nodes = append(u.Nodes, n)
		}
	}
	for i, r := range p.rows {
		if r != old.rows[i] {
			u.Rows = append(u.Rows, r)
		}
		if !slices.Equal(p.placements[i], old.placements[i]) {
			u.Placements = append(u.Placements, Placement{i, p.placements[i]})
		}
	}
	u.Decisions, u.Gone = decided(old.decisions, p.decisions)
	if len(u.Nodes)+len(u.Rows)+len(u.Placements)+len(u.Decisions)+len(u.Gone) == 0 && p.summary.equal(old.summary) {
		return nil, true
	}
	return u, true
}

// decided is which decisions are new or changed, and which are no longer told
// of. A changed decision is a new value, so that comparing pointers suffices.
func decided(old, now []*telemetry.Decision) (changed []DecisionLine, gone []string) {
	seen, kept := make(map[*telemetry.Decision]bool, len(old)), make(map[string]bool, len(now))
	for _, d := range old {
		seen[d] = true
	}
	for _, d := range now {
		kept[d.ID] = true
		if !seen[d] {
			changed = append(changed, decisionLine(d))
		}
	}
	for _, d := range old {
		if !kept[d.ID] {
			gone = append(gone, d.ID)
		}
	}
	return changed, gone
}

// equal leaves the time of the View out: a heartbeat carries it.
func (s *Summary) equal(o *Summary) bool {
	a, b := *s, *o
	a.ViewTime, b.ViewTime = time.Time{}, time.Time{}
	hottest := a.Hottest == nil && b.Hottest == nil || a.Hottest != nil && b.Hottest != nil && a.Hottest.UUID == b.Hottest.UUID && equalNumbers(a.Hottest.Headroom, b.Hottest.Headroom)
	states := maps.Equal(a.States, b.States)
	return hottest && states && a.Nodes == b.Nodes && a.NodesUp == b.NodesUp && a.GPUs == b.GPUs && a.Coverage == b.Coverage &&
		a.Capped == b.Capped && a.Slowed == b.Slowed && equalNumbers(a.Power, b.Power) && a.Workloads == b.Workloads && a.Decisions == b.Decisions && a.Open == b.Open &&
		a.Paused == b.Paused && a.PausedBy == b.PausedBy && slices.Equal(a.Breakers, b.Breakers) && equalAlerts(a.Alerts, b.Alerts)
}

func equalAlerts(a, b *AlertCount) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func equalNumbers(a, b *float64) bool { return a == b || a != nil && b != nil && *a == *b }
