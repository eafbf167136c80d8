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
	scene := newScene(now, cluster.NewView(v.Time, []*cluster.Node{n}, slices.Clone(v.WorkloadsOn(g.UUID))), m)
	if s.Kind == telemetry.StepUndo {
		return undoStillRight(pl.Policies[i], scene, m, d, no)
	}
	return stillBeyond(pl.Policies[i], scene, d, no)
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
	sightings := pol.Detect(scene)
	i := slices.IndexFunc(sightings, func(s Sighting) bool { return s.GPU.UUID == d.Target.UUID })
	if i < 0 {
		return no("the policy no longer sees anything there")
	}
	s := sightings[i]
	if r := Doubt(scene.Now, s.Node, s.GPU, d.Target, s.Readings, s.Missing); r != nil {
		return no("%s", r.Text)
	}
	v := s.Violation
	if over := v.Aim < v.Mark; !s.Beyond && (over && v.Value <= v.Aim || !over && v.Value >= v.Aim) {
		return no("%s is %s by now, at the aim of %s", v.Signal, telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Aim, v.Unit))
	}
	return nil
}
