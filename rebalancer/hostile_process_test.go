package rebalancer_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// hostProcess is a process tree on a node of the hostile fleet.
type hostProcess struct {
	node        string
	pid         int
	gpus        []string
	watts       float64
	owner, name string
	kind        string
	begun       time.Time
	// deaf ends on KILL alone, stuck not even then.
	deaf, stuck, over bool
	told              int
	ends              time.Time // by itself or on the signal; zero: not yet
}

func (p *hostProcess) ref() telemetry.WorkloadRef {
	return telemetry.WorkloadRef(fmt.Sprintf("proc:%s/%d@%d", p.node, p.pid, 10*p.pid))
}

func (p *hostProcess) member() cluster.Member {
	return cluster.Member{ID: fmt.Sprintf("%d@%d+%s", p.pid, 10*p.pid, bootID), Kind: p.kind, Workload: p.ref(), Owner: p.owner, Name: p.name}
}

// hostEnding is an ending that an agent has begun.
type hostEnding struct {
	step    telemetry.Step
	process *hostProcess
	until   time.Time // of the grace
}

// shownWork is what a View shows of a process tree, by which an act on it can be
// judged.
type shownWork struct {
	gpus   []string
	ours   bool // all members are of the kind that may be ended
	job    telemetry.InventoryWorkload
	age    time.Duration
	lowest map[string]int // by GPU, the lowest priority of a workload there
	nodes  []string       // of its GPUs
}

// spawn begins a process on one or two GPUs of a node.
func (h *hostile) spawn() *hostProcess {
	n := h.nodes[h.rng.IntN(len(h.nodes))]
	var here []string
	for _, g := range h.gpus {
		if g.node == n.name {
			here = append(here, g.uuid)
		}
	}
	slices.Sort(here)
	h.rng.Shuffle(len(here), func(i, j int) { here[i], here[j] = here[j], here[i] })
	h.pids++
	p := &hostProcess{node: n.name, pid: h.pids, gpus: here[:min(1+h.rng.IntN(2), len(here))], watts: 100 + 400*h.rng.Float64(), kind: cluster.KindProcess, begun: h.now,
		owner: []string{"ada", "bob", ""}[h.rng.IntN(3)], name: fmt.Sprintf("job%d", h.rng.IntN(12)), deaf: h.rng.IntN(3) == 0, stuck: h.rng.IntN(6) == 0 || h.stubborn}
	if h.rng.IntN(8) == 0 {
		p.kind = "unknown"
	}
	h.processes = append(h.processes, p)
	if w, ok := h.inventoryOf(p); ok {
		h.jobs = append(h.jobs, w)
	}
	return p
}

// inventoryOf is what somebody says of a process, if anybody does.
func (h *hostile) inventoryOf(p *hostProcess) (telemetry.InventoryWorkload, bool) {
	w := telemetry.InventoryWorkload{Ref: p.ref(), Owner: p.owner, Members: []telemetry.WorkloadMember{{ID: p.member().ID, Node: p.node, GPUs: p.gpus}}}
	switch h.rng.IntN(20) {
	case 0:
		w.OptOut = []string{[]string{"preempt", "all"}[h.rng.IntN(2)]}
	case 1:
		w.Priority = 1 + h.rng.IntN(3)
	case 2:
		w.Priority = -1
	case 3:
		w.MinRunTime, w.Start = telemetry.Duration(2*time.Minute), h.now
	case 4:
		w.Gang, w.GangSize = "g", 3
	case 5:
		w.Ref, w.Priority = telemetry.WorkloadRef(fmt.Sprintf("slurm:%d", 100+p.pid)), 1 // its scheduler's after all
	case 6:
		w.Members = append(w.Members, telemetry.WorkloadMember{ID: "elsewhere", Node: "n9", GPUs: []string{h.gpus[h.rng.IntN(len(h.gpus))].uuid}})
	case 7:
		w.LocalData = true
	case 8:
		w.Checkpoint = &telemetry.Checkpoint{Signal: "USR1", Grace: telemetry.Duration(1+h.rng.IntN(60)) * telemetry.Duration(time.Second), Last: h.now}
	default:
		return w, false
	}
	return w, true
}

// draws is what a device draws: its own load and its processes', under its limit.
func (h *hostile) draws(g *hostGPU) float64 {
	load := g.load
	for _, p := range h.processes {
		if p.on(g) {
			load += p.watts
		}
	}
	return min(load, g.limit)
}

func (p *hostProcess) on(g *hostGPU) bool {
	return !p.over && p.node == g.node && slices.Contains(p.gpus, g.uuid)
}

func (h *hostile) membersOf(g *hostGPU) []cluster.Member {
	var out []cluster.Member
	for _, p := range h.processes {
		if p.on(g) {
			out = append(out, p.member())
		}
	}
	return out
}

// lives lets processes come, go and change.
func (h *hostile) lives() {
	alive := 0
	for _, p := range h.processes {
		if !p.over && !p.ends.IsZero() && !h.now.Before(p.ends) {
			p.over = true
		}
		if !p.over {
			alive++
		}
	}
	switch {
	case alive < 6 && h.chance(4):
		h.spawn()
	case alive > 0 && h.chance(60):
		h.processes[h.rng.IntN(len(h.processes))].ends = h.now
	case len(h.processes) > 0 && h.chance(80):
		p := h.processes[h.rng.IntN(len(h.processes))]
		p.kind = map[string]string{"unknown": cluster.KindProcess, cluster.KindProcess: "unknown"}[p.kind]
	}
	h.jobs = slices.DeleteFunc(h.jobs, func(w telemetry.InventoryWorkload) bool {
		return len(w.Members) > 0 && slices.ContainsFunc(h.processes, func(p *hostProcess) bool { return p.over && p.member().ID == w.Members[0].ID })
	})
}

func (h *hostile) processOf(ref telemetry.WorkloadRef) *hostProcess {
	i := slices.IndexFunc(h.processes, func(p *hostProcess) bool { return p.ref() == ref })
	if i < 0 {
		return nil
	}
	return h.processes[i]
}

// endIt is what an agent makes of the order to end a process.
func (h *hostile) endIt(a *hostAgent, s telemetry.Step, r *telemetry.Receipt) {
	i := slices.IndexFunc(h.processes, func(p *hostProcess) bool {
		return p.node == a.node && p.pid == s.Target.PID && uint64(10*p.pid) == s.Target.PIDStart && !p.over
	})
	switch {
	case i < 0:
		r.Result, r.Detail = telemetry.Done, "was gone already"
	case h.chance(15):
		r.Why = telemetry.RefuseBusy
	case h.processes[i].kind != cluster.KindProcess:
		r.Why = telemetry.RefuseNotOurs
	default:
		p := h.processes[i]
		p.told++
		h.effects[s.ID]++
		h.onEffect(s)
		if !p.deaf && !p.stuck {
			p.ends = h.soon(min(20, max(1, int(time.Duration(s.Params.Grace).Seconds()))))
		}
		r.Result = telemetry.Pending
		a.endings[s.ID] = &hostEnding{s, p, h.now.Add(time.Duration(s.Params.Grace))}
	}
}

// endings brings what an agent has begun to its end, as far as it is there.
func (a *hostAgent) finish(h *hostile) {
	if h.now.Before(a.down) || h.endless {
		return
	}
	for id, e := range a.endings {
		if !e.process.over && h.now.Before(e.until) {
			continue
		}
		r := a.ledger[id]
		r.Ended, r.Result, r.Detail = h.now, telemetry.Done, "ended and released"
		if e.process.stuck && !e.process.over {
			r.Result, r.Detail = telemetry.Failed, "still there after KILL"
		} else {
			e.process.over = true
		}
		if h.rng.IntN(4) == 0 { // a new run of the agent saw it through
			r.Spontaneous = true
		}
		delete(a.endings, id)
		if a.ledger[id] = r; !h.ledgers {
			delete(a.ledger, id)
		}
		h.publish(r)
	}
}

// seeWork notes what a View shows of the processes.
func (h *hostile) seeWork(nodes []*cluster.Node) {
	h.shownWork = map[telemetry.WorkloadRef]*shownWork{}
	taken := map[string]telemetry.WorkloadRef{} // members that an inventory gives to another
	for _, j := range h.jobs {
		for _, m := range j.Members {
			taken[m.ID] = j.Ref
		}
	}
	lowest := map[string]int{}
	low := func(uuid string, priority int) {
		if old, ok := lowest[uuid]; !ok || priority < old {
			lowest[uuid] = priority
		}
	}
	for _, n := range nodes {
		for _, g := range n.GPUs {
			for _, m := range g.Members {
				ref := m.Workload
				if by, ok := taken[m.ID]; ok {
					ref = by
				}
				w := h.shownWork[ref]
				if w == nil {
					w = &shownWork{ours: true, lowest: lowest}
					h.shownWork[ref] = w
				}
				w.gpus = append(w.gpus, g.UUID)
				w.ours = w.ours && m.Kind == cluster.KindProcess && ref.Kind() == cluster.KindProcess
			}
		}
	}
	for _, j := range h.jobs {
		w := h.shownWork[j.Ref]
		if w == nil {
			w = &shownWork{lowest: lowest} // nobody sees it
			h.shownWork[j.Ref] = w
		}
		w.job, w.age = j, h.now.Sub(j.Start)
		for _, m := range j.Members {
			for _, uuid := range m.GPUs {
				if !slices.Contains(w.gpus, uuid) {
					w.gpus = append(w.gpus, uuid)
				}
			}
		}
	}
	for _, w := range h.shownWork {
		for _, uuid := range w.gpus {
			w.nodes = append(w.nodes, h.gpu(uuid).node)
			if w.ours || w.job.Ref != "" {
				low(uuid, w.job.Priority)
			}
		}
	}
}
