package rebalancer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// answer climbs the ladder for a violation and takes the cheapest act that
// nothing stands against.
func (p *pass) answer(c confirmed) {
	for _, guard := range targetGuards {
		if r := guard(p, c); r != nil {
			p.refused.add(*r)
			return
		}
	}
	d := p.draft(c)
	chosen, by := p.climb(c, d)
	if chosen == nil {
		for _, a := range d.Alternatives {
			p.refused.add(a.Refusals...)
		}
		return
	}
	for _, a := range d.Alternatives {
		for _, r := range a.Refusals {
			put(&d.RefusalCount, r.Reason, d.RefusalCount[r.Reason]+1)
		}
	}
	d.Alternatives = kept(d.Alternatives)
	p.settleOn(by, d, *chosen)
}

// climb weighs rung after rung, and on a rung that is an act on a workload one
// workload after the other, until one holds.
func (p *pass) climb(c confirmed, d *telemetry.Decision) (*Proposal, confirmed) {
	for _, rung := range c.spec.Ladder {
		if rung == telemetry.ActPreempt && capWouldDo(d.Alternatives) {
			d.Alternatives = append(d.Alternatives, telemetry.Alternative{Act: rung, Summary: "not weighed: a cap would do if nothing stood against it"})
			break
		}
		turns := p.turns(c, rung)
		for i, x := range turns {
			alt, proposal := p.weigh(x, d, rung)
			alt.Chosen = proposal != nil
			d.Alternatives = append(d.Alternatives, alt)
			if proposal != nil {
				d.Kind, d.Class = rung, telemetry.ClassOf(rung)
				for _, later := range turns[i+1:] {
					d.Alternatives = append(d.Alternatives, telemetry.Alternative{Act: rung, Summary: describe(later.Victim) + ": " + comesAfter(x.Victim, later.Victim)})
				}
				return proposal, x
			}
		}
	}
	return nil, c
}

// comesAfter says why one workload goes and not the other.
func comesAfter(first, other *Victim) string {
	switch {
	case other.Workload.Priority > first.Workload.Priority:
		return "its priority is higher"
	case other.Share < first.Share:
		return "its share is smaller"
	case other.Target.PIDStart < first.Target.PIDStart:
		return "it began earlier, and so has more to lose"
	}
	return "nothing sets it apart; the order of names decides"
}

// turns are what a rung is weighed for: the GPU once, or each workload on it in
// the order in which they would have to go.
func (p *pass) turns(c confirmed, rung telemetry.ActKind) []confirmed {
	if rung != telemetry.ActPreempt {
		return []confirmed{c}
	}
	var out []confirmed
	for _, v := range victims(p.view, c.Node, c.GPU) {
		x := c
		x.Victim = &v
		out = append(out, x)
	}
	if len(out) == 0 {
		return []confirmed{c} // to say that there is none
	}
	return out
}

// keptAlternatives is how many of what was weighed stand in a record.
const keptAlternatives = 12

// kept leaves out the last of very many alternatives, but never the chosen one.
func kept(all []telemetry.Alternative) []telemetry.Alternative {
	if len(all) <= keptAlternatives {
		return all
	}
	i := slices.IndexFunc(all, func(a telemetry.Alternative) bool { return a.Chosen })
	if i < keptAlternatives {
		return slices.Clip(all[:keptAlternatives])
	}
	return append(slices.Clone(all[:keptAlternatives-1]), all[i])
}

// draft is the decision as far as it is the same for every rung.
func (p *pass) draft(c confirmed) *telemetry.Decision {
	v := c.Violation
	d := &telemetry.Decision{
		Policy: c.spec.Type, Revision: c.spec.Revision(), Target: v.Target,
		Time: p.now, ViewTime: p.view.Time, Coverage: p.coverage, FirstSeen: p.now, LastSeen: p.now, Epoch: p.mem.Epoch,
		Violations: []telemetry.Violation{v}, Candidates: candidates(p.view, c.GPU),
	}
	d.Why = fmt.Sprintf("%s %s, mark %s", telemetry.Plain(v.Signal), telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Mark, v.Unit))
	if v.Reaches > 0 && v.Value > v.Mark {
		d.Why = fmt.Sprintf("%s %s, gone in about %s", telemetry.Plain(v.Signal), telemetry.Number(v.Value, v.Unit), telemetry.Number(math.Round(v.Reaches), "seconds"))
	}
	return d
}

// weigh sizes a rung and asks the guards. Without a proposal the rung is out.
func (p *pass) weigh(c confirmed, d *telemetry.Decision, rung telemetry.ActKind) (telemetry.Alternative, *Proposal) {
	alt := telemetry.Alternative{Act: rung, Summary: "not taken"}
	if c.Victim != nil {
		alt.Summary = describe(c.Victim)
	}
	no := func(refusals ...telemetry.Refusal) {
		for _, r := range refusals {
			r.Act = rung
			alt.Refusals = append(alt.Refusals, r)
		}
	}
	if r := p.offered(c, d, rung); r != nil {
		no(*r)
		return alt, nil
	}
	if c.Victim != nil {
		if no(standAgainst(p.scene, *c.Victim, rung)...); len(alt.Refusals) > 0 {
			return alt, nil
		}
	}
	proposal, notes := c.policy.Propose(p.scene, c.Sighting, rung)
	no(notes...)
	if len(proposal.Steps) == 0 {
		return alt, nil
	}
	if c.Victim != nil {
		proposal.GPUs = gpusOf(c.Victim.Workload)
	}
	alt.Summary = proposal.Summary
	alt.Gain, alt.Cost, alt.Risk = round(proposal.Gain), round(proposal.Cost), round(proposal.Risk)
	alt.Net = round(proposal.Gain - proposal.Cost - proposal.Risk)
	blocked := false
	for _, guard := range actGuards {
		if refusals := guard(p, c, rung, proposal); len(refusals) > 0 {
			no(refusals...)
			blocked = true
		}
	}
	if blocked {
		p.wave(c, rung, alt.Refusals)
		return alt, nil
	}
	return alt, &proposal
}

// describe tells one workload on a GPU from the others there.
func describe(v *Victim) string {
	s := string(v.Workload.Ref)
	if v.Workload.Owner != "" {
		s += " of " + v.Workload.Owner
	}
	return fmt.Sprintf("%s (priority %d, share %.0f %%)", s, v.Workload.Priority, 100*v.Share)
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

// offered says why a rung cannot be taken by anybody. A cap is the node
// agent's; everything else is done to a workload, by the backend it runs on.
func (p *pass) offered(c confirmed, d *telemetry.Decision, rung telemetry.ActKind) *telemetry.Refusal {
	if rung == telemetry.ActCap || c.Victim != nil {
		return nil // the actuator guard sees the step itself
	}
	kinds := map[string]bool{}
	for _, w := range d.Candidates {
		kinds[w.Workload.Kind()] = true
	}
	delete(kinds, "unknown")
	if len(kinds) == 0 {
		r := Refuse(telemetry.RefusalUnsupported, c.Violation.Target, "no workload is known there, so there is nothing to %s", rung)
		return &r
	}
	if len(kinds) == 1 && kinds["proc"] && rung == telemetry.ActSteer {
		r := Refuse(telemetry.RefusalUnsupported, c.Violation.Target, "a process without a scheduler has nowhere to be steered to")
		return &r
	}
	for _, a := range p.Actuators {
		if kind, _, ok := strings.Cut(a.Name(), "-"); ok && kinds[kind] {
			return nil
		}
	}
	r := Refuse(telemetry.RefusalNoActuator, c.Violation.Target, "no actuator is configured for the backends of its workloads")
	return &r
}

// settleOn turns the chosen proposal into an intent, or into a decision that
// waits for a person, as the mode wants.
func (p *pass) settleOn(c confirmed, d *telemetry.Decision, chosen Proposal) {
	d.Target = c.target()
	p.name(c, d)
	d.Mode = p.mem.mode(c.spec, d.Class)
	d.Why += ": " + chosen.Summary
	effect := chosen.Effect
	d.Predicted = &effect
	d.Act = &telemetry.Act{ID: d.ID, Kind: d.Kind, Class: d.Class, Target: d.Target, Summary: chosen.Summary + "; " + balance(chosen), GPUs: chosen.GPUs}
	if lasts(chosen.Steps[0].Kind) {
		d.Act.Lease = c.spec.Lease
	}
	for _, uuid := range heldGPUs(d) {
		p.spending(c.spec).take(uuid, c.Node)
		p.planned[uuid] = true
	}
	if d.Class == telemetry.Disruptive {
		p.disrupting += len(heldGPUs(d))
	}
	if v := &d.Violations[0]; d.Class == telemetry.Disruptive { // which the second value does not make sure
		v.Seen, v.Of, v.Needed = c.filter.hits(), c.filter.Len, c.spec.Filter.N
	}
	if d.Mode == telemetry.Enforce || d.Mode == telemetry.Approve && approved(d, p.now) {
		p.intend(c, d, chosen)
		return
	}
	d.Outcome = telemetry.OutcomeRecommended
	if d.Mode == telemetry.Approve {
		d.Outcome = telemetry.OutcomeAwaiting
	}
	d.Act.Steps = chosen.Steps
	d.Refusals = append(d.Refusals, Refuse(telemetry.RefusalMode, d.Target, "policy %s is in mode %s for %s acts", d.Policy, d.Mode, d.Class))
	p.refused.add(d.Refusals...)
	put(&p.mem.seen, d.ID, p.now)
	if before := p.mem.Decisions[d.ID]; before == nil || changed(before, d) {
		p.add(Entry{Topic: telemetry.TopicOutcome, Decision: d})
	}
}

// name gives a decision its id. What waits for a person already goes on under
// its own, as long as it is the same act on the same target: a yes to one is no
// yes to another.
func (p *pass) name(c confirmed, d *telemetry.Decision) {
	before := p.standingFor(c.spec.Type, c.GPU.UUID)
	if before != nil && before.Kind == d.Kind && before.Target == d.Target {
		d.ID, d.FirstSeen, d.Approval = before.ID, before.FirstSeen, before.Approval
		return
	}
	if before != nil {
		p.end(before, telemetry.OutcomeExpired, "another act is proposed in its place: %s of %s", d.Kind, d.Target)
	}
	d.ID = p.nextID()
}

func (p *pass) intend(c confirmed, d *telemetry.Decision, chosen Proposal) {
	d.Outcome = telemetry.OutcomeIntended
	step := chosen.Steps[0]
	step.NotBefore = p.now.Add(time.Duration(c.spec.Notice))
	step.Lease = d.Act.Lease
	next, do := p.withStep(d, step)
	next.Act.Steps = []telemetry.Step{*do}
	delete(p.mem.seen, d.ID)
	p.add(Entry{Topic: telemetry.TopicIntent, Decision: next, Do: do})
}

// balance is the net benefit in words.
func balance(p Proposal) string {
	s := fmt.Sprintf("gains %.0f, costs %.0f useful GPU-seconds", p.Gain, p.Cost+p.Risk)
	if p.Safety {
		s += ", taken for safety whatever the sum"
	}
	return s
}

// approved says that a person's yes still holds.
func approved(d *telemetry.Decision, now time.Time) bool {
	return d.Approval != nil && d.Approval.Verdict == VerdictApprove && now.Before(d.Approval.At.Add(approvedFor))
}

// changed says whether a standing decision differs enough to be written again:
// another state or act, or a limit that differs by 5 % and more.
func changed(before, after *telemetry.Decision) bool {
	if before.Outcome != after.Outcome || before.Kind != after.Kind || before.Act == nil || len(before.Act.Steps) != len(after.Act.Steps) || !slices.Equal(before.Act.GPUs, after.Act.GPUs) {
		return true
	}
	return !slices.EqualFunc(before.Act.Steps, after.Act.Steps, func(a, b telemetry.Step) bool {
		x, y := a.Params.PowerLimitWatts, b.Params.PowerLimitWatts
		if x == nil || y == nil {
			return x == y
		}
		return math.Abs(*x-*y) < 0.05**x
	})
}
