package bench

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// node is an exporter of the fleet. It belongs to one sender.
type node struct {
	index    int
	number   string
	name     string
	put      []byte // "PUB subject "
	client   *client
	template int
	phase    time.Duration
	turn     int // shifts its link and slow parts against those of others
	first    int // its first tick

	begun       time.Time // of its process
	incarnation uint64
	sequence    uint64
	ahead       time.Duration // of its clock
	plain       bool          // no fault in the next tick
	held        []byte        // a frame to be sent behind the next one
	devices     Devices       // nil: those of the template
}

// phaseOf is where an exporter of this name ticks within its period.
func phaseOf(name string, period time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return time.Duration(uint64(h.Sum32()) * uint64(period) >> 32)
}

// restart begins a new process of the exporter.
func (n *node) restart(now time.Time) {
	n.begun, n.incarnation, n.sequence = now, uint64(now.UnixNano()), 0
}

// part is which parts the frame of a tick has: links every five seconds, the
// slow part every fifteen, everything at the start.
func (n *node) part(tick int, period time.Duration) int {
	every := func(d time.Duration) int { return max(1, int((d+period/2)/period)) }
	switch {
	case n.sequence == 1 || (tick+n.turn)%every(exporter.SlowPeriod) == 0:
		return partSlow
	case (tick+n.turn)%every(exporter.LinkPeriod) == 0:
		return partLink
	}
	return partFast
}

// sender sends the frames of its share of the nodes, each at its time.
type sender struct {
	o     *Options
	ear   *ear
	ticks *ticks
	rng   *rand.Rand
	nodes []*node // in the order of their phases
	clean int     // ticks before faults begin
	total int     // ticks in all

	late    []whole // held back, in the order of their times
	buf     []byte  // protocol lines
	frame   []byte
	extra   []byte
	garbled uint64

	made                    injected
	frames, bytes           uint64
	unsent, skipped, events uint64
	slip                    *histogram // how late ticks are against their time
}

// whole is a frame whose observation is expected.
type whole struct {
	node                  *node
	incarnation, sequence uint64
	data                  []byte
	at                    time.Time // when it is to be sent, if it is held back
}

// The senders wake up once in so long and send what is due: a timer for every
// frame would cost more than the frame.
const gather = 2 * time.Millisecond

// run sends every tick of the nodes from start on.
func (s *sender) run(ctx context.Context, start time.Time) error {
	for k := range s.total {
		t, err := s.ticks.get(ctx, k)
		if err != nil {
			return err
		}
		for _, n := range s.nodes {
			if k < n.first {
				continue
			}
			due := start.Add(time.Duration(k)*s.o.Period + n.phase)
			if !s.await(ctx, due) {
				return nil
			}
			now := time.Now()
			s.slip.add(now.Sub(due))
			// An exporter that is late by more than half a period leaves the tick out.
			// The last one is sent in any case: it shows what was lost before it.
			if now.Sub(due) > s.o.Period/2 && k < s.total-1 {
				s.skipped++
				continue
			}
			if err := s.tick(n, t, k, now, due); err != nil {
				return fmt.Errorf("frame of %s: %w", n.name, err)
			}
		}
	}
	for _, l := range s.late {
		s.send(l)
	}
	return nil
}

// await waits until a time; false if the run ends before. Frames that are held
// back go out meanwhile.
func (s *sender) await(ctx context.Context, due time.Time) bool {
	for {
		now := time.Now()
		for len(s.late) > 0 && !now.Before(s.late[0].at) {
			s.send(s.late[0])
			s.late = s.late[1:]
		}
		if !now.Before(due) {
			return ctx.Err() == nil
		}
		wait := max(due.Sub(now), gather)
		if len(s.late) > 0 {
			wait = min(wait, max(s.late[0].at.Sub(now), gather))
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// tick makes the frame of a node and sends it, or what a fault makes of it.
func (s *sender) tick(n *node, t *tick, k int, now, due time.Time) error {
	fault := Fault("")
	if k >= s.clean && k < s.total-1 && !n.plain && n.sequence > 0 {
		fault = s.o.Faults.draw(s.rng.Float64())
	}
	n.plain = fault != ""
	if fault == FaultRestart {
		n.restart(now)
		s.made.count(FaultRestart)
	}
	n.sequence++
	wall := now.Add(n.ahead).UnixNano()
	part := n.part(k, s.o.Period)
	if n.devices != nil {
		part = partSlow
	}
	s.frame = t.bodies[n.template][part].appendTo(s.frame[:0], n.number, header{
		incarnation: n.incarnation, sequence: n.sequence, sample: wall, send: wall, monotonic: int64(now.Sub(n.begun)) + 1,
	})
	if n.devices != nil {
		if err := s.say(n, k); err != nil {
			return err
		}
	}
	switch fault {
	case FaultLost:
		s.made.count(fault, telemetry.DropLost)
		return nil
	case FaultReorder:
		s.made.count(fault, telemetry.DropLost, telemetry.DropReordered)
		n.held = slices.Clone(s.frame)
		return nil
	case FaultLate:
		s.made.count(fault)
		at := due.Add(time.Duration(lateShare * float64(s.o.Period))) // before its next tick in any case
		s.late = append(s.late, whole{n, n.incarnation, n.sequence, slices.Clone(s.frame), at})
		return nil
	}
	if s.o.Events > 0 && s.rng.Float64() < s.o.Events && s.event(n, k, now) != nil {
		s.unsent++
	}
	at := time.Now()
	s.send(whole{node: n, incarnation: n.incarnation, sequence: n.sequence, data: s.frame})
	s.besides(n, fault)
	if n.held != nil {
		s.publish(n, n.held)
		n.held = nil
	}
	if n.devices != nil {
		n.devices.Sent(k, n.sequence, at)
	}
	return nil
}

// say lets a node's own devices change its frame.
func (s *sender) say(n *node, k int) error {
	var f telemetry.Frame
	if err := telemetry.DecodeFrame(s.frame, &f); err != nil {
		return err
	}
	n.devices.Say(k, &f)
	var err error
	s.frame, err = telemetry.AppendFrame(s.frame[:0], &f)
	return err
}

// besides sends what a fault adds to a frame.
func (s *sender) besides(n *node, fault Fault) {
	switch fault {
	case FaultDup:
		s.made.count(fault, telemetry.DropDuplicate)
		s.publish(n, s.frame)
	case FaultLieNode:
		s.made.count(fault, telemetry.DropForeign)
		s.extra = foreign(append(s.extra[:0], s.frame...), n.name+foreignSuffix)
		s.publish(n, s.extra)
	case FaultGarbage:
		var why telemetry.DropReason
		s.extra, why = garbage(s.extra[:0], s.frame, s.garbled)
		s.garbled++
		s.made.count(fault, why)
		s.publish(n, s.extra)
	}
}

// send publishes a frame whose observation is awaited from now on.
func (s *sender) send(f whole) {
	s.ear.await(f.node.index, f.incarnation, f.sequence)
	if !s.publish(f.node, f.data) {
		s.ear.forget(f.node.index, f.sequence)
	}
}

// publish writes a message on the node's subject.
func (s *sender) publish(n *node, data []byte) bool {
	s.buf = append(s.buf[:0], n.put...)
	s.buf = strconv.AppendInt(s.buf, int64(len(data)), 10)
	s.buf = append(s.buf, "\r\n"...)
	s.buf = append(s.buf, data...)
	s.buf = append(s.buf, "\r\n"...)
	if err := n.client.write(s.buf); err != nil {
		s.unsent++
		return false
	}
	s.frames++
	s.bytes += uint64(len(data))
	return true
}

// ticks hands out the frames of the world, one tick after the other, made by
// one of the senders' goroutines ahead of time.
type ticks struct {
	mu    sync.Mutex
	grown chan struct{}
	have  map[int]*tick
	next  int
	err   error
}

// aheadTicks is how many ticks may be made before they are used.
const aheadTicks = 2

func newTicks() *ticks { return &ticks{have: map[int]*tick{}, grown: make(chan struct{})} }

// make makes total ticks, each shortly before it is due.
func (t *ticks) make(ctx context.Context, w *world, start time.Time, total int) {
	for k := range total {
		wait := time.Until(start.Add(time.Duration(k-aheadTicks) * w.period))
		if wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		made, err := w.step()
		t.mu.Lock()
		t.have[k], t.next = made, k+1
		delete(t.have, k-2*aheadTicks) // slow senders may still be at the one before
		if err != nil {
			t.err = fmt.Errorf("tick %d of the simulated world: %w", k, err)
		}
		close(t.grown)
		t.grown = make(chan struct{})
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// get waits for a tick. A sender that is far behind gets the oldest there is.
func (t *ticks) get(ctx context.Context, k int) (*tick, error) {
	for {
		t.mu.Lock()
		have, grown, err := t.have[k], t.grown, t.err
		if have == nil && k < t.next {
			for i := k; have == nil; i++ {
				have = t.have[i]
			}
		}
		t.mu.Unlock()
		if have != nil || err != nil {
			return have, err
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-grown:
		}
	}
}
