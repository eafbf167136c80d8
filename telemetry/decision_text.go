package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"
)

// String is the decision in one line.
func (d *Decision) String() string {
	return fmt.Sprintf("%s %s/%s %s: %s (%s)", d.ID, d.Policy, d.Kind, d.Target, d.Why, d.Outcome)
}

// LogValue makes a decision log as its few identifying fields.
func (d *Decision) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", d.ID), slog.String("policy", d.Policy), slog.String("act", string(d.Kind)),
		slog.String("target", d.Target.String()), slog.String("outcome", string(d.Outcome)), slog.String("why", d.Why))
}

// String is the refusal with its reason in front.
func (r Refusal) String() string {
	s := string(r.Reason) + ": " + r.Text
	if !r.Until.IsZero() {
		s += " (until " + clock(r.Until) + ")"
	}
	return s
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// Number prints a value with one decimal at most and its unit.
func Number(v float64, unit string) string {
	s := fmt.Sprintf("%.1f", v)
	if math.Abs(v) >= 100 {
		s = fmt.Sprintf("%.0f", v)
	}
	s = strings.TrimSuffix(s, ".0")
	if s == "-0" {
		s = "0"
	}
	if u := unitSign(unit); u != "" {
		return s + " " + u
	}
	return s
}

func unitSign(unit string) string {
	switch unit {
	case "celsius":
		return "°C"
	case "watts":
		return "W"
	case "seconds":
		return "s"
	case "bytes":
		return "B"
	case "ratio":
		return ""
	}
	return unit
}

// Plain is a metric's name in words, without what it describes and its unit.
func Plain(signal string) string {
	s := signal
	for _, prefix := range []string{"gpu_", "node_"} {
		s = strings.TrimPrefix(s, prefix)
	}
	for _, unit := range []string{"_celsius", "_watts", "_ratio", "_bytes", "_seconds", "_hertz"} {
		s = strings.TrimSuffix(s, unit)
	}
	return strings.ReplaceAll(s, "_", " ")
}

// Explain writes why, why this, why not the others, and whether it helped.
func (d *Decision) Explain(w io.Writer) {
	fmt.Fprintf(w, "%s  %s  %s/%s (%s, %s)  %s\n", d.ID, d.Time.UTC().Format(time.RFC3339), d.Policy, d.Kind, d.Class, d.Mode, d.Outcome)
	fmt.Fprintf(w, "  %s\n", d.Why)
	d.explainWhy(w)
	d.explainAct(w)
	d.explainOthers(w)
	d.explainEffect(w)
}

func (d *Decision) explainWhy(w io.Writer) {
	fmt.Fprintf(w, "\nWhy\n")
	for _, v := range d.Violations {
		fmt.Fprintf(w, "  %s", v.Target)
		if v.Where != "" {
			fmt.Fprintf(w, " (%s)", v.Where)
		}
		fmt.Fprintf(w, "\n    %s %s, mark %s, aim %s; ", v.Signal, Number(v.Value, v.Unit), Number(v.Mark, v.Unit), Number(v.Aim, v.Unit))
		if v.Needed == 0 {
			fmt.Fprintf(w, "clear of the aim in %d of %d samples", v.Seen, v.Of)
		} else {
			fmt.Fprintf(w, "beyond the mark in %d of %d samples, %d needed", v.Seen, v.Of, v.Needed)
		}
		if v.Agrees != "" {
			fmt.Fprintf(w, "; %s agrees", v.Agrees)
		}
		fmt.Fprintln(w)
		if v.Reaches > 0 {
			fmt.Fprintf(w, "    moving %+.2f %s/s, limit in about %s\n", v.Slope, unitSign(v.Unit), Number(v.Reaches, "seconds"))
		}
		for _, e := range v.Evidence {
			fmt.Fprintf(w, "    %s = %s (%s, %d ms old)", e.Signal, Number(e.Value, e.Unit), e.Quality, e.AgeMS)
			if e.Note != "" {
				fmt.Fprintf(w, " %s", e.Note)
			}
			fmt.Fprintln(w)
		}
	}
	for _, c := range d.Candidates {
		fmt.Fprintf(w, "  caused by %s", c.Workload)
		if c.Owner != "" {
			fmt.Fprintf(w, " of %s", c.Owner)
		}
		if c.Name != "" {
			fmt.Fprintf(w, ", %s", c.Name)
		}
		fmt.Fprintf(w, " (priority %d, share %.0f %%)", c.Priority, 100*c.Share)
		if c.Note != "" {
			fmt.Fprintf(w, ": %s", c.Note)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "  seen: %d of %d GPUs fresh\n", d.Coverage.Fresh, d.Coverage.Expected)
}

func (d *Decision) explainAct(w io.Writer) {
	if d.Act == nil {
		return
	}
	fmt.Fprintf(w, "\nWhy this\n  %s\n", d.Act.Summary)
	if n := len(d.Act.GPUs); n > 1 {
		fmt.Fprintf(w, "  holds all %d GPUs of the workload until it is known what it did: %s\n", n, strings.Join(d.Act.GPUs, ", "))
	}
	if d.Act.Lease > 0 {
		fmt.Fprintf(w, "  held under a lease of %s, renewed while needed; its owner undoes it when the lease ends\n", time.Duration(d.Act.Lease))
	}
	if p := d.Predicted; p != nil {
		fmt.Fprintf(w, "  predicted: %s from %s to %s", p.Signal, Number(p.Before, p.Unit), Number(p.After, p.Unit))
		if p.Within > 0 {
			fmt.Fprintf(w, " within %s", time.Duration(p.Within))
		}
		if p.Note != "" {
			fmt.Fprintf(w, " (%s)", p.Note)
		}
		fmt.Fprintln(w)
	}
	for _, s := range d.Steps {
		s.explain(w)
	}
}

func (s StepRecord) explain(w io.Writer) {
	if s.Step.Kind == StepPreempt {
		s.explainPreempt(w)
		return
	}
	fmt.Fprintf(w, "  step %s %s on %s: ", s.Step.ID, s.Step.Kind, s.Step.Target)
	switch r := s.Receipt; {
	case r == nil:
		fmt.Fprintln(w, "no receipt yet")
	case r.Result == Done:
		fmt.Fprintf(w, "done %s%s\n", clock(r.Ended), beforeAfter(r))
	default:
		fmt.Fprintf(w, "%s\n", r.reason())
	}
}

// reason is a result other than done, with why.
func (r *Receipt) reason() string {
	s := string(r.Result)
	if r.Why != "" {
		s += " (" + string(r.Why) + ")"
	}
	return s + " " + r.Detail
}

// explainPreempt tells what a process and its owner were told, and what became
// of it: its backend's own words say by which signal it ended and what the
// devices show.
func (s StepRecord) explainPreempt(w io.Writer) {
	p := s.Step.Params
	fmt.Fprintf(w, "  step %s ends %s: SIG%s, %s to end by itself, then KILL\n", s.Step.ID, s.Step.Target, p.Signal, time.Duration(p.Grace))
	if p.Message != "" {
		fmt.Fprintf(w, "    its owner is told: %s\n", p.Message)
	}
	switch r := s.Receipt; {
	case r == nil:
		fmt.Fprintf(w, "    no receipt yet; its end is known by %s\n", clock(s.Step.Deadline))
	case r.Result == Done:
		fmt.Fprintf(w, "    done %s: %s\n", clock(r.Ended), r.Detail)
	default:
		fmt.Fprintf(w, "    %s\n", r.reason())
	}
}

func beforeAfter(r *Receipt) string {
	keys := make([]string, 0, len(r.After))
	for k := range r.After {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		unit := k[strings.LastIndexByte(k, '_')+1:]
		if before, ok := r.Before[k]; ok {
			fmt.Fprintf(&b, ", %s %s → %s", k, Number(before, unit), Number(r.After[k], unit))
		} else {
			fmt.Fprintf(&b, ", %s %s", k, Number(r.After[k], unit))
		}
	}
	return b.String()
}

func (d *Decision) explainOthers(w io.Writer) {
	others := slices.DeleteFunc(slices.Clone(d.Alternatives), func(a Alternative) bool { return a.Chosen })
	if len(others)+len(d.Refusals) == 0 {
		return
	}
	fmt.Fprintf(w, "\nWhy not the others\n")
	for _, a := range others {
		fmt.Fprintf(w, "  %s: %s", a.Act, a.Summary)
		if a.Net != 0 {
			fmt.Fprintf(w, " (net %.0f GPU-seconds)", a.Net)
		}
		fmt.Fprintln(w)
		for _, r := range a.Refusals {
			fmt.Fprintf(w, "    %s\n", r)
		}
	}
	for _, r := range d.Refusals {
		fmt.Fprintf(w, "  %s\n", r)
	}
}

func (d *Decision) explainEffect(w io.Writer) {
	fmt.Fprintf(w, "\nDid it help\n")
	switch o := d.Observed; {
	case o != nil:
		fmt.Fprintf(w, "  %s went from %s to %s at %s", o.Signal, Number(o.Before, o.Unit), Number(o.After, o.Unit), clock(o.At))
		if d.Predicted != nil {
			fmt.Fprintf(w, "; predicted %s", Number(d.Predicted.After, d.Predicted.Unit))
		}
		if o.Note != "" {
			fmt.Fprintf(w, " (%s)", o.Note)
		}
		fmt.Fprintln(w)
	case !d.VerifyBy.IsZero() && d.Ended.IsZero():
		fmt.Fprintf(w, "  not known yet; looked at by %s\n", clock(d.VerifyBy))
	case d.Act == nil || d.Outcome == OutcomeRecommended || d.Outcome == OutcomeAwaiting:
		fmt.Fprintf(w, "  nothing was done\n")
	case d.Ended.IsZero() && d.Outcome == OutcomeIntended:
		fmt.Fprintf(w, "  not known yet; it is under way\n")
	default:
		fmt.Fprintf(w, "  not observed\n")
	}
	if d.Ending != "" {
		fmt.Fprintf(w, "  ended %s: %s\n", clock(d.Ended), d.Ending)
	}
}
