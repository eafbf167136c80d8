package rebalancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
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
	// renewRetry is the time between two attempts to renew.
	renewRetry = 20 * time.Second
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
		case pendingStep(d) != nil:
			// Whoever carries the step out, or resumes it, brings its end.
		default:
			p.follow(d)
		}
	}
}

// follow handles a decision whose act is in force. The first case that applies
// is the whole of what this pass does for it.
func (p *pass) follow(d *telemetry.Decision) {
	h, ok := p.mem.held(d)
	if !ok {
		return
	}
	if newest, _ := p.scene.Held(d.Target.UUID); newest.Decision != nil && newest.Decision.ID != d.ID && newest.Decision.Policy == d.Policy {
		p.end(d, telemetry.OutcomeEscalated, "%s took its place", newest.Decision.ID)
		return
	}
	if p.now.After(h.From.Add(time.Duration(h.Step.Lease) + leaseGrace)) {
		p.end(d, telemetry.OutcomeExpired, "its lease could not be renewed; its owner undoes it")
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
	default:
		p.relieve(h, pol.Spec(), pol.Review(p.scene, h))
	}
	if !p.handled(d.ID) {
		p.renew(h)
	}
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
	next := *d
	if r.Refusal != nil {
		if p.now.Before(d.VerifyBy.Add(unreadable)) {
			return
		}
		next.Outcome = telemetry.OutcomeIneffective
		next.Refusals = append(slices.Clone(d.Refusals), *r.Refusal)
		p.add(Entry{Topic: telemetry.TopicOutcome, Decision: &next})
		return
	}
	next.Observed = &telemetry.Effect{Signal: d.Predicted.Signal, Unit: r.Unit, Before: d.Predicted.Before, After: r.Value, At: r.At}
	moved := next.Observed.Change() / d.Predicted.Change()
	next.Outcome = telemetry.OutcomeVerified
	if !r.Helped && !(moved >= helpedShare) {
		next.Outcome = telemetry.OutcomeIneffective
		next.Observed.Note = fmt.Sprintf("less than %.0f %% of the predicted change, and still beyond the mark", 100*helpedShare)
	}
	p.add(Entry{Topic: telemetry.TopicOutcome, Decision: &next})
}

// relieve undoes an act once the signal would stay clear without it, for as
// many samples as the act itself would need, and one per cooling domain at a
// time.
func (p *pass) relieve(h Held, spec PolicySpec, r Review) {
	d := h.Decision
	key := filterKey{d.Policy, d.Target.UUID, true}
	n, g, ok := p.view.GPU(d.Target.UUID)
	if r.Refusal != nil || !ok {
		return // what cannot be seen is not known to be cool
	}
	reading := cluster.Reading{ID: signalID(g), At: r.At}
	f := p.mem.filters[key].add(n, reading, r.Enough, spec.Filter.M)
	if f.Bits == 0 {
		delete(p.mem.filters, key)
		return
	}
	put(&p.mem.filters, key, f)
	if !r.Enough || f.hits() < spec.Filter.N {
		return
	}
	p.undo(h, fmt.Sprintf("%s would be %s without it, for %d of %d samples", d.Predicted.Signal, telemetry.Number(r.Restored, r.Unit), f.hits(), f.Len))
}

// signalID is the reading whose time stands for a sample of the GPU.
func signalID(g *cluster.GPU) telemetry.ID {
	if _, ok := g.Reading(telemetry.GPUThermalHeadroomCelsius); ok {
		return telemetry.GPUThermalHeadroomCelsius
	}
	return telemetry.GPUTemperatureCelsiusCore
}

// undo puts back what was found, unless another undo in the same cooling
// domain is too recent.
func (p *pass) undo(h Held, why string) {
	d := h.Decision
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
	for _, s := range h.Decision.Steps {
		if s.Step.Kind == telemetry.StepRenew && p.now.Sub(s.Step.NotBefore) < renewRetry {
			return
		}
	}
	params := h.Step.Params
	params.Of = h.Step.ID
	next, do := p.withStep(h.Decision, telemetry.Step{Kind: telemetry.StepRenew, Backend: h.Step.Backend, Target: h.Step.Target, Params: params, Lease: h.Step.Lease})
	p.add(Entry{Topic: telemetry.TopicIntent, Decision: next, Do: do})
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
	case p.now.Sub(last) > forgetStanding:
		p.end(d, telemetry.OutcomeExpired, "not seen for %s", forgetStanding)
	}
}

// withReceipt is what a receipt makes of the decision that waits for it.
func withReceipt(d *telemetry.Decision, r telemetry.Receipt, now time.Time) *telemetry.Decision {
	i := slices.IndexFunc(d.Steps, func(s telemetry.StepRecord) bool { return s.Step.ID == r.StepID && s.Receipt == nil })
	if i < 0 {
		return nil
	}
	next := *d
	next.Steps = slices.Clone(d.Steps)
	next.Steps[i].Receipt = &r
	switch next.Steps[i].Step.Kind {
	case telemetry.StepRenew:
		renewed(&next, i, r, now)
	case telemetry.StepUndo:
		undone(&next, next.Steps[i].Step, r, now)
	default:
		acted(&next, r, now)
	}
	return &next
}

func acted(d *telemetry.Decision, r telemetry.Receipt, now time.Time) {
	switch r.Result {
	case telemetry.Done:
		d.Outcome, d.VerifyBy = telemetry.OutcomeActed, now.Add(time.Duration(d.Predicted.Within))
		return
	case telemetry.Refused:
		d.Outcome, d.Ending = telemetry.OutcomeRefused, fmt.Sprintf("refused where it would be done (%s): %s", r.Why, r.Detail)
	case telemetry.Failed:
		d.Outcome, d.Ending = telemetry.OutcomeFailed, r.Detail
		if r.Undone != "" {
			d.Ending += "; put back: " + r.Undone
		}
	default:
		d.Outcome, d.Ending = telemetry.OutcomeExpired, r.Detail
	}
	d.Ended = now
}

// lost says that the backend no longer holds what a renewal or undo is about.
func lost(r telemetry.Receipt) bool {
	return r.Result == telemetry.Refused && slices.Contains([]telemetry.RefuseReason{telemetry.RefuseUnknownStep, telemetry.RefuseNotOurs, telemetry.RefuseNoTarget, telemetry.RefuseGeneration}, r.Why)
}

// renewed keeps the record of the last renewal only: a cap held for a day has
// hundreds.
func renewed(d *telemetry.Decision, i int, r telemetry.Receipt, now time.Time) {
	if lost(r) {
		d.Outcome, d.Ended = telemetry.OutcomeUndone, now
		d.Ending = fmt.Sprintf("no longer in force when it was renewed (%s): %s", r.Why, r.Detail)
	}
	last := d.Steps[i].Step.ID
	d.Steps = slices.DeleteFunc(d.Steps, func(s telemetry.StepRecord) bool {
		return s.Step.Kind == telemetry.StepRenew && s.Step.ID != last && s.Receipt != nil
	})
}

func undone(d *telemetry.Decision, s telemetry.Step, r telemetry.Receipt, now time.Time) {
	switch {
	case r.Result == telemetry.Done:
		d.Outcome, d.Ended, d.Ending = telemetry.OutcomeUndone, now, "undone: "+s.Params.Message
	case lost(r):
		d.Outcome, d.Ended = telemetry.OutcomeUndone, now
		d.Ending = fmt.Sprintf("left as it is, since it is no longer ours (%s): %s", r.Why, r.Detail)
	}
	// Else it stays in force and is undone by a later pass.
}

// withNews is what a receipt that nobody waits for makes of a decision: a late
// answer, or word that the owner of the effect has undone it on its own.
func withNews(d *telemetry.Decision, r telemetry.Receipt, now time.Time) *telemetry.Decision {
	if next := withReceipt(d, r, now); next != nil {
		return next
	}
	if !r.Spontaneous || !stepKnown(d, r.StepID) || r.Kind != telemetry.StepUndo && r.Undone == "" {
		return nil
	}
	next := *d
	next.Outcome, next.Ended = telemetry.OutcomeUndone, now
	next.Ending = "undone by its owner: " + r.Detail
	return &next
}
