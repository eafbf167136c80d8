package rebalancer

import (
	"fmt"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// candidates lists what runs on a GPU and so causes its heat and power, with
// the share of each: as requested where a share was requested, the rest in
// equal parts. A member that no inventory knows is listed as what it is.
func candidates(v *cluster.View, g *cluster.GPU) []telemetry.Candidate {
	var out, unknown []telemetry.Candidate
	var known []string
	for _, w := range v.WorkloadsOn(g.UUID) {
		c := telemetry.Candidate{Workload: w.Ref, Owner: w.Owner, Name: w.Name, Priority: w.Priority, Share: w.Requests.Share}
		if n := len(w.GPUs); n > 1 {
			c.Note = fmt.Sprintf("on %d GPUs, which all run at the pace of the slowest", n)
		}
		out = append(out, c)
		for _, m := range w.Members {
			known = append(known, m.ID)
		}
	}
	for _, m := range g.Members {
		if m.Kind == "unknown" || m.Kind == cluster.KindProcess && !slices.Contains(known, m.ID) || len(known) == 0 && len(out) == 0 || !slices.Contains(known, m.ID) && m.Kind == "" {
			unknown = append(unknown, telemetry.Candidate{Workload: telemetry.WorkloadRef("unknown:" + m.ID), Note: "no inventory knows this member; nothing is done to it"})
		}
	}
	out = append(out, unknown...)
	share(out)
	return out
}

func share(cs []telemetry.Candidate) {
	left, without := 1.0, 0
	for _, c := range cs {
		left -= c.Share
		if c.Share == 0 {
			without++
		}
	}
	for i := range cs {
		if cs[i].Share == 0 {
			cs[i].Share = max(left, 0) / float64(without)
		}
	}
}
