package exporter

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Bounds of what a driver may make us remember.
const (
	burstEvery = time.Second // between two events of the same kind
	maxBursts  = 1024        // kinds of a second
	maxXids    = 128         // codes of one GPU that are counted by themselves
	maxQueued  = 256         // events that the sink has not taken
	otherXid   = -1
)

// Why an event was dropped.
const (
	eventQueueFull = "queue_full" // the sink is too slow
	eventNotTaken  = "not_taken"  // the sink refused it
	eventTooMany   = "too_many"   // more kinds at once than are kept apart
)

// events gives what happened an id and hands it on. The same thing many times
// in a second is one event with a count.
type events struct {
	node, cluster, boot string
	incarnation         uint64
	sink                EventSink // nil: events are counted and logged
	log                 *slog.Logger
	told, drops         *prometheus.CounterVec
	fresh               atomic.Bool // there is a new series of Xids
	queue               chan telemetry.Event

	mu     sync.Mutex // guards what follows
	next   uint64
	bursts map[burst]*repeats
	xids   []xidCount // by GPU and code
	heard  uint64     // Xids
}

// burst is what makes two notices the same.
type burst struct {
	kind     telemetry.EventKind
	uuid     string
	code     int
	instance uint32
	detail   string
}

type repeats struct {
	count uint64
	first time.Time // of those counted
	next  time.Time // when an event may be told again
	pci   string
}

// xidCount is the series of one GPU and code.
type xidCount struct {
	uuid  string
	code  int
	count uint64
	last  uint64 // its place among all Xids, the newest highest
	seen  int    // the code that was counted last, where several are
}

func newEvents(opt Options, boot string, start time.Time, reg *prometheus.Registry, log *slog.Logger) (*events, error) {
	v := &events{
		node: opt.Node, cluster: opt.Cluster, boot: boot, incarnation: uint64(start.UnixNano()),
		log: log, bursts: map[burst]*repeats{}, queue: make(chan telemetry.Event, maxQueued),
	}
	v.sink, _ = opt.Sink.(EventSink)
	for _, c := range [...]struct {
		id     telemetry.ID
		to     **prometheus.CounterVec
		values []string
	}{
		{telemetry.SelfEvents, &v.told, eventKinds()},
		{telemetry.SelfEventsDropped, &v.drops, []string{eventQueueFull, eventNotTaken, eventTooMany}},
	} {
		row := telemetry.RowOf(c.id)
		*c.to = prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)
		if err := reg.Register(*c.to); err != nil {
			return nil, fmt.Errorf("exporter metrics: %w", err)
		}
		for _, value := range c.values {
			(*c.to).WithLabelValues(value)
		}
	}
	return v, nil
}

func eventKinds() (list []string) {
	for _, k := range telemetry.EventKinds {
		list = append(list, string(k))
	}
	return list
}

// tell hands an event on, with an id that no other event of this boot has.
func (v *events) tell(e telemetry.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.send(e)
}

func (v *events) send(e telemetry.Event) {
	v.next++
	// A process that starts anew within the boot has another incarnation.
	e.ID = fmt.Sprintf("%s-%d-%d", cmp.Or(v.boot, "boot"), v.incarnation, v.next)
	e.Node, e.Cluster, e.BootID, e.Incarnation = v.node, v.cluster, v.boot, v.incarnation
	e.Count = max(e.Count, 1)
	v.told.WithLabelValues(string(e.Kind)).Inc()
	level := slog.LevelWarn
	if e.Class == ClassInformational {
		level = slog.LevelInfo
	}
	v.log.Log(context.Background(), level, "event", "kind", e.Kind, "uuid", e.UUID, "code", e.Code, "class", e.Class, "action", e.Action, "count", e.Count, "detail", e.Detail)
	if v.sink == nil {
		return
	}
	select {
	case v.queue <- e:
	default:
		v.lost(&e, eventQueueFull, nil)
	}
}

// run gives the events to the sink until ctx ends, then those that wait.
func (v *events) run(ctx context.Context) {
	for {
		select {
		case e := <-v.queue:
			v.give(&e)
			continue
		case <-ctx.Done():
		}
		for {
			select {
			case e := <-v.queue:
				v.give(&e)
			default:
				return
			}
		}
	}
}

func (v *events) give(e *telemetry.Event) {
	if err := v.sink.Event(*e); err != nil {
		v.lost(e, eventNotTaken, err)
	}
}

func (v *events) lost(e *telemetry.Event, why string, err error) {
	v.drops.WithLabelValues(why).Inc()
	v.log.Warn("event lost", "id", e.ID, "why", why, "err", err)
}

// notice takes what the driver says. The first of its kind is told at once, what
// follows within the second together at its end.
func (v *events) notice(n *Notice, pci string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.Kind == telemetry.EventXid {
		v.countXid(n.UUID, n.Code)
	}
	key := burst{n.Kind, n.UUID, n.Code, n.Instance, n.Detail}
	b := v.bursts[key]
	if b == nil {
		if len(v.bursts) >= maxBursts {
			v.drops.WithLabelValues(eventTooMany).Inc()
			return
		}
		b = &repeats{}
		v.bursts[key] = b
	}
	if b.count == 0 {
		b.first = now
	}
	b.count++
	b.pci = pci
	if !now.Before(b.next) {
		v.tellBurst(&key, b, now)
	}
}

// flush tells what has been held back for a second, and forgets what is over.
func (v *events) flush(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, b := range v.bursts {
		switch {
		case now.Before(b.next):
		case b.count > 0:
			v.tellBurst(&key, b, now)
		default:
			delete(v.bursts, key)
		}
	}
}

func (v *events) tellBurst(key *burst, b *repeats, now time.Time) {
	e := telemetry.Event{
		Time: b.first, Kind: key.kind, UUID: key.uuid, PCI: b.pci, Code: key.code, Count: b.count,
		Source: "nvml", Detail: key.detail, Class: ClassInformational,
	}
	if key.instance != NoInstance {
		gi := key.instance
		e.GI = &gi
	}
	switch key.kind {
	case telemetry.EventXid:
		x := xidOf(key.code)
		e.Class, e.Action, e.Detail = x.class, x.action, x.what
	case telemetry.EventECC:
		e.Class = ClassHardware
	case telemetry.EventGPULost:
		e.Class, e.Action = ClassHardware, ActionRestartNode
	}
	v.send(e)
	b.count, b.next = 0, now.Add(burstEvery)
}

// countXid counts an error of a GPU.
func (v *events) countXid(uuid string, code int) {
	at := func(code int) (int, bool) {
		return slices.BinarySearchFunc(v.xids, xidCount{uuid: uuid, code: code}, func(a, b xidCount) int {
			return cmp.Or(cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.code, b.code))
		})
	}
	seen := code
	i, known := at(code)
	if !known {
		codes := 0
		for _, x := range v.xids {
			if x.uuid == uuid {
				codes++
			}
		}
		if codes >= maxXids {
			i, known = at(otherXid)
		}
		if codes >= maxXids && !known {
			code = otherXid
		}
	}
	if !known {
		v.xids = slices.Insert(v.xids, i, xidCount{uuid: uuid, code: code})
		v.fresh.Store(true)
	}
	v.heard++
	v.xids[i].count++
	v.xids[i].last, v.xids[i].seen = v.heard, seen
}

// xidCounts calls f for each series of Xids with its labels.
func (v *events) xidCounts(f func(uuid string, n float64, xid, action string)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range v.xids {
		code := "other"
		if x.code != otherXid {
			code = strconv.Itoa(x.code)
		}
		f(x.uuid, float64(x.count), code, xidOf(x.code).action)
	}
}
