package rebalancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// helpedShare of the predicted change is what an act must have moved its
	// signal by, unless the signal is where it should be anyway.
	helpedShare = 0.5
	// unreadable is how long past its time a verification waits for a value.
	unreadable = time.Minute
	// undoSpacing is the time between two undos in one cooling domain: heat
	// that comes back must show before more of it does.
	undoSpacing = 5 * time.Second
	// retryAfter is the time between two attempts to renew or undo.
	retryAfter = 20 * time.Second
	// leaseGrace is how long after its end a lease may still be being undone.
	leaseGrace = 30 * time.Second
	// forgetStanding is how long a decision stands without being seen.
	forgetStanding = time.Hour
)

// followUp brings every open decision one step on: verified, escalated,
// undone, renewed or ended.
func (p *pass) followUp() {
	if !p.mem.Leading {
		return // the leader does it, by the same journal
	}
	for _, d := range p.mem.open() {
		switch {
		case standing(d):
			p.closeStanding(d)
		case p.leaseOver(d):
			p.end(d, telemetry.OutcomeExpired, "its lease could not be renewed; its owner undoes it")
		case pendingStep(d) != nil:
			p.await(d, *pendingStep(d))
		case awaitsEffect(d):
			p.conclude(d)
		default:
			p.follow(d)
		}
	}
}

func (p *pass) leaseOver(d *telemetry.Decision) bool {
	h, ok := p.mem.held(d)
	return ok && p.now.After(h.From.Add(time.Duration(h.Step.Lease)+leaseGrace))
}

// follow handles a decision whose act is in force. The first case that applies
// is the whole of what this pass does for it.
func (p *pass) follow(d *telemetry.Decision) {
	h, ok := p.mem.held(d)
	if !ok {
		return
	}
	if newest, _ := p.scene.Held(d.Target.UUID); newest.Decision != nil && newest.Decision.ID != d.ID && newest.Decision.Policy == d.Policy {
		outcome := telemetry.OutcomeEscalated
		if milder(newest.Step, h.Step) {
			outcome = telemetry.OutcomeEased
		}
		p.end(d, outcome, "%s took its place", newest.Decision.ID)
		return
	}
	pol := p.policy(d.Policy)
	switch {
	case d.Approval != nil && d.Approval.Verdict == VerdictUndo:
		p.undo(h, fmt.Sprintf("asked for by %s", d.Approval.By))
	case pol == nil:
		p.undo(h, "its policy is no longer configured")
	case d.Outcome == telemetry.OutcomeActed:
		p.verify(d, pol.Review(p.scene, h))
	case !p.disturbed(d):
		p.relieve(h, pol.Spec(), pol.Review(p.scene, h))
	}
	if !p.handled(d.ID) {
		p.renew(h)
	}
}

// milder says that a cap leaves more power than the one before it.
func milder(s, before telemetry.Step) bool {
	a, b := s.Params.PowerLimitWatts, before.Params.PowerLimitWatts
	return a != nil && b != nil && *a > *b
}

// await looks after a decision with a step on its way. A renewal that nobody
// answers keeps nobody from looking what the act did.
func (p *pass) await(d *telemetry.Decision, s telemetry.Step) {
	if p.expire(d, s); p.handled(d.ID) || s.Kind != telemetry.StepRenew || d.Outcome != telemetry.OutcomeActed {
		return
	}
	if h, ok := p.mem.held(d); ok && p.policy(d.Policy) != nil {
		p.verify(d, p.policy(d.Policy).Review(p.scene, h))
	}
}

// expire ends a decision whose step nobody carries out any more. Until then
// whoever does, or resumes it, brings its end.
func (p *pass) expire(d *telemetry.Decision, s telemetry.Step) {
	if !lasts(s.Kind) {
		// Whoever leads asks what became of it, however long ago it was, and has an
		// end for it in any case.
		if p.actuator(s.Backend) == nil && p.now.After(s.Deadline) {
			p.add(Entry{Topic: telemetry.TopicOutcome, Decision: WithReceipt(d, unknownReceipt(s, "what became of it is not known: backend "+s.Backend+" is no longer configured", p.now), p.now)})
		}
		return
	}
	if p.now.After(s.Deadline.Add(leaseOf(d) + leaseGrace)) {
		p.end(d, telemetry.OutcomeExpired, "what became of step %s is not known; its lease is over", s.ID)
	}
}

// leaseOf is the lease of a decision's act; none if the record does not tell.
func leaseOf(d *telemetry.Decision) time.Duration {
	if d.Act == nil {
		return 0
	}
	return time.Duration(d.Act.Lease)
}

// end closes a decision.
func (p *pass) end(d *telemetry.Decision, o telemetry.Outcome, format string, args ...any) {
	next := *d
	next.Outcome, next.Ended, next.Ending = o, p.now, fmt.Sprintf(format, args...)
	if at, ok := p.mem.seen[d.ID]; ok {
		next.LastSeen = at
	}
	p.add(Entry{Topic: telemetry.TopicOutcome, Decision: &next})
}

// verify reads the signal back at the predicted time.
func (p *pass) verify(d *telemetry.Decision, r Review) {
	if p.now.Before(d.VerifyBy) {
		return
	}
	if r.Refusal != nil && p.now.Before(d.VerifyBy.Add(unreadable)) {
		return
	}
	p.add(Entry{Topic: telemetry.TopicOutcome, Decision: judged(d, r)})
}

// judged is a decision with what its signal shows, or with why it shows nothing.
func judged(d *telemetry.Decision, r Review) *telemetry.Decision {
	next := *d
	if d.Predicted == nil { // the record is not one of ours, or damaged
		next.Predicted = &telemetry.Effect{Unit: r.Unit}
	}
	if r.Refusal != nil {
		next.Outcome = telemetry.OutcomeIneffective
		next.Refusals = append(slices.Clone(d.Refusals), *r.Refusal)
		return &next
	}
	next.Observed = &telemetry.Effect{Signal: next.Predicted.Signal, Unit: r.Unit, Before: next.Predicted.Before, After: r.Value, At: r.Reading.At}
	next.Outcome = telemetry.OutcomeVerified
	if !r.Helped && !moved(&next, r.Value) {
		next.Outcome = telemetry.OutcomeIneffective
		next.Observed.Note = fmt.Sprintf("less than %.0f %% of the predicted change, and still beyond the mark", 100*helpedShare)
	}
	return &next
}

// moved says whether a signal went far enough the way the act should move it.
// Where even the act was not predicted to stop it from getting worse, it must
// at least be no worse than predicted.
func moved(d *telemetry.Decision, value float64) bool {
	better := 1.0 // the direction of the aim
	if len(d.Violations) > 0 && d.Violations[0].Aim < d.Violations[0].Mark {
		better = -1
	}
	p := d.Predicted
	if better*p.Change() <= 0 {
		return better*(value-p.After) >= 0
	}
	return better*(value-p.Before) >= helpedShare*better*p.Change()
}

// relieve undoes an act once the signal would stay clear without it, for as
// many samples as the act itself would need, and one per cooling domain at a
// time.
func (p *pass) relieve(h Held, spec PolicySpec, r Review) {
	d := h.Decision
	key := filterKey{d.Policy, d.Target.UUID, true}
	n, _, ok := p.view.GPU(d.Target.UUID)
	if r.Refusal != nil || !ok {
		return // what cannot be seen is not known to be cool
	}
	clear := r.Enough || r.Ease != nil
	f := p.mem.filters[key].add(n, r.Reading, clear, spec.Filter.M)
	if f.Bits == 0 {
		delete(p.mem.filters, key)
		return
	}
	put(&p.mem.filters, key, f)
	if !clear || f.hits() < spec.Filter.N {
		return
	}
	if !r.Enough {
		p.ease(h, spec, *r.Ease, f)
		return
	}
	p.undo(h, fmt.Sprintf("%s would be %s without it, for %d of %d samples", d.Predicted.Signal, telemetry.Number(r.Restored, r.Unit), f.hits(), f.Len))
}

// ease puts a milder act in the place of one that is held. It is a giving back,
// so what stops new acts does not stop it; but a person who wants to be asked
// is not passed over, and the GPU is left alone between acts as ever.
func (p *pass) ease(h Held, spec PolicySpec, e Eased, f filterState) {
	d := h.Decision
	c := confirmed{Sighting: e.Sighting, spec: spec}
	if p.mem.mode(spec, d.Class) != telemetry.Enforce || settled(p, c) != nil || accepted(p, c) != nil {
		return
	}
	delete(p.mem.filters, filterKey{d.Policy, d.Target.UUID, true})
	v := &c.Violation
	v.Seen, v.Of, v.Needed = f.hits(), f.Len, 0 // samples clear of the aim
	next := p.draft(c)
	next.Kind, next.Class = d.Kind, d.Class
	next.Alternatives = []telemetry.Alternative{{Act: d.Kind, Summary: e.Proposal.Summary, Gain: round(e.Proposal.Gain), Net: round(e.Proposal.Gain), Chosen: true}}
	p.settleOn(c, next, e.Proposal)
}

// undo puts back what was found, unless another undo in the same cooling
// domain is too recent.
func (p *pass) undo(h Held, why string) {
	d := h.Decision
	if tried(d, telemetry.StepUndo, p.now) {
		return
	}
	domain := p.domain(d.Target.Node)
	near := func(u PastUndo) bool { return p.domain(u.Node) == domain && p.now.Sub(u.At) < undoSpacing }
	if slices.ContainsFunc(p.mem.Undos, near) || slices.ContainsFunc(p.undone, near) {
		return
	}
	p.undone = append(p.undone, PastUndo{p.now, d.Target.Node})
	params := h.Step.Params
	params.Of, params.Message = h.Step.ID, why
	next, do := p.withStep(d, telemetry.Step{Kind: telemetry.StepUndo, Backend: h.Step.Backend, Target: h.Step.Target, Params: params})
	p.add(Entry{Topic: telemetry.TopicIntent, Decision: next, Do: do})
}

// domain is where heat is shared: the cooling domain, else the row, else the
// node alone.
func (p *pass) domain(node string) string {
	n, ok := p.view.Node(node)
	switch {
	case ok && n.CoolingDomain != "":
		return "cooling " + n.CoolingDomain
	case ok && n.Row != "":
		return "row " + n.Row
	}
	return "node " + node
}

// renew asks for more time once a third of the lease has gone.
func (p *pass) renew(h Held) {
	if p.now.Before(h.From.Add(time.Duration(h.Step.Lease) / 3)) {
		return
	}
	if tried(h.Decision, telemetry.StepRenew, p.now) {
		return
	}
	params := h.Step.Params
	params.Of = h.Step.ID
	next, do := p.withStep(h.Decision, telemetry.Step{Kind: telemetry.StepRenew, Backend: h.Step.Backend, Target: h.Step.Target, Params: params, Lease: h.Step.Lease})
	p.add(Entry{Topic: telemetry.TopicIntent, Decision: next, Do: do})
}

// tried says that a step of a kind was begun a short time ago.
func tried(d *telemetry.Decision, k telemetry.StepKind, now time.Time) bool {
	return slices.ContainsFunc(d.Steps, func(s telemetry.StepRecord) bool { return s.Step.Kind == k && now.Sub(s.Step.NotBefore) < retryAfter })
}

// closeStanding ends a decision that a person has refused, let expire, or that
// nothing has seen for an hour.
func (p *pass) closeStanding(d *telemetry.Decision) {
	last := d.Time
	for _, t := range []time.Time{d.LastSeen, p.mem.seen[d.ID]} {
		if t.After(last) {
			last = t
		}
	}
	switch a := d.Approval; {
	case a != nil && a.Verdict == VerdictReject:
		p.end(d, telemetry.OutcomeRejected, "rejected by %s", a.By)
	case a != nil && a.Verdict == VerdictApprove && !approved(d, p.now):
		p.end(d, telemetry.OutcomeExpired, "approved by %s, but it could not be done within %s", a.By, approvedFor)
	case outlived(p.view, d):
		p.end(d, telemetry.OutcomeExpired, "%s is no longer seen", d.Target.Workload)
	case p.now.Sub(last) > forgetStanding:
		p.end(d, telemetry.OutcomeExpired, "not seen for %s", forgetStanding)
	}
}
