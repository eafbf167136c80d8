package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus/embedded"
)

func record(id string) telemetry.Record {
	return telemetry.Record{ID: id, Topic: telemetry.TopicIntent, Time: time.Unix(1, 0).UTC(), Decision: &telemetry.Decision{ID: id}}
}

func TestJournalIsCompareAndAppend(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := bounded(t)
		leader, rival := w.connect(t, bus.UserRebalancer), w.connect(t, bus.UserRebalancer)
		mustAppend := func(c *bus.Conn, expect uint64, id string, want uint64) {
			t.Helper()
			if seq, err := c.Append(ctx, expect, record(id)); err != nil || seq != want {
				t.Fatalf("append %s after %d: %d, %v; want %d", id, expect, seq, err, want)
			}
		}
		mustAppend(leader, 0, "a", 1)
		mustAppend(leader, 1, "b", 2)
		if _, err := rival.Append(ctx, 1, record("x")); !errors.Is(err, telemetry.ErrConflict) {
			t.Fatalf("append behind an old sequence: %v, want ErrConflict", err)
		}
		mustAppend(rival, 2, "c", 3)
		// The answer to the first attempt was lost: the repetition is ours, even
		// though the journal has moved on since.
		mustAppend(leader, 1, "b", 2)
		mustAppend(rival, 2, "c", 3)
		if _, err := leader.Append(ctx, 3, telemetry.Record{Topic: telemetry.TopicIntent}); err == nil {
			t.Error("a record without id was taken")
		}

		var ids []string
		last, err := rival.Replay(ctx, func(seq uint64, r telemetry.Record) error {
			ids = append(ids, fmt.Sprintf("%d%s", seq, r.Decision.ID))
			return nil
		})
		if err != nil || last != 3 || fmt.Sprint(ids) != "[1a 2b 3c]" {
			t.Errorf("replay gave %v to %d, %v", ids, last, err)
		}
		stopHere := errors.New("stop here")
		if last, err := rival.Replay(ctx, func(uint64, telemetry.Record) error { return stopHere }); !errors.Is(err, stopHere) || last != 0 {
			t.Errorf("replay with a failing fold: %d, %v", last, err)
		}
	})
}

// A start reads from the newest snapshot, wherever it is, and from the first
// record where there is none.
func TestJournalIsResumedFromItsLastSnapshot(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := bounded(t)
		c := w.connect(t, bus.UserRebalancer)
		read := func() (ids string, last uint64) {
			t.Helper()
			last, err := c.Resume(ctx, func(seq uint64, r telemetry.Record) error {
				ids += fmt.Sprintf(" %d%s", seq, r.ID)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return ids, last
		}
		if ids, last := read(); ids != "" || last != 0 {
			t.Errorf("an empty journal: %q to %d", ids, last)
		}
		for i, step := range []struct {
			id    string
			topic telemetry.Topic
			want  string
		}{{"a", telemetry.TopicIntent, " 1a"}, {"b", telemetry.TopicOutcome, " 1a 2b"}, {"s", telemetry.TopicSnapshot, " 3s"}, {"c", telemetry.TopicOutcome, " 3s 4c"}, {"t", telemetry.TopicSnapshot, " 5t"}, {"d", telemetry.TopicIntent, " 5t 6d"}} {
			r := record(step.id)
			r.Topic = step.topic
			if _, err := c.Append(ctx, uint64(i), r); err != nil {
				t.Fatal(err)
			}
			if ids, last := read(); ids != step.want || last != uint64(i+1) {
				t.Errorf("after %s: %q to %d, want %q", step.id, ids, last, step.want)
			}
		}
	})
}

// TestJournalHasOneWinner lets writers race for each sequence.
func TestJournalHasOneWinner(t *testing.T) {
	w := startInProcess(t, nil)
	ctx := bounded(t)
	first := w.connect(t, bus.UserRebalancer)
	if err := first.EnsureStreams(ctx, small()); err != nil {
		t.Fatal(err)
	}
	const rounds, writers = 20, 4
	var won, conflicts atomic.Int32
	for round := range uint64(rounds) {
		var racing sync.WaitGroup
		for i := range writers {
			racing.Go(func() {
				seq, err := first.Append(ctx, round, record(fmt.Sprintf("r%d-%d", round, i)))
				switch {
				case err == nil && seq == round+1:
					won.Add(1)
				case errors.Is(err, telemetry.ErrConflict):
					conflicts.Add(1)
				default:
					t.Errorf("round %d: %d, %v", round, seq, err)
				}
			})
		}
		racing.Wait()
	}
	if won.Load() != rounds || conflicts.Load() != rounds*(writers-1) {
		t.Errorf("%d appends won and %d lost, want %d and %d", won.Load(), conflicts.Load(), rounds, rounds*(writers-1))
	}
}

// TestFollowersSurviveTheServer restarts the server under two followers, a
// writer and an outbox: no gap, no repetition, nothing lost.
func TestFollowersSurviveTheServer(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	o := embedded.Options{StoreDir: dir, Port: port, Users: users("node1")}
	server := startEmbedded(t, o)
	w := world{url: server.URL()}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	leader, collector, agent := w.connect(t, bus.UserRebalancer), w.connect(t, bus.UserCollector), w.connect(t, telemetry.AgentUser("node1"))
	if err := leader.EnsureStreams(ctx, small()); err != nil {
		t.Fatal(err)
	}
	var followed list[uint64]
	go func() {
		_ = collector.FollowJournal(ctx, func(seq uint64, r telemetry.Record) {
			if r.ID != fmt.Sprint(seq) {
				t.Errorf("record %s at %d", r.ID, seq)
			}
			followed.add(seq)
		})
	}()
	var receipts list[string]
	stop, err := collector.Receipts(func(_ string, r telemetry.Receipt) { receipts.add(r.StepID) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	const each = 10
	last := uint64(0)
	write := func() {
		t.Helper()
		for range each {
			seq, err := leader.Append(ctx, last, record(fmt.Sprint(last+1)))
			if err != nil {
				t.Fatal(err)
			}
			last = seq
			if err := agent.PublishReceipt("node1", telemetry.Receipt{StepID: fmt.Sprint(seq)}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for round := range 3 {
		write()
		server.Shutdown()
		if err := leader.PublishObservation("node1", nil); !errors.Is(err, bus.ErrNotConnected) {
			eventually(t, "a publish that fails at once", func() bool {
				return errors.Is(leader.PublishObservation("node1", nil), bus.ErrNotConnected)
			})
		}
		// A receipt that comes while the server is away waits for it.
		if err := agent.PublishReceipt("node1", telemetry.Receipt{StepID: fmt.Sprint("away", round)}, nil); err != nil {
			t.Fatal(err)
		}
		server = startEmbedded(t, o)
	}
	write()
	eventually(t, "all records", func() bool { return followed.len() == 4*each })
	for i, seq := range followed.get() {
		if seq != uint64(i+1) {
			t.Fatalf("followed %v", followed.get())
		}
	}
	eventually(t, "all receipts", func() bool { return receipts.len() == 4*each+3 })
	// It may sleep through an outage that is shorter than its wait.
	if s := agent.Stats(); s.OutboxDropped != 0 || s.Reconnects < 1 {
		t.Errorf("stats %+v, want nothing dropped and a reconnect", s)
	}
}

// TestFollowJournalNoticesANewJournal removes the stream under a follower.
func TestFollowJournalNoticesANewJournal(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	w := world{url: server.URL()}
	ctx := bounded(t)
	leader := connect(t, bus.Options{URLs: []string{w.url}})
	if err := leader.EnsureStreams(ctx, small()); err != nil {
		t.Fatal(err)
	}
	var followed list[uint64]
	ended := make(chan error, 1)
	go func() { ended <- leader.FollowJournal(ctx, func(seq uint64, _ telemetry.Record) { followed.add(seq) }) }()
	if _, err := leader.Append(ctx, 0, record("a")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record", func() bool { return followed.len() == 1 })
	js := rawStreams(t, w.url)
	if err := js.DeleteStream(ctx, bus.StreamJournal); err != nil {
		t.Fatal(err)
	}
	if err := leader.EnsureStreams(ctx, small()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil || ctx.Err() != nil {
			t.Errorf("ended with %v, want an error that names the new stream", err)
		}
	case <-ctx.Done():
		t.Error("the follower did not notice")
	}
}

func rawStreams(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestReplayRefusesWhatItCannotRead(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	ctx := bounded(t)
	c := connect(t, bus.Options{URLs: []string{server.URL()}})
	if err := c.EnsureStreams(ctx, small()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(ctx, 0, record("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := rawStreams(t, server.URL()).Publish(ctx, telemetry.JournalSubject(telemetry.TopicIntent), []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(ctx, 2, record("b")); err != nil {
		t.Fatal(err)
	}
	if last, err := c.Replay(ctx, func(uint64, telemetry.Record) error { return nil }); err == nil || last != 1 {
		t.Errorf("replayed to %d, %v; want an error at 2", last, err)
	}
	// A follower only shows: it leaves the record out and counts it.
	var followed list[uint64]
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { _ = c.FollowJournal(following, func(seq uint64, _ telemetry.Record) { followed.add(seq) }) }()
	eventually(t, "both good records", func() bool { return followed.len() == 2 })
	if got := c.Stats().Malformed; got != 2 {
		t.Errorf("%d malformed counted, want 2", got)
	}
}

func TestEnsureStreams(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	ctx := bounded(t)
	c, js := connect(t, bus.Options{URLs: []string{server.URL()}}), rawStreams(t, server.URL())
	want := small()
	want.Events.MaxConsumers = 2000 // over the server's default
	for range 2 {
		if err := c.EnsureStreams(ctx, want); err != nil {
			t.Fatal(err)
		}
		want.Events.MaxConsumers = 5 // a second process with other bounds does not change them
	}
	for name, subject := range map[string]string{
		bus.StreamEvents: telemetry.AllEvents, bus.StreamReceipts: telemetry.AllReceipts,
		bus.StreamJournal: telemetry.AllJournal, bus.StreamInventory: telemetry.AllInventories,
	} {
		s, err := js.Stream(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		if cfg.Subjects[0] != subject || cfg.MaxBytes != 8<<20 || cfg.MaxAge <= 0 || cfg.MaxConsumers <= 1000 || cfg.Storage != jetstream.FileStorage {
			t.Errorf("%s: %+v", name, cfg)
		}
	}
	if err := c.EnsureStreams(ctx, bus.Streams{}); err == nil {
		t.Error("streams without bounds were made")
	}
	if err := js.DeleteStream(ctx, bus.StreamEvents); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: bus.StreamEvents, Subjects: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnsureStreams(ctx, want); err == nil {
		t.Error("somebody else's stream was taken for ours")
	}
}

func TestOutboxIsBounded(t *testing.T) {
	server := startEmbedded(t, embedded.Options{StoreDir: t.TempDir(), Port: embedded.Random})
	c := connect(t, bus.Options{URLs: []string{server.URL()}, OutboxLimit: 10, ReconnectWait: time.Millisecond, ReconnectJitter: time.Millisecond})
	ctx := bounded(t)
	// Without streams nothing is stored, so everything waits.
	for i := range 25 {
		if err := c.PublishReceipt("node1", telemetry.Receipt{StepID: fmt.Sprint(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.OutboxQueued != 10 || s.OutboxDropped != 15 {
		t.Errorf("%d queued and %d dropped, want 10 and 15", s.OutboxQueued, s.OutboxDropped)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := c.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("flush: %v, want a deadline", err)
	}
	if err := c.EnsureStreams(ctx, small()); err != nil {
		t.Fatal(err)
	}
	flush(t, c)
	var kept list[string]
	stop, err := c.Receipts(func(_ string, r telemetry.Receipt) { kept.add(r.StepID) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// One that was on its way when it was given up may have arrived too.
	eventually(t, "the ten newest", func() bool { return kept.len() >= 10 && kept.get()[kept.len()-1] == "24" })
	if got := kept.get(); got[len(got)-10] != "15" || len(got) > 11 {
		t.Errorf("kept %v, want 15 to 24", got)
	}
	huge := telemetry.Receipt{StepID: "huge", Detail: string(make([]byte, bus.DefaultMaxPayload))}
	if err := c.PublishReceipt("node1", huge, nil); err == nil {
		t.Error("a receipt that the server would never take was queued")
	}
}

func TestAppendAll(t *testing.T) {
	everywhere(t, func(t *testing.T, w world) {
		ctx := bounded(t)
		leader, rival := w.connect(t, bus.UserRebalancer), w.connect(t, bus.UserRebalancer)
		var rs []telemetry.Record
		for i := range 150 { // more than are on their way at a time
			rs = append(rs, record(fmt.Sprint("r", i)))
		}
		var seqs []uint64
		stored := func(seq uint64) { seqs = append(seqs, seq) }
		inOrder := func(what string, from, n int) {
			t.Helper()
			if len(seqs) != n {
				t.Fatalf("%s: %d records reported, want %d", what, len(seqs), n)
			}
			for i, seq := range seqs {
				if seq != uint64(from+i+1) {
					t.Fatalf("%s: record %d reported at %d, want %d", what, i, seq, from+i+1)
				}
			}
			seqs = nil
		}
		if err := leader.AppendAll(ctx, 0, rs, stored); err != nil {
			t.Fatal(err)
		}
		inOrder("first", 0, 150)
		// As if no answer had come: they are found, none is there twice.
		if err := leader.AppendAll(ctx, 0, rs, stored); err != nil {
			t.Fatal(err)
		}
		inOrder("again", 0, 150)

		// A record of somebody else in the place of ours: ours is refused, and so
		// are those behind it, though the sequence would be theirs.
		if _, err := rival.Append(ctx, 150, record("x")); err != nil {
			t.Fatal(err)
		}
		err := leader.AppendAll(ctx, 150, []telemetry.Record{record("p"), record("q"), record("s")}, stored)
		if !errors.Is(err, telemetry.ErrConflict) {
			t.Errorf("append behind somebody else's record: %v, want ErrConflict", err)
		}
		inOrder("conflict", 150, 0)

		// One that cannot be written ends it; those before it are there.
		bad := record("u")
		bad.ID = ""
		if err := leader.AppendAll(ctx, 151, []telemetry.Record{record("t"), bad, record("v")}, stored); err == nil {
			t.Error("a record without id was taken")
		}
		inOrder("bad", 151, 1)
		var ids []string
		last, err := rival.Replay(ctx, func(_ uint64, r telemetry.Record) error {
			ids = append(ids, r.Decision.ID)
			return nil
		})
		if err != nil || last != 152 || fmt.Sprint(ids[149:]) != "[r149 x t]" {
			t.Errorf("replay gave %v to %d, %v", ids[149:], last, err)
		}
	})
}

// TestKeepStreams restarts the server without its store: what writes to it
// goes on, without anybody's help.
func TestKeepStreams(t *testing.T) {
	o := embedded.Options{StoreDir: t.TempDir(), Port: freePort(t), Users: users("node1")}
	server := startEmbedded(t, o)
	w := world{url: server.URL()}
	ctx := bounded(t)
	leader, agent := w.connect(t, bus.UserRebalancer), w.connect(t, telemetry.AgentUser("node1"))
	keeping, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- leader.KeepStreams(keeping, small()) }()
	eventually(t, "the journal is there", func() bool {
		_, err := leader.Append(ctx, 0, record("a"))
		return err == nil
	})
	server.Shutdown()
	o.StoreDir = t.TempDir()
	startEmbedded(t, o)
	eventually(t, "a new journal", func() bool {
		_, err := leader.Append(ctx, 0, record("b"))
		return err == nil
	})
	stored := make(chan struct{})
	if err := agent.PublishReceipt("node1", telemetry.Receipt{StepID: "s"}, func() { close(stored) }); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stored:
	case <-ctx.Done():
		t.Error("the receipt is not stored")
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
