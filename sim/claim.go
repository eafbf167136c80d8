package sim

import (
	"fmt"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/process"
)

// Claim is a process that uses a GPU as a CUDA program would: it holds device
// memory and keeps a share of the work units busy, on top of what the
// scenario's jobs do there.
type Claim struct {
	PID   int
	Start uint64 // of the process, in clock ticks since boot: tells a reused pid apart
	// Share of the GPU's work units, above 0 and at most 1.
	Share       float64
	MemoryBytes uint64
}

func (c Claim) id() process.ID { return process.ID{PID: c.PID, Start: c.Start} }

// GPUClaim is a claim in the process table of a served world.
type GPUClaim struct {
	GPU int
	Claim
	Name string // of the process, "" when it is gone
}

// claimShape is the work of a process that claims a GPU: that of a batch job,
// within the one machine.
var claimShape = Shape{Memory: 0.45, ComputeShare: 0.7}

// held is a claim and where it is.
type held struct {
	Claim
	gpu  int32
	slot int32 // in the table of the shared file, noSlot for others
}

const noSlot = -1

// Claim puts a process on a GPU. A process may claim a GPU several times: the
// claims add up. In a world that runs in real time a claim ends with its
// process; Release ends it before.
func (w *World) Claim(nodeName string, slot int, c Claim) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, slot)
	if err != nil {
		return err
	}
	return w.claim(held{Claim: c, gpu: i, slot: noSlot})
}

func (w *World) claim(h held) error {
	if err := h.check(w.gpus[h.gpu].model); err != nil {
		return err
	}
	w.claims = append(w.claims, h)
	w.weigh(h)
	return nil
}

// check refuses what no process on such a GPU can be.
func (c Claim) check(m *Model) error {
	room := m.MemoryBytes - m.ReservedBytes
	switch {
	case c.PID <= 0:
		return fmt.Errorf("a claim needs the pid of a process, not %d", c.PID)
	case !(c.Share > 0 && c.Share <= 1):
		return fmt.Errorf("a share of %g is not above 0 and at most 1, the whole GPU", c.Share)
	case c.MemoryBytes > room:
		return fmt.Errorf("%.1f GiB do not fit the %.1f GiB that a %s has for programs", gib(c.MemoryBytes), gib(room), m.Name)
	}
	return nil
}

func gib(bytes uint64) float64 { return float64(bytes) / (1024 * mib) }

// Release ends every claim that a process has on a GPU.
func (w *World) Release(nodeName string, slot, pid int, start uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, slot)
	if err != nil {
		return err
	}
	w.release(func(h *held) bool { return h.gpu == i && h.PID == pid && h.Start == start })
	return nil
}

// release ends the claims that are over.
func (w *World) release(over func(*held) bool) {
	for _, h := range w.claims {
		g := &w.gpus[h.gpu]
		g.claimShare, g.claimBytes = 0, 0
	}
	w.claims = slices.DeleteFunc(w.claims, func(h held) bool { return over(&h) })
	for _, h := range w.claims {
		w.weigh(h)
	}
}

func (w *World) weigh(h held) {
	g := &w.gpus[h.gpu]
	g.claimShare += h.Share
	g.claimBytes += h.MemoryBytes
}

// Claims lists the claims on a GPU in the order in which they came.
func (w *World) Claims(nodeName string, slot int) ([]Claim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, slot)
	if err != nil {
		return nil, err
	}
	var list []Claim
	for k := range w.claims {
		if w.claims[k].gpu == i {
			list = append(list, w.claims[k].Claim)
		}
	}
	return list, nil
}

// Reap ends the claims of processes that do not run any more. The world is free
// while it looks.
func (w *World) Reap(runs func(process.ID) bool) {
	w.mu.Lock()
	list := slices.Clone(w.claims)
	w.mu.Unlock()
	var gone []held
	for _, h := range list {
		if !runs(h.id()) {
			gone = append(gone, h)
		}
	}
	if len(gone) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.release(func(h *held) bool { return slices.Contains(gone, *h) })
}

// carry adds the load of the processes that claim the GPU to what its job has
// put there, and returns how much of it all waits for the core. Where they want
// more than there is, each gets its part. A lost GPU does no work for anybody.
func (g *gpu) carry(computeShare float64, k stepFactors) float64 {
	if g.lost {
		return computeShare
	}
	if g.job < 0 {
		g.wanderNow = g.noise.wander(g.wanderNow, activityNoise, k)
	}
	own := g.activity
	g.claimed = min(1, g.claimShare*(1+g.wanderNow))
	want := own + g.claimed
	if want > 1 {
		g.crowd = 1 / want
	}
	g.claimed *= g.crowd
	g.activity = min(1, want)
	g.busyRatio = min(1, g.busyRatio+g.claimed)
	g.memoryBusy = min(1, g.memoryBusy+claimShape.Memory*g.claimed)
	g.memoryBytes = min(g.memoryBytes+g.claimBytes, g.model.MemoryBytes-g.model.ReservedBytes)
	return (own*computeShare + (want-own)*claimShape.ComputeShare) / want
}
