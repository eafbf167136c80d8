package sim

import (
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
)

// claimScan is what a server knows of the process table that it serves.
type claimScan struct {
	at    time.Time
	taken [][shmProcesses]Claim // as the world has them; no PID: none
	seen  map[process.ID]bool   // of this scan: a process may hold many slots
}

func (s *claimScan) begin(gpus int) {
	s.taken = make([][shmProcesses]Claim, gpus)
	s.seen = map[process.ID]bool{}
}

// runs looks at a process once a scan.
func (s *claimScan) runs(p process.ID) bool {
	runs, known := s.seen[p]
	if !known {
		runs = process.Runs(p)
		s.seen[p] = runs
	}
	return runs
}

// takeClaims gives the world what the processes of the node claim, and frees
// the slots of those that are gone.
func (s *server) takeClaims(now time.Time) {
	if now.Sub(s.claims.at) < claimPeriod {
		return
	}
	s.claims.at = now
	clear(s.claims.seen)
	for gpu := range s.claims.taken {
		for slot := range shmProcesses {
			s.takeClaim(gpu, slot)
		}
	}
}

func (s *server) takeClaim(gpu, slot int) {
	p, taken := &s.file.world.Device[gpu].Processes[slot], &s.claims.taken[gpu][slot]
	kind := atomic.LoadUint32(&p.Kind)
	if kind&shmWriting != 0 && !writerRuns(kind) {
		atomic.CompareAndSwapUint32(&p.Kind, kind, 0)
	}
	c, ok := p.read()
	running := ok && s.claims.runs(c.id())
	if running && c == *taken {
		return
	}
	if taken.PID != 0 {
		s.log.Info("claim ended", "node", s.node, "gpu", gpu, "pid", taken.PID)
		s.world.releaseSlot(s.node, gpu, slot)
		*taken = Claim{}
	}
	if running {
		err := s.world.claimSlot(s.node, gpu, slot, c)
		if err == nil {
			s.log.Info("claim", "node", s.node, "gpu", gpu, "pid", c.PID, "share", c.Share, "memory_gib", gib(c.MemoryBytes))
			*taken = c
			return
		}
		s.log.Warn("claim refused by the world", "node", s.node, "gpu", gpu, "pid", c.PID, "err", err)
	}
	if ok {
		atomic.CompareAndSwapUint32(&p.Kind, kind, 0)
	}
}

// claimSlot and releaseSlot are Claim and Release for a slot of the table.
func (w *World) claimSlot(nodeName string, gpu, slot int, c Claim) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, err := w.find(nodeName, gpu)
	if err != nil {
		return err
	}
	return w.claim(held{Claim: c, gpu: i, slot: int32(slot)})
}

func (w *World) releaseSlot(nodeName string, gpu, slot int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i, err := w.find(nodeName, gpu); err == nil {
		w.release(func(h *held) bool { return h.gpu == i && h.slot == int32(slot) })
	}
}
