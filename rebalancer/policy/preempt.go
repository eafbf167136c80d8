package policy

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// smallestRise is the least that headroom must be predicted to gain: a degree
	// is what sensors tell apart.
	smallestRise = 1.0
	// binding is how near its limit a device draws when the limit is what holds it.
	binding = 0.97
	// idleShare of the default limit is what a device goes on drawing when
	// nothing runs on it.
	idleShare = 0.1
	// priorityStep is how much priority doubles the worth of what a workload has
	// done; schedulers count theirs in very different steps.
	priorityStep = 10.0
	signalTerm   = "TERM"
)

// preempt predicts what the end of a workload does to a device. Of what the
// device would draw without a limit its share goes; what the others would draw
// they do, as far as the limit lets them. With the power goes R times the heat:
//
//	headroom = steady + R · (P_now − P_left),  P_left = P_idle + (1 − share) · (P_wanted − P_idle)
//
// It is for safety, and then needs no benefit, only while the hardware slows the
// device down or is about to: headroom used up, or its thermal slowdown active.
func (t *Thermal) preempt(s *rebalancer.Scene, g rebalancer.Sighting) (rebalancer.Proposal, []telemetry.Refusal) {
	v := g.Victim
	limit := s.LimitW(g.GPU)
	if !limit.OK {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.Refuse(telemetry.RefusalUnknown, v.Target, "its GPU's power limit is not known, and so neither is what a cap could do")}
	}
	h := reckon(s, g.Node, g.GPU, limit.V)
	removed, wanted := t.removed(s, g, h, limit.V)
	signal, grace := t.farewell(v.Workload)
	p := rebalancer.Proposal{
		Summary: fmt.Sprintf("end %s (SIG%s, KILL after %s)", who(v.Workload), signal, time.Duration(grace)),
		Steps: []telemetry.Step{{Kind: telemetry.StepPreempt, Backend: backendNode, Target: v.Target,
			Params: telemetry.Params{Signal: signal, Grace: grace, Message: t.message(g, limit.V)}}},
		Effect: telemetry.Effect{Signal: signalHeadroom, Unit: "celsius", Before: h.headroom, After: h.steady + h.r*removed, Within: telemetry.Duration(within(h.tau)),
			Note: fmt.Sprintf("its share is %.0f %% of the %s wanted, %s less are drawn; %s", 100*v.Share, telemetry.Number(wanted, "watts"), telemetry.Number(removed, "watts"), h.note())},
		Safety: g.GPU.HeadroomC.V <= 0 || fresh(g.Node, g.GPU, throttleHW, s.Now).Or(0) != 0,
	}
	if rise := p.Effect.After - h.steady; rise < smallestRise {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.RefuseNumbers(telemetry.RefusalNotEnough, v.Target, rise, smallestRise, "celsius",
			"the others would draw what it leaves, so its end is predicted to gain %s of headroom", telemetry.Number(rise, "celsius"))}
	}
	lost, known := lostWork(v.Workload, s.Now)
	p.Gain, p.Cost = t.relief(s, g, h), t.loss(v.Workload, lost+time.Duration(grace))
	if !known && !p.Safety {
		return rebalancer.Proposal{}, []telemetry.Refusal{rebalancer.Refuse(telemetry.RefusalNotWorth, v.Target, "since when it runs is not known, so neither is what its end would lose; only for safety would it be ended")}
	}
	return p, nil
}

// removed is how much less a device draws without the workload, and what all on
// it want. A device that a cap of ours holds wants what it drew before.
func (t *Thermal) removed(s *rebalancer.Scene, g rebalancer.Sighting, h heat, limit float64) (removed, wanted float64) {
	wanted = h.power
	if held, ok := s.Held(g.GPU.UUID); ok && h.power >= binding*limit {
		before, _ := rebalancer.PowerBefore(held.Decision)
		wanted = max(wanted, before)
	}
	idle := idleShare * g.GPU.DefaultW.Or(found(s, g.GPU.UUID, limit))
	left := idle + max(1-g.Victim.Share, 0)*max(wanted-idle, 0)
	return max(h.power-left, 0), wanted
}

// relief is what the others on the device gain over one lease, in useful
// GPU-seconds: they are not slowed down with it. The one that goes gains
// nothing.
func (t *Thermal) relief(s *rebalancer.Scene, g rebalancer.Sighting, h heat) float64 {
	others := 0
	for _, w := range s.View.WorkloadsOn(g.GPU.UUID) {
		if w.Ref != g.Victim.Workload.Ref {
			others += len(w.GPUs)
		}
	}
	return t.slowed(g.GPU, h) * (1 - slowedSpeed) * float64(others)
}

// loss is what the end of a workload costs, in useful GPU-seconds: the work
// since its last checkpoint and the time it is given to end, and a lease of
// doing nothing, since nobody here starts it again.
func (t *Thermal) loss(w *cluster.Workload, lost time.Duration) float64 {
	weight := 1 + max(float64(w.Priority), 0)/priorityStep
	return (lost + time.Duration(t.spec.Lease)).Seconds() * float64(max(len(w.GPUs), 1)) * weight
}

// lostWork is the work that has not been saved: all since the start where no
// checkpoint is known. Where the start is not known either it is at least what
// was seen.
func lostWork(w *cluster.Workload, now time.Time) (lost time.Duration, known bool) {
	from := w.Start
	if c := w.Checkpoint; c != nil && c.Last.After(from) {
		from = c.Last
	}
	if known = !from.IsZero(); !known {
		from = w.Seen
	}
	if from.IsZero() {
		return 0, false
	}
	return max(now.Sub(from), 0), known
}

// farewell is the signal that a workload saves its state on, and the time that
// it needs to.
func (t *Thermal) farewell(w *cluster.Workload) (signal string, grace telemetry.Duration) {
	signal, grace = signalTerm, t.spec.Grace
	if c := w.Checkpoint; c != nil {
		signal = cmp.Or(strings.TrimPrefix(strings.ToUpper(c.Signal), "SIG"), signal)
		grace = cmp.Or(c.Grace, grace)
	}
	return signal, grace
}

// who names a workload for a person.
func who(w *cluster.Workload) string {
	s := string(w.Ref)
	if w.Name != "" {
		s += ", " + w.Name
	}
	if w.Owner != "" {
		s += " of " + w.Owner
	}
	if n := len(w.GPUs); n > 1 {
		s += fmt.Sprintf(", on %d GPUs", n)
	}
	return s
}

// message is the reason in one line, for the owner.
func (t *Thermal) message(g rebalancer.Sighting, limit float64) string {
	v := g.Violation
	return fmt.Sprintf("%s (index %d) of %s is too hot: %s %s, mark %s, and no cap on its power would help any more (limit %s)",
		g.GPU.UUID, g.GPU.Index, g.Node.Name, telemetry.Plain(v.Signal), telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Mark, v.Unit), telemetry.Number(limit, "watts"))
}
