package attribution

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/process"
)

const (
	// lookEvery is how often holders are looked at that no device lists anew.
	lookEvery = 5 * time.Second
	// rulesEvery is how often the rules are asked for.
	rulesEvery = time.Minute
)

// Options of an Attribution.
type Options struct {
	Node string // its name on the bus, for references of workloads
	// Rules are those of the node's agent. When they cannot be had, the last ones
	// stay; without any, no process is ours.
	Rules func() (process.Rules, error)
	Proc  process.Proc // the zero value is /proc
	// Kubelet is its podresources socket; where none ever is, nobody misses it.
	Kubelet string
	// PodLogs is where the kubelet keeps pods' logs, in folders that name them.
	PodLogs string
	// JobFiles is a folder with a file for each GPU that names the jobs on it, as
	// a scheduler's prolog writes it.
	JobFiles string
	// MDev is where the kernel lists mediated devices.
	MDev string
	// PCI is where the kernel lists devices and their drivers.
	PCI string
	// Instances lists the MIG instances of all GPUs; nil if nobody knows them.
	Instances func() []Instance
	Log       *slog.Logger // nil is silent
}

// Attribution implements exporter.Members.
type Attribution struct {
	opt  Options
	wake chan struct{}

	mu      sync.Mutex
	devices []*device // in the order in which they were first listed
	given   uint64    // lists so far
	looked  uint64    // of them looked at
	waiters []waiter
	err     error
	sources []*granter
	gpus    *devices // as the last source that answered found them
	passed  []passed // GPUs that virtual machines have

	// Of Run alone.
	now     time.Time
	boot    string
	known   map[int]*holder
	pods    pods
	bus     time.Time // when its devices were last looked at
	rules   rules
	trouble error // of this look
}

var _ exporter.Members = (*Attribution)(nil)

// device is who holds one GPU.
type device struct {
	uuid string

	// Under mu.
	listed  []exporter.Process // not looked at yet
	fresh   bool
	holders exporter.Holders
	limits  [][]limit // beside its members

	// Of Run alone.
	list []exporter.Process // looked at last
	at   time.Time          // when it was taken
	from []source           // what the holders were made from
	next []source
	made []source // and their members: those of one pod or step are one
	make []source
}

// waiter waits until so many lists have been looked at.
type waiter struct {
	given uint64
	done  chan struct{}
}

// New prepares an Attribution; nothing is read before Run.
func New(opt Options) *Attribution {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Log = opt.Log.With("component", "attribution")
	a := &Attribution{opt: opt, wake: make(chan struct{}, 1), known: map[int]*holder{}, pods: pods{dir: opt.PodLogs}}
	a.sources = a.granters()
	return a
}

// Run looks at what is listed, as soon as it is, until ctx ends.
func (a *Attribution) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, g := range a.sources {
		asking.Go(func() { a.follow(ctx, g) })
	}
	defer func() {
		for pid := range a.known {
			a.forget(pid)
		}
	}()
	timer := time.NewTicker(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
		a.look(time.Now())
	}
}

// Listed takes what a device lists.
func (a *Attribution) Listed(uuid string, list []exporter.Process) {
	a.mu.Lock()
	i := slices.IndexFunc(a.devices, func(d *device) bool { return d.uuid == uuid })
	if i < 0 {
		i = len(a.devices)
		a.devices = append(a.devices, &device{uuid: uuid})
	}
	d := a.devices[i]
	d.listed, d.fresh = append(d.listed[:0], list...), true
	a.given++
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default: // it has not begun yet
	}
}

// Of is who holds a device.
func (a *Attribution) Of(uuid string) exporter.Holders {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.devices {
		if d.uuid == uuid {
			return d.holders
		}
	}
	return exporter.Holders{}
}

// Err is what could not be found out at the last look.
func (a *Attribution) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Settle waits until all that was listed has been looked at.
func (a *Attribution) Settle(ctx context.Context) {
	a.mu.Lock()
	if a.looked >= a.given {
		a.mu.Unlock()
		return
	}
	w := waiter{a.given, make(chan struct{})}
	a.waiters = append(a.waiters, w)
	a.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}

// look finds out who holds each device now.
func (a *Attribution) look(now time.Time) {
	a.now, a.trouble = now, nil
	devices, given := a.take()
	if a.refresh() {
		a.holders(devices)
	}
	a.settled(given)
}

func (a *Attribution) holders(devices []*device) {
	for _, h := range a.known {
		h.wanted = false
	}
	for _, d := range devices {
		a.device(d)
	}
	for pid, h := range a.known {
		if !h.wanted {
			a.forget(pid)
		}
	}
}

// take takes the lists that are new.
func (a *Attribution) take() (devices []*device, given uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.devices {
		if d.fresh {
			d.list, d.listed, d.fresh, d.at = d.listed, d.list, false, a.now
		}
	}
	return a.devices, a.given
}

// settled ends a look.
func (a *Attribution) settled(given uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.trouble != nil && (a.err == nil || a.err.Error() != a.trouble.Error()):
		a.opt.Log.Warn("it is not known whose all processes are", "err", a.trouble)
	case a.trouble == nil && a.err != nil:
		a.opt.Log.Info("it is known whose processes are")
	}
	a.err, a.looked = a.trouble, given
	a.waiters = slices.DeleteFunc(a.waiters, func(w waiter) bool {
		if w.given > given {
			return false
		}
		close(w.done)
		return true
	})
}

// rules are the agent's, as they were last had.
type rules struct {
	process.Rules
	at  time.Time
	err error
}

// refresh asks for what does not belong to one process. Without the boot id no
// process can be told from one of another life of the node.
func (a *Attribution) refresh() (ok bool) {
	if a.boot == "" {
		boot, err := a.opt.Proc.BootID()
		if err != nil {
			a.fail(err)
			return false
		}
		a.boot = boot
	}
	a.askRules()
	if a.opt.PCI != "" && (a.bus.IsZero() || a.now.Sub(a.bus) >= rulesEvery) {
		a.bus = a.now
		list := passthrough(a.opt.PCI)
		a.mu.Lock()
		a.passed = list
		a.mu.Unlock()
	}
	return true
}

func (a *Attribution) askRules() {
	r := &a.rules
	if !r.at.IsZero() && r.err == nil && a.now.Sub(r.at) < rulesEvery {
		return
	}
	r.at = a.now
	got, err := a.opt.Rules()
	if r.err = err; err != nil {
		a.fail(err)
		return
	}
	if slices.Equal(got.Users, r.Users) && slices.Equal(got.Cgroups, r.Cgroups) {
		return
	}
	r.Rules = got
	for _, h := range a.known {
		h.again = time.Time{}
	}
}

func (a *Attribution) fail(err error) {
	if a.trouble == nil {
		a.trouble = err
	}
}
