package feed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

func told(s *Source) []string {
	var list []string
	s.Samples(func(id telemetry.ID, uuid string, v float64, labels ...string) {
		if id != telemetry.NodeReaderDuration {
			list = append(list, strings.Join(strings.Fields(fmt.Sprint(telemetry.RowOf(id).Name, " ", uuid, " ", strings.Join(labels, "|"), " ", v)), " "))
		}
	})
	return list
}

func load(v float64) *Batch {
	return &Batch{Reader: "pressure", Period: 15 * time.Second, Samples: []Sample{{ID: telemetry.NodeHostLoad1, Value: v}}}
}

// child is the readers' process.
type child struct {
	r       *io.PipeReader
	w       *io.PipeWriter
	started time.Time
}

// The process of the readers is started again when it ends, later each time; a
// reader that falls silent is no success, and its values end.
func TestReadersThatEndAreStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var children []*child
		s := New(func(ctx context.Context) (io.ReadCloser, func() error, error) {
			c := &child{started: time.Now()}
			c.r, c.w = io.Pipe()
			children = append(children, c)
			context.AfterFunc(ctx, func() { _ = c.w.Close() })
			if len(children) == 3 {
				return nil, nil, errors.New("no such program")
			}
			return c.r, func() error { return errors.New("exit status 1") }, nil
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(ctx)
		}()
		synctest.Wait()
		if err := NewWriter(children[0].w).Write(load(3)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := told(s), []string{"evenkeel_reader_success host 1", "evenkeel_reader_success pressure 1", "node_host_load1 3"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		_ = children[0].w.Close()
		synctest.Wait()
		if got, want := told(s)[0], "evenkeel_reader_success host 0"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(46 * time.Second)
		synctest.Wait()
		if got, want := told(s)[1:], []string{"evenkeel_reader_success pressure 0"}; !slices.Equal(got, want) {
			t.Errorf("a silent reader: %q, want %q", got, want)
		}
		_, err := children[1].w.Write([]byte("panic: runtime error\n")) // nonsense ends it
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(children) < 4 {
			t.Fatalf("started %d times", len(children))
		}
		cancel()
		<-done
	})
}

// Hostile batches cost nothing beyond their bounds.
func TestBatchesAreBounded(t *testing.T) {
	s := New(nil, nil)
	if err := s.Read(io.MultiReader(strings.NewReader(`{"reader":"`), io.LimitReader(zeros{}, 2*MaxLine))); err == nil {
		t.Error("an endless line is no error")
	}
	if err := s.Read(strings.NewReader("[1,2]\n")); err == nil {
		t.Error("a line that is no batch is no error")
	}
	var buf bytes.Buffer
	w := NewWriter(&buf)
	b := load(1)
	for i := range 3 * MaxSamples {
		b.Samples = append(b.Samples, Sample{ID: telemetry.NodeHostTemperatureCelsius, Value: 1, Labels: []string{fmt.Sprint("s", i)}})
	}
	if err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	// Two readers that tell of one thing: it is told once.
	other := load(9)
	other.Reader = "other\x1b[2J"
	if err := w.Write(other); err != nil {
		t.Fatal(err)
	}
	if err := s.Read(&buf); err != nil {
		t.Fatal(err)
	}
	got := told(s)
	if n := len(got); n != 3+MaxSamples {
		t.Errorf("%d told", n)
	}
	if slices.Contains(got, "node_host_load1 9") || !slices.Contains(got, "evenkeel_reader_success other?[2J 1") {
		t.Errorf("%q", got[len(got)-3:])
	}
	many := New(nil, nil)
	for i := range maxReaders {
		if err := many.take(Batch{Reader: fmt.Sprint(i)}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := many.take(Batch{Reader: "one more"}, time.Now()); err == nil {
		t.Error("readers without end")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
