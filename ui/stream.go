package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Times of one stream. A client that lets a write hang for streamWrite is let
// go; one that was too slow is told to wait before it comes back.
const (
	streamWrite     = 10 * time.Second
	streamRetry     = time.Second
	streamRetrySlow = 10 * time.Second
)

// StreamEnd is the data of the event that ends a stream.
type StreamEnd struct {
	Time    time.Time   `json:"time"`
	Reason  StreamEnded `json:"reason"`
	Message string      `json:"message"`
}

func (s *server) snapshot(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	e, err := s.hub.snapshot()
	if err != nil {
		return err
	}
	return respondBody(w, r, http.StatusOK, e.data, s.hub.id(e.seq))
}

func (s *server) stream(w http.ResponseWriter, r *http.Request) error {
	from, err := resumeFrom(r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		streamHeaders(w, r)
		return nil
	}
	c, missed, err := s.hub.join(from)
	if err != nil {
		s.Streams.Ended(StreamFull)
		w.Header().Set("Retry-After", "10")
		return problem(http.StatusServiceUnavailable, "too_many_streams", "%v; close one, or ask %s/snapshot instead", err, Prefix)
	}
	defer s.hub.leave(c)
	out := newSender(w, r, s.patience)
	if err := out.say("retry: %d\n: %s\n\n", streamRetry.Milliseconds(), APIVersion); err != nil {
		return nil // the client has gone
	}
	for _, e := range missed {
		if err := out.event(e); err != nil {
			s.endHung(err)
			return nil
		}
	}
	for {
		select {
		case <-r.Context().Done():
			return nil
		case e, ok := <-c.queue:
			if !ok {
				s.endSlow(out)
				return nil
			}
			if err := out.event(e); err != nil {
				s.endHung(err)
				return nil
			}
		}
	}
}

// endHung tells a reader that took nothing from one that has gone.
func (s *server) endHung(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.Streams.Ended(StreamHung)
	}
}

// endSlow says why the stream ends, and when to come back.
func (s *server) endSlow(out *sender) {
	s.Streams.Ended(StreamSlow)
	data, err := json.Marshal(StreamEnd{s.Now(), StreamSlow, fmt.Sprintf("this reader fell %d events behind; read faster, or ask %s/snapshot now and then", streamQueue, Prefix)})
	if err != nil {
		s.Log.Error("cannot encode the end of a stream", "err", err)
		return
	}
	_ = out.say("retry: %d\nevent: end\ndata: %s\n\n", streamRetrySlow.Milliseconds(), data)
}

// resumeFrom is the id of the last event that a client has seen. A browser that
// reconnects sends a header, whatever stood in the address at first.
func resumeFrom(r *http.Request) (string, error) {
	q, err := query(r, "since")
	if err != nil {
		return "", err
	}
	since := q.Get("since")
	if since != "" && !eventID.MatchString(since) {
		return "", problem(http.StatusBadRequest, "bad_parameter", "since %q is no id of an event of this stream; give the last `id:` seen, or leave it out for a snapshot", since)
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		return last, nil
	}
	return since, nil
}

// sender writes events with a deadline each, compressed if the client takes
// it: a change of a large fleet shrinks to a fifth.
type sender struct {
	control *http.ResponseController
	to      io.Writer
	wait    time.Duration
	zip     bool
}

func streamHeaders(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Add("Vary", "Accept-Encoding")
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(http.StatusOK)
}

func newSender(w http.ResponseWriter, r *http.Request, patience time.Duration) *sender {
	streamHeaders(w, r)
	s := &sender{control: http.NewResponseController(w), to: w, wait: patience, zip: takesGzip(r)}
	if s.zip {
		_, _ = w.Write(gzipHead)
	}
	return s
}

func (s *sender) event(e *event) error {
	if s.zip {
		return s.write(e.zip())
	}
	return s.write(e.text)
}

func (s *sender) say(format string, args ...any) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, format, args...)
	if s.zip {
		return s.write(zipPart(b.Bytes()))
	}
	return s.write(b.Bytes())
}

func (s *sender) write(data []byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.wait)); err != nil {
		return err
	}
	if _, err := s.to.Write(data); err != nil {
		return err
	}
	return s.control.Flush()
}
