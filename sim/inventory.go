package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	inventorySource = "sim"
	// inventoryPeriod is how often the snapshot is sent again, inventoryPoll
	// how soon a change is noticed.
	inventoryPeriod = time.Minute
	inventoryPoll   = 250 * time.Millisecond
)

// Inventory is the world as schedulers and asset lists know it: nodes with
// their place and expected GPUs, and the jobs that wait or run. The generation
// grows with every job that starts or ends.
func (w *World) Inventory(now time.Time) telemetry.Inventory {
	w.mu.Lock()
	defer w.mu.Unlock()
	inv := telemetry.Inventory{Source: inventorySource, Generation: w.generation(), Time: now}
	for i := range w.nodes {
		n := &w.nodes[i]
		item := telemetry.InventoryNode{
			Name: n.Name, ExpectedGPUs: int(n.count), Rack: n.Rack, Row: n.Row, Feed: n.Feed,
			PowerDomain: n.Feed, CoolingDomain: n.Row, Model: n.model.Name,
		}
		if n.model.NVLinks > 0 {
			item.NVLinkDomain = n.Name
		}
		for g := n.first; g < n.first+n.count; g++ {
			item.ExpectedUUIDs = append(item.ExpectedUUIDs, w.ids[g].uuid)
		}
		inv.Nodes = append(inv.Nodes, item)
	}
	for i := range w.jobs {
		j := &w.jobs[i]
		if j.spec.End == 0 || w.elapsed < time.Duration(j.spec.End) {
			inv.Workloads = append(inv.Workloads, w.workload(i))
		}
	}
	return inv
}

// generation counts the starts and ends of jobs so far, from 1.
func (w *World) generation() uint64 {
	count := uint64(1)
	for i := range w.jobs {
		spec := &w.jobs[i].spec
		if spec.Start > 0 && w.elapsed >= time.Duration(spec.Start) {
			count++
		}
		if spec.End > 0 && w.elapsed >= time.Duration(spec.End) {
			count++
		}
	}
	return count
}

func (w *World) workload(i int) telemetry.InventoryWorkload {
	j := &w.jobs[i]
	start := w.epoch.Add(time.Duration(j.spec.Start))
	first := &w.nodes[w.gpus[j.members[0]].node]
	item := telemetry.InventoryWorkload{
		Ref: j.ref(i, first.Name), Owner: j.spec.Owner, Tenant: j.spec.Owner, Priority: j.spec.Priority,
		State: "waiting", Submitted: w.epoch,
		Requests: telemetry.Requests{
			GPUs: len(j.members), MemoryBytes: int64(j.spec.MemoryGiB * 1024 * mib), Model: first.model.Name,
		},
	}
	if w.elapsed >= time.Duration(j.spec.Start) {
		item.State, item.Start = "running", start
		item.Members = w.members(i)
		if every := time.Duration(j.spec.Checkpoint); every > 0 {
			ran := w.elapsed - time.Duration(j.spec.Start)
			item.Checkpoint = &telemetry.Checkpoint{Last: start.Add(ran - ran%every)}
		}
	}
	if j.spec.Gang {
		item.Gang, item.GangSize = j.spec.Name, len(j.members)
	}
	return item
}

// Numbers that schedulers and kernels would have given out.
func (j *job) slurmID(i int) int    { return 1001 + i }
func (j *job) pid(i int) int        { return 4001 + i }
func (j *job) startTicks() int64    { return time.Duration(j.spec.Start).Milliseconds()/10 + 1 }
func (j *job) process(i int) string { return fmt.Sprintf("%d@%d", j.pid(i), j.startTicks()) }

// ref is the workload's name in its backend.
func (j *job) ref(i int, firstNode string) telemetry.WorkloadRef {
	switch j.spec.Kind {
	case "k8s":
		return telemetry.WorkloadRef(fmt.Sprintf("k8s:%s/Job/%s", j.spec.Owner, j.spec.Name))
	case "slurm":
		return telemetry.WorkloadRef(fmt.Sprintf("slurm:%d", j.slurmID(i)))
	}
	return telemetry.WorkloadRef(fmt.Sprintf("proc:%s/%s", firstNode, j.process(i)))
}

// members lists a job's pods, steps or processes: one on each of its nodes.
func (w *World) members(i int) []telemetry.WorkloadMember {
	j := &w.jobs[i]
	var list []telemetry.WorkloadMember
	for _, g := range j.members {
		node := w.nodes[w.gpus[g].node].Name
		if len(list) == 0 || list[len(list)-1].Node != node {
			list = append(list, telemetry.WorkloadMember{ID: j.member(i, len(list)), Node: node})
		}
		last := &list[len(list)-1]
		last.GPUs = append(last.GPUs, w.ids[g].uuid)
	}
	return list
}

func (j *job) member(i, number int) string {
	switch j.spec.Kind {
	case "k8s":
		return newIdentity(fmt.Sprintf("pod/%s/%s/%d", j.spec.Owner, j.spec.Name, number), 0).uuid[len("GPU-"):]
	case "slurm":
		return fmt.Sprintf("%d.%d", j.slurmID(i), number)
	}
	return j.process(i)
}

// InventorySource tells of the world's nodes and jobs, every minute and as soon
// as a job starts or ends.
type InventorySource struct{ world *World }

// InventorySource returns the world as a source of inventory.
func (w *World) InventorySource() *InventorySource { return &InventorySource{w} }

// Watch calls fn with the present inventory and with each later one, until ctx
// ends. It returns the context's error.
func (s *InventorySource) Watch(ctx context.Context, fn func(telemetry.Inventory)) error {
	poll := time.NewTicker(inventoryPoll)
	defer poll.Stop()
	var sent time.Time
	var generation uint64
	for {
		now := time.Now()
		if inv := s.world.Inventory(now); inv.Generation != generation || now.Sub(sent) >= inventoryPeriod {
			sent, generation = now, inv.Generation
			fn(inv)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
}
