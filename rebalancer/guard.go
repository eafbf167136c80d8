package rebalancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// The guards, in the order in which they are asked. The first two lists stop
// at the first refusal: what follows would rest on a value or a state that does
// not count. The last one gives every refusal, so that a person sees all that
// has to change.
var (
	valueGuards = []func(time.Time, *cluster.Node, *cluster.GPU, telemetry.Target, cluster.Reading) *telemetry.Refusal{
		notRestarted, // a value from before the source's restart describes another run
		notStale,     // … an old one the past
		notSuspect,   // … a doubtful one perhaps nothing
		known,        // … and one of any other quality is no value
	}
	targetGuards = []func(*pass, confirmed) *telemetry.Refusal{
		leading,  // only one rebalancer acts
		free,     // one act on its way per GPU, and per workload
		settled,  // the signal must show the last act before the next
		accepted, // a person has said no to this lately
	}
	actGuards = []func(*pass, confirmed, telemetry.ActKind, Proposal) []telemetry.Refusal{
		allowed,    // the mode lets the policy do more than look
		optedIn,    // the workload has not opted out
		notPaused,  // nobody has paused this class of act
		closed,     // the breaker is closed, or the act gentle
		unhurried,  // and would not open by it
		covered,    // enough of the fleet is seen, or the act gentle
		sustained,  // beyond the mark for long enough, or the act gentle
		whole,      // nothing is on its way to any GPU of the workload
		worthwhile, // it gains more than it costs, or is needed for safety
		affordable, // within the budget
		possible,   // a backend can do it
	}
)

// Doubt asks the value guards about every reading a judgement rests on.
func Doubt(now time.Time, n *cluster.Node, g *cluster.GPU, t telemetry.Target, readings []cluster.Reading, missing string) *telemetry.Refusal {
	if missing != "" || len(readings) == 0 {
		r := Refuse(telemetry.RefusalUnknown, t, "no judgement without %s", missing)
		return &r
	}
	for _, reading := range readings {
		for _, guard := range valueGuards {
			if r := guard(now, n, g, t, reading); r != nil {
				return r
			}
		}
	}
	return nil
}

func nameOf(r cluster.Reading) string {
	if row := telemetry.RowOf(r.ID); row != nil {
		return row.Name
	}
	return "value"
}

func notRestarted(now time.Time, n *cluster.Node, _ *cluster.GPU, t telemetry.Target, r cluster.Reading) *telemetry.Refusal {
	if !r.At.Before(n.Since) {
		return nil
	}
	out := RefuseNumbers(telemetry.RefusalRestarted, t, now.Sub(r.At).Seconds(), now.Sub(n.Since).Seconds(), "seconds",
		"%s is %s old, its source started %s ago", nameOf(r), telemetry.Number(now.Sub(r.At).Seconds(), "seconds"), telemetry.Number(now.Sub(n.Since).Seconds(), "seconds"))
	return &out
}

func notStale(now time.Time, n *cluster.Node, _ *cluster.GPU, t telemetry.Target, r cluster.Reading) *telemetry.Refusal {
	age, limit := now.Sub(r.At), cluster.StaleAfter(r.ID, n.Period)
	if age <= limit && n.State == cluster.NodeUp && r.Quality != telemetry.Quality_QUALITY_STALE {
		return nil
	}
	out := RefuseNumbers(telemetry.RefusalStale, t, age.Seconds(), limit.Seconds(), "seconds",
		"%s is %s old (node %s), it counts for %s", nameOf(r), telemetry.Number(age.Seconds(), "seconds"), n.State, telemetry.Number(limit.Seconds(), "seconds"))
	return &out
}

func notSuspect(_ time.Time, _ *cluster.Node, _ *cluster.GPU, t telemetry.Target, r cluster.Reading) *telemetry.Refusal {
	if r.Quality != telemetry.Quality_QUALITY_SUSPECT {
		return nil
	}
	out := Refuse(telemetry.RefusalSuspect, t, "%s is marked suspect; it is shown, but nothing is done on it", nameOf(r))
	return &out
}

func known(_ time.Time, _ *cluster.Node, g *cluster.GPU, t telemetry.Target, r cluster.Reading) *telemetry.Refusal {
	switch {
	case g.State != cluster.GPUOK:
		out := Refuse(telemetry.RefusalUnknown, t, "the device is %s, so its values are not known", g.State)
		return &out
	case r.Quality != telemetry.Quality_QUALITY_OK:
		out := Refuse(telemetry.RefusalUnknown, t, "%s is not known (%s)", nameOf(r), r.Quality)
		return &out
	}
	return nil
}

func leading(p *pass, c confirmed) *telemetry.Refusal {
	if p.mem.Leading {
		return nil
	}
	r := Refuse(telemetry.RefusalNotLeader, c.Violation.Target, "another rebalancer leads, or none does yet")
	return &r
}

// free keeps acts apart. An act on a GPU holds that GPU; an act on a workload
// holds the workload and all its GPUs. Gentle acts on two GPUs of one workload
// do not exclude each other: a hot row is not cooled one GPU a minute.
func free(p *pass, c confirmed) *telemetry.Refusal {
	busy := func(d *telemetry.Decision, what string) *telemetry.Refusal {
		r := refuseUntil(telemetry.RefusalInFlight, c.Violation.Target, d.VerifyBy, "%s of %s is on its way to %s (%s)", d.Kind, d.ID, what, d.Outcome)
		return &r
	}
	if p.planned[c.GPU.UUID] {
		r := Refuse(telemetry.RefusalInFlight, c.Violation.Target, "an act on it is part of this very plan")
		return &r
	}
	if d := p.onItsWay(c.GPU.UUID); d != nil {
		return busy(d, "this GPU")
	}
	for _, d := range p.scene.onWork {
		if inFlight(d) && slices.ContainsFunc(p.view.WorkloadsOn(c.GPU.UUID), func(w *cluster.Workload) bool { return w.Ref == d.Target.Workload }) {
			return busy(d, string(d.Target.Workload))
		}
	}
	return nil
}

// onItsWay is the decision whose act is on its way to a GPU, if there is one.
func (p *pass) onItsWay(uuid string) *telemetry.Decision {
	for _, d := range p.scene.byGPU[uuid] {
		if inFlight(d) || p.handled(d.ID) && !standing(d) {
			return d
		}
	}
	return nil
}

// settled leaves a GPU alone after an act, and twice as long after each attempt
// that failed in a row.
func settled(p *pass, c confirmed) *telemetry.Refusal {
	g := p.mem.GPUs[c.GPU.UUID]
	alone := time.Duration(c.spec.Settle) << min(g.Failures, maxBackOff)
	until := g.Acted.Add(alone)
	if g.Acted.IsZero() || !p.now.Before(until) {
		return nil
	}
	r := refuseUntil(telemetry.RefusalSettling, c.Violation.Target, until, "last act %s ago, left alone for %s", telemetry.Number(p.now.Sub(g.Acted).Seconds(), "seconds"), alone)
	if g.Failures > 0 {
		r.Text += fmt.Sprintf(", since %d attempts in a row failed", g.Failures)
	}
	return &r
}

// maxBackOff bounds the wait after failures to 64 times the settle time.
const maxBackOff = 6

func accepted(p *pass, c confirmed) *telemetry.Refusal {
	g := p.mem.GPUs[c.GPU.UUID]
	if !p.now.Before(g.Rejected) {
		return nil
	}
	r := refuseUntil(telemetry.RefusalMode, c.Violation.Target, g.Rejected, "%s has said no to acts on this GPU", g.RejectedBy)
	return &r
}

func allowed(p *pass, c confirmed, rung telemetry.ActKind, _ Proposal) []telemetry.Refusal {
	class := telemetry.ClassOf(rung)
	if p.mem.mode(c.spec, class) != telemetry.Observe {
		return nil
	}
	return []telemetry.Refusal{Refuse(telemetry.RefusalMode, c.target(), "policy %s is in mode observe for %s acts", c.spec.Type, class)}
}

// optedIn asks every workload on the GPU: what is done to a GPU is done to all.
// An act on one of them is its own affair.
func optedIn(p *pass, c confirmed, rung telemetry.ActKind, _ Proposal) []telemetry.Refusal {
	if c.Victim != nil {
		return nil
	}
	for _, w := range p.view.WorkloadsOn(c.GPU.UUID) {
		if optedOut(w, rung) {
			return []telemetry.Refusal{Refuse(telemetry.RefusalOptOut, c.target(), "%s has opted out of %s", w.Ref, rung)}
		}
	}
	return nil
}

func notPaused(p *pass, c confirmed, rung telemetry.ActKind, _ Proposal) []telemetry.Refusal {
	if p.mem.PausedAll || p.mem.Paused && telemetry.ClassOf(rung) == telemetry.Disruptive {
		return []telemetry.Refusal{Refuse(telemetry.RefusalPaused, c.target(), "%s acts are paused", telemetry.ClassOf(rung))}
	}
	return nil
}

func closed(p *pass, c confirmed, rung telemetry.ActKind, _ Proposal) []telemetry.Refusal {
	b := p.breaker
	if !b.Open || telemetry.ClassOf(rung) == telemetry.Gentle {
		return nil
	}
	return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalBreaker, c.target(), b.Have, b.Limit, "", "the breaker is open since %s: %s; a person must close it", b.Since.UTC().Format(time.TimeOnly), b.Reason)}
}

func covered(p *pass, c confirmed, rung telemetry.ActKind, _ Proposal) []telemetry.Refusal {
	if p.coverage.Ratio >= p.Breaker.Coverage || telemetry.ClassOf(rung) == telemetry.Gentle {
		return nil
	}
	return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalCoverage, c.target(), p.coverage.Ratio, p.Breaker.Coverage, "ratio", "%d of %d GPUs are seen fresh; disruptive acts need %.0f %%", p.coverage.Fresh, p.coverage.Expected, 100*p.Breaker.Coverage)}
}

func worthwhile(_ *pass, c confirmed, _ telemetry.ActKind, pr Proposal) []telemetry.Refusal {
	if worth(pr) {
		return nil
	}
	return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalNotWorth, c.target(), pr.Gain-pr.Cost-pr.Risk, 0, "GPU-seconds", "gains %.0f, costs %.0f and risks %.0f GPU-seconds", pr.Gain, pr.Cost, pr.Risk)}
}

// worth is the net benefit's verdict.
func worth(pr Proposal) bool { return pr.Safety || pr.Gain-pr.Cost-pr.Risk > 0 }

func affordable(p *pass, c confirmed, _ telemetry.ActKind, pr Proposal) []telemetry.Refusal {
	wanted := pr.GPUs
	if len(wanted) == 0 {
		wanted = []string{c.GPU.UUID}
	}
	have, more, limit, where := p.spending(c.spec).room(wanted, c.Node)
	switch {
	case more == 0 || have+more <= limit:
		return nil
	case more == 1:
		return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalBudget, c.target(), float64(have), float64(limit), "GPUs", "%d GPUs of %s are under acts of policy %s, %d are allowed", have, where, c.spec.Type, limit)}
	}
	return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalBudget, c.target(), float64(have+more), float64(limit), "GPUs", "%d GPUs of %s are under acts of policy %s and it has %d more, %d are allowed", have, where, c.spec.Type, more, limit)}
}

func possible(p *pass, c confirmed, _ telemetry.ActKind, pr Proposal) []telemetry.Refusal {
	for _, s := range pr.Steps {
		a := p.actuator(s.Backend)
		if a == nil {
			return []telemetry.Refusal{Refuse(telemetry.RefusalNoActuator, c.target(), "no actuator is configured for backend %q", s.Backend)}
		}
		if refusals := a.Can(p.view, s); len(refusals) > 0 {
			return refusals
		}
	}
	return nil
}
