package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// lookFirst and lookLast are the pauses between two looks at a workload that
	// is to end; they grow, and the end of a process shortens them.
	lookFirst = 50 * time.Millisecond
	lookLast  = time.Second
	// killLasts bounds how long what gets KILL may take to be gone, releaseLasts
	// how long the devices may take to notice.
	killLasts    = 10 * time.Second
	releaseLasts = 15 * time.Second
	// mostHandles bounds the files held open; of more processes the end is seen
	// at the next look.
	mostHandles = 256
	// mostEver bounds how many processes are kept in mind that have ended.
	mostEver = 4096
)

// watch follows a workload to its end.
type watch struct {
	a         *Agent
	step      string
	p         *preemption
	handles   map[process.ID]*process.Handle
	held      bool                // they have been taken
	seen      map[process.ID]bool // that are in p.Ever or in strangers
	strangers []process.Info      // descendants that are not of the workload
	escaped   []process.Info      // that were of it and run on, and are not ours any more
	killed    map[process.ID]bool
}

func (a *Agent) watch(step string, p *preemption) *watch {
	w := &watch{a: a, step: step, p: p, handles: map[process.ID]*process.Handle{}, seen: map[process.ID]bool{}, killed: map[process.ID]bool{}}
	for _, id := range p.Ever {
		w.seen[id] = true
	}
	return w
}

func (w *watch) close() {
	for _, h := range w.handles {
		h.Close()
	}
	clear(w.handles)
}

// living looks who is left. That nobody is must be seen twice.
func (w *watch) living() ([]process.Info, error) {
	members, err := w.look()
	if err == nil && len(members) == 0 {
		members, err = w.look()
	}
	return members, err
}

// look takes hold of those that are there at first. What they start meanwhile
// may come and go often, and hurries nobody.
func (w *watch) look() ([]process.Info, error) {
	t, err := w.a.o.Processes.Snapshot()
	if err != nil {
		return nil, err
	}
	members, strangers := w.p.Family.Update(t, w.a.cfg.Processes)
	for _, i := range strangers {
		if !w.seen[i.ID] {
			w.seen[i.ID] = true
			w.strangers = append(w.strangers, i)
		}
	}
	w.escapes(t, members)
	grown := false
	for _, i := range members {
		if !w.seen[i.ID] {
			w.seen[i.ID], grown = true, true
			w.p.Ever = append(w.p.Ever, i.ID)
			w.p.Total++
			w.a.claim(w.step, telemetry.Receipt{}, i.ID)
		}
		if !w.held && len(w.handles) < mostHandles {
			if h, _, err := w.a.o.Processes.Open(i.ID); err == nil {
				w.handles[i.ID] = h
			}
		}
	}
	w.held = true
	w.forget(members)
	if grown && !w.p.Since.IsZero() {
		w.keep()
	}
	return members, nil
}

// escapes finds out who has left the workload alive: by a program with the rights
// of another user, say.
func (w *watch) escapes(t process.Table, members []process.Info) {
	in := make(map[int]bool, len(members))
	for _, i := range members {
		in[i.PID] = true
	}
	w.escaped = nil
	for _, id := range w.p.Ever {
		if i, there := t[id.PID]; there && i.ID == id && !in[id.PID] && !i.Dead() {
			w.escaped = append(w.escaped, i)
		}
	}
}

// forget drops those that have ended when they become too many, but for those
// that have held a device.
func (w *watch) forget(members []process.Info) {
	if len(w.p.Ever) <= max(mostEver, 2*len(members)) {
		return
	}
	stay := map[process.ID]bool{}
	for _, i := range members {
		stay[i.ID] = true
	}
	for _, h := range w.p.Held {
		stay[h.ID] = true
	}
	w.p.Ever = slices.DeleteFunc(w.p.Ever, func(id process.ID) bool { return !stay[id] })
}

// keep writes down what is known by now, so that a restart finds them all.
func (w *watch) keep() {
	err := w.a.ledger.signalled(w.step, w.p)
	w.a.ledgerState(err)
}

// each does something to processes that are still the workload's: a process is
// judged anew once it is held.
func (w *watch) each(members []process.Info, do func(*process.Handle, process.Info) error) error {
	var errs []error
	for _, m := range members {
		h, i, err := w.a.o.Processes.Open(m.ID)
		if err == nil {
			if ours, why := w.a.cfg.Processes.Ours(i); !ours || i.UID != w.p.Family.UID {
				err = fmt.Errorf("process %s is no longer ours: %s", m.ID, why)
			} else {
				err = do(h, i)
			}
			h.Close()
		}
		if err != nil && !errors.Is(err, process.ErrGone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ask sends the signal, once, to all that belong to the workload now: the root
// first, so that what starts others learns of it before it sees them go. A
// stopped process takes no notice of a signal until it goes on. An error says
// that no process got the signal.
func (w *watch) ask() error {
	members, err := w.living()
	if err != nil {
		return err
	}
	var stopped []process.Info
	err = w.each(members, func(h *process.Handle, i process.Info) error {
		if err := w.a.o.Processes.Signal(h, w.p.number()); err != nil {
			return err
		}
		w.p.Sent++
		if i.State == "T" {
			stopped = append(stopped, i)
		}
		return nil
	})
	if err != nil && w.p.Sent == 0 {
		return err
	}
	if err := errors.Join(err, w.each(stopped, func(h *process.Handle, _ process.Info) error {
		return w.a.o.Processes.Signal(h, syscall.SIGCONT)
	})); err != nil {
		w.a.log.Warn("not every process was signalled", "step", w.step, "err", err)
	}
	now := time.Now().Round(0)
	w.p.Since, w.p.Until = now, now.Add(time.Duration(w.p.Grace))
	w.keep()
	return nil
}

// outlast waits until none is left or the grace is over. What the workload
// starts meanwhile is its own affair: it may be how it saves its work.
func (w *watch) outlast(grace time.Duration) (left []process.Info, err error) {
	end := time.Now().Add(grace)
	for pause := lookFirst; ; pause = min(2*pause, lookLast) {
		left, err = w.living()
		rest := time.Until(end)
		if err == nil && len(left) == 0 || rest <= 0 || w.a.halted() {
			return left, err
		}
		if w.rest(min(pause, rest)) {
			pause = lookFirst / 2
		}
	}
}

// rest waits, and says whether a process has ended meanwhile.
func (w *watch) rest(wait time.Duration) (ended bool) {
	hs := make([]*process.Handle, 0, len(w.handles))
	for _, h := range w.handles {
		hs = append(hs, h)
	}
	gone := process.Ended(hs, wait)
	for _, h := range gone {
		delete(w.handles, h.ID)
		h.Close()
	}
	return len(gone) > 0
}

// kill ends what is left, and what that has started in the meantime.
func (w *watch) kill() (left []process.Info, err error) {
	end := time.Now().Add(w.a.killWithin)
	for first := true; ; first = false {
		left, err = w.living()
		if err == nil && len(left) == 0 || !time.Now().Before(end) {
			return left, err
		}
		if !first {
			left = w.freeze(left, end)
		}
		denied := w.each(left, func(h *process.Handle, i process.Info) error {
			err := w.a.o.Processes.Signal(h, syscall.SIGKILL)
			w.killed[i.ID] = w.killed[i.ID] || err == nil
			return err
		})
		if err = errors.Join(err, denied); err != nil {
			w.a.log.Warn("kill", "step", w.step, "err", err)
		}
		w.rest(lookFirst)
	}
}

// freeze stops those that have come since others got KILL, until no more come:
// to kill a fork bomb makes room for what it starts, to stop it does not.
func (w *watch) freeze(left []process.Info, end time.Time) []process.Info {
	stopped := map[process.ID]bool{}
	for time.Now().Before(end) {
		fresh := slices.DeleteFunc(slices.Clone(left), func(i process.Info) bool { return w.killed[i.ID] || stopped[i.ID] })
		if len(fresh) == 0 {
			break
		}
		// Whom it does not reach gets KILL all the same, and is heard of then.
		_ = w.each(fresh, func(h *process.Handle, i process.Info) error {
			stopped[i.ID] = true
			return w.a.o.Processes.Signal(h, syscall.SIGSTOP)
		})
		now, err := w.look()
		if err != nil {
			break
		}
		left = now
	}
	return left
}

// seeThrough takes a workload that has been asked to end to its end, whoever
// asked: this run of the agent or a former one.
func (a *Agent) seeThrough(o *telemetry.Order, r telemetry.Receipt, w *watch) telemetry.Receipt {
	grace := time.Duration(w.p.Grace)
	if rest := time.Until(w.p.Until); rest < grace { // a clock that was set back gives no more than was promised
		grace = rest
	}
	left, err := w.outlast(grace)
	took := time.Since(w.p.Since)
	if (err != nil || len(left) > 0) && !a.halted() {
		left, err = w.kill()
	}
	if a.halted() {
		return a.goesOn(r)
	}
	if err != nil || len(left) > 0 {
		return a.settle(o, outcome{receipt: w.remain(r, left, err)})
	}
	return a.released(o, r, w, w.how(took))
}

// released ends an order whose processes have ended, once the devices say so
// too.
func (a *Agent) released(o *telemetry.Order, r telemetry.Receipt, w *watch, how string) telemetry.Receipt {
	still, unknown, err := w.release()
	if a.halted() {
		return a.goesOn(r)
	}
	r.After = measured(len(w.escaped), still)
	how += w.spared()
	switch {
	case err != nil:
		r = fail(r, "%s; whether the devices are released is not known: %v", how, err)
	case len(still) > 0:
		r = fail(r, "%s; not released after %s: %s", how, a.releaseWithin, holdsText(still))
	case unknown != "":
		r = fail(r, "%s; whether it is released is not known of %s", how, unknown)
	default:
		r = done(r, "%s; released: %s", how, some(devicesOf(w.p.Held)))
	}
	return a.settle(o, outcome{receipt: r})
}

// goesOn is the answer of an agent that ends before the workload does. Its next
// run finds the order in the ledger.
func (a *Agent) goesOn(r telemetry.Receipt) telemetry.Receipt {
	r.Result, r.Detail = telemetry.Pending, "the agent stops; its next run goes on with it"
	return r
}

// how says in words how a workload has ended and what else there is to say.
func (w *watch) how(took time.Duration) string {
	p := w.p
	text := fmt.Sprintf("%s of %s (%s): ", count(p.Total), p.Owner, p.What)
	switch {
	case p.Sent == 0:
		text += "ended by themselves"
	case len(w.killed) > 0:
		text += fmt.Sprintf("%s to %d, %d ended within the grace of %s and %d by KILL", p.Signal, p.Sent, p.Total-len(w.killed)-len(w.escaped), time.Duration(p.Grace), len(w.killed))
	case len(w.escaped) > 0:
		text += fmt.Sprintf("%s to %d, %d ended within %s", p.Signal, p.Sent, p.Total-len(w.escaped), took.Round(10*time.Millisecond))
	case took > time.Duration(p.Grace):
		// A former run may have killed, and not have lived to say so.
		text += fmt.Sprintf("%s to %d, all had ended %s later, past the grace of %s", p.Signal, p.Sent, took.Round(10*time.Millisecond), time.Duration(p.Grace))
	default:
		text += fmt.Sprintf("%s to %d, all ended within %s", p.Signal, p.Sent, took.Round(10*time.Millisecond))
	}
	if p.Told != "" {
		text += "; the owner: " + p.Told
	}
	return text
}

// spared says in words who runs on, and why.
func (w *watch) spared() (text string) {
	var parts []string
	for _, i := range w.strangers {
		parts = append(parts, fmt.Sprintf("%d %s of %s", i.PID, i.Name, process.UserName(i.UID)))
	}
	if len(parts) > 0 {
		text = "; left alone: " + some(parts)
	}
	parts = nil
	for _, i := range w.escaped {
		_, why := w.a.cfg.Processes.Ours(i)
		parts = append(parts, fmt.Sprintf("%d %s: %s", i.PID, i.Name, cmp.Or(why, "it has left the workload")))
	}
	if len(parts) > 0 {
		text += "; left alone, since not ours any more: " + some(parts)
	}
	return text
}

// remain is the receipt of processes that cannot be ended.
func (w *watch) remain(r telemetry.Receipt, left []process.Info, err error) telemetry.Receipt {
	var parts []string
	for _, i := range left {
		parts = append(parts, fmt.Sprintf("%d %s (state %s)", i.PID, i.Name, i.State))
	}
	still := holdsText(w.p.Held)
	r.After = measured(len(left), w.p.Held)
	if h, lookErr := w.a.lists.look(); lookErr == nil {
		now := h.by(ids(left), process.Table{})
		r.After, still = measured(len(left), now), holdsText(now)
	}
	r = fail(r, "left %s after KILL: %s, %s; they hold %s", w.a.killWithin, count(len(left)), some(parts), still)
	if err != nil {
		r.Detail += fmt.Sprintf("; %v", err)
	}
	return r
}

// release waits until no device lists a process of the workload. Unknown are the
// devices that it held and that do not say.
func (w *watch) release() (still []holds, unknown string, err error) {
	had := devicesOf(w.p.Held)
	for end := time.Now().Add(w.a.releaseWithin); ; {
		var h holding
		var t process.Table
		h, err = w.a.lists.look()
		if err == nil {
			t, err = w.a.o.Processes.Snapshot()
		}
		if err == nil {
			still, unknown = h.by(w.p.Ever, t), h.notKnown(had)
		}
		if err == nil && len(still) == 0 && unknown == "" || !time.Now().Before(end) || w.a.halted() {
			return still, unknown, err
		}
		time.Sleep(lookFirst * 4)
	}
}

func count(processes int) string {
	if processes == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", processes)
}
