package sim

import "time"

// job is a running workload.
type job struct {
	spec    Job
	shape   Shape
	members []int32 // indices of gpus, ascending

	running  bool
	activity float64 // of this moment's phase

	usefulS    float64 // GPU-seconds of work at full speed
	throttledS float64 // GPU-seconds at a clock lowered for heat
	cappedS    float64 // GPU-seconds at a clock lowered for power
}

// plan finds what the job does at a time.
func (j *job) plan(elapsed time.Duration) {
	j.running = elapsed >= time.Duration(j.spec.Start) &&
		(j.spec.End == 0 || elapsed < time.Duration(j.spec.End))
	j.activity = j.shape.Activity
	if len(j.spec.Phases) == 0 {
		return
	}
	var period time.Duration
	for _, p := range j.spec.Phases {
		period += time.Duration(p.For)
	}
	at := (elapsed - time.Duration(j.spec.Start)) % period
	for _, p := range j.spec.Phases {
		if at < time.Duration(p.For) {
			j.activity = p.Activity
			return
		}
		at -= time.Duration(p.For)
	}
}

// apply loads a member with the job's wants.
func (j *job) apply(g *gpu) {
	if !j.running {
		g.idle()
		return
	}
	g.memoryBytes = uint64(j.spec.MemoryGiB * 1024 * mib)
	if j.activity <= 0 {
		g.activity, g.memoryBusy, g.busyRatio = 0, 0, 0
		return
	}
	g.activity = min(1, max(0.01, j.activity*(1+g.wanderNow)))
	share := min(1, j.activity/j.shape.Activity)
	g.memoryBusy = j.shape.Memory * share
	g.busyRatio = min(1, max(0, j.shape.Busy*(0.4+0.6*share)+0.3*g.wanderNow))
}

// idle takes all load from a GPU.
func (g *gpu) idle() {
	g.activity, g.memoryBusy, g.busyRatio = 0, 0, 0
	g.memoryBytes = 0
	g.rate = 0
}

// progress sets each member's rate of work and books the work done. A gang goes
// at the rate of its slowest member and stands still when one is lost.
func (j *job) progress(gpus []gpu, seconds float64) {
	slowest := 1.0
	for _, m := range j.members {
		g := &gpus[m]
		g.rate = g.speed * g.crowd
		if g.lost {
			g.rate = 0
		}
		slowest = min(slowest, g.rate)
	}
	if !j.running || j.activity <= 0 {
		return
	}
	for _, m := range j.members {
		g := &gpus[m]
		if j.spec.Gang {
			g.rate = slowest
		}
		j.usefulS += g.rate * seconds
		if g.reasons&(reasonSoftThermal|reasonHardThermal) != 0 {
			j.throttledS += seconds
		}
		if g.reasons&reasonPower != 0 {
			j.cappedS += seconds
		}
		share := g.rate * min(1, j.activity/j.shape.Activity)
		g.nvlink += j.shape.NVLinkBps * share * seconds
		g.pcieTx += j.shape.PCIeTxBps * share * seconds
		g.pcieRx += j.shape.PCIeRxBps * share * seconds
	}
}

// JobScore is what became of a job so far.
type JobScore struct {
	Name                string
	UsefulGPUSeconds    float64 // work done, in GPU-seconds at full speed
	ThrottledGPUSeconds float64 // spent at a clock lowered for heat
	CappedGPUSeconds    float64 // spent at a clock lowered for power
}

// Scores returns the scores of all jobs in the scenario's order.
func (w *World) Scores() []JobScore {
	w.mu.Lock()
	defer w.mu.Unlock()
	scores := make([]JobScore, len(w.jobs))
	for i := range w.jobs {
		j := &w.jobs[i]
		scores[i] = JobScore{
			Name:                j.spec.Name,
			UsefulGPUSeconds:    j.usefulS,
			ThrottledGPUSeconds: j.throttledS,
			CappedGPUSeconds:    j.cappedS,
		}
	}
	return scores
}
