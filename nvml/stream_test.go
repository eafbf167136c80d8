//go:build cgo && linux

package nvml

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// line is one thing that a running exporter says to the test that runs it.
type line struct {
	What string // frame, event, listen

	// Of a frame: it is told when it is another than the one before.
	Fault string
	Up    []bool
	Lost  []bool
	Hung  []string

	Event *telemetry.Event // of an event

	Error string // of a Listen, empty if all are heard
}

// running is a helper that goes on until the test has seen enough.
type running struct {
	t     *testing.T
	lines chan line
	seen  []line
	taken map[*telemetry.Event]bool
}

// runExporter runs the exporter on a library and world of the test's.
func runExporter(t *testing.T, library, shm string) *running {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=run", LibraryEnv+"="+library, "EVENKEEL_STANDIN_SHM="+shm)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, lines: make(chan line, 10_000), taken: map[*telemetry.Event]bool{}}
	go func() {
		defer close(r.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var l line
			if json.Unmarshal(s.Bytes(), &l) == nil {
				r.lines <- l
			}
		}
	}()
	t.Cleanup(func() {
		_ = in.Close() // which ends it
		timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		for range r.lines {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the exporter ended with %v\n%s", err, stderr.String())
		}
	})
	return r
}

// until reads what the exporter says until one line pleases, and returns it.
func (r *running) until(what string, pleases func(line) bool) line {
	r.t.Helper()
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	for {
		select {
		case l, ok := <-r.lines:
			if !ok {
				r.t.Fatalf("the exporter ended before: %s", what)
			}
			r.seen = append(r.seen, l)
			if pleases(l) {
				return l
			}
		case <-timer.C:
			r.t.Fatalf("not within 30 s: %s; last said %+v", what, r.seen[max(0, len(r.seen)-5):])
		}
	}
}

// event waits for an event of a kind and, if it is not 0, a code. It may have
// been told before another that was waited for: they have no order.
func (r *running) event(kind telemetry.EventKind, code int) *telemetry.Event {
	r.t.Helper()
	is := func(l line) bool {
		return l.Event != nil && !r.taken[l.Event] && l.Event.Kind == kind && (code == 0 || l.Event.Code == code)
	}
	var e *telemetry.Event
	if i := slices.IndexFunc(r.seen, is); i >= 0 {
		e = r.seen[i].Event
	} else {
		e = r.until(fmt.Sprintf("event %s %d", kind, code), is).Event
	}
	r.taken[e] = true
	return e
}

// heard waits until all GPUs are listened to.
func (r *running) heard() {
	r.t.Helper()
	r.until("all GPUs are listened to", func(l line) bool { return l.What == "listen" && l.Error == "" })
}

// allUp waits for a frame in which every one of n GPUs answers.
func (r *running) allUp(n int) {
	r.t.Helper()
	all := func(l line) bool {
		up := 0
		for _, ok := range l.Up {
			if ok {
				up++
			}
		}
		return up == n
	}
	for i := len(r.seen) - 1; i >= 0; i-- {
		if l := r.seen[i]; l.What == "frame" {
			if all(l) {
				return
			}
			break
		}
	}
	r.until("all GPUs answer", all)
}

// count is how often an event of a kind was told so far.
func (r *running) count(kind telemetry.EventKind) (n int) {
	for _, l := range r.seen {
		if l.Event != nil && l.Event.Kind == kind {
			n++
		}
	}
	return n
}

// teller is the sink of the running exporter.
type teller struct {
	mu   sync.Mutex
	out  *json.Encoder
	last string
}

func (s *teller) say(l line) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Encode(l)
}

func (s *teller) Frame(data []byte) error {
	var f telemetry.Frame
	if err := telemetry.DecodeFrame(data, &f); err != nil {
		return err
	}
	l := line{What: "frame", Fault: f.GetDriverFault()}
	for _, g := range f.GetGpus() {
		l.Up, l.Lost, l.Hung = append(l.Up, g.GetUp() == 1), append(l.Lost, g.GetLost()), append(l.Hung, g.GetHung().GetCall())
	}
	s.mu.Lock()
	same := s.last == fmt.Sprint(l)
	s.last = fmt.Sprint(l)
	s.mu.Unlock()
	if same {
		return nil
	}
	return s.say(l)
}

func (s *teller) Event(e telemetry.Event) error { return s.say(line{What: "event", Event: &e}) }

// spied is a Source that says how listening went.
type spied struct {
	*Source
	sink *teller
}

func (s *spied) Listen(anew ...string) error {
	err := s.Source.Listen(anew...)
	l := line{What: "listen"}
	if err != nil {
		l.Error = err.Error()
	}
	return errors.Join(err, s.sink.say(l))
}

// helpRun runs the exporter until its input ends.
func helpRun(out *json.Encoder) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	sink := &teller{out: out}
	e, err := exporter.New(exporter.Options{Node: "n", Source: &spied{New(), sink}, Sink: sink, Period: exporter.MinPeriod})
	if err != nil {
		return err
	}
	return e.Run(ctx)
}
