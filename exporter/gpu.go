package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// gpu is one device, from the first time it was seen until the process ends: a
// GPU that drops out is down, not forgotten.
type gpu struct {
	uuid     string
	id       Identity
	known    bool // id was read from the device
	device   Device
	opens    uint64 // start of the driver that device belongs to
	findErr  error  // of its enumeration
	worker   *worker
	front    *sample
	got      bool // front holds a sample
	missed   int  // ticks without an answer
	up, lost bool
	hung     callID
	hungFor  time.Duration
	sentLink uint64
	toldLink uint64 // link round whose processes Members was told
	holders  Holders
	sentSlow uint64
	want     due
	revived  uint64 // times it came back after it was lost
	logged   string
	told     condition
	nudged   bool // the driver said something of it that is read

	recovery      float64
	recoveryKnown bool
}

// generation grows when the device's counters may have begun anew.
func (g *gpu) generation() uint64 { return g.opens + g.revived }

// follow takes a change of the driver's state into the list of GPUs.
func (e *Exporter) follow(s driverState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.up != e.state.up || s.fault != e.state.fault {
		e.changed = true
	}
	e.state = s
	if s.version == e.version {
		return
	}
	e.version = s.version
	if !s.up {
		return
	}
	before := map[string]bool{}
	for _, g := range e.gpus {
		before[g.uuid] = true
	}
	e.incomplete = false
	for i := range s.found {
		delete(before, e.place(&s.found[i], s.opens))
		e.incomplete = e.incomplete || s.found[i].Err != nil
	}
	e.listener.listen()
	for _, g := range e.gpus {
		if before[g.uuid] {
			g.device, g.findErr = nil, &DriverError{Call: callNames[callDevices], Fault: Lost}
			e.incomplete = true
		}
	}
	slices.SortStableFunc(e.gpus, func(a, b *gpu) int {
		return cmp.Or(cmp.Compare(a.id.PCI, b.id.PCI), cmp.Compare(a.uuid, b.uuid))
	})
}

// place finds or makes the GPU of one place in the enumeration, and returns its
// name.
func (e *Exporter) place(f *Found, opens uint64) string {
	id, known := Identity{UUID: f.UUID, PCI: f.PCI, Index: f.Index}, false
	if f.Err == nil && f.Device != nil {
		id, known = f.Device.Identity(), true
	}
	if id.UUID == "" {
		// The fault and not the text, which may say for how long.
		if what := fmt.Sprint(f.Index, f.PCI, FaultOf(f.Err)); e.nameless[f.Index] != what {
			e.nameless[f.Index] = what
			e.log.Warn("a GPU cannot be identified", "index", f.Index, "pci", f.PCI, "err", f.Err)
		}
		return ""
	}
	delete(e.nameless, f.Index)
	i := slices.IndexFunc(e.gpus, func(g *gpu) bool { return g.uuid == id.UUID })
	if i < 0 {
		w := newWorker(e.opt.Period, e.start, &e.busy)
		go w.run(e.workers, e.done)
		e.gpus = append(e.gpus, &gpu{uuid: id.UUID, worker: w, front: newSample(), id: id})
		i = len(e.gpus) - 1
	}
	g := e.gpus[i]
	switch {
	case known:
		if g.id != id || !g.known {
			e.changed, g.want = true, everything
		}
		g.id, g.known = id, true
		g.device, g.opens, g.findErr = f.Device, opens, nil
	case FaultOf(f.Err) == Hung && g.opens == opens:
		// The handle is good; its own calls will say when it answers again.
	default:
		g.device, g.findErr = nil, f.Err
	}
	return g.uuid
}

// collect takes what the workers have handed over and judges who is up.
func (e *Exporter) collect(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hang := max(e.opt.Period/2, minHang)
	if e.incomplete {
		ask(e.driver.rescan, struct{}{})
	}
	e.watchDriver(now)
	for _, g := range e.gpus {
		var fresh bool
		g.front, fresh = g.worker.take(g.front)
		g.got = g.got || fresh
		wasUp := g.up
		e.judge(g, fresh)
		g.hung, g.hungFor = callNone, 0
		if id, since := g.worker.call.outstanding(now); id != callNone && since >= hang {
			g.hung, g.hungFor = id, since
		}
		e.report(g, wasUp)
		if e.state.up {
			e.watchGPU(g, now)
		}
		if g.up {
			e.watchRecovery(g, now)
		}
	}
}

// judge decides whether a GPU is up.
func (e *Exporter) judge(g *gpu, fresh bool) {
	switch {
	case fresh && g.front.answered():
		if g.lost {
			g.revived++
			g.want = everything
		}
		g.missed, g.lost = 0, false
	case fresh:
		g.missed++
		f := g.front.fatal
		g.lost = f == Lost || f == NoGPU
		if driverGone(f) {
			ask(e.driver.reopen, f)
		} else {
			ask(e.driver.rescan, struct{}{})
		}
	default:
		g.missed++
	}
	if f := FaultOf(g.findErr); g.device == nil && e.state.up && (f == Lost || f == NoGPU) {
		g.lost = true
	}
	answered := g.got && g.front.answered()
	g.up = answered && g.missed < missedTicks && !g.lost && g.device != nil
}

// report logs what is new about a GPU.
func (e *Exporter) report(g *gpu, wasUp bool) {
	what := ""
	switch {
	case g.hung != callNone:
		what = "a driver call hangs: " + callNames[g.hung]
	case g.lost:
		what = "lost"
	case !g.up && g.got && !g.front.answered():
		what = "down: " + string(g.front.fatal)
	case g.up:
		for i, r := range g.front.results {
			if r.err != nil {
				what = "reader " + readers[i].name + ": " + r.err.Error()
				break
			}
		}
	}
	if what == g.logged && g.up == wasUp {
		return
	}
	if g.up != wasUp {
		e.changed = true
	}
	g.logged = what
	if what == "" {
		e.log.Info("GPU answers", "uuid", g.uuid, "pci", g.id.PCI, "up", g.up)
		return
	}
	e.log.Warn("GPU trouble", "uuid", g.uuid, "pci", g.id.PCI, "up", g.up, "what", what)
}
