// Package spool keeps the frames that could not be sent, on disk and within a
// bound, and sends them again when they can be.
//
// In: frames, a sink that takes them or says that it does not, a folder. Out:
// the frames of an outage, oldest first, with the times they have, slowly; they
// are history and no judgement rests on them. Never: a wait of the tick, a disk
// that fills, a live frame that goes after an old one.
//
// A record is its length, its checksum and the frame; records are in segments,
// and the oldest segment goes when the bound is reached. What a crash or a full
// disk leaves half-written is skipped. Frames can be sent twice after a restart,
// and those that were in the socket when the connection broke are not kept.
package spool

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// segmentBytes is where a segment ends, a sixteenth of the bound at most.
	segmentBytes = 1 << 20
	// maxFrame is far above what a frame can be.
	maxFrame = 4 << 20
	// queued is how many frames wait for the disk.
	queued = 16
	// sendEvery is the pace at which old frames are sent: twenty a second.
	sendEvery = 50 * time.Millisecond
	// diskPause is how long a disk that refused is left alone.
	diskPause = 5 * time.Second
	headBytes = 8
	suffix    = ".spool"
)

// Options of a Spool.
type Options struct {
	Dir string
	Max int64 // bytes in the folder
	// Live takes a frame now; an error means that it did not.
	Live exporter.Sink
	// Backfill takes an old frame.
	Backfill func(data []byte) error
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Spool implements exporter.Sink.
type Spool struct {
	opt   Options
	log   *slog.Logger
	queue chan []byte
	live  atomic.Bool // the last frame was taken

	kept, sent, lost prometheus.Counter
	bytes            atomic.Int64

	// Of Run alone.
	segments []segment // oldest first
	out      *os.File  // of the last one
	next     uint64
	in       *os.File // of the first one
	reader   *bufio.Reader
	pending  []byte // read and not sent
	rest     time.Time
	troubled bool
}

type segment struct {
	number uint64
	size   int64
}

var _ exporter.Sink = (*Spool)(nil)

// New opens the folder and finds what an earlier process left there.
func New(opt Options) (*Spool, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Spool{opt: opt, log: opt.Log.With("component", "spool"), queue: make(chan []byte, queued)}
	frames, size := telemetry.RowOf(telemetry.SelfSpoolFrames), telemetry.RowOf(telemetry.SelfSpoolBytes)
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: frames.Name, Help: frames.Help}, frames.Labels)
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: size.Name, Help: size.Help}, func() float64 { return float64(s.bytes.Load()) })
	s.kept, s.sent, s.lost = vec.WithLabelValues("kept"), vec.WithLabelValues("sent"), vec.WithLabelValues("lost")
	if err := errors.Join(opt.Registry.Register(vec), opt.Registry.Register(gauge)); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w; name a folder that this user may write, or none", err)
	}
	return s, s.find()
}

// find lists the segments that are there.
func (s *Spool) find() error {
	entries, err := os.ReadDir(s.opt.Dir)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		n, err := strconv.ParseUint(name, 10, 64)
		info, errInfo := e.Info()
		if !ok || err != nil || errInfo != nil || !info.Mode().IsRegular() {
			continue
		}
		s.segments = append(s.segments, segment{n, info.Size()})
		s.next = max(s.next, n+1)
	}
	slices.SortFunc(s.segments, func(a, b segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	s.count()
	return nil
}

func (s *Spool) count() {
	total := int64(0)
	for _, x := range s.segments {
		total += x.size
	}
	s.bytes.Store(total)
}

// Frame gives a frame to the live sink, and keeps it if that does not take it.
// It waits for nothing.
func (s *Spool) Frame(data []byte) error {
	err := s.opt.Live.Frame(data)
	s.live.Store(err == nil)
	if err == nil {
		return nil
	}
	select {
	case s.queue <- slices.Clone(data):
		return nil
	default:
		s.lost.Inc()
		return err
	}
}

// Run writes what is to be kept and sends what was, until ctx ends.
func (s *Spool) Run(ctx context.Context) error {
	pace := time.NewTicker(sendEvery)
	defer pace.Stop()
	defer s.close()
	for {
		select {
		case <-ctx.Done():
			for { // what waits is kept, for the next process to send
				select {
				case data := <-s.queue:
					s.keep(data, time.Now())
				default:
					return nil
				}
			}
		case data := <-s.queue:
			s.keep(data, time.Now())
		case <-pace.C:
			if s.live.Load() {
				s.send()
			}
		}
	}
}

func (s *Spool) close() {
	if s.out != nil {
		_ = s.out.Close()
	}
	if s.in != nil {
		_ = s.in.Close()
	}
}

func (s *Spool) path(number uint64) string {
	return filepath.Join(s.opt.Dir, fmt.Sprintf("%020d%s", number, suffix))
}

// keep writes a frame. A disk that refuses costs that frame, and is left alone
// for a while.
func (s *Spool) keep(data []byte, now time.Time) {
	if now.Before(s.rest) {
		s.lost.Inc()
		return
	}
	if err := s.write(data); err != nil {
		s.lost.Inc()
		s.rest = now.Add(diskPause)
		if !s.troubled {
			s.log.Warn("frames of this outage are lost: they cannot be kept on disk", "err", err)
		}
		s.troubled = true
		return
	}
	if s.troubled {
		s.log.Info("frames are kept on disk again")
	}
	s.troubled = false
	s.kept.Inc()
}

func (s *Spool) write(data []byte) error {
	record := make([]byte, headBytes, headBytes+len(data))
	binary.LittleEndian.PutUint32(record, uint32(len(data)))
	binary.LittleEndian.PutUint32(record[4:], crc32.ChecksumIEEE(data))
	record = append(record, data...)
	if int64(len(record)) > s.opt.Max {
		return fmt.Errorf("a frame of %d bytes exceeds the spool's bound", len(data))
	}
	limit := min(segmentBytes, max(s.opt.Max/16, int64(len(record))))
	if s.out != nil && s.last().size+int64(len(record)) > limit {
		s.end()
	}
	for len(s.segments) > 0 && s.bytes.Load()+int64(len(record)) > s.opt.Max {
		s.lost.Add(float64(s.drop()))
	}
	if s.out == nil {
		f, err := os.OpenFile(s.path(s.next), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		s.out = f
		s.segments = append(s.segments, segment{number: s.next})
		s.next++
	}
	n, err := s.out.Write(record)
	if err != nil {
		// Half a record is none.
		if n > 0 {
			err = errors.Join(err, s.out.Truncate(s.last().size))
		}
		s.end()
		return err
	}
	s.last().size += int64(n)
	s.count()
	return nil
}

func (s *Spool) last() *segment { return &s.segments[len(s.segments)-1] }

// end ends the segment that is written.
func (s *Spool) end() {
	_ = s.out.Close()
	s.out = nil
	if last := s.last(); last.size == 0 {
		_ = os.Remove(s.path(last.number))
		s.segments = s.segments[:len(s.segments)-1]
	}
}

// drop removes the oldest segment and returns how many frames of it were not
// sent.
func (s *Spool) drop() (frames int) {
	if s.in == nil {
		s.open()
	}
	for s.in != nil {
		if _, err := s.read(); err != nil {
			break
		}
		frames++
	}
	if s.pending != nil {
		frames++
	}
	s.remove()
	return frames
}

func (s *Spool) open() {
	f, err := os.Open(s.path(s.segments[0].number))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("a part of the spool cannot be read", "err", err)
		}
		return
	}
	s.in, s.reader = f, bufio.NewReader(f)
}

// remove removes the first segment, which may be the one that is written.
func (s *Spool) remove() {
	if s.in != nil {
		_ = s.in.Close()
	}
	s.in, s.reader, s.pending = nil, nil, nil
	if len(s.segments) == 1 && s.out != nil {
		_ = s.out.Close()
		s.out = nil
	}
	_ = os.Remove(s.path(s.segments[0].number))
	s.segments = s.segments[1:]
	s.count()
}

// read returns the next record of the first segment.
func (s *Spool) read() ([]byte, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(s.reader, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return nil, errors.New("no record")
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(s.reader, data); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(data) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, errors.New("a record's checksum is wrong")
	}
	return data, nil
}

// send sends one frame. One that is not taken is tried again.
func (s *Spool) send() {
	for s.pending == nil {
		if len(s.segments) == 0 {
			return
		}
		if s.in == nil {
			if len(s.segments) == 1 && s.out != nil {
				s.end() // so that what is read is not written any more
				if len(s.segments) == 0 {
					return
				}
			}
			if s.open(); s.in == nil {
				s.remove()
				continue
			}
		}
		data, err := s.read()
		if err != nil { // its end, or what a crash left
			s.remove()
			continue
		}
		s.pending = data
	}
	if err := s.opt.Backfill(s.pending); err != nil {
		return
	}
	s.pending = nil
	s.sent.Inc()
}
