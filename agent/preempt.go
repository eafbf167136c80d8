package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// signals are those that may ask processes to end; what is left after the grace
// gets KILL whichever it was.
var signals = []struct {
	name   string
	number syscall.Signal
}{{"TERM", syscall.SIGTERM}, {"INT", syscall.SIGINT}, {"HUP", syscall.SIGHUP}, {"USR1", syscall.SIGUSR1}, {"USR2", syscall.SIGUSR2}}

// Keys of a preemption in a receipt's Before and After.
const (
	processesKey = "processes"           // of the workload, living
	holdersKey   = "holders"             // of them, each on each device
	memoryKey    = "device_memory_bytes" // that they hold there
)

// preemption is the end of a workload under way, as the ledger keeps it.
type preemption struct {
	BootID string         `json:"boot_id"`
	Family process.Family `json:"family"`
	// Ever are the processes that have been part of it since the order came, Total
	// how many that were.
	Ever   []process.ID       `json:"ever"`
	Total  int                `json:"total"`
	Owner  string             `json:"owner"`
	What   string             `json:"what"`
	Held   []holds            `json:"held"`
	Signal string             `json:"signal"`
	Grace  telemetry.Duration `json:"grace"`
	// Told says whether and how the owner was.
	Told string `json:"told,omitempty"`
	// Sent is how many processes the signal was sent to.
	Sent int `json:"sent,omitempty"`
	// Since is when the signal had been sent, Until when the grace ends.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

func (p *preemption) number() syscall.Signal {
	for _, s := range signals {
		if s.name == p.Signal {
			return s.number
		}
	}
	return syscall.SIGTERM
}

// preempt ends a workload: it is asked to, given a grace, killed, and seen to
// have left its devices. It may take minutes.
func (a *Agent) preempt(o *telemetry.Order, r telemetry.Receipt) telemetry.Receipt {
	root := process.ID{PID: o.Target.PID, Start: o.Target.PIDStart}
	if end := a.claim(o.ID, r, root); end != nil {
		return a.settle(o, outcome{receipt: *end})
	}
	defer a.unclaim(o.ID)
	p, members, end := a.plan(o, &r, root)
	if end == nil {
		// What is left of a workload whose root has ended looks like one of its own.
		end = a.claim(o.ID, r, p.Ever...)
	}
	if end != nil {
		return a.settle(o, outcome{receipt: *end})
	}
	if o.DryRun {
		return done(r, "would send %s to %s of %s (%s), which hold %s, and KILL after %s to what is left", p.Signal, count(len(members)), p.Owner, p.What, holdsText(p.Held), time.Duration(p.Grace))
	}
	p.Told = a.tellOwner(o, p, members)
	if err := a.ledger.begin(o.ID, p); err != nil {
		a.ledgerState(err)
		return a.settle(o, outcome{receipt: fail(r, "no process was signalled: %v; the owner: %s", err, p.Told)})
	}
	w := a.watch(o.ID, p)
	defer w.close()
	if err := w.ask(); err != nil {
		return a.settle(o, outcome{receipt: fail(r, "no process was signalled: %v; the owner: %s", err, p.Told)})
	}
	return a.seeThrough(o, r, w)
}

// claim lets one step at a time end a process, or says which one does.
func (a *Agent) claim(step string, r telemetry.Receipt, ids ...process.ID) *telemetry.Receipt {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		if by, taken := a.ending[id]; taken && by != step {
			r = refuse(r, telemetry.RefuseBusy, "step %s is ending process %s already", by, id)
			return &r
		}
	}
	for _, id := range ids {
		a.ending[id] = step
	}
	return nil
}

// unclaim lets go of all that a step has claimed.
func (a *Agent) unclaim(step string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.ending, func(_ process.ID, by string) bool { return by == step })
}

// plan finds out all that must be known before anything is done, or how the
// order ends without.
func (a *Agent) plan(o *telemetry.Order, r *telemetry.Receipt, root process.ID) (p *preemption, members []process.Info, end *telemetry.Receipt) {
	if end = a.checkPreempt(o, *r); end != nil {
		return nil, nil, end
	}
	if o.Target.BootID != a.bootID {
		x := done(*r, "was gone already: the node has restarted since process %s was seen", root)
		return nil, nil, &x
	}
	table, err := a.o.Processes.Snapshot()
	if err != nil {
		x := refuse(*r, telemetry.RefuseNoTarget, "the processes of the node cannot be read: %v", err)
		return nil, nil, &x
	}
	family, end := a.workload(table, *r, root)
	if end != nil {
		return nil, nil, end
	}
	members, _ = family.Update(table, a.cfg.Processes)
	if len(members) == 0 {
		return nil, nil, a.goneAlready(*r, table, root)
	}
	p = &preemption{BootID: a.bootID, Family: *family, Ever: ids(members), Total: len(members), Owner: process.UserName(family.UID), What: listed(members),
		Signal: "TERM", Grace: telemetry.Duration(a.cfg.Grace)}
	if o.Params.Signal != "" {
		p.Signal = o.Params.Signal
	}
	if o.Params.Grace > 0 {
		p.Grace = o.Params.Grace
	}
	if end = a.whatItHolds(r, p, table); end != nil {
		return nil, nil, end
	}
	return p, members, a.maySignal(*r, members[0].ID)
}

// checkPreempt is what the order itself must bring.
func (a *Agent) checkPreempt(o *telemetry.Order, r telemetry.Receipt) *telemetry.Receipt {
	no := func(why telemetry.RefuseReason, format string, args ...any) *telemetry.Receipt {
		r := refuse(r, why, format, args...)
		return &r
	}
	var names []string
	for _, s := range signals {
		names = append(names, s.name)
	}
	grace := time.Duration(o.Params.Grace)
	switch {
	case a.lists == nil:
		return no(telemetry.RefuseUnsupported, "this agent cannot see who holds a device, so it ends no process")
	case o.Target.PID <= 0 || o.Target.PIDStart == 0 || o.Target.BootID == "":
		return no(telemetry.RefuseMalformed, "a process is a pid, its start and the boot id; the order lacks one")
	case o.Params.Signal != "" && !slices.Contains(names, o.Params.Signal):
		return no(telemetry.RefuseMalformed, "%q is no signal that asks a process to end; there are %s", o.Params.Signal, strings.Join(names, ", "))
	case grace < 0:
		return no(telemetry.RefuseMalformed, "a grace of %s", grace)
	case grace > a.cfg.MaxGrace:
		// A shorter one than announced could cost the workload what it meant to save.
		return no(telemetry.RefuseLimit, "a grace of %s is above %s, this agent's longest (limits.max_grace)", grace, a.cfg.MaxGrace)
	}
	return nil
}

// workload is the one whose root is named, if it is ours to end.
func (a *Agent) workload(t process.Table, r telemetry.Receipt, root process.ID) (*process.Family, *telemetry.Receipt) {
	no := func(why telemetry.RefuseReason, format string, args ...any) (*process.Family, *telemetry.Receipt) {
		r := refuse(r, why, format, args...)
		return nil, &r
	}
	i, there := t[root.PID]
	switch {
	case !there:
		return nil, a.goneAlready(r, t, root)
	case i.ID != root:
		return no(telemetry.RefuseNoTarget, "process %s has ended; its pid is now %s (%s), which is another process and is left alone", root, i.ID, i.Name)
	case i.Dead():
		return process.Follow(i), nil // what it has left behind is judged one by one
	}
	if ours, why := t.Ours(i, a.cfg.Processes); !ours {
		return no(telemetry.RefuseNotOurs, "process %s (%s of %s) is not ours: %s", root, i.Name, process.UserName(i.UID), why)
	}
	if top, ok := t.Root(root.PID, a.cfg.Processes); !ok || top != root {
		return no(telemetry.RefuseNoTarget, "process %s (%s) is a part of the workload of %s (%s); name that one", root, i.Name, top, t[top.PID].Name)
	}
	return process.Follow(i), nil
}

// goneAlready is the end of an order whose process has ended.
func (a *Agent) goneAlready(r telemetry.Receipt, t process.Table, root process.ID) *telemetry.Receipt {
	h, err := a.lists.look()
	still, kin := h.by([]process.ID{root}, t), h.by(leftBy(root, t), t)
	switch {
	case err != nil:
		r = fail(r, "process %s was gone already; whether a device is still held is not known: %v", root, err)
	case len(still) > 0:
		r = fail(r, "process %s was gone already, and still listed is %s", root, holdsText(still))
	case len(kin) > 0:
		r = fail(r, "process %s was gone already, and what it has left in its group or session holds %s; name that", root, holdsText(kin))
	default:
		r = done(r, "process %s was gone already, and holds no device", root)
		if unknown := h.notKnown(nil); unknown != "" {
			r.Detail += "; not known of " + unknown
		}
	}
	return &r
}

// leftBy are those in the group or session of a process that has ended. The
// kernel gives the number to nobody while they are there.
func leftBy(root process.ID, t process.Table) (ids []process.ID) {
	if _, another := t[root.PID]; another {
		return nil
	}
	for _, i := range t {
		if (i.Group == root.PID || i.Session == root.PID) && i.Start >= root.Start && !i.Dead() {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// whatItHolds fills in what the workload holds. What holds nothing is not
// ended: there is nothing to gain by it.
func (a *Agent) whatItHolds(r *telemetry.Receipt, p *preemption, t process.Table) *telemetry.Receipt {
	h, err := a.lists.look()
	if err != nil {
		x := refuse(*r, telemetry.RefuseNoTarget, "who holds the devices is not known: %v", err)
		return &x
	}
	p.Held = h.by(p.Ever, t)
	r.Before = measured(len(p.Ever), p.Held)
	unknown := h.notKnown(nil)
	switch {
	case len(p.Held) > 0:
		return nil
	case unknown != "":
		x := refuse(*r, telemetry.RefuseNoTarget, "no device that answers lists a process of this workload (%s), and others do not answer: %s", p.What, unknown)
		return &x
	}
	x := done(*r, "holds no device, so nothing was ended: %s", p.What)
	x.After = x.Before
	return &x
}

// maySignal tries, without effect, whether the kernel would let us.
func (a *Agent) maySignal(r telemetry.Receipt, id process.ID) *telemetry.Receipt {
	h, _, err := a.o.Processes.Open(id)
	if err == nil {
		defer h.Close()
		err = a.o.Processes.Signal(h, 0)
	}
	if err == nil || errors.Is(err, process.ErrGone) {
		return nil
	}
	r = refuse(r, telemetry.RefuseUnsupported, "this agent cannot signal the workload: %v; it must run as root or with CAP_KILL", err)
	return &r
}

// measured is a workload in numbers, for Before and After.
func measured(processes int, held []holds) map[string]float64 {
	m := map[string]float64{processesKey: float64(processes), holdersKey: float64(len(held))}
	for _, h := range held {
		if h.Memory > 0 {
			m[memoryKey] += float64(h.Memory)
		}
	}
	return m
}

func ids(all []process.Info) (out []process.ID) {
	for _, i := range all {
		out = append(out, i.ID)
	}
	return out
}

// listed says in words which processes.
func listed(all []process.Info) string {
	var parts []string
	for _, i := range all {
		parts = append(parts, fmt.Sprintf("%d %s", i.PID, i.Name))
	}
	return some(parts)
}
