package ui

import (
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
)

// judged gives a device the verdicts that a Judge would: most are well, some
// are idle for each cause, slowed by each kind, ill in each way.
func judged(g *cluster.GPU, d *device, place int, now time.Time) {
	if d.state != cluster.GPUOK {
		return
	}
	g.BaseC = cluster.Some(d.inlet)
	g.Fabric = cluster.Fabric{State: cluster.FabricOK, LinksUp: 18, LinksExpected: 18, Saturation: cluster.Some(0.21), ErrorsPerSecond: cluster.Some(0), Since: now.Add(-time.Hour)}
	if d.job >= 0 {
		g.Members = []cluster.Member{{ID: fmt.Sprintf("pod-%d", d.job), Kind: "pod", UUID: d.uuid, Workload: workloadRef(d.job), Owner: "vision", Name: "python3"}}
	}
	switch place {
	case 5:
		g.Fabric.State, g.Fabric.LinksUp, g.Fabric.Evidence = cluster.FabricDegraded, 17, []string{"link 7 is down since 02:41:10"}
		g.Health, g.HealthScore, g.HealthReason, g.HealthSince = cluster.HealthDegraded, 0.6, "1 of 18 NVLinks down", now.Add(-31*time.Minute)
		g.HealthEvidence = []string{"link 7 is down", "Xid 74 on NVLink 7"}
	case 6:
		gi := uint32(3)
		g.Contention = &cluster.Contention{Kind: cluster.ContentionNeighbour, Ratio: 0.34, With: []string{"pod-99", "pod-100"}, Evidence: []string{"2 members of other work share it and it was never free for 60 s"}, Since: now.Add(-4 * time.Minute)}
		g.Members = append(g.Members, cluster.Member{ID: "pod-99", Kind: "pod", UUID: d.uuid, GI: &gi})
	case 10:
		g.Contention = &cluster.Contention{Kind: cluster.ContentionNVLink, Ratio: 0.97, Evidence: []string{"its links carry 97 % of what they can"}, Since: now.Add(-90 * time.Second)}
		g.Fabric.Saturation = cluster.Some(0.97)
	case 11:
		g.IdleSince, g.IdleCause, g.IdleEvidence = now.Add(-22*time.Minute), cluster.IdleFinishedHolding, []string{"61.0 GiB held by pod-1", "no activity for 22 min", "nothing on the host keeps it from working"}
	case 12:
		g.IdleSince, g.IdleCause, g.IdleEvidence = now.Add(-3*time.Minute), cluster.IdleWaitingData, []string{"tasks waited for I/O 71 % of the time"}
	case 13:
		g.IdleCause, g.IdleEvidence = cluster.IdleUnknown, []string{"no SM activity is read", "no list of processes"}
	case 14:
		g.Health, g.HealthScore, g.HealthReason, g.HealthSince = cluster.HealthResetNeeded, 0.1, "row remapping is pending", now.Add(-2*time.Hour)
	}
}

// hosted gives a node the verdicts on its host.
func hosted(n *cluster.Node, place int, now time.Time) {
	n.InletC, n.AirC, n.Heard, n.Sources = cluster.Some(24.5), cluster.Some(31.5), now.Add(-180*time.Millisecond), []string{"file"}
	stalled := place == 1
	n.Host = []cluster.HostVerdict{
		{Name: cluster.HostStorageStalled, Holds: stalled, Value: cluster.Some(0.04), Evidence: "tasks waited for I/O 4 % of the time", Since: now.Add(-time.Hour)},
		{Name: cluster.HostCPUStarved, Value: cluster.Some(0.11), Evidence: "processors were busy 11 % of the time", Since: now.Add(-time.Hour)},
	}
	if stalled {
		n.Host[0].Value, n.Host[0].Evidence = cluster.Some(0.71), "tasks waited for I/O 71 % of the time, most of it for nvme1n1"
	}
}
