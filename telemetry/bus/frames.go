package bus

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// What may wait in the client for a handler of frames or observations. The
// handler only enqueues, so this is the slack for a pause of the collector.
const (
	pendingMessages = 1 << 16
	pendingBytes    = 256 << 20
)

// errSinkFull means that the connection takes frames more slowly than they come.
var errSinkFull = errors.New("bus: frame dropped, the connection is too slow")

// PublishFrame sends an encoded frame of a node, at most once.
func (c *Conn) PublishFrame(node string, data []byte) error {
	return c.publish(telemetry.PartitionSubject(telemetry.FamilyFrame, node), data)
}

// PublishBackfill sends an old frame, for history only.
func (c *Conn) PublishBackfill(node string, data []byte) error {
	return c.publish(telemetry.PartitionSubject(telemetry.FamilyBackfill, node), data)
}

// PublishObservation sends an encoded observation of a node, at most once.
func (c *Conn) PublishObservation(node string, data []byte) error {
	return c.publish(telemetry.PartitionSubject(telemetry.FamilyObservation, node), data)
}

// Frames calls fn with subject and payload of every frame. fn must only
// enqueue; the payload is its to keep.
func (c *Conn) Frames(fn func(subject string, data []byte)) (stop func(), err error) {
	return c.raw(telemetry.AllFrames, fn)
}

// FramesOf is Frames for a share of the fleet.
func (c *Conn) FramesOf(share telemetry.PartitionSet, fn func(subject string, data []byte)) (stop func(), err error) {
	return c.share(telemetry.FamilyFrame, telemetry.AllFrames, share, fn)
}

// Backfills calls fn with subject and payload of every old frame.
func (c *Conn) Backfills(fn func(subject string, data []byte)) (stop func(), err error) {
	return c.raw(telemetry.AllBackfill, fn)
}

// BackfillsOf is Backfills for a share of the fleet.
func (c *Conn) BackfillsOf(share telemetry.PartitionSet, fn func(subject string, data []byte)) (stop func(), err error) {
	return c.share(telemetry.FamilyBackfill, telemetry.AllBackfill, share, fn)
}

// Observations calls fn with subject and payload of every observation. fn must
// only enqueue; the payload is its to keep.
func (c *Conn) Observations(fn func(subject string, data []byte)) (stop func(), err error) {
	return c.raw(telemetry.AllObservations, fn)
}

// share subscribes to each partition, or to all at once.
func (c *Conn) share(family, all string, share telemetry.PartitionSet, fn func(string, []byte)) (stop func(), err error) {
	if share == telemetry.AllPartitions {
		return c.raw(all, fn)
	}
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for p := range share.All() {
		s, err := c.raw(telemetry.PartitionWildcard(family, p), fn)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, s)
	}
	return stop, nil
}

func (c *Conn) raw(subject string, fn func(string, []byte)) (func(), error) {
	return c.subscribe(subject, pendingMessages, pendingBytes, func(m *nats.Msg) { fn(m.Subject, m.Data) })
}

// sinkDepth is the number of frames that may wait for a socket that is slow.
const sinkDepth = 4

// FrameSink sends the frames of one node without ever blocking: a publish may
// wait for a full socket, a tick may not.
type FrameSink struct {
	c       *Conn
	subject string
	queue   chan []byte
	free    chan []byte
	stop    chan struct{}
	once    sync.Once
	done    sync.WaitGroup
}

// FrameSink starts the sink of a node.
func (c *Conn) FrameSink(node string) *FrameSink {
	s := &FrameSink{
		c:       c,
		subject: telemetry.PartitionSubject(telemetry.FamilyFrame, node),
		queue:   make(chan []byte, sinkDepth),
		free:    make(chan []byte, sinkDepth+1),
		stop:    make(chan struct{}),
	}
	s.done.Go(s.run)
	return s
}

// Frame takes a copy of the frame and returns. Without a connection, or with
// too many frames waiting, it is dropped, counted, and an error.
func (s *FrameSink) Frame(data []byte) error {
	if !s.c.nc.IsConnected() {
		s.c.publishErrors.Add(1)
		return ErrNotConnected
	}
	var buf []byte
	select {
	case buf = <-s.free:
	default:
	}
	select {
	case s.queue <- append(buf[:0], data...):
		return nil
	default:
		s.c.publishErrors.Add(1)
		return errSinkFull
	}
}

// Close ends the sink; frames still waiting are sent first.
func (s *FrameSink) Close() {
	s.once.Do(func() { close(s.stop) })
	s.done.Wait()
}

func (s *FrameSink) run() {
	send := func(data []byte) {
		if err := s.c.publish(s.subject, data); err != nil {
			s.c.log.Debug("frame not sent", "err", fmt.Sprint(err))
		}
		select {
		case s.free <- data:
		default:
		}
	}
	for {
		select {
		case data := <-s.queue:
			send(data)
			continue
		default:
		}
		select {
		case data := <-s.queue:
			send(data)
		case <-s.stop:
			for {
				select {
				case data := <-s.queue:
					send(data)
				default:
					return
				}
			}
		}
	}
}
