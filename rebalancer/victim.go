package rebalancer

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Victim is a workload on a GPU beyond its mark, whose end would relieve it.
type Victim struct {
	Workload *cluster.Workload
	// Share is its part in what the GPU draws.
	Share float64
	// Target names the root of its processes, and the GPU.
	Target telemetry.Target
}

const (
	// leastShare is the share in a GPU's power below which a workload is no cause.
	leastShare = 0.05
	// movesPerDay is how often work may be preempted within a day, and movedApart
	// the least time between two attempts at it.
	movesPerDay = 3
	movedApart  = 10 * time.Minute
)

// workGuards say what stands against ending a workload, whatever it would gain.
// All are asked, at the plan and again before the order.
var workGuards = []func(*Scene, Victim, telemetry.ActKind) *telemetry.Refusal{
	ours,        // a process tree that the node's agent may act on, and nobody else's
	seen,        // its processes are on the GPU, and all of them are known
	consenting,  // it has not opted out
	causing,     // it draws enough to matter
	lowest,      // nothing of lower priority stays on the GPU
	grown,       // it has run for the least time that it is promised
	entire,      // its gang is here as a whole
	expendable,  // nothing that it says of itself forbids it
	rarelyMoved, // it has not been moved too often, nor just now
	spared,      // nobody has said no to it
}

// victims are the workloads on a GPU in the order in which they would have to
// go: the lowest priority first, then the largest share, then the one that
// began last and so loses least, then by reference.
func victims(v *cluster.View, n *cluster.Node, g *cluster.GPU) []Victim {
	shares := map[telemetry.WorkloadRef]float64{}
	for _, c := range candidates(v, g) {
		shares[c.Workload] = c.Share
	}
	var out []Victim
	for _, w := range v.WorkloadsOn(g.UUID) {
		out = append(out, Victim{w, shares[w.Ref], processTarget(n, g, w.Ref)})
	}
	slices.SortFunc(out, func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.Workload.Priority, b.Workload.Priority), cmp.Compare(b.Share, a.Share),
			strings.Compare(a.Workload.Ref.Kind(), b.Workload.Ref.Kind()), cmp.Compare(b.Target.PIDStart, a.Target.PIDStart),
			b.Workload.Start.Compare(a.Workload.Start), strings.Compare(string(a.Workload.Ref), string(b.Workload.Ref)))
	})
	return out
}

// processTarget is a workload on a GPU as the target of an act. The process is
// named only where the workload is one of this node's.
func processTarget(n *cluster.Node, g *cluster.GPU, ref telemetry.WorkloadRef) telemetry.Target {
	t := telemetry.Target{Node: n.Name, UUID: g.UUID, Generation: g.Generation, Workload: ref}
	root, own := strings.CutPrefix(string(ref), cluster.KindProcess+":"+n.Name+"/")
	pid, start, ok := strings.Cut(root, "@")
	if !own || !ok {
		return t
	}
	p, err1 := strconv.Atoi(pid)
	s, err2 := strconv.ParseUint(start, 10, 64)
	if err1 == nil && err2 == nil && p > 0 {
		t.PID, t.PIDStart, t.BootID = p, s, n.BootID
	}
	return t
}

func ours(s *Scene, v Victim, rung telemetry.ActKind) *telemetry.Refusal {
	if v.Target.PID != 0 && v.Target.BootID != "" {
		return nil
	}
	r := Refuse(telemetry.RefusalUnmovable, v.Target, "%s is no process tree of this node that its agent could %s; who runs it would have to", v.Workload.Ref, rung)
	return &r
}

// seen wants a process of the workload on the GPU, and no process in its tree
// that is not ours: whoever began it did not mean to be ended with it.
func seen(s *Scene, v Victim, _ telemetry.ActKind) *telemetry.Refusal {
	no := func(reason telemetry.RefusalReason, format string, args ...any) *telemetry.Refusal {
		r := Refuse(reason, v.Target, format, args...)
		return &r
	}
	held := map[string]bool{}
	for _, m := range v.Workload.Members {
		held[m.ID] = true
	}
	here := false
	for _, g := range v.Workload.GPUs {
		for _, m := range g.Members {
			switch {
			case !held[m.ID] && m.Workload != v.Workload.Ref:
			case m.Kind != cluster.KindProcess:
				return no(telemetry.RefusalUnmovable, "%s on %s is in its tree and is not ours (%s)", m.ID, g.UUID, m.Kind)
			case g.UUID == v.Target.UUID:
				here = true
			}
		}
	}
	if !here {
		return no(telemetry.RefusalUnknown, "its node sees no process of %s on the GPU", v.Workload.Ref)
	}
	return nil
}

func consenting(_ *Scene, v Victim, rung telemetry.ActKind) *telemetry.Refusal {
	if !optedOut(v.Workload, rung) {
		return nil
	}
	r := Refuse(telemetry.RefusalOptOut, v.Target, "%s has opted out of %s", v.Workload.Ref, rung)
	return &r
}

func optedOut(w *cluster.Workload, rung telemetry.ActKind) bool {
	return slices.Contains(w.OptOut, string(rung)) || slices.Contains(w.OptOut, "all")
}

func causing(_ *Scene, v Victim, _ telemetry.ActKind) *telemetry.Refusal {
	if v.Share >= leastShare {
		return nil
	}
	r := RefuseNumbers(telemetry.RefusalNotEnough, v.Target, v.Share, leastShare, "ratio", "it has %.0f %% of what the GPU draws, less than %.0f %% is no cause", 100*v.Share, 100*leastShare)
	return &r
}

// lowest keeps work from being ended for the sake of work that counts less.
func lowest(s *Scene, v Victim, _ telemetry.ActKind) *telemetry.Refusal {
	n, g, ok := s.View.GPU(v.Target.UUID)
	if !ok {
		return nil // no longer in view; who asks finds that out
	}
	for _, other := range victims(s.View, n, g) {
		if other.Workload.Priority < v.Workload.Priority && other.Share >= leastShare {
			r := RefuseNumbers(telemetry.RefusalPriority, v.Target, float64(v.Workload.Priority), float64(other.Workload.Priority), "priority",
				"its priority is %d, and %s of priority %d stays", v.Workload.Priority, other.Workload.Ref, other.Workload.Priority)
			return &r
		}
	}
	return nil
}

// age is how long a workload has run at least.
func age(w *cluster.Workload, now time.Time) (time.Duration, bool) {
	switch {
	case !w.Start.IsZero():
		return now.Sub(w.Start), true
	case !w.Seen.IsZero():
		return now.Sub(w.Seen), true
	}
	return 0, false
}

func grown(s *Scene, v Victim, _ telemetry.ActKind) *telemetry.Refusal {
	least := time.Duration(v.Workload.MinRunTime)
	if least <= 0 {
		return nil
	}
	ran, known := age(v.Workload, s.Now)
	if known && ran >= least {
		return nil
	}
	r := RefuseNumbers(telemetry.RefusalMinRunTime, v.Target, ran.Seconds(), least.Seconds(), "seconds", "it has run for %s, and %s is promised to it", ran.Round(time.Second), least)
	if !known {
		r.Text = "since when it runs is not known, and " + least.String() + " is promised to it"
	} else {
		r.Until = s.Now.Add(least - ran)
	}
	return &r
}

// entire keeps gangs whole: what cannot be ended as one is not begun on.
func entire(s *Scene, v Victim, _ telemetry.ActKind) *telemetry.Refusal {
	no := func(format string, args ...any) *telemetry.Refusal {
		r := Refuse(telemetry.RefusalGang, v.Target, format, args...)
		return &r
	}
	w := v.Workload
	for _, g := range w.GPUs {
		if g.Node != v.Target.Node {
			return no("it has %s on %s too, and is ended whole or not at all", g.UUID, g.Node)
		}
	}
	if w.Gang == "" {
		return nil
	}
	if w.GangSize > len(w.Members) {
		return no("%d of the %d members of its gang %s are elsewhere", w.GangSize-len(w.Members), w.GangSize, w.Gang)
	}
	for other := range s.View.Workloads() {
		if other.Gang == w.Gang && other.Ref != w.Ref {
			return no("%s is of its gang %s too, which is ended whole or not at all", other.Ref, w.Gang)
		}
	}
	return nil
}

// expendable asks what a workload's inventory says of it.
func expendable(_ *Scene, v Victim, rung telemetry.ActKind) *telemetry.Refusal {
	no := func(reason telemetry.RefusalReason, format string, args ...any) *telemetry.Refusal {
		r := Refuse(reason, v.Target, format, args...)
		return &r
	}
	switch w := v.Workload; {
	case w.LocalData:
		return no(telemetry.RefusalUnmovable, "its data is on this node alone")
	case w.QueueOwner != "":
		return no(telemetry.RefusalHeldByOther, "%s owns its queue", w.QueueOwner)
	case w.PDBRoom != nil && *w.PDBRoom < 1:
		return no(telemetry.RefusalPDB, "its disruption budget has no room")
	case w.MaxDowntime > 0:
		return no(telemetry.RefusalDowntime, "it may be down for %s at most, and nothing here starts it again after a %s", time.Duration(w.MaxDowntime), rung)
	case w.Checkpoint != nil && time.Duration(w.Checkpoint.Grace) > MaxGrace:
		return no(telemetry.RefusalUnmovable, "it needs %s to save its state, and at most %s is given", time.Duration(w.Checkpoint.Grace), MaxGrace)
	}
	return nil
}

// rarelyMoved asks what was done to this workload, and to work of the same
// owner and command on the node: a process that is started again has another
// reference and is the same work.
func rarelyMoved(s *Scene, v Victim, _ telemetry.ActKind) *telemetry.Refusal {
	w := v.Workload
	work := lineage(v.Target.Node, w.Owner, w.Name)
	moves := 0
	for _, m := range s.memory.Moves {
		since := s.Now.Sub(m.At).Round(time.Second)
		same := m.Ref == w.Ref || work != "" && m.Work == work
		if same && m.Result != telemetry.Refused {
			moves++
		}
		switch {
		case m.Result == telemetry.Refused && since < movedApart && (m.Ref == w.Ref || m.Node == v.Target.Node && nodeWide(m.Why)):
			r := refuseUntil(telemetry.RefusalRepeat, v.Target, m.At.Add(movedApart), "the node's agent refused step %s %s ago (%s); it is asked again after %s", m.Step, since, m.Why, movedApart)
			return &r
		case !same || m.Result == telemetry.Refused:
		case m.Ref == w.Ref && m.Result != telemetry.Unknown:
			r := Refuse(telemetry.RefusalRepeat, v.Target, "it was preempted %s ago by step %s (%s); that is not done twice", since, m.Step, m.Result)
			return &r
		case since < movedApart:
			r := refuseUntil(telemetry.RefusalRepeat, v.Target, m.At.Add(movedApart), "%s was preempted %s ago (%s); it is left alone for %s", m.Ref, since, m.Result, movedApart)
			return &r
		}
	}
	if moves < movesPerDay {
		return nil
	}
	r := RefuseNumbers(telemetry.RefusalMoves, v.Target, float64(moves), movesPerDay, "moves", "%s of %s has been preempted %d times within a day, no more than %d are", w.Name, w.Owner, moves, movesPerDay)
	return &r
}

// nodeWide says that an agent's reason holds for any workload of its node.
func nodeWide(why telemetry.RefuseReason) bool {
	return slices.Contains([]telemetry.RefuseReason{telemetry.RefuseNotAllowed, telemetry.RefuseUnsupported, telemetry.RefuseClock, telemetry.RefuseSignature, telemetry.RefuseWrongNode}, why)
}

func spared(s *Scene, v Victim, rung telemetry.ActKind) *telemetry.Refusal {
	for _, g := range v.Workload.GPUs {
		if m := s.memory.GPUs[g.UUID]; s.Now.Before(m.Spared) {
			r := refuseUntil(telemetry.RefusalMode, v.Target, m.Spared, "%s has said no to %s on %s", m.SparedBy, rung, g.UUID)
			return &r
		}
	}
	return nil
}

// standAgainst asks all the guards of a workload.
func standAgainst(s *Scene, v Victim, rung telemetry.ActKind) []telemetry.Refusal {
	var out []telemetry.Refusal
	for _, guard := range workGuards {
		if r := guard(s, v, rung); r != nil {
			out = append(out, *r)
		}
	}
	return out
}

// gpusOf are the GPUs of a workload, in the order of the View.
func gpusOf(w *cluster.Workload) []string {
	out := make([]string, len(w.GPUs))
	for i, g := range w.GPUs {
		out[i] = g.UUID
	}
	return out
}
