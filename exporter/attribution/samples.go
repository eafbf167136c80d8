package attribution

import (
	"slices"
	"strconv"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var _ exporter.SampleSource = (*Attribution)(nil)

// Put takes one sample.
type put = func(id telemetry.ID, uuid string, value float64, labels ...string)

// Samples tells what is known of allocations and of how devices are shared. It
// implements exporter.SampleSource.
func (a *Attribution) Samples(put put) { a.samples(time.Now(), put) }

func (a *Attribution) samples(now time.Time, put put) {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := false // somebody tells of allocations
	for _, g := range a.sources {
		if !g.seen {
			continue
		}
		put(telemetry.NodeReaderSuccess, "", boolean(g.err == nil), g.name)
		put(telemetry.NodeReaderDuration, "", g.took.Seconds(), g.name)
		if !g.at.IsZero() {
			put(telemetry.NodeAttributionAge, "", max(now.Sub(g.at), 0).Seconds(), g.name)
			put(telemetry.NodeAttributionUnmatched, "", float64(g.unmatched), g.name)
			told = told || now.Sub(g.at) <= keepGrants
		}
	}
	for _, p := range a.passed {
		put(telemetry.NodeGPUPassthroughInfo, "", 1, p.pci, p.device, p.driver)
	}
	for _, d := range a.devices {
		a.ofDevice(d.uuid, d, now, told, put)
	}
	if a.gpus == nil {
		return
	}
	for _, uuid := range a.gpus.byPlace { // those that do not list processes
		if uuid != "" && !slices.ContainsFunc(a.devices, func(d *device) bool { return d.uuid == uuid }) {
			a.ofDevice(uuid, nil, now, told, put)
		}
	}
}

// grantsOf are those of a device that are in force.
func (a *Attribution) grantsOf(uuid string, now time.Time) []grant {
	var list []grant
	for _, g := range a.sources {
		if now.Sub(g.at) > keepGrants {
			continue
		}
		for _, x := range g.list {
			if x.uuid == uuid {
				list = append(list, x)
			}
		}
	}
	return list
}

func (a *Attribution) ofDevice(uuid string, d *device, now time.Time, told bool, put put) {
	grants := a.grantsOf(uuid, now)
	for _, g := range grants[:min(len(grants), maxNamed)] {
		put(telemetry.GPUAllocationInfo, uuid, 1, g.gi, g.kind, g.holder, g.owner)
	}
	if told {
		put(telemetry.GPUAllocations, uuid, float64(len(grants)))
	}
	var s sharing
	for _, g := range grants {
		s.granted(g)
	}
	if d == nil { // who holds it is not known
		s.tell(uuid, put)
		return
	}
	for i, m := range d.holders.Members {
		s.member(m)
		for _, l := range d.limits[i] {
			s.intercept = s.intercept || l.source == "hami"
			if l.memory > 0 {
				put(telemetry.ProcessMemberMemoryLimitBytes, uuid, float64(l.memory), m.GetId(), l.source)
			}
			if l.sm > 0 {
				put(telemetry.ProcessMemberSMLimitRatio, uuid, l.sm, m.GetId(), l.source)
			}
		}
		gi := ""
		if m.HasGi() {
			gi = strconv.FormatUint(uint64(m.GetGi()), 10)
		}
		put(telemetry.ProcessMemberInfo, uuid, 1, m.GetId(), m.GetKind(), m.GetWorkload(), m.GetOwner(), m.GetName(), m.GetPlace(), gi)
		if bytes := m.GetMemoryBytes(); bytes > 0 {
			put(telemetry.ProcessMemberMemoryUsedBytes, uuid, float64(bytes), m.GetId(), gi)
		}
	}
	put(telemetry.GPUSharedBy, uuid, float64(len(s.works)))
	put(telemetry.GPUUseState, uuid, 1, s.state(told))
	s.tell(uuid, put)
}

// sharing is how a device is shared.
type sharing struct {
	works               []string // by workload or, where none is known, member
	holders             []string // of grants
	steps               bool     // Slurm's own processes are on it
	mig, mps, vgpu      bool
	replicas, intercept bool
}

func (s *sharing) granted(g grant) {
	if !slices.Contains(s.holders, g.workload) {
		s.holders = append(s.holders, g.workload)
	}
	s.mig, s.vgpu, s.replicas = s.mig || g.mig, s.vgpu || g.vgpu, s.replicas || g.replica
}

func (s *sharing) member(m *telemetry.Member) {
	s.mig = s.mig || m.HasGi()
	if isMPSServer(m.GetName()) {
		s.mps = true // its memory is its clients'
		return
	}
	s.steps = s.steps || m.GetKind() == kindStep
	work := m.GetWorkload()
	if work == "" {
		work = m.GetId()
	}
	if !slices.Contains(s.works, work) {
		s.works = append(s.works, work)
	}
}

// state tells apart what is given away and what is used. A step of Slurm with a
// context was given the device by Slurm, which says so nowhere on the node.
func (s *sharing) state(told bool) string {
	used, allocated := len(s.works) > 0, len(s.holders) > 0 || s.steps
	switch {
	case allocated && used:
		return "allocated_used"
	case allocated:
		return "allocated_unused"
	case told && used:
		return "unallocated_used"
	case told:
		return "free"
	case used:
		return "used"
	}
	return "unused"
}

func (s *sharing) tell(uuid string, put put) {
	shared := len(s.works) > 1 || len(s.holders) > 1
	for _, m := range []struct {
		mode string
		is   bool
	}{
		{"mig", s.mig}, {"mps", s.mps}, {"vgpu", s.vgpu}, {"intercepted", s.intercept},
		{"time_slicing", !s.mig && !s.mps && !s.vgpu && (shared || s.replicas)},
		{"exclusive", !s.mig && !s.mps && !s.vgpu && !s.intercept && !shared && !s.replicas && len(s.works)+len(s.holders) > 0},
	} {
		if m.is {
			put(telemetry.GPUSharingInfo, uuid, 1, m.mode)
		}
	}
}

// isMPSServer: the kernel keeps 15 bytes of nvidia-cuda-mps-server.
func isMPSServer(name string) bool { return name == "nvidia-cuda-mps" }

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
