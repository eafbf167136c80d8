package ui

import (
	"cmp"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Health is the judged health of a device: the worst that was found, and what
// else.
type Health struct {
	Class    string    `json:"class"`
	Score    float64   `json:"score"`
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Evidence []string  `json:"evidence,omitempty"`
}

// Idle says that a device is not used, since when and why. Without Since it is
// not known whether it is used, and the evidence names what is missing.
type Idle struct {
	Since    time.Time `json:"since,omitzero"`
	Cause    string    `json:"cause"`
	Evidence []string  `json:"evidence,omitempty"`
}

// Contention is what slows the work on a device.
type Contention struct {
	Kind     string    `json:"kind"`
	Ratio    float64   `json:"ratio"`
	With     []string  `json:"with,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Evidence []string  `json:"evidence,omitempty"`
}

// Fabric is a device's part in the NVLink fabric.
type Fabric struct {
	State           string    `json:"state"`
	LinksUp         int       `json:"links_up"`
	LinksExpected   int       `json:"links_expected"`
	Saturation      *float64  `json:"saturation_ratio,omitempty"`
	ErrorsPerSecond *float64  `json:"errors_per_second,omitempty"`
	Since           time.Time `json:"since,omitzero"`
	Evidence        []string  `json:"evidence,omitempty"`
}

// Verdicts is what is judged of a device. What is not judged, or is not so, is
// absent: a device that is used has no Idle, one without NVLink no Fabric.
type Verdicts struct {
	Idle       *Idle       `json:"idle,omitempty"`
	Contention *Contention `json:"contention,omitempty"`
	Fabric     *Fabric     `json:"fabric,omitempty"`
	Health     *Health     `json:"health,omitempty"`
}

// Member is a process, pod or job step that holds a device or a part of it.
type Member struct {
	ID       string                `json:"id"`
	Kind     string                `json:"kind"`
	Name     string                `json:"name,omitempty"`
	GI       *uint32               `json:"gi,omitempty"`
	Workload telemetry.WorkloadRef `json:"workload,omitempty"`
	Owner    string                `json:"owner,omitempty"`
}

// HostVerdict is one statement on a host. One that is not listed is not known.
type HostVerdict struct {
	Name     string    `json:"name"`
	Holds    bool      `json:"holds"`
	Value    *float64  `json:"value,omitempty"`
	Evidence string    `json:"evidence,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

func verdictsJSON(g *cluster.GPU) Verdicts {
	var out Verdicts
	if g.Health != "" {
		out.Health = &Health{g.Health, g.HealthScore, g.HealthReason, g.HealthSince, g.HealthEvidence}
	}
	if g.IdleCause != "" {
		out.Idle = &Idle{g.IdleSince, g.IdleCause, g.IdleEvidence}
	}
	if c := g.Contention; c != nil {
		out.Contention = &Contention{c.Kind, c.Ratio, c.With, c.Since, c.Evidence}
	}
	if f := g.Fabric; f.State != "" {
		out.Fabric = &Fabric{f.State, f.LinksUp, f.LinksExpected, pointer(f.Saturation), pointer(f.ErrorsPerSecond), f.Since, f.Evidence}
	}
	return out
}

func membersJSON(g *cluster.GPU) []Member {
	out := make([]Member, 0, len(g.Members))
	for _, m := range g.Members {
		out = append(out, Member{ID: m.ID, Kind: m.Kind, Name: m.Name, GI: m.GI, Workload: m.Workload, Owner: m.Owner})
	}
	return out
}

func hostJSON(n *cluster.Node) []HostVerdict {
	out := make([]HostVerdict, 0, len(n.Host))
	for _, h := range n.Host {
		out = append(out, HostVerdict{h.Name, h.Holds, pointer(h.Value), h.Evidence, h.Since})
	}
	return out
}

// doubtOf says why a device may not be the one that it says.
func doubtOf(n *cluster.Node, g *cluster.GPU) string {
	if !g.DoubtfulIdentity {
		return ""
	}
	return cmp.Or(n.Doubt, g.HealthReason, "another node claims the same uuid")
}

// WorkloadVerdicts counts what is judged of the devices that a workload holds.
type WorkloadVerdicts struct {
	Fresh         int            `json:"gpus_fresh"`
	Idle          int            `json:"gpus_idle"`
	IdleCauses    map[string]int `json:"idle_causes,omitempty"`
	Contention    map[string]int `json:"contention,omitempty"`
	Health        map[string]int `json:"health,omitempty"`
	Fabric        map[string]int `json:"fabric,omitempty"`
	Throttled     int            `json:"gpus_throttled"`
	Capped        int            `json:"gpus_capped"`
	LeastHeadroom *float64       `json:"least_headroom_celsius,omitempty"`
	Power         *float64       `json:"power_watts,omitempty"`
	Utilization   *float64       `json:"utilization_ratio,omitempty"`
}

// workloadVerdicts tells each device once; values of those that are fresh.
func workloadVerdicts(v *cluster.View, w *cluster.Workload, now time.Time) WorkloadVerdicts {
	var out WorkloadVerdicts
	var least, power, busy cluster.Opt
	utilized := 0
	for _, g := range w.GPUs {
		count(&out.Health, g.Health)
		count(&out.Fabric, g.Fabric.State)
		if g.IdleCause != "" && !g.IdleSince.IsZero() {
			out.Idle++
			count(&out.IdleCauses, g.IdleCause)
		}
		if g.Contention != nil {
			count(&out.Contention, g.Contention.Kind)
		}
		n, ok := v.Node(g.Node)
		if !ok {
			continue
		}
		if _, fresh := sampled(n, g, now); !fresh {
			continue
		}
		out.Fresh++
		out.Throttled += btoi(slowed(g))
		out.Capped += btoi(capped(g))
		if h := g.HeadroomC; h.OK && (!least.OK || h.V < least.V) {
			least = h
		}
		if p := g.Value(telemetry.GPUPowerWatts); p.OK {
			power = cluster.Some(power.Or(0) + p.V)
		}
		if u := g.Value(telemetry.GPUUtilizationRatio); u.OK {
			busy, utilized = cluster.Some(busy.Or(0)+u.V), utilized+1
		}
	}
	if utilized > 0 {
		busy.V /= float64(utilized)
	}
	out.LeastHeadroom, out.Power, out.Utilization = pointer(least), pointer(power), pointer(busy)
	return out
}

func count(of *map[string]int, word string) {
	if word == "" {
		return
	}
	if *of == nil {
		*of = map[string]int{}
	}
	(*of)[word]++
}
