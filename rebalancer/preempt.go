package rebalancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// MaxGrace is the longest time that is given to a process between the signal
	// and KILL.
	MaxGrace = 10 * time.Minute
	// killRoom is the time after the grace for KILL to act, for the device to be
	// found released, and for two clocks that differ.
	killRoom = time.Minute
)

// RunTime is how long a step may take once its backend has begun it, beyond
// what every step may take.
func RunTime(s telemetry.Step) time.Duration {
	if s.Kind != telemetry.StepPreempt {
		return 0
	}
	return time.Duration(s.Params.Grace) + killRoom
}

// BeginBy is the time after which no backend may begin a step.
func BeginBy(s telemetry.Step) time.Time { return s.Deadline.Add(-RunTime(s)) }

// begins says that a step is an act, and not one that looks after another.
func begins(k telemetry.StepKind) bool { return k != telemetry.StepRenew && k != telemetry.StepUndo }

// neverBegun ends a step that its backend has not seen in time. An effect that
// lasts may be in force all the same, if what the backend knew is lost.
func neverBegun(s telemetry.Step, now time.Time) telemetry.Receipt {
	if lasts(s.Kind) {
		return unknownReceipt(s, "there was no word of it before it expired; if it was done all the same, its owner undoes it when its lease ends", now)
	}
	r := unknownReceipt(s, "its backend had not seen it when it expired", now)
	r.Result, r.Why = telemetry.Refused, telemetry.RefuseExpired
	return r
}

// lasts says that the effect of a step is in force until it is undone; any other
// is over when it is done.
func lasts(k telemetry.StepKind) bool { return k != telemetry.StepPreempt }

// awaitsEffect says that a decision waits for nothing but to see what its act
// did, which leaves nothing in force.
func awaitsEffect(d *telemetry.Decision) bool {
	return d.Outcome == telemetry.OutcomeActed && d.Act != nil && len(d.Act.Steps) > 0 && !lasts(d.Act.Steps[0].Kind)
}

// exhausted says that caps can do no more: the last one is as low as they go, or
// the device draws less than the lowest. A cap that anything else stands against
// would do, so nothing firmer takes its place.
func exhausted(refusals []telemetry.Refusal) bool {
	return len(refusals) > 0 && !slices.ContainsFunc(refusals, func(r telemetry.Refusal) bool {
		return r.Reason != telemetry.RefusalAtLimit && r.Reason != telemetry.RefusalNotEnough
	})
}

// capWouldDo finds among what was weighed a cap that is not exhausted.
func capWouldDo(weighed []telemetry.Alternative) bool {
	return slices.ContainsFunc(weighed, func(a telemetry.Alternative) bool { return a.Act == telemetry.ActCap && !exhausted(a.Refusals) })
}

// conclude reads the signal after an act that leaves nothing in force, and ends
// its decision with what it says.
func (p *pass) conclude(d *telemetry.Decision) {
	if p.now.Before(d.VerifyBy) {
		return
	}
	review := Review{Refusal: &telemetry.Refusal{Reason: telemetry.RefusalUnsupported, Target: d.Target, Text: "policy " + d.Policy + " is no longer configured"}}
	if pol := p.policy(d.Policy); pol != nil {
		if review = pol.Review(p.scene, Held{Decision: d, Step: d.Act.Steps[0], From: d.VerifyBy}); review.Refusal != nil && p.now.Before(d.VerifyBy.Add(unreadable)) {
			return
		}
	}
	next := judged(d, review)
	next.Ended = p.now
	switch {
	case review.Refusal != nil:
		next.Ending = "what it did is not known: " + review.Refusal.Text
	case next.Outcome == telemetry.OutcomeVerified:
		next.Ending = "done, and it helped"
	default:
		next.Ending = "done, and it did not help; it is not done again to this work"
	}
	p.add(Entry{Topic: telemetry.TopicOutcome, Decision: next})
}

// disturbed says that another act holds the GPU of a decision now. Until what it
// did has been read, nothing is given back there.
func (p *pass) disturbed(d *telemetry.Decision) bool {
	return slices.ContainsFunc(p.scene.byGPU[d.Target.UUID], func(other *telemetry.Decision) bool {
		return other.ID != d.ID && inFlight(other) && !p.ended(other.ID)
	})
}

// whole keeps an act on a workload apart from other acts on any of its GPUs.
func whole(p *pass, c confirmed, _ telemetry.ActKind, pr Proposal) []telemetry.Refusal {
	for _, uuid := range pr.GPUs {
		if p.planned[uuid] {
			return []telemetry.Refusal{Refuse(telemetry.RefusalInFlight, c.target(), "an act on %s, which it has too, is part of this very plan", uuid)}
		}
		if d := p.onItsWay(uuid); d != nil {
			return []telemetry.Refusal{refuseUntil(telemetry.RefusalInFlight, c.target(), d.VerifyBy, "%s of %s is on its way to %s, which it has too (%s)", d.Kind, d.ID, uuid, d.Outcome)}
		}
	}
	if c.Victim == nil {
		return nil
	}
	for _, d := range p.scene.onWork {
		if d.Target.Workload == c.Victim.Workload.Ref && d.Target.UUID != c.GPU.UUID && !p.ended(d.ID) {
			return []telemetry.Refusal{Refuse(telemetry.RefusalInFlight, c.target(), "%s is there already, for %s (%s)", d.ID, d.Target.UUID, d.Outcome)}
		}
	}
	return nil
}

// preemptStillRight asks again what a preemption stood on: the process, its
// GPUs, the signal, whether a cap would do by now, and everything that protects
// the workload.
func preemptStillRight(pol Policy, scene *Scene, d *telemetry.Decision, no func(string, ...any) *telemetry.Refusal) *telemetry.Refusal {
	n, g, _ := scene.View.GPU(d.Target.UUID)
	all := victims(scene.View, n, g)
	i := slices.IndexFunc(all, func(v Victim) bool { return v.Workload.Ref == d.Target.Workload })
	switch {
	case i < 0:
		return no("%s no longer holds the GPU", d.Target.Workload)
	case all[i].Target != d.Target:
		return no("the node was started anew, so the process is another")
	case d.Act == nil || !slices.Equal(gpusOf(all[i].Workload), d.Act.GPUs):
		return no("%s holds other GPUs by now", d.Target.Workload)
	}
	for _, r := range standAgainst(scene, all[i], d.Kind) {
		return no("%s", r.Text)
	}
	s, r := beyond(pol, scene, d, no)
	if r != nil {
		return r
	}
	if v := s.Violation; !atMark(v) {
		return no("%s is %s by now, the mark is %s", v.Signal, telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Mark, v.Unit))
	}
	if p, refusals := pol.Propose(scene, s, telemetry.ActCap); len(p.Steps) > 0 || !exhausted(refusals) {
		return no("a cap would do by now")
	}
	s.Victim = &all[i]
	p, refusals := pol.Propose(scene, s, d.Kind)
	switch {
	case len(p.Steps) == 0 && len(refusals) > 0:
		return no("%s", refusals[0].Text)
	case !worth(p):
		return no("it is no longer worth it: gains %.0f, costs %.0f and risks %.0f GPU-seconds", p.Gain, p.Cost, p.Risk)
	}
	return nil
}

// atMark says that a value is beyond the mark by itself, not on its way there.
func atMark(v telemetry.Violation) bool {
	if v.Aim < v.Mark {
		return v.Value >= v.Mark
	}
	return v.Value <= v.Mark
}

// sustained wants of an act that disturbs that the signal is beyond the mark
// now, and was for as long as the filter says.
func sustained(_ *pass, c confirmed, rung telemetry.ActKind, _ Proposal) []telemetry.Refusal {
	if telemetry.ClassOf(rung) == telemetry.Gentle {
		return nil
	}
	v := c.Violation
	if !atMark(v) {
		return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalUnconfirmed, c.target(), v.Value, v.Mark, v.Unit, "%s is on its way to the mark of %s and not there; %s acts are taken on no forecast",
			v.Signal, telemetry.Number(v.Mark, v.Unit), telemetry.Disruptive)}
	}
	if hits := c.filter.hits(); hits < c.spec.Filter.N {
		return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalUnconfirmed, c.target(), float64(hits), float64(c.spec.Filter.N), "samples",
			"beyond the mark in %d of the last %d samples; %s acts need %d of %d", hits, c.filter.Len, telemetry.Disruptive, c.spec.Filter.N, c.spec.Filter.M)}
	}
	return nil
}

// lineage names work across its restarts: what one owner runs by one name on one
// node. Without owner or name there is none.
func lineage(node, owner, name string) string {
	if owner == "" || name == "" {
		return ""
	}
	return fmt.Sprintf("%s/%s/%s", node, owner, name)
}

// movedWork is the lineage of the workload that a decision is about.
func movedWork(d *telemetry.Decision) string {
	i := slices.IndexFunc(d.Candidates, func(c telemetry.Candidate) bool { return c.Workload == d.Target.Workload })
	if i < 0 {
		return ""
	}
	return lineage(d.Target.Node, d.Candidates[i].Owner, d.Candidates[i].Name)
}

// outlived says that a decision is about a workload that is no longer in view.
func outlived(v *cluster.View, d *telemetry.Decision) bool {
	if d.Target.Workload == "" {
		return false
	}
	_, there := v.Workload(d.Target.Workload)
	return !there
}
