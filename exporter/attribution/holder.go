package attribution

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Kinds of members.
const (
	kindProc    = "proc"    // the node's agent may act on it
	kindPod     = "pod"     // Kubernetes'
	kindStep    = "step"    // of a job of Slurm
	kindUnknown = "unknown" // nobody's
)

const (
	// unseenAfter is how long a process that /proc does not show must be listed
	// to be somebody's out of sight; before, it may just have ended.
	unseenAfter = time.Second
	// A process is read again soon after the first time, since it may just have
	// been becoming another program, and later as often as the second says.
	againAfter, againEvery = 5 * time.Second, time.Minute
)

// holder is a process that holds a device, be it several.
type holder struct {
	process.ID
	handle *process.Handle // nil where the kernel has none for it
	unseen bool            // /proc does not show it

	identity
	version  uint64 // grows when it is known as another
	nameless bool   // of its pod the UID alone is known
	limits   []limit

	first, again time.Time
	wanted       bool // some device has been found to list it, in this look
}

// identity is what a member says of a process.
type identity struct {
	id, kind, workload, owner, name, why, place string
	comm                                        string // the process's own name
}

// source is what one member, or one process of it, is made from.
type source struct {
	holder   *holder
	version  uint64
	memory   uint64
	instance uint32
}

// sameWho says that two differ in what they use at most.
func sameWho(a, b source) bool {
	return a.holder == b.holder && a.version == b.version && a.instance == b.instance
}

// maxProcesses bounds the processes that are looked at on one device.
const maxProcesses = 1024

// device brings the holders of a device up to its last list.
func (a *Attribution) device(d *device) {
	d.next = d.next[:0]
	for i := range d.list {
		if len(d.next) == maxProcesses {
			break
		}
		p := &d.list[i]
		h := a.holder(p.PID)
		if h == nil {
			continue
		}
		h.wanted = true
		if h.unseen && d.at.Sub(h.first) < unseenAfter {
			continue
		}
		d.next = append(d.next, source{h, h.version, p.MemoryBytes, p.Instance})
	}
	if d.holders.Version == 0 || !slices.Equal(d.next, d.from) {
		a.publish(d)
	}
}

// join makes one of what belongs to the same member on the same instance.
func join(to, all []source) []source {
	to = to[:0]
	for _, s := range all {
		i := slices.IndexFunc(to, func(t source) bool { return t.holder.id == s.holder.id && t.instance == s.instance })
		switch {
		case i >= 0:
			to[i].memory += s.memory
		case len(to) < exporter.MaxMembers:
			to = append(to, s)
		}
	}
	return to
}

// publish makes the members anew that have changed.
func (a *Attribution) publish(d *device) {
	d.make = join(d.make, d.next)
	now := exporter.Holders{
		Members:   make([]*telemetry.Member, len(d.make)),
		Why:       make([]string, len(d.make)),
		Processes: make([]exporter.Held, min(len(d.next), exporter.MaxMembers)),
		Version:   d.holders.Version,
	}
	limits := make([][]limit, len(d.make))
	for i, s := range d.make {
		now.Why[i], limits[i] = s.holder.why, of(s.holder.limits, d.uuid)
		if same := slices.Index(d.made, s); same >= 0 {
			now.Members[i] = d.holders.Members[same]
		} else {
			now.Members[i] = s.member()
		}
	}
	for i := range now.Processes {
		s := d.next[i]
		now.Processes[i] = exporter.Held{PID: s.holder.PID, Name: s.holder.comm, MemoryBytes: s.memory}
	}
	if now.Version == 0 || !slices.EqualFunc(d.make, d.made, sameWho) {
		now.Version++
	}
	d.from, d.next = d.next, d.from
	d.made, d.make = d.make, d.made
	a.mu.Lock()
	d.holders, d.limits = now, limits
	a.mu.Unlock()
}

func (s source) member() *telemetry.Member {
	m, h := &telemetry.Member{}, s.holder
	m.SetId(h.id)
	m.SetKind(h.kind)
	m.SetWorkload(h.workload)
	m.SetOwner(h.owner)
	m.SetName(h.name)
	m.SetPlace(h.place)
	m.SetMemoryBytes(s.memory)
	if s.instance != exporter.NoInstance {
		m.SetGi(s.instance)
	}
	return m
}

// holder is the process that has a pid now; nil if there is none.
func (a *Attribution) holder(pid int) *holder {
	h := a.known[pid]
	if h != nil && h.wanted {
		return h // another device lists it too
	}
	if h != nil && !h.unseen && a.gone(h) {
		a.forget(pid)
		h = nil
	}
	if h == nil {
		h = &holder{ID: process.ID{PID: pid}, unseen: true, first: a.now}
		a.known[pid] = h
	}
	if a.now.Before(h.again) {
		return h
	}
	switch err := a.read(h); {
	case err == nil:
		h.again = a.now.Add(againEvery)
		if h.first.Equal(a.now) || h.nameless {
			h.again = a.now.Add(againAfter)
		}
	case errors.Is(err, errEnded), errors.Is(err, process.ErrGone) && !h.unseen:
		a.forget(pid)
		return nil
	case errors.Is(err, process.ErrGone):
		h.become(a.outOfSight(pid))
	default:
		a.fail(err)
		if h.unseen {
			h.become(a.outOfSight(pid))
		}
	}
	return h
}

// gone says that a process known has ended. One that cannot be asked about is
// taken to be there.
func (a *Attribution) gone(h *holder) bool {
	if h.handle != nil {
		return !h.handle.Runs()
	}
	i, err := a.opt.Proc.Read(h.PID)
	return errors.Is(err, process.ErrGone) || err == nil && (i.ID != h.ID || i.Dead())
}

// errEnded says that nothing of a process runs any more.
var errEnded = errors.New("it has ended")

// read finds out all about a process.
func (a *Attribution) read(h *holder) error {
	table, err := a.opt.Proc.Line(h.PID)
	if err != nil {
		return err
	}
	i := table[h.PID]
	if i.Dead() {
		return errEnded
	}
	if h.unseen {
		// From here on the pid is this process's, or the handle says that it ended.
		// Without one, each look asks /proc.
		if h.handle, _, err = a.opt.Proc.Open(i.ID); errors.Is(err, process.ErrGone) {
			return errEnded
		}
		h.ID, h.unseen = i.ID, false
	}
	if i.ID != h.ID {
		return process.ErrGone
	}
	ours, why := table.Ours(i, a.rules.Rules)
	if !ours && a.rules.err != nil {
		why = a.rules.err.Error()
	}
	place := process.PlaceOf(i.Cgroups)
	now := identity{
		id: a.memberID(h.ID), kind: kindUnknown, owner: process.UserName(i.UID), name: exporter.CleanLabel(i.Name), why: why,
		place: exporter.CleanLabel(place.String()), comm: exporter.CleanLabel(i.Name),
	}
	job, step, ok := place.Job, place.Step, place.Job != ""
	if !ok && place.Pod == "" {
		job, step, ok = a.opt.Proc.Step(table, h.PID)
	}
	h.nameless = false
	switch {
	case place.Pod != "":
		h.nameless = !a.ofPod(&now, place.Pod)
	case ok:
		a.ofStep(&now, h.PID, job, step)
	}
	if root, ok := table.Root(h.PID, a.rules.Rules); ok && ours {
		now.kind, now.workload = kindProc, process.Ref(a.opt.Node, root)
	}
	limits := a.limitsOf(h.PID)
	if !slices.Equal(limits, h.limits) {
		h.limits = limits
		h.version++
	}
	h.become(now)
	return nil
}

func (a *Attribution) memberID(id process.ID) string { return id.String() + "+" + a.boot }

// outOfSight is what can be said of a process that lives elsewhere, as beyond
// the container that this one runs in.
func (a *Attribution) outOfSight(pid int) identity {
	return identity{
		id: a.memberID(process.ID{PID: pid}), kind: kindUnknown,
		why: fmt.Sprintf("process %d cannot be seen from here; in a container, run with the host's pid namespace", pid),
	}
}

func (h *holder) become(now identity) {
	if h.identity != now {
		h.identity = now
		h.version++
	}
}

func (a *Attribution) forget(pid int) {
	if h := a.known[pid]; h.handle != nil {
		h.handle.Close()
	}
	delete(a.known, pid)
}
