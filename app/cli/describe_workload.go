package cli

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

func (c *Client) describeWorkload(ctx context.Context, s *sheet, ref string) error {
	if err := telemetry.WorkloadRef(ref).Check(); err != nil {
		return command.Usagef("%w", err)
	}
	var w ui.Workload
	if err := c.ask(ctx, "workloads/"+escapeRef(ref), nil, &w); err != nil {
		return err
	}
	s.row("Name", "%s", w.Ref)
	s.known("Command", w.Name)
	s.row("Owner", "%s%s", or(w.Owner), prefixed(", tenant ", w.Tenant))
	s.row("State", "%s, priority %d", or(w.State), w.Priority)
	if w.Gang != "" {
		s.row("Gang", "%s of %d", w.Gang, w.GangSize)
	}
	if w.Start.IsZero() {
		s.row("Started", "not known")
	} else {
		s.row("Started", "%s", c.ago(w.Start))
	}
	s.known("Asks for", requests(w.Requests))
	if k := w.Checkpoint; k != nil {
		s.row("Checkpoint", "SIG%s within %s, last %s", k.Signal, length(time.Duration(k.Grace)), c.ago(k.Last))
	}
	if w.MaxDowntime > 0 {
		s.row("Downtime", "at most %s", length(time.Duration(w.MaxDowntime)))
	}
	s.known("Opted out of", strings.Join(w.OptOut, ", "))
	s.known("Told of by", w.Source)
	s.judgedOf(&w)
	rows := [][]string{{"MEMBER", "NODE", "GPUS"}}
	for _, m := range w.Members {
		rows = append(rows, []string{m.ID, or(m.Node), or(strings.Join(m.GPUs, ","))})
	}
	s.list("Members", rows)
	if err := c.gpusOf(ctx, s, url.Values{"workload": {string(w.Ref)}}); err != nil {
		return err
	}
	if err := c.decisionsAbout(ctx, s, string(w.Ref)); err != nil {
		return err
	}
	s.print(fmt.Sprintf("\nWhy it was or was not acted on: evenkeel explain workload/%s\n", w.Ref))
	return nil
}

// judgedOf prints what is judged of all devices of a workload.
func (s *sheet) judgedOf(w *ui.Workload) {
	v := w.Verdicts
	use := fmt.Sprintf("%d of its %d GPUs idle", v.Idle, len(w.GPUs))
	if v.Idle > 0 {
		use += ": " + counted(v.IdleCauses, idleWords)
	}
	s.row("Use", "%s; mean utilisation %s", use, figure(v.Utilization, "%"))
	s.row("Contention", "%s", or(counted(v.Contention, nil), "none known"))
	s.row("Health", "%s", or(counted(v.Health, nil), "not known"))
	s.known("Fabric", counted(v.Fabric, nil))
	s.row("Heat", "least headroom %s, %d slowed down, %d capped", figure(v.LeastHeadroom, "celsius"), v.Throttled, v.Capped)
	s.row("Power", "%s over %d fresh GPUs", figure(v.Power, "watts"), v.Fresh)
}

// counted prints how many of each.
func counted(of map[string]int, words map[string]string) string {
	var out []string
	for _, word := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%d %s", of[word], said(words, word)))
	}
	return strings.Join(out, ", ")
}

func requests(r telemetry.Requests) string {
	var out []string
	if r.GPUs > 0 {
		out = append(out, fmt.Sprintf("%d GPUs", r.GPUs))
	}
	if r.Model != "" {
		out = append(out, r.Model)
	}
	if r.MIGProfile != "" {
		out = append(out, "MIG "+r.MIGProfile)
	}
	if r.MemoryBytes > 0 {
		v := float64(r.MemoryBytes)
		out = append(out, figure(&v, "bytes"))
	}
	return strings.Join(out, ", ")
}

// escapeRef keeps a reference's slashes and escapes the rest.
func escapeRef(ref string) string {
	parts := strings.Split(ref, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}
