package rebalancer

import (
	"math"

	"github.com/evenkeel-gpu/evenkeel/cluster"
)

// spending counts the GPUs under acts of one policy against its budget. It is
// made from the journal's open decisions and the View, so a restart or another
// leader counts the same.
type spending struct {
	budget Budget
	total  map[string]int             // GPUs by scope
	taken  map[string]map[string]bool // GPUs under acts, by scope
	// lost are GPUs under acts that the View does not place: they count in
	// every scope, since they may be anywhere.
	lost map[string]bool
}

func (p *pass) spending(spec PolicySpec) *spending {
	if s := p.spent[spec.Type]; s != nil {
		return s
	}
	s := &spending{budget: spec.Budget, total: map[string]int{}, taken: map[string]map[string]bool{}, lost: map[string]bool{}}
	for n := range p.view.Nodes() {
		s.total[s.scope(n)] += max(n.Expected, len(n.GPUs))
	}
	for uuid, open := range p.scene.byGPU {
		for _, d := range open {
			if d.Policy != spec.Type || p.ended(d.ID) {
				continue
			}
			if n, ok := p.view.Node(d.Target.Node); ok {
				s.take(uuid, n)
			} else {
				s.lost[uuid] = true
			}
		}
	}
	p.spent[spec.Type] = s
	return s
}

// ended says that this pass has written the end of a decision.
func (p *pass) ended(id string) bool {
	d := p.written[id]
	return d != nil && !d.Ended.IsZero()
}

func (s *spending) scope(n *cluster.Node) string {
	switch s.budget.Per {
	case PerNode:
		return "node " + n.Name
	case PerRack:
		return "rack " + orUnknown(n.Rack)
	case PerRow:
		return "row " + orUnknown(n.Row)
	}
	return "the fleet"
}

// orUnknown puts nodes without a place into one scope of their own.
func orUnknown(place string) string {
	if place == "" {
		return "(not known)"
	}
	return place
}

func (s *spending) take(uuid string, n *cluster.Node) {
	in := s.scope(n)
	if s.taken[in] == nil {
		s.taken[in] = map[string]bool{}
	}
	s.taken[in][uuid] = true
}

// room says how many GPUs are under acts where a node is, how many more it would
// be with these, and how many may be. One that already is takes no more room.
func (s *spending) room(uuids []string, n *cluster.Node) (have, more, limit int, where string) {
	where = s.scope(n)
	limit = int(math.Ceil(s.budget.Percent*float64(s.total[where])/100 - 1e-9))
	if s.budget.Max > 0 {
		limit = min(limit, s.budget.Max)
	}
	for _, uuid := range uuids {
		if !s.taken[where][uuid] {
			more++
		}
	}
	return len(s.taken[where]) + len(s.lost), more, limit, where
}
