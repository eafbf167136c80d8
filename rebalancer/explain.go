package rebalancer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// DryRun is what a pass would decide and do now.
type DryRun struct {
	Text      string                `json:"text"`
	Time      time.Time             `json:"time"`
	Coverage  telemetry.Coverage    `json:"coverage"`
	Decisions []*telemetry.Decision `json:"decisions,omitempty"`
	Refused   telemetry.RefusalSet  `json:"refused"`
}

// Explanation is an answer to "why".
type Explanation struct {
	Text      string                `json:"text"`
	Decisions []*telemetry.Decision `json:"decisions,omitempty"`
	Refused   *telemetry.RefusalSet `json:"refused,omitempty"`
	Idle      []Idle                `json:"idle,omitempty"`
}

// Plan runs the same Step as a pass does, on a copy of Memory, and writes and
// does nothing. A rebalancer that does not lead plans as if it did.
func (e *Engine) Plan(now time.Time) DryRun {
	v := e.view.Load()
	if v == nil {
		return DryRun{Text: "no View of the fleet yet\n", Time: now}
	}
	mem := e.mem.Clone()
	mem.Leading = true
	plan, _ := e.planner.Step(now, v, mem)
	return dryRun(plan)
}

func dryRun(plan Plan) DryRun {
	out := DryRun{Time: plan.Time, Coverage: plan.Coverage, Refused: plan.Refused}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d GPUs seen fresh\n", plan.Coverage.Fresh, plan.Coverage.Expected)
	for _, entry := range plan.Entries {
		if d := entry.Decision; d != nil {
			out.Decisions = append(out.Decisions, d)
			fmt.Fprintf(&b, "  %s\n", d)
			if entry.Do != nil {
				fmt.Fprintf(&b, "    step %s %s on %s\n", entry.Do.ID, entry.Do.Kind, entry.Do.Target)
			}
		}
		if t := entry.Breaker; t != nil {
			fmt.Fprintf(&b, "  the breaker opens: %s\n", t.Reason)
		}
	}
	if len(out.Decisions) == 0 {
		fmt.Fprintf(&b, "nothing would be done\n")
	}
	for _, r := range plan.Refused.Details {
		fmt.Fprintf(&b, "  not %s: %s\n", r.Target, r)
	}
	out.Text = b.String()
	return out
}

func (e *Engine) explain(q Request) ([]byte, error) {
	switch {
	case q.Decision != "":
		x, err := e.Explain(q.Decision)
		if err != nil {
			return nil, err
		}
		return encode(x)
	case q.Workload != "":
		x, err := e.ExplainWorkload(q.Workload)
		if err != nil {
			return nil, err
		}
		return encode(x)
	case q.Nothing:
		return encode(e.ExplainNothing(e.now()))
	}
	return nil, errors.New("explain: want a decision, a workload, or nothing")
}

// Explain tells one decision from what was seen to whether it helped. The error
// for one that is not in Memory is a longAgo.
func (e *Engine) Explain(id string) (Explanation, error) {
	d, ok := e.mem.Decision(id)
	if !ok {
		return Explanation{}, longAgo{decision: id}
	}
	return explained(d), nil
}

// longAgo is a decision, or a workload, that only the journal may still have.
type longAgo struct {
	decision string
	workload telemetry.WorkloadRef
}

func (l longAgo) Error() string {
	if l.workload != "" {
		return fmt.Sprintf("workload %q is neither in view nor in memory", l.workload)
	}
	return fmt.Sprintf("decision %q is not in memory", l.decision)
}

func explained(d *telemetry.Decision) Explanation {
	var b strings.Builder
	d.Explain(&b)
	return Explanation{Text: b.String(), Decisions: []*telemetry.Decision{d}}
}

// lookUp finds the decision, or the last one about the workload.
func (e *Engine) lookUp(ctx context.Context, l longAgo) (*telemetry.Decision, error) {
	var found *telemetry.Decision
	_, err := e.config.Journal.Replay(ctx, func(_ uint64, r telemetry.Record) error {
		if d := r.Decision; d != nil && (d.ID == l.decision || l.workload != "" && d.Target.Workload == l.workload) {
			found = d
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; look it up in the journal: %w", l, err)
	case found == nil && l.workload != "":
		return nil, fmt.Errorf("workload %q is not in view, and no decision was ever about it", l.workload)
	case found == nil:
		return nil, fmt.Errorf("no decision %q in the journal", l.decision)
	}
	return found, nil
}

// ExplainWorkload tells why a workload was or was not touched: its GPUs, the
// decisions on them, and what stood against acts in the last pass.
func (e *Engine) ExplainWorkload(ref telemetry.WorkloadRef) (Explanation, error) {
	if err := ref.Check(); err != nil {
		return Explanation{}, err
	}
	v := e.view.Load()
	if v == nil {
		return Explanation{}, errors.New("no View of the fleet yet")
	}
	var b strings.Builder
	out := Explanation{Refused: &telemetry.RefusalSet{Counts: map[telemetry.RefusalReason]int{}}}
	w, ok := v.Workload(ref)
	if ok {
		fmt.Fprintf(&b, "%s  owner %s, priority %d, %d GPUs\n", w.Ref, orNone(w.Owner), w.Priority, len(w.GPUs))
	}
	acts := e.actsOn(ref)
	if !ok && len(acts) == 0 {
		return Explanation{}, longAgo{workload: ref}
	}
	if !ok {
		fmt.Fprintf(&b, "%s  is no longer seen\n", ref)
	}
	for _, d := range acts {
		out.Decisions = append(out.Decisions, d)
		fmt.Fprintf(&b, "  %s\n", d)
		if d.Ending != "" {
			fmt.Fprintf(&b, "    %s: %s\n", d.Ended.UTC().Format(time.TimeOnly), d.Ending)
		}
	}
	for _, r := range e.last.Refused.Details {
		if r.Target.Workload == ref {
			out.refuse(r)
			fmt.Fprintf(&b, "  not now: %s\n", r)
		}
	}
	if ok {
		for _, g := range w.GPUs {
			e.explainGPU(&b, &out, g)
		}
	}
	out.Text = b.String()
	return out, nil
}

// actsOn are the decisions about a workload that memory has, the newest last.
func (e *Engine) actsOn(ref telemetry.WorkloadRef) []*telemetry.Decision {
	return slices.DeleteFunc(append(slices.Clone(e.mem.Closed), e.mem.open()...), func(d *telemetry.Decision) bool { return d.Target.Workload != ref })
}

func (x *Explanation) refuse(r telemetry.Refusal) {
	x.Refused.Details = append(x.Refused.Details, r)
	x.Refused.Counts[r.Reason]++
}

func orNone(s string) string {
	if s == "" {
		return "not known"
	}
	return s
}

func (e *Engine) explainGPU(b *strings.Builder, out *Explanation, g *cluster.GPU) {
	headroom := "not known"
	if g.HeadroomC.OK {
		headroom = telemetry.Number(g.HeadroomC.V, "celsius")
	}
	fmt.Fprintf(b, "  %s on %s: %s, headroom %s\n", g.UUID, g.Node, g.State, headroom)
	n := 0
	for _, d := range append(e.mem.open(), e.mem.Closed...) {
		switch {
		case !d.Holds(g.UUID):
		case slices.ContainsFunc(out.Decisions, func(x *telemetry.Decision) bool { return x.ID == d.ID }):
			n++ // told already
		default:
			out.Decisions = append(out.Decisions, d)
			fmt.Fprintf(b, "    %s\n", d)
			n++
		}
	}
	for _, r := range e.last.Refused.Details {
		if r.Target.UUID == g.UUID && r.Target.Workload == "" {
			out.refuse(r)
			fmt.Fprintf(b, "    not now: %s\n", r)
			n++
		}
	}
	if n == 0 {
		fmt.Fprintf(b, "    nothing asks for an act\n")
	}
}

// ExplainNothing tells why nothing happens now.
func (e *Engine) ExplainNothing(now time.Time) Explanation {
	var b strings.Builder
	_, leads := e.mayAct(now)
	v := e.view.Load()
	if v == nil {
		fmt.Fprintf(&b, "no View of the fleet yet\n")
	} else {
		c := v.Coverage(now)
		fmt.Fprintf(&b, "View of %s; %d of %d GPUs seen fresh\n", v.Time.UTC().Format(time.TimeOnly), c.Fresh, c.Expected)
	}
	if !leads {
		fmt.Fprintf(&b, "this rebalancer does not lead, so it only looks\n")
	}
	switch {
	case e.mem.PausedAll:
		fmt.Fprintf(&b, "all acts are paused\n")
	case e.mem.Paused:
		fmt.Fprintf(&b, "disruptive acts are paused\n")
	}
	if br := e.mem.Breaker; br.Open {
		fmt.Fprintf(&b, "the breaker is open since %s: %s\n", br.Since.UTC().Format(time.TimeOnly), br.Reason)
	}
	for _, p := range e.config.Policies {
		s := p.Spec()
		fmt.Fprintf(&b, "policy %s: gentle acts %s, disruptive acts %s; acts at %s %s\n", s.Type, e.mem.mode(s, telemetry.Gentle), e.mem.mode(s, telemetry.Disruptive), s.Signal, telemetry.Number(s.Act, ""))
	}
	e.explainOpen(&b)
	set := e.last.Refused
	if len(set.Counts) == 0 {
		fmt.Fprintf(&b, "the last pass saw nothing beyond a mark that it could not answer\n")
	} else {
		fmt.Fprintf(&b, "the last pass refused: %s\n", reasons(set.Counts))
		for _, r := range set.Details {
			fmt.Fprintf(&b, "  %s: %s\n", r.Target, r)
		}
	}
	e.explainHour(&b)
	return Explanation{Text: b.String(), Refused: &set, Idle: e.ring.idle}
}

func (e *Engine) explainOpen(b *strings.Builder) {
	for _, d := range e.mem.open() {
		fmt.Fprintf(b, "open: %s\n", d)
	}
}

func (e *Engine) explainHour(b *strings.Builder) {
	passes := 0
	for _, i := range e.ring.idle {
		passes += i.Passes
	}
	fmt.Fprintf(b, "passes of the last hour that changed nothing: %d\n", passes)
	for _, i := range e.ring.idle {
		if len(i.Set.Counts) > 0 {
			fmt.Fprintf(b, "  %s to %s, %d×: %s\n", i.First.UTC().Format(time.TimeOnly), i.Last.UTC().Format(time.TimeOnly), i.Passes, reasons(i.Set.Counts))
		}
	}
}
