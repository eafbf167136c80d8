package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/ui"
)

func (c *Client) describeGPU(ctx context.Context, s *sheet, name string) error {
	uuid, err := c.gpuNamed(ctx, name)
	if err != nil {
		return err
	}
	var g ui.GPUDetail
	if err := c.ask(ctx, "gpus/"+url.PathEscape(uuid), nil, &g); err != nil {
		return err
	}
	s.row("Name", "%s/%d", g.Node, g.Index)
	s.row("UUID", "%s", g.UUID)
	s.known("Place", place(g.Rack, g.Row, ""))
	s.row("Model", "%s%s%s", or(g.Model), bracket(g.Arch), prefixed(", driver ", g.Driver))
	s.known("PCI", g.PCI)
	s.row("State", "%s", c.state(&g.GPU))
	s.known("In doubt", g.Doubt)
	c.verdicts(s, &g.Verdicts)
	c.physics(s, &g.GPU)
	s.known("Held by", strings.Join(g.HeldBy, ", "))
	rows := [][]string{{"WORKLOAD", "OWNER"}}
	for _, w := range g.Workloads {
		rows = append(rows, []string{string(w.Ref), or(w.Owner)})
	}
	s.list("Workloads", rows)
	rows = [][]string{{"MEMBER", "KIND", "NAME", "GI", "WORKLOAD", "OWNER"}}
	for _, m := range g.Members {
		gi := ""
		if m.GI != nil {
			gi = fmt.Sprint(*m.GI)
		}
		rows = append(rows, []string{m.ID, m.Kind, or(m.Name), or(gi), or(string(m.Workload)), or(m.Owner)})
	}
	s.list("Members", rows)
	if err := c.alertsAbout(ctx, s, g.Node, g.UUID); err != nil {
		return err
	}
	if err := c.decisionsAbout(ctx, s, g.UUID); err != nil {
		return err
	}
	rows = [][]string{{"METRIC", "VALUE", "AGE", "QUALITY"}}
	for _, r := range g.Readings {
		v := r.Value
		rows = append(rows, []string{series(r.Metric, r.Labels), figure(&v, r.Unit), figure(r.AgeSeconds, "seconds"), strings.ReplaceAll(r.Quality, "_", " ")})
	}
	s.list("Values", rows)
	return nil
}

func place(rack, row, feed string) string {
	var out []string
	for _, part := range [][2]string{{"rack ", rack}, {"row ", row}, {"feed ", feed}} {
		if part[1] != "" {
			out = append(out, part[0]+part[1])
		}
	}
	return strings.Join(out, ", ")
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func (c *Client) state(g *ui.GPU) string {
	text := g.State
	switch {
	case g.HungCall != "":
		text += fmt.Sprintf(": %s has not returned for %s", g.HungCall, length(time.Duration(g.HungSeconds*float64(time.Second))))
	case g.State == "ok" && !g.Fresh:
		text += ", but stale"
	}
	if g.AgeSeconds != nil {
		text += fmt.Sprintf(", sampled %.1f s ago", *g.AgeSeconds)
	}
	return text
}

// verdicts prints what is judged of a device, with the evidence below.
func (c *Client) verdicts(s *sheet, v *ui.Verdicts) {
	if h := v.Health; h == nil {
		s.row("Health", "not known")
	} else {
		s.row("Health", "%s%s%s (score %.2g)", said(nil, h.Class), c.lasting(h.Since), prefixed(": ", h.Reason), h.Score)
		s.more(h.Evidence...)
	}
	switch i := v.Idle; {
	case i == nil:
		s.row("Use", "in use")
	case i.Since.IsZero():
		s.row("Use", "not known")
		s.more(i.Evidence...)
	default:
		s.row("Use", "idle%s: %s", c.lasting(i.Since), said(idleWords, i.Cause))
		s.more(i.Evidence...)
	}
	if n := v.Contention; n == nil {
		s.row("Contention", "none known")
	} else {
		s.row("Contention", "%s (%.0f %%)%s", said(contentionWords, n.Kind), 100*n.Ratio, c.lasting(n.Since))
		if len(n.With) > 0 {
			s.more("with " + strings.Join(n.With, ", "))
		}
		s.more(n.Evidence...)
	}
	if f := v.Fabric; f != nil {
		s.row("Fabric", "%s%s; %d of %d links up, %s full, %s errors per second", said(fabricWords, f.State), c.lasting(f.Since), f.LinksUp, f.LinksExpected,
			figure(f.Saturation, "%"), figure(f.ErrorsPerSecond, ""))
		s.more(f.Evidence...)
	}
}

func (c *Client) physics(s *sheet, g *ui.GPU) {
	trend := "slope not known"
	if g.Slope != nil {
		trend = map[bool]string{true: "cooling", false: "heating"}[*g.Slope >= 0] + fmt.Sprintf(" %.2f °C/s", max(*g.Slope, -*g.Slope))
	}
	if g.SecondsToSlowdown != nil {
		trend += ", slowdown in " + length(time.Duration(*g.SecondsToSlowdown*float64(time.Second)))
	}
	s.row("Headroom", "%s, %s", figure(g.Headroom, "celsius"), trend)
	s.row("Temperature", "core %s, memory %s", figure(g.Core, "celsius"), figure(g.Memory, "celsius"))
	if g.Resistance != nil {
		s.more(fmt.Sprintf("learned %s °C per W, time constant %s, %s without power", figure(g.Resistance, "fine"), figure(g.TimeConstant, "seconds"), figure(g.Base, "celsius")))
	}
	s.row("Power", "%s of %s%s; default %s, from %s to %s", figure(g.Power, "watts"), figure(g.Limit, "watts"), map[bool]string{true: ", capped"}[g.Capped],
		figure(g.LimitDefault, "watts"), figure(g.LimitMin, "watts"), figure(g.LimitMax, "watts"))
	s.row("Utilisation", "%s, SM clock %s", figure(g.Utilization, "%"), figure(g.Clock, "hertz"))
	s.row("Memory", "%s of %s", figure(g.MemoryUsed, "bytes"), figure(g.MemoryTotal, "bytes"))
	s.row("Throttle", "%s", strings.ReplaceAll(or(strings.Join(g.Throttle, ", "), "none"), "_", " "))
}

func series(metric string, labels map[string]string) string {
	if len(labels) == 0 {
		return metric
	}
	return metric + "{" + labelText(labels) + "}"
}
