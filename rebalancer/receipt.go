package rebalancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// WithReceipt is what a receipt makes of the decision that waits for it, or nil if
// it waits for none with that step.
func WithReceipt(d *telemetry.Decision, r telemetry.Receipt, now time.Time) *telemetry.Decision {
	i := slices.IndexFunc(d.Steps, func(s telemetry.StepRecord) bool { return s.Step.ID == r.StepID && s.Receipt == nil })
	if i < 0 || !ownerSays(d.Steps[i].Step, r) {
		return nil
	}
	next := *d
	next.Steps = slices.Clone(d.Steps)
	next.Steps[i].Receipt = &r
	switch next.Steps[i].Step.Kind {
	case telemetry.StepRenew:
		renewed(&next, r, now)
		onlyLast(&next, i)
	case telemetry.StepUndo:
		undone(&next, next.Steps[i].Step, r, now)
		onlyLast(&next, i)
	default:
		acted(&next, r, now)
	}
	return &next
}

// ownerSays is false for a receipt from another node than the step's: its
// sender is sure to be that node's agent, which cannot know.
func ownerSays(s telemetry.Step, r telemetry.Receipt) bool {
	return r.Node == "" || s.Target.Node == "" || r.Node == s.Target.Node
}

// withoutStep takes a step back that was written but never ordered.
func withoutStep(d *telemetry.Decision, s telemetry.Step, why telemetry.Refusal, now time.Time) *telemetry.Decision {
	next := *d
	next.Steps = slices.DeleteFunc(slices.Clone(d.Steps), func(r telemetry.StepRecord) bool { return r.Step.ID == s.ID })
	next.Refusals = append(slices.Clone(d.Refusals[max(len(d.Refusals)+1-telemetry.MaxDetailedRefusals, 0):]), why)
	if s.Kind != telemetry.StepRenew && s.Kind != telemetry.StepUndo {
		next.Outcome, next.Ended, next.Ending = telemetry.OutcomeRefused, now, "not ordered: "+why.Text
	}
	return &next
}

func acted(d *telemetry.Decision, r telemetry.Receipt, now time.Time) {
	switch r.Result {
	case telemetry.Done:
		d.Outcome, d.VerifyBy = telemetry.OutcomeActed, now
		if d.Predicted != nil {
			d.VerifyBy = now.Add(time.Duration(d.Predicted.Within))
		}
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

// onlyLast drops the ended records of earlier attempts of the same kind: a cap
// held for a day has hundreds of renewals.
func onlyLast(d *telemetry.Decision, i int) {
	last := d.Steps[i].Step
	d.Steps = slices.DeleteFunc(d.Steps, func(s telemetry.StepRecord) bool {
		return s.Step.Kind == last.Kind && s.Step.ID != last.ID && s.Receipt != nil
	})
}

func renewed(d *telemetry.Decision, r telemetry.Receipt, now time.Time) {
	if lost(r) {
		d.Outcome, d.Ended = telemetry.OutcomeUndone, now
		d.Ending = fmt.Sprintf("no longer in force when it was renewed (%s): %s", r.Why, r.Detail)
	}
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

// WithNews is what a receipt that nobody waits for makes of a decision: a late
// answer, or word that the owner of the effect has undone it on its own.
func WithNews(d *telemetry.Decision, r telemetry.Receipt, now time.Time) *telemetry.Decision {
	if !d.Ended.IsZero() {
		return reopened(d, r, now)
	}
	if next := WithReceipt(d, r, now); next != nil {
		return next
	}
	undone := r.Spontaneous && (r.Kind == telemetry.StepUndo || r.Undone != "")
	i := slices.IndexFunc(d.Steps, func(s telemetry.StepRecord) bool { return s.Step.ID == r.StepID })
	if !undone || i < 0 || !ownerSays(d.Steps[i].Step, r) || r.Result != telemetry.Done && !lost(r) {
		return nil // an undo that failed is tried again where it failed
	}
	next := *d
	next.Outcome, next.Ended = telemetry.OutcomeUndone, now
	next.Ending = "undone by its owner: " + r.Detail
	if lost(r) {
		next.Ending = "left as it is by its owner: " + r.Detail
	}
	return &next
}

// reopened takes a decision up again that ended without word from its backend,
// when it turns out that its act was done: what is in force must be looked
// after by somebody. An act that leaves nothing in force takes any late word.
func reopened(d *telemetry.Decision, r telemetry.Receipt, now time.Time) *telemetry.Decision {
	if d.Outcome != telemetry.OutcomeRefused && d.Outcome != telemetry.OutcomeExpired || d.Act == nil {
		return nil
	}
	i := slices.IndexFunc(d.Act.Steps, func(s telemetry.Step) bool { return s.ID == r.StepID })
	if i < 0 || !ownerSays(d.Act.Steps[i], r) || answered(d, r.StepID) {
		return nil
	}
	switch lasting := lasts(d.Act.Steps[i].Kind); {
	case lasting && (r.Result != telemetry.Done || r.Spontaneous):
		return nil
	case r.Result != telemetry.Done && r.Result != telemetry.Failed && r.Result != telemetry.Refused:
		return nil
	}
	next := *d
	next.Steps = slices.DeleteFunc(slices.Clone(d.Steps), func(s telemetry.StepRecord) bool { return s.Step.ID == r.StepID })
	next.Steps = slices.Insert(next.Steps, 0, telemetry.StepRecord{Step: d.Act.Steps[i], OrderID: r.StepID, Receipt: &r})
	next.Ended, next.Ending = time.Time{}, ""
	acted(&next, r, now)
	return &next
}

// answered says that the backend itself has said how a step ended, and not we in
// its place.
func answered(d *telemetry.Decision, id string) bool {
	return slices.ContainsFunc(d.Steps, func(s telemetry.StepRecord) bool {
		return s.Step.ID == id && s.Receipt != nil && s.Receipt.Result != telemetry.Unknown && (s.Receipt.Why != telemetry.RefuseExpired || s.Receipt.Node != "")
	})
}
