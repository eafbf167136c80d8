package exporter

import (
	"context"
	"strconv"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Members tells whose the processes are that devices list. It looks at them on
// a goroutine of its own: the other methods never wait for that, but Settle.
type Members interface {
	// Run looks at what is listed until ctx ends.
	Run(ctx context.Context)
	// Listed takes what a device lists, each time it was asked. The list is the
	// caller's again after the call.
	Listed(uuid string, list []Process)
	// Of is who holds a device, by the last list that was looked at.
	Of(uuid string) Holders
	// Settle waits until all that was listed has been looked at, or ctx ends.
	Settle(ctx context.Context)
	// Err is what it could not find out at its last look.
	Err() error
}

// Holders is who holds a device.
type Holders struct {
	// Members are in the order of their pids. Neither they nor the list change
	// any more.
	Members []*telemetry.Member
	// Version grows when others hold the device or they are known as others.
	Version uint64
	// Why says, beside each member, for what reason it is the agent's to act on
	// or is not.
	Why []string
	// Processes are those behind the members, in the order of their pids.
	Processes []Held
}

// Held is a process that holds a device.
type Held struct {
	PID         int
	Name        string
	MemoryBytes uint64
}

// MaxMembers bounds the members of one device; those with the lowest pids are
// named.
const MaxMembers = 64

// readerMembers is the name under which success of Members is told.
const readerMembers = "members"

// tell hands over what the devices have listed since, and says whether the
// holders of any have changed.
func (e *Exporter) tell() (changed bool) {
	if e.opt.Members == nil {
		return false
	}
	for _, g := range e.gpus {
		if s := g.front; g.got && s.listed && s.link.rounds != g.toldLink {
			g.toldLink = s.link.rounds
			e.opt.Members.Listed(g.uuid, s.processes)
		}
	}
	return e.holders()
}

// holders takes what is known of the devices' holders.
func (e *Exporter) holders() (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.gpus {
		h := e.opt.Members.Of(g.uuid)
		changed = changed || h.Version != g.holders.Version
		g.holders = h
	}
	return changed
}

// fillProcesses fills the series of who holds a device.
func (x *exposition) fillProcesses(e *Exporter) {
	count, memory := x.family(telemetry.GPUProcesses), x.family(telemetry.ProcessMemoryBytes)
	for _, g := range e.gpus {
		if g.up && g.front.listed {
			count.put(x.metric(count, g.uuid), float64(len(g.front.processes)))
		}
		for _, p := range g.holders.Processes {
			if g.up && p.MemoryBytes > 0 { // 0: the driver does not tell
				memory.put(x.metric(memory, g.uuid, strconv.Itoa(p.PID), p.Name), float64(p.MemoryBytes))
			}
		}
	}
}
