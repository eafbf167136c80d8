package ui

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Times of one stream. A client that lets a write hang for streamWrite is let
// go; one that was too slow is told to wait before it comes back.
const (
	streamWrite     = 10 * time.Second
	streamRetry     = time.Second
	streamRetrySlow = 10 * time.Second
)

func (s *server) snapshot(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	return respond(w, r, http.StatusOK, take(s.Options).snapshot(s.Now()))
}

func (s *server) stream(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	c, missed, err := s.hub.join(r.Header.Get("Last-Event-ID"))
	if err != nil {
		w.Header().Set("Retry-After", "10")
		return problem(http.StatusServiceUnavailable, "too_many_streams", "%v; close one, or ask %s/snapshot instead", err, Prefix)
	}
	defer s.hub.leave(c)
	out, err := newSender(w, r)
	if err != nil {
		return err
	}
	if err := out.write("retry: %d\n: %s\n\n", streamRetry.Milliseconds(), APIVersion); err != nil {
		return nil // the client has gone
	}
	for _, e := range missed {
		if err := s.sendEvent(out, e); err != nil {
			return nil
		}
	}
	for {
		select {
		case <-r.Context().Done():
			return nil
		case e, ok := <-c.queue:
			if !ok {
				_ = out.write("retry: %d\n: let go for being %d events behind\n\n", streamRetrySlow.Milliseconds(), streamQueue)
				return nil
			}
			if err := s.sendEvent(out, e); err != nil {
				return nil
			}
		}
	}
}

func (s *server) sendEvent(out *sender, e event) error {
	return out.write("id: %s\nevent: %s\ndata: %s\n\n", s.hub.id(e.seq), e.name, e.data)
}

// sender writes events with a deadline each, compressed if the client takes
// it: a change of a large fleet shrinks to a fifth.
type sender struct {
	control *http.ResponseController
	to      io.Writer
	z       *flate.Writer
}

func newSender(w http.ResponseWriter, r *http.Request) (*sender, error) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Add("Vary", "Accept-Encoding")
	s := &sender{control: http.NewResponseController(w), to: w}
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(http.StatusOK)
	if !takesGzip(r) {
		return s, nil
	}
	// A gzip stream without an end: header here, then flushed blocks.
	z, err := flate.NewWriter(w, flate.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress a stream: %w", err)
	}
	s.z = z
	_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255})
	return s, nil
}

func (s *sender) write(format string, args ...any) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, format, args...)
	if err := s.control.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil {
		return err
	}
	if s.z == nil {
		if _, err := s.to.Write(b.Bytes()); err != nil {
			return err
		}
		return s.control.Flush()
	}
	if _, err := s.z.Write(b.Bytes()); err != nil {
		return err
	}
	if err := s.z.Flush(); err != nil {
		return err
	}
	return s.control.Flush()
}
