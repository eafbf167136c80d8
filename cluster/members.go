package cluster

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// KindProcess is the kind of a member that the node's agent may act on.
	KindProcess = "proc"
	// SourceNode is the source of a workload that no inventory lists: its node
	// tells of it.
	SourceNode = "node"
)

// process is a workload that a node itself tells of: the processes of one
// tree. It has places in the node's list of devices instead of pointers, so
// that observations which say the same of it share it.
type process struct {
	ref         telemetry.WorkloadRef
	owner, name string
	members     []telemetry.WorkloadMember // by id
	gpus        []int32                    // places in the node's list
	listed      bool                       // an inventory has it: it is not shown apart
	span        span
}

// span is when a workload can have got its first device: not before start,
// zero if it may have had it before the node was heard, and not after seen.
type span struct{ start, seen, gone time.Time }

const (
	// memberDelay is how long a node may be heard before it has told of its
	// members: they come with a slower part of its frames.
	memberDelay = 3 * 15 * time.Second
	// keepSpan is how long a workload that is gone is known by its reference: a
	// source that starts anew tells of no members for a while.
	keepSpan = 10 * time.Minute
)

// foldMembers lists the holders of a device. The list of before is used again
// if nothing changed.
func foldMembers(members []*telemetry.Member, before []Member) []Member {
	if len(members) == 0 {
		return nil
	}
	if slices.EqualFunc(before, members, unchanged) {
		return before
	}
	out := make([]Member, len(members))
	for i, o := range members {
		out[i] = Member{ID: o.GetId(), Kind: o.GetKind(), UUID: o.GetUuid(), Workload: telemetry.WorkloadRef(o.GetWorkload()), Owner: o.GetOwner(), Name: o.GetName()}
		if o.HasGi() {
			gi := o.GetGi()
			out[i].GI = &gi
		}
	}
	return out
}

func unchanged(m Member, o *telemetry.Member) bool {
	return m.ID == o.GetId() && m.Kind == o.GetKind() && m.UUID == o.GetUuid() && string(m.Workload) == o.GetWorkload() &&
		m.Owner == o.GetOwner() && m.Name == o.GetName() && (m.GI != nil) == o.HasGi() && (m.GI == nil || *m.GI == o.GetGi())
}

func sameMember(m, n Member) bool {
	return m.ID == n.ID && m.Kind == n.Kind && m.Workload == n.Workload && m.Owner == n.Owner && m.Name == n.Name
}

// sameMembers says that both hold the same devices in the same places.
func sameMembers(a, b *Node) bool {
	return slices.EqualFunc(a.GPUs, b.GPUs, func(x, y *GPU) bool {
		if x.UUID != y.UUID || len(x.Members) != len(y.Members) {
			return false
		}
		return len(x.Members) == 0 || &x.Members[0] == &y.Members[0] || slices.EqualFunc(x.Members, y.Members, sameMember)
	})
}

// tells says whether a member is one of a workload that its node may tell of. A
// reference to another node's process is nobody's.
func (n *Node) tells(m Member) bool {
	return m.Kind == KindProcess && m.Workload.Check() == nil && nodeOf(m.Workload) == n.Name
}

// nodeOf is the node in the reference of a process, empty in any other.
func nodeOf(ref telemetry.WorkloadRef) string {
	rest, _ := strings.CutPrefix(string(ref), KindProcess+":")
	node, _, _ := strings.Cut(rest, "/")
	if len(rest) == len(ref) {
		return ""
	}
	return node
}

// rootOf is the pid and start of the root of a process tree.
func rootOf(ref telemetry.WorkloadRef) string {
	_, root, _ := strings.Cut(string(ref), "/")
	return root
}

// trees groups the members of a node's devices by workload.
func (n *Node) trees(listed map[string]bool) []process {
	type holding struct {
		Member
		gpu int32
	}
	var all []holding
	for i, g := range n.GPUs {
		for _, m := range g.Members {
			if n.tells(m) {
				all = append(all, holding{m, int32(i)})
			}
		}
	}
	slices.SortFunc(all, func(a, b holding) int {
		return cmp.Or(strings.Compare(string(a.Workload), string(b.Workload)), strings.Compare(a.ID, b.ID), cmp.Compare(a.gpu, b.gpu))
	})
	var out []process
	for _, h := range all {
		if len(out) == 0 || out[len(out)-1].ref != h.Workload {
			out = append(out, process{ref: h.Workload, owner: h.Owner, name: h.Name, listed: listed[string(h.Workload)]})
		}
		p := &out[len(out)-1]
		p.listed = p.listed || listed[h.ID]
		p.add(n, h.Member, h.gpu)
	}
	return out
}

// add takes in one member on one device; members come in the order of their
// ids. The root of the tree says who owns it, if it holds a device itself.
func (p *process) add(n *Node, m Member, gpu int32) {
	if last := len(p.members) - 1; last < 0 || p.members[last].ID != m.ID {
		p.members = append(p.members, telemetry.WorkloadMember{ID: m.ID, Node: n.Name})
		if strings.HasPrefix(m.ID, rootOf(p.ref)+"+") {
			p.owner, p.name = m.Owner, m.Name
		}
	}
	last := &p.members[len(p.members)-1]
	if uuid := n.GPUs[gpu].UUID; !slices.Contains(last.GPUs, uuid) {
		last.GPUs = append(last.GPUs, uuid)
	}
	if i, found := slices.BinarySearch(p.gpus, gpu); !found {
		p.gpus = slices.Insert(p.gpus, i, gpu)
	}
}

func (n *Node) findProcess(ref telemetry.WorkloadRef) (int, bool) {
	return slices.BinarySearchFunc(n.processes, ref, func(p process, ref telemetry.WorkloadRef) int { return strings.Compare(string(p.ref), string(ref)) })
}

// workload is the process as a View shows it.
func (n *Node) workload(p *process) *Workload {
	w := &Workload{
		InventoryWorkload: telemetry.InventoryWorkload{Ref: p.ref, Owner: p.owner, State: "running", Members: p.members, Start: p.span.start},
		Source:            SourceNode, Name: p.name, Seen: p.span.seen, GPUs: make([]*GPU, len(p.gpus)),
	}
	for i, at := range p.gpus {
		w.GPUs[i] = n.GPUs[at]
	}
	return w
}

// absorb adds what the node tells to what an inventory says of the workload.
// Where both say something the inventory's word holds.
func (w *Workload) absorb(p *process) {
	w.Members = slices.Clip(w.Members)
	for _, m := range p.members {
		at := slices.IndexFunc(w.Members, func(k telemetry.WorkloadMember) bool { return k.ID == m.ID })
		if at < 0 {
			w.Members = append(w.Members, m)
		}
	}
	w.Name = cmp.Or(w.Name, p.name)
	w.Owner = cmp.Or(w.Owner, p.owner)
	w.State = cmp.Or(w.State, "running")
	if w.Start.IsZero() {
		w.Start = p.span.start
	}
	if w.Seen.IsZero() || p.span.seen.Before(w.Seen) {
		w.Seen = p.span.seen
	}
}

// told gives a node the workloads that its members tell of, those of before if
// nothing changed, and says whether an inventory's workloads are concerned.
func (s *State) told(now time.Time, r *record, n *Node) {
	old := r.node
	if old == nil || r.heard.IsZero() || now.Sub(r.heard) > GoneAfter(old.Period) || old.BootID != n.BootID {
		r.from = now // what it has now it may have had before
	}
	if old != nil && sameMembers(old, n) {
		n.processes = old.processes
		return
	}
	n.processes = n.trees(s.listed)
	r.date(now, n)
	if s.concerned(n) || old != nil && s.concerned(old) {
		s.rejoin = true
	}
}

// concerned says that an inventory's workload has members on a node.
func (s *State) concerned(n *Node) bool {
	return len(s.listed) > 0 && slices.ContainsFunc(n.GPUs, func(g *GPU) bool {
		return slices.ContainsFunc(g.Members, func(m Member) bool { return s.listed[m.ID] || s.listed[string(m.Workload)] })
	})
}

// date tells since when the node's processes hold devices.
func (r *record) date(now time.Time, n *Node) {
	for i := range n.processes {
		p := &n.processes[i]
		at, known := r.spans[p.ref]
		if !known {
			at = span{seen: now}
			if now.Sub(r.from) > memberDelay {
				at.start = r.heard
			}
		}
		at.gone = time.Time{}
		p.span = at
		if r.spans == nil {
			r.spans = map[telemetry.WorkloadRef]span{}
		}
		r.spans[p.ref] = at
	}
	for ref, at := range r.spans {
		switch _, here := n.findProcess(ref); {
		case here:
		case at.gone.IsZero():
			at.gone = now
			r.spans[ref] = at
		case now.Sub(at.gone) > keepSpan:
			delete(r.spans, ref)
		}
	}
}
