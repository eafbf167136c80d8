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
	var chosen *Proposal
	for _, rung := range c.spec.Ladder {
		alt, proposal := p.weigh(c, d, rung)
		alt.Chosen = proposal != nil && chosen == nil
		if alt.Chosen {
			chosen = proposal
			d.Kind, d.Class = rung, telemetry.ClassOf(rung)
		}
		d.Alternatives = append(d.Alternatives, alt)
		if chosen != nil {
			break
		}
	}
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
	p.settleOn(c, d, *chosen)
}

// draft is the decision as far as it is the same for every rung. A violation
// that already waits for a person goes on under the same id.
func (p *pass) draft(c confirmed) *telemetry.Decision {
	v := c.Violation
	d := &telemetry.Decision{
		ID: p.nextID(), Policy: c.spec.Type, Revision: c.spec.Revision(), Target: v.Target,
		Time: p.now, ViewTime: p.view.Time, Coverage: p.coverage, FirstSeen: p.now, LastSeen: p.now, Epoch: p.mem.Epoch,
		Violations: []telemetry.Violation{v}, Candidates: candidates(p.view, c.GPU),
	}
	if before := p.standingFor(c.spec.Type, c.GPU.UUID); before != nil {
		d.ID, d.FirstSeen, d.Approval = before.ID, before.FirstSeen, before.Approval
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
	proposal, notes := c.policy.Propose(p.scene, c.Sighting, rung)
	no(notes...)
	if len(proposal.Steps) == 0 {
		return alt, nil
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
		return alt, nil
	}
	return alt, &proposal
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

// offered says why a rung cannot be taken by anybody. A cap is the node
// agent's; everything else is done to a workload, by the backend it runs on.
func (p *pass) offered(c confirmed, d *telemetry.Decision, rung telemetry.ActKind) *telemetry.Refusal {
	if rung == telemetry.ActCap {
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
	d.Mode = p.mem.mode(c.spec, d.Class)
	d.Why += ": " + chosen.Summary
	effect := chosen.Effect
	d.Predicted = &effect
	d.Act = &telemetry.Act{ID: d.ID, Kind: d.Kind, Class: d.Class, Target: d.Target, Summary: chosen.Summary + "; " + balance(chosen), Lease: c.spec.Lease}
	p.spending(c.spec).take(c.GPU.UUID, c.Node)
	p.planned[c.GPU.UUID] = true
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

func (p *pass) intend(c confirmed, d *telemetry.Decision, chosen Proposal) {
	d.Outcome = telemetry.OutcomeIntended
	step := chosen.Steps[0]
	step.NotBefore = p.now.Add(time.Duration(c.spec.Notice))
	step.Lease = c.spec.Lease
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
	if before.Outcome != after.Outcome || before.Kind != after.Kind || before.Act == nil || len(before.Act.Steps) != len(after.Act.Steps) {
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
