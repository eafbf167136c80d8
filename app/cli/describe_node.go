package cli

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/ui"
)

func labelText(labels map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, name+"="+labels[name])
	}
	return strings.Join(out, ",")
}

func (c *Client) describeNode(ctx context.Context, s *sheet, name string) error {
	var n ui.Node
	if err := c.ask(ctx, "nodes/"+url.PathEscape(name), nil, &n); err != nil {
		return err
	}
	s.row("Name", "%s", n.Name)
	s.known("Cluster", n.Cluster)
	s.known("Place", place(n.Rack, n.Row, n.Feed))
	s.known("Domains", labelText(unempty(map[string]string{"power": n.PowerDomain, "cooling": n.CoolingDomain, "nvlink": n.NVLinkDomain, "network": n.NetworkDomain})))
	s.row("State", "%s, last sample %s", n.State, c.ago(n.Seen))
	s.known("In doubt", n.Doubt)
	s.known("Driver", n.DriverFault)
	if n.BootID != "" {
		s.row("Boot", "%s; exporter since %s", n.BootID, c.ago(n.Since))
	}
	sync := "synchronised"
	if !n.ClockSynchronized {
		sync = "not synchronised"
	}
	s.row("Clock", "%s, off by %.3g s; sends every %.3g s", sync, n.SkewSeconds, n.PeriodSeconds)
	s.row("GPUs", "%d of %d expected are fresh", n.GPUsFresh, n.GPUsExpected)
	s.row("Headroom", "least %s", figure(n.Hottest, "celsius"))
	s.row("Power", "%s", figure(n.PowerWatts, "watts"))
	s.row("Air", "inlet %s, at the GPUs %s", figure(n.Inlet, "celsius"), figure(n.Air, "celsius"))
	c.host(s, n.Host)
	if n.Unschedulable {
		s.row("Scheduling", "off")
	}
	s.known("Marks", labelText(n.Marks))
	s.known("Listed by", strings.Join(n.Sources, ", "))
	if err := c.gpusOf(ctx, s, url.Values{"node": {n.Name}}); err != nil {
		return err
	}
	if err := c.alertsAbout(ctx, s, n.Name, ""); err != nil {
		return err
	}
	return c.decisionsAbout(ctx, s, n.Name)
}

func unempty(m map[string]string) map[string]string {
	maps.DeleteFunc(m, func(_, v string) bool { return v == "" })
	return m
}

// host prints what is known of the host, what holds first.
func (c *Client) host(s *sheet, verdicts []ui.HostVerdict) {
	if len(verdicts) == 0 {
		s.row("Host", "nothing known")
		return
	}
	name := "Host"
	for _, holds := range []bool{true, false} {
		for _, v := range verdicts {
			if v.Holds != holds {
				continue
			}
			text := said(nil, v.Name)
			if words, ok := hostWords[v.Name]; ok {
				text = words[btoi(!holds)]
			}
			text += c.lasting(v.Since) + prefixed(": ", v.Evidence)
			if name != "" {
				s.row(name, "%s", text)
				name = ""
				continue
			}
			s.more(text)
		}
	}
}

// gpusOf prints the GPUs that a filter keeps, with what is judged of them.
func (c *Client) gpusOf(ctx context.Context, s *sheet, query url.Values) error {
	var l ui.List[ui.GPU]
	if err := c.ask(ctx, "gpus", query, &l); err != nil {
		return err
	}
	rows := [][]string{{"GPU", "UUID", "STATE", "HEALTH", "HEADROOM", "POWER", "LIMIT", "UTIL", "USE", "CONTENTION", "FABRIC"}}
	for _, g := range l.Items {
		state, health, use, contention, fabric := g.State, "-", "in use", "-", "-"
		if g.State == "ok" && !g.Fresh {
			state = "stale"
		}
		if h := g.Health; h != nil {
			health = said(nil, h.Class)
		}
		switch i := g.Idle; {
		case i == nil:
		case i.Since.IsZero():
			use = "not known"
		default:
			use = said(idleWords, i.Cause)
		}
		if n := g.Contention; n != nil {
			contention = said(nil, n.Kind)
		}
		if f := g.Fabric; f != nil {
			fabric = said(nil, f.State)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%s/%d", g.Node, g.Index), g.UUID, state, health, figure(g.Headroom, "celsius"), figure(g.Power, "watts"), figure(g.Limit, "watts"), figure(g.Utilization, "%"),
			use, contention, fabric,
		})
	}
	s.list("GPUs", rows)
	return nil
}
