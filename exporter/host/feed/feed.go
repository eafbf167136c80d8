// Package feed carries what the host's readers find from their process to the
// exporter's.
//
// In: batches, one of each run of a reader, as lines. Out: the last batch of
// each reader as samples, with its success and duration. Never: a wait of the
// exporter, a line that costs more than it may, a value older than three runs.
//
// The readers are in a process of their own because they are many, run other
// programs, may need rights that the exporter must not have, and cost the
// memory of their libraries.
package feed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// MaxLine bounds a batch.
	MaxLine = 1 << 20
	// MaxSamples bounds what one reader may tell.
	MaxSamples = 512
	maxReaders = 64
	// staleRuns is after how many of its own periods a reader's word ends.
	staleRuns = 3
	backMin   = time.Second
	backMax   = time.Minute
)

// Sample is one value.
type Sample struct {
	ID     telemetry.ID `json:"id"`
	UUID   string       `json:"uuid,omitempty"`
	Value  float64      `json:"v"`
	Labels []string     `json:"l,omitempty"`
}

// Batch is what one run of a reader found.
type Batch struct {
	Reader  string        `json:"reader"`
	Error   string        `json:"error,omitempty"`
	Took    time.Duration `json:"took"`
	Period  time.Duration `json:"period"`
	Refused int           `json:"refused,omitempty"` // values that the catalogue has no room for
	Samples []Sample      `json:"samples,omitempty"`
}

// Writer writes batches, each a line.
type Writer struct {
	mu sync.Mutex
	to io.Writer
}

// NewWriter writes to a pipe.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write writes one batch; an error means that nobody reads any more.
func (w *Writer) Write(b *Batch) error {
	if len(b.Samples) > MaxSamples {
		b.Refused += len(b.Samples) - MaxSamples
		b.Samples = b.Samples[:MaxSamples]
	}
	line, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("host readers: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.to.Write(append(line, '\n'))
	return err
}

// Start begins the process of the readers and returns what it writes. It ends
// with ctx. Wait returns when it has ended.
type Start func(ctx context.Context) (out io.ReadCloser, wait func() error, err error)

// Source keeps the readers' process running and tells what they found. It
// implements exporter.SampleSource.
type Source struct {
	start Start
	log   *slog.Logger

	mu      sync.Mutex
	readers []*reader // in the order in which they were first heard
	down    string    // why the process does not run
}

type reader struct {
	batch Batch
	at    time.Time
}

var _ exporter.SampleSource = (*Source)(nil)

// New prepares a Source.
func New(start Start, log *slog.Logger) *Source {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Source{start: start, log: log.With("component", "host"), down: "it has not been started"}
}

// Run starts the process, and again when it ends, until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	wait := backMin
	for {
		began := time.Now()
		why := fmt.Sprint(s.once(ctx))
		s.set(why)
		if time.Since(began) > backMax {
			wait = backMin
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		default:
			s.log.Warn("the readers of the host ended; they are started again", "why", why, "after", wait)
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(2*wait, backMax)
	}
}

func (s *Source) set(down string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *Source) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, wait, err := s.start(ctx)
	if err != nil {
		return err
	}
	s.set("")
	err = s.Read(out)
	cancel()
	_ = out.Close()
	return errors.Join(err, wait())
}

// Read takes batches until the stream ends. A line that is none is an error: who
// writes nonsense is begun anew.
func (s *Source) Read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 64<<10), MaxLine)
	for lines.Scan() {
		var b Batch
		if err := json.Unmarshal(lines.Bytes(), &b); err != nil {
			return fmt.Errorf("host readers: %w", err)
		}
		if err := s.take(b, time.Now()); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (s *Source) take(b Batch, now time.Time) error {
	b.Reader = exporter.CleanLabel(b.Reader)
	b.Samples = b.Samples[:min(len(b.Samples), MaxSamples)]
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.readers, func(r *reader) bool { return r.batch.Reader == b.Reader })
	if i < 0 {
		if len(s.readers) == maxReaders {
			return fmt.Errorf("host readers: more than %d", maxReaders)
		}
		i = len(s.readers)
		s.readers = append(s.readers, &reader{})
	}
	if was := s.readers[i].batch.Error; b.Error != was {
		if b.Error != "" {
			s.log.Warn("a reader of the host fails", "reader", b.Reader, "err", b.Error)
		} else {
			s.log.Info("a reader of the host succeeds again", "reader", b.Reader)
		}
	}
	*s.readers[i] = reader{batch: b, at: now}
	return nil
}

// readerHost is the process of them all.
const readerHost = "host"

// Samples implements exporter.SampleSource.
func (s *Source) Samples(put func(id telemetry.ID, uuid string, v float64, labels ...string)) {
	s.samples(time.Now(), put)
}

func (s *Source) samples(now time.Time, put func(id telemetry.ID, uuid string, v float64, labels ...string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	put(telemetry.NodeReaderSuccess, "", boolean(s.down == ""), readerHost)
	told := map[string]bool{}
	var key []byte
	for _, r := range s.readers {
		fresh := r.batch.Period > 0 && now.Sub(r.at) <= staleRuns*r.batch.Period
		put(telemetry.NodeReaderSuccess, "", boolean(fresh && r.batch.Error == ""), r.batch.Reader)
		put(telemetry.NodeReaderDuration, "", r.batch.Took.Seconds(), r.batch.Reader)
		if !fresh {
			continue
		}
		for _, x := range r.batch.Samples {
			// Two readers may tell of one thing; the first that is there is heard.
			key = fmt.Appendf(key[:0], "%d %s %q", x.ID, x.UUID, x.Labels)
			if told[string(key)] {
				continue
			}
			told[string(key)] = true
			put(x.ID, x.UUID, x.Value, slices.Clone(x.Labels)...)
		}
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
