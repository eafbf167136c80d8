package cluster

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// place is what all sources together say of a node. The first source by name
// wins where two differ.
type place struct {
	telemetry.InventoryNode
	sources []string
}

// Inventory folds a snapshot of a source, in place of its last one. What cannot
// be true, is older than what is known, or takes most of the source's nodes away
// is refused with a *telemetry.DropError, and the source's last word stays.
func (s *State) Inventory(now time.Time, inv telemetry.Inventory) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if news, err := s.admit(now, &inv); err != nil || !news {
		return err
	}
	s.places, s.alias = map[string]*place{}, map[string]string{}
	s.plan, s.planOf, s.listed = nil, nil, map[string]bool{}
	for _, source := range slices.Sorted(maps.Keys(s.sources)) {
		s.merge(source, s.sources[source].inv)
	}
	for name := range s.places {
		s.expect(name)
	}
	for _, r := range s.records {
		if r.node == nil {
			continue
		}
		r.own()
		r.node.GPUs = slices.DeleteFunc(r.node.GPUs, func(g *GPU) bool { return g.listed })
		s.place(r.node)
		r.node.processes = r.node.trees(s.listed)
		r.date(now, r.node)
	}
	s.dropUnlisted()
	s.regroup, s.rejoin = true, true
	return nil
}

func (s *State) merge(source string, inv *telemetry.Inventory) {
	for _, n := range inv.Nodes {
		p, ok := s.places[n.Name]
		if !ok {
			p = &place{InventoryNode: n}
			p.Marks = maps.Clone(n.Marks)
			s.places[n.Name] = p
		} else {
			p.add(n)
		}
		p.sources = append(p.sources, source)
		for _, a := range n.Aliases {
			if _, taken := s.alias[a]; !taken {
				s.alias[a] = n.Name
			}
		}
	}
	for _, w := range inv.Workloads {
		s.plan = append(s.plan, w)
		s.planOf = append(s.planOf, source)
		s.listed[string(w.Ref)] = true
		for _, m := range w.Members {
			s.listed[m.ID] = true
		}
	}
}

// add fills what an earlier source left open.
func (p *place) add(n telemetry.InventoryNode) {
	for _, f := range []struct{ to, from *string }{
		{&p.Rack, &n.Rack}, {&p.Row, &n.Row}, {&p.Feed, &n.Feed}, {&p.PowerDomain, &n.PowerDomain},
		{&p.CoolingDomain, &n.CoolingDomain}, {&p.NVLinkDomain, &n.NVLinkDomain}, {&p.NetworkDomain, &n.NetworkDomain},
	} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
	for k, v := range n.Marks {
		if p.Marks == nil {
			p.Marks = map[string]string{}
		}
		if _, ok := p.Marks[k]; !ok {
			p.Marks[k] = v
		}
	}
	for _, u := range n.ExpectedUUIDs {
		if !slices.Contains(p.ExpectedUUIDs, u) {
			p.ExpectedUUIDs = append(slices.Clip(p.ExpectedUUIDs), u)
		}
	}
	p.ExpectedGPUs = max(p.ExpectedGPUs, n.ExpectedGPUs)
	p.Unschedulable = p.Unschedulable || n.Unschedulable
}

// expect makes a record for a node that inventory knows and nobody has heard.
func (s *State) expect(name string) {
	if !s.shares(name) {
		return
	}
	r, ok := s.records[name]
	if !ok && s.heardAs(name) {
		return
	}
	if !ok {
		r = s.record(name)
	}
	if r.node == nil {
		r.node = &Node{Name: name, State: NodeUnknown}
		r.dirty = true
	}
}

// heardAs says whether a node is heard under one of its other names.
func (s *State) heardAs(name string) bool {
	for _, a := range s.places[name].Aliases {
		if r, ok := s.records[a]; ok && !r.heard.IsZero() {
			return true
		}
	}
	return false
}

// known takes away the record of a node that was expected under another name
// than the one it now speaks by.
func (s *State) known(name string) {
	listed, ok := s.alias[name]
	if !ok {
		return
	}
	if r, ok := s.records[listed]; ok && r.heard.IsZero() {
		delete(s.records, listed)
		s.sorted, s.regroup = nil, true
	}
}

// dropUnlisted takes away nodes that were only ever expected and are no more.
func (s *State) dropUnlisted() {
	for name, r := range s.records {
		if _, listed := s.placeOf(name); !listed && r.heard.IsZero() {
			delete(s.records, name)
			s.sorted = nil
		}
	}
}

func (s *State) placeOf(name string) (*place, bool) {
	if p, ok := s.places[name]; ok {
		return p, true
	}
	p, ok := s.places[s.alias[name]]
	return p, ok
}

// place joins a node with what inventory says of it.
func (s *State) place(n *Node) {
	n.Expected = n.reported
	p, ok := s.placeOf(n.Name)
	if !ok {
		n.Rack, n.Row, n.Feed, n.PowerDomain, n.CoolingDomain, n.NVLinkDomain, n.NetworkDomain = "", "", "", "", "", "", ""
		n.Unschedulable, n.Marks, n.Sources = false, nil, nil
		return
	}
	n.Rack, n.Row, n.Feed = p.Rack, p.Row, p.Feed
	n.PowerDomain, n.CoolingDomain, n.NVLinkDomain, n.NetworkDomain = p.PowerDomain, p.CoolingDomain, p.NVLinkDomain, p.NetworkDomain
	n.Unschedulable, n.Marks, n.Sources = p.Unschedulable, p.Marks, p.sources
	n.Expected = max(n.reported, p.ExpectedGPUs, len(p.ExpectedUUIDs))
	state, class, why := GPUUnknown, HealthUnknown, "the node is not heard"
	switch {
	case n.State == NodeUp && n.DriverFault == "":
		state, class, why = GPUAbsent, HealthAbsent, "expected by inventory and missing"
	case n.State == NodeUp:
		why = "the driver does not answer"
	}
	for _, uuid := range p.ExpectedUUIDs {
		if !slices.ContainsFunc(n.GPUs, func(g *GPU) bool { return g.UUID == uuid }) {
			n.GPUs = append(n.GPUs, &GPU{UUID: uuid, Node: n.Name, Model: p.Model, State: state, Health: class, HealthReason: why, listed: true})
		}
	}
	slices.SortStableFunc(n.GPUs, compareGPUs)
}

// joinInto lists the workloads anew, with their GPUs.
func (s *State) joinInto(v *View) {
	s.rejoin = false
	held, trees := s.holders(v)
	v.workloads = make([]*Workload, 0, len(s.plan))
	seen := make(map[telemetry.WorkloadRef]bool, len(s.plan))
	for i := range s.plan {
		if seen[s.plan[i].Ref] {
			continue
		}
		seen[s.plan[i].Ref] = true
		w := &Workload{InventoryWorkload: s.plan[i], Source: s.planOf[i]}
		for _, p := range trees[string(w.Ref)] {
			w.absorb(p)
		}
		for _, m := range s.plan[i].Members {
			for _, p := range trees[m.ID] {
				w.absorb(p)
			}
		}
		w.GPUs = gpusOf(v, &w.InventoryWorkload, held)
		v.workloads = append(v.workloads, w)
	}
	slices.SortFunc(v.workloads, func(a, b *Workload) int { return strings.Compare(string(a.Ref), string(b.Ref)) })
	v.loads = indexLoads(v.workloads)
}

// holders maps what nodes say of their devices' holders to the devices, and
// the references and members of listed process trees to the trees.
func (s *State) holders(v *View) (held map[string][]string, trees map[string][]*process) {
	held, trees = map[string][]string{}, map[string][]*process{}
	if len(s.plan) == 0 {
		return held, trees
	}
	for _, n := range v.nodes {
		for _, g := range n.GPUs {
			for _, m := range g.Members {
				if s.listed[m.ID] {
					held[m.ID] = append(held[m.ID], g.UUID)
				}
			}
		}
		for i := range n.processes {
			p := &n.processes[i]
			if !p.listed {
				continue
			}
			trees[string(p.ref)] = append(trees[string(p.ref)], p)
			for _, m := range p.members {
				trees[m.ID] = append(trees[m.ID], p)
			}
		}
	}
	return held, trees
}

// gpusOf lists the devices of a workload: those its scheduler gave it and those
// its members were seen on, by node and index, each once.
func gpusOf(v *View, w *telemetry.InventoryWorkload, held map[string][]string) []*GPU {
	var out []*GPU
	add := func(uuid string) {
		if _, g, ok := v.GPU(uuid); ok && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	for _, m := range w.Members {
		for _, uuid := range m.GPUs {
			add(uuid)
		}
		for _, uuid := range held[m.ID] {
			add(uuid)
		}
	}
	slices.SortFunc(out, func(a, b *GPU) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		return compareGPUs(a, b)
	})
	return out
}

// rejoin takes the workloads of the last View and points those of changed nodes
// to their new objects.
func (v *View) rejoin(last *View, changed []string) {
	v.loads, v.workloads = last.loads, last.workloads
	if len(v.workloads) == 0 {
		return
	}
	for _, name := range changed {
		for _, i := range v.loads.onNode[name] {
			if &v.workloads[0] == &last.workloads[0] {
				v.workloads = slices.Clone(v.workloads)
			}
			if v.workloads[i] != last.workloads[i] {
				continue // done, by another of its nodes
			}
			w := *v.workloads[i]
			w.GPUs = make([]*GPU, len(w.GPUs))
			for k, g := range last.workloads[i].GPUs {
				_, w.GPUs[k], _ = v.GPU(g.UUID)
			}
			v.workloads[i] = &w
		}
	}
}
