package rebalancer

import (
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// ChangedSince decides again, on the newest View, whether a journalled step is
// still wanted. Between plan and act lies a write to the journal, and after a
// restart anything.
func (pl *Planner) ChangedSince(now time.Time, v *cluster.View, m *Memory, d *telemetry.Decision, s telemetry.Step) *telemetry.Refusal {
	no := func(format string, args ...any) *telemetry.Refusal {
		r := Refuse(telemetry.RefusalChangedSince, d.Target, format, args...)
		r.Act = d.Kind
		return &r
	}
	if s.Kind == telemetry.StepRenew {
		return nil // what is held stays held until it is undone
	}
	n, g, ok := v.GPU(d.Target.UUID)
	i := slices.IndexFunc(pl.Policies, func(p Policy) bool { return p.Spec().Type == d.Policy })
	switch {
	case !ok:
		return no("the GPU is no longer in view")
	case g.Generation != d.Target.Generation:
		return no("the device was made anew: generation %d, not %d", g.Generation, d.Target.Generation)
	case s.Kind == telemetry.StepUndo && (i < 0 || d.Approval != nil && d.Approval.Verdict == VerdictUndo):
		return nil
	case i < 0:
		return no("policy %s is no longer configured", d.Policy)
	}
	scene := newScene(now, v.Of(n), m)
	if s.Kind == telemetry.StepUndo {
		return undoStillRight(pl.Policies[i], scene, m, d, no)
	}
	if eases(d) {
		return easeStillRight(pl.Policies[i], scene, m, d, no)
	}
	if r := stillAllowed(pl.Policies[i].Spec(), m, d, no); r != nil {
		return r
	}
	if d.Kind == telemetry.ActPreempt {
		return preemptStillRight(pl.Policies[i], scene, d, no)
	}
	return stillBeyond(pl.Policies[i], scene, d, no)
}

// eases says that a decision puts a milder act in the place of one that is held.
func eases(d *telemetry.Decision) bool {
	return len(d.Violations) > 0 && d.Violations[0].Needed == 0
}

// stillAllowed asks what people and the breaker have said since. An act that a
// person approved stays so on its way.
func stillAllowed(spec PolicySpec, m *Memory, d *telemetry.Decision, no func(string, ...any) *telemetry.Refusal) *telemetry.Refusal {
	switch {
	case m.PausedAll || m.Paused && d.Class == telemetry.Disruptive:
		return no("%s acts have been paused", d.Class)
	case m.Breaker.Open && d.Class == telemetry.Disruptive:
		return no("the breaker has opened: %s", m.Breaker.Reason)
	}
	mode := m.mode(spec, d.Class)
	approved := d.Approval != nil && d.Approval.Verdict == VerdictApprove
	if mode == telemetry.Enforce || mode == telemetry.Approve && approved {
		return nil
	}
	return no("policy %s is in mode %s for %s acts by now", d.Policy, mode, d.Class)
}

// easeStillRight asks what ease asked: a milder act is none against a violation,
// so there need be none.
func easeStillRight(pol Policy, scene *Scene, m *Memory, d *telemetry.Decision, no func(string, ...any) *telemetry.Refusal) *telemetry.Refusal {
	h, ok := scene.Held(d.Target.UUID)
	if !ok {
		return no("nothing is in force")
	}
	if mode := m.mode(pol.Spec(), d.Class); mode != telemetry.Enforce {
		return no("policy %s is in mode %s for %s acts by now", d.Policy, mode, d.Class)
	}
	switch r := pol.Review(scene, h); {
	case r.Refusal != nil:
		return no("%s", r.Refusal.Text)
	case !r.Enough && r.Ease == nil:
		return no("a milder act would no longer do: %s is %s", d.Violations[0].Signal, telemetry.Number(r.Value, r.Unit))
	}
	return nil
}

func undoStillRight(pol Policy, scene *Scene, m *Memory, d *telemetry.Decision, no func(string, ...any) *telemetry.Refusal) *telemetry.Refusal {
	h, ok := m.held(d)
	if !ok {
		return no("nothing is in force")
	}
	r := pol.Review(scene, h)
	switch {
	case r.Refusal != nil:
		return no("%s", r.Refusal.Text)
	case !r.Enough:
		return no("without it the signal would now be %s", telemetry.Number(r.Restored, r.Unit))
	}
	return nil
}

func stillBeyond(pol Policy, scene *Scene, d *telemetry.Decision, no func(string, ...any) *telemetry.Refusal) *telemetry.Refusal {
	s, r := beyond(pol, scene, d, no)
	if r != nil {
		return r
	}
	v := s.Violation
	if over := v.Aim < v.Mark; !s.Beyond && (over && v.Value <= v.Aim || !over && v.Value >= v.Aim) {
		return no("%s is %s by now, at the aim of %s", v.Signal, telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Aim, v.Unit))
	}
	return nil
}

// beyond is what the policy sees now of the target of a decision, if nothing in
// it is in doubt.
func beyond(pol Policy, scene *Scene, d *telemetry.Decision, no func(string, ...any) *telemetry.Refusal) (Sighting, *telemetry.Refusal) {
	sightings := pol.Detect(scene)
	i := slices.IndexFunc(sightings, func(s Sighting) bool { return s.GPU.UUID == d.Target.UUID })
	if i < 0 {
		return Sighting{}, no("the policy no longer sees anything there")
	}
	s := sightings[i]
	if r := Doubt(scene.Now, s.Node, s.GPU, d.Target, s.Readings, s.Missing); r != nil {
		return s, no("%s", r.Text)
	}
	return s, nil
}
