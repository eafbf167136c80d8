package ui

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Rhythm and bounds of the stream.
const (
	streamEvery     = time.Second      // changes within it go out as one event
	streamHeartbeat = 2 * time.Second  // the longest silence
	streamLinger    = 30 * time.Second // kept up for a client that comes back
	streamKept      = 120              // events kept for such a client
	streamKeptBytes = 32 << 20         // and never more than this of them
	streamQueue     = 8                // events a client may be behind
	streamClients   = 256
)

// hub follows the fleet while anybody listens, and gives each listener the
// same events. It never waits for one.
type hub struct {
	opts Options
	life string // tells a client that comes back whether this is the same hub

	mu      sync.Mutex
	clients map[*client]struct{}
	running bool
	seq     uint64
	last    *picture
	kept    []*event
	bytes   int    // of kept
	whole   *event // the snapshot of seq, made when first asked for
}

// client is one listener. Its queue is closed when it was too slow.
type client struct {
	queue chan *event
}

func newHub(o Options) *hub {
	return &hub{opts: o, life: rand.Text()[:8], clients: map[*client]struct{}{}}
}

// id is what a client sends back to resume after an event.
func (h *hub) id(seq uint64) string { return h.life + "-" + strconv.FormatUint(seq, 10) }

var eventID = regexp.MustCompile(`^[A-Z2-7]{8}-[0-9]{1,20}$`)

// join adds a listener and returns the events that bring it from where it was
// to now: those it missed, or a snapshot if it is new or too far behind.
func (h *hub) join(lastID string) (*client, []*event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.clients) >= streamClients {
		return nil, nil, fmt.Errorf("%d streams are open, the most there may be", streamClients)
	}
	h.wake()
	missed, ok := h.missed(lastID)
	if !ok {
		whole, err := h.snapshotLocked()
		if err != nil {
			return nil, nil, err
		}
		missed = []*event{whole}
	}
	c := &client{queue: make(chan *event, streamQueue)}
	h.clients[c] = struct{}{}
	h.count()
	return c, missed, nil
}

func (h *hub) leave(c *client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, c)
	h.count()
}

func (h *hub) count() {
	if h.opts.Streams != nil {
		h.opts.Streams.Open(len(h.clients))
	}
}

// snapshot is the fleet as of the last event, which a stream can go on from.
func (h *hub) snapshot() (*event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wake()
	return h.snapshotLocked()
}

func (h *hub) missed(lastID string) ([]*event, bool) {
	life, text, _ := strings.Cut(lastID, "-")
	seq, err := strconv.ParseUint(text, 10, 64)
	if err != nil || life != h.life || seq > h.seq {
		return nil, false
	}
	if seq == h.seq {
		return nil, true
	}
	if len(h.kept) == 0 || h.kept[0].seq > seq+1 {
		return nil, false
	}
	return append([]*event(nil), h.kept[seq+1-h.kept[0].seq:]...), true
}

func (h *hub) snapshotLocked() (*event, error) {
	if h.whole == nil {
		id := h.id(h.seq)
		data, err := json.Marshal(h.last.snapshot(id, h.opts.Now()))
		if err != nil {
			return nil, fmt.Errorf("encode the snapshot: %w", err)
		}
		h.whole = newEvent(id, h.seq, "snapshot", data)
	}
	return h.whole, nil
}

// wake takes the first picture, if nobody listened so far, and follows the
// fleet until nobody has for a while.
func (h *hub) wake() {
	if h.running {
		return
	}
	h.begin()
	ctx, cancel := context.WithCancel(context.Background())
	changes := h.opts.Fleet.Changes(ctx)
	go func() {
		defer cancel()
		h.follow(changes)
	}()
}

// begin starts anew: what was before it cannot be resumed.
func (h *hub) begin() {
	h.running = true
	h.seq++
	h.last, h.kept, h.bytes, h.whole = take(h.opts), nil, 0, nil
}

func (h *hub) follow(changes <-chan struct{}) {
	var alone time.Duration
	for {
		waited := pause(changes)
		if h.step() {
			alone = 0
			continue
		}
		if alone += waited; alone >= streamLinger && h.stop() {
			return
		}
	}
}

// pause waits the least time between events, then for a change or until a
// heartbeat is due, and says how long that took at least.
func pause(changes <-chan struct{}) time.Duration {
	time.Sleep(streamEvery)
	beat := time.NewTimer(streamHeartbeat - streamEvery)
	defer beat.Stop()
	select {
	case <-changes:
		return streamEvery
	case <-beat.C:
		return streamHeartbeat
	}
}

// stop ends the following unless somebody came meanwhile.
func (h *hub) stop() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = len(h.clients) > 0
	return !h.running
}

// step sends what changed since the last event, or a heartbeat, and says
// whether anybody listens.
func (h *hub) step() (heard bool) {
	now, next := h.opts.Now(), take(h.opts)
	h.mu.Lock()
	defer h.mu.Unlock()
	seq, name := h.seq+1, "change"
	u, same := next.since(h.last, now)
	switch {
	case !same:
		u, name = next.snapshot(h.id(seq), now), "snapshot"
	case u == nil: // nothing to resume from: it has no number of its own
		u, name, seq = &Update{Time: now}, "heartbeat", h.seq
	}
	u.ID = h.id(seq)
	data, err := json.Marshal(u)
	if err != nil {
		h.opts.Log.Error("cannot encode an event of the stream", "err", err)
		return len(h.clients) > 0
	}
	e := newEvent(u.ID, seq, name, data)
	h.last = next
	if name != "heartbeat" {
		h.keep(e)
	}
	h.send(e)
	return len(h.clients) > 0
}

// keep takes an event into what a client that comes back can have. Nothing
// before a snapshot is of use: it replaces everything.
func (h *hub) keep(e *event) {
	h.seq, h.whole = e.seq, nil
	if e.name == "snapshot" {
		h.whole, h.kept, h.bytes = e, nil, 0
	}
	h.kept = append(h.kept, e)
	h.bytes += len(e.text)
	drop := 0
	for drop < len(h.kept)-1 && (len(h.kept)-drop > streamKept || h.bytes > streamKeptBytes) {
		h.bytes -= len(h.kept[drop].text)
		drop++
	}
	if drop > 0 {
		h.kept = append(make([]*event, 0, streamKept), h.kept[drop:]...)
	}
}

// send queues an event for every client and lets those go that are too far
// behind to take it.
func (h *hub) send(e *event) {
	for c := range h.clients {
		select {
		case c.queue <- e:
		default:
			close(c.queue)
			delete(h.clients, c)
			h.count()
		}
	}
}
