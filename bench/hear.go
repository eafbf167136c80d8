package bench

import (
	"encoding/binary"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// window is how many frames of a node may wait for their observation; one that
// has not come by then is lost.
const window = 64

// awaited is a frame whose observation is to come.
type awaited struct {
	incarnation, sequence uint64
	sent                  int64 // nanoseconds since the run began; 0: none is awaited
	heard                 bool
}

// track is what was sent of a node and what was heard of it.
type track struct {
	mu      sync.Mutex
	ring    [window]awaited
	process uint64 // the newest incarnation heard
	last    uint64 // its last sequence heard
	skewed  bool
}

// ear hears what the collector publishes of the fleet.
type ear struct {
	base   time.Time
	prefix string
	every  uint64 // frames for one observation
	tracks []track

	latency                                histogram
	measuring                              atomic.Bool
	sent, heard, lost, late, twice, others atomic.Uint64
	restarts, bytes                        atomic.Uint64
}

func newEar(o *Options, base time.Time) *ear {
	return &ear{base: base, prefix: o.Prefix, every: max(1, uint64(time.Second/o.Period)), tracks: make([]track, o.Nodes)}
}

// await is told of a frame just before it is sent.
func (e *ear) await(node int, incarnation, sequence uint64) {
	t := &e.tracks[node]
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.ring[sequence%window]
	e.give(s)
	*s = awaited{incarnation: incarnation, sequence: sequence, sent: max(int64(time.Since(e.base)), 1)}
	e.sent.Add(1)
}

// forget takes back an await of a frame that could not be sent.
func (e *ear) forget(node int, sequence uint64) {
	t := &e.tracks[node]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ring[sequence%window] = awaited{}
	e.sent.Add(^uint64(0))
}

// give ends the wait for a frame's observation.
func (e *ear) give(s *awaited) {
	if s.sent != 0 && !s.heard && e.every == 1 {
		e.lost.Add(1)
	}
}

// lateAfter is when an observation is called late.
const lateAfter = time.Second

// observation is the bus's handler. It reads the header alone.
func (e *ear) observation(subject string, data []byte) {
	now := int64(time.Since(e.base))
	node, ok := e.node(subject)
	h, sound := readObservation(data)
	if !ok || !sound {
		e.others.Add(1)
		return
	}
	e.bytes.Add(uint64(len(data)))
	t := &e.tracks[node]
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.ring[h.sequence%window]
	if s.sent == 0 || s.sequence != h.sequence || s.incarnation != h.incarnation {
		e.others.Add(1)
		return
	}
	if s.heard {
		e.twice.Add(1)
		return
	}
	s.heard = true
	e.heard.Add(1)
	t.skewed = t.skewed || h.skew > lieTimeAhead/2
	e.follow(t, h)
	took := time.Duration(now - s.sent)
	if took > lateAfter {
		e.late.Add(1)
	}
	if e.measuring.Load() {
		e.latency.add(took)
	}
}

// follow counts starts of exporters, and for a rate above one a second what is
// missing between two observations.
func (e *ear) follow(t *track, h observed) {
	switch {
	case h.incarnation > t.process:
		if t.process != 0 {
			e.restarts.Add(1)
		}
		t.process, t.last = h.incarnation, h.sequence
	case h.sequence > t.last:
		if missing := (2*(h.sequence-t.last) + e.every) / (2 * e.every); e.every > 1 && missing > 1 {
			e.lost.Add(missing - 1)
		}
		t.last = h.sequence
	}
}

// end gives up what has not come.
func (e *ear) end() {
	for i := range e.tracks {
		t := &e.tracks[i]
		t.mu.Lock()
		for k := range t.ring {
			e.give(&t.ring[k])
			t.ring[k] = awaited{}
		}
		t.mu.Unlock()
	}
}

// waiting counts the frames whose observation has not come.
func (e *ear) waiting() (n int) {
	for i := range e.tracks {
		t := &e.tracks[i]
		t.mu.Lock()
		for k := range t.ring {
			if t.ring[k].sent != 0 && !t.ring[k].heard {
				n++
			}
		}
		t.mu.Unlock()
	}
	return n
}

func (e *ear) skewed() (n uint64) {
	for i := range e.tracks {
		if e.tracks[i].skewed {
			n++
		}
	}
	return n
}

// node is the number within the last token of a subject.
func (e *ear) node(subject string) (int, bool) {
	name, ok := strings.CutPrefix(subject[strings.LastIndexByte(subject, '.')+1:], e.prefix)
	if !ok || len(name) != len(marker) {
		return 0, false
	}
	n := 0
	for _, c := range []byte(name) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, n < len(e.tracks)
}

// observed is the header of an observation, as far as it is needed here.
type observed struct {
	incarnation, sequence uint64
	skew                  int64 // milliseconds
}

// Field numbers of observation.proto.
const (
	obsIncarnation = 5
	obsSequence    = 6
	obsSkew        = 9
	obsGPUs        = 14
)

// readObservation reads the header, which comes before the devices; only where
// it does not are they stepped over.
func readObservation(data []byte) (o observed, ok bool) {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag > math.MaxUint32 {
			return o, false
		}
		field, kind := protowire.Number(tag>>3), protowire.Type(tag&7)
		if field == obsGPUs && o.sequence != 0 && o.incarnation != 0 {
			return o, true
		}
		data = data[n:]
		if kind != protowire.VarintType {
			if n = protowire.ConsumeFieldValue(field, kind, data); n < 0 {
				return o, false
			}
			data = data[n:]
			continue
		}
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return o, false
		}
		data = data[n:]
		switch field {
		case obsIncarnation:
			o.incarnation = v
		case obsSequence:
			o.sequence = v
		case obsSkew:
			o.skew = protowire.DecodeZigZag(v)
		}
	}
	return o, o.sequence != 0 && o.incarnation != 0
}
