package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Names of the streams and of the bucket of leases.
const (
	StreamEvents    = "EK_EVENTS"
	StreamReceipts  = "EK_RECEIPTS"
	StreamJournal   = "EK_JOURNAL"
	StreamInventory = "EK_INVENTORY"
	BucketLease     = "EK_LEASE"

	streamLease = "KV_" + BucketLease
)

// Bounds are what a stream may hold. The oldest goes first.
type Bounds struct {
	MaxBytes     int64
	MaxAge       time.Duration
	MaxConsumers int
}

// Streams are the bounds of every stream. Replicas is 1, or 3 in a cluster.
type Streams struct {
	Replicas                             int
	Events, Receipts, Journal, Inventory Bounds
}

// DefaultStreams holds a week of events and receipts and ninety days of
// journal. The server's default of 1,000 consumers a stream is not relied on.
func DefaultStreams() Streams {
	const mib, day = 1 << 20, 24 * time.Hour
	return Streams{
		Replicas:  1,
		Events:    Bounds{256 * mib, 7 * day, 4096},
		Receipts:  Bounds{256 * mib, 7 * day, 4096},
		Journal:   Bounds{1024 * mib, 90 * day, 4096},
		Inventory: Bounds{256 * mib, 7 * day, 4096},
	}
}

// dedupe is how long a message id is remembered; a writer that repeats does so
// within seconds, a new leader within minutes.
const dedupe = time.Hour

func (s Streams) configs() []jetstream.StreamConfig {
	one := func(name, subject, what string, b Bounds) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: name, Subjects: []string{subject}, Description: what,
			Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxBytes: b.MaxBytes, MaxAge: b.MaxAge, MaxConsumers: b.MaxConsumers,
			Duplicates: min(dedupe, b.MaxAge), Replicas: max(s.Replicas, 1), AllowDirect: true,
		}
	}
	inventory := one(StreamInventory, telemetry.AllInventories, "last inventory of each source", s.Inventory)
	inventory.MaxMsgsPerSubject = 1
	journal := one(StreamJournal, telemetry.AllJournal, "decisions and what came of them", s.Journal)
	journal.DenyDelete, journal.DenyPurge = true, true
	journal.AllowDirect = false // Append looks for its own record, which a follower may not have yet
	return []jetstream.StreamConfig{
		one(StreamEvents, telemetry.AllEvents, "events of the nodes", s.Events),
		one(StreamReceipts, telemetry.AllReceipts, "what became of orders", s.Receipts),
		journal, inventory,
	}
}

func (b Bounds) check(name string) error {
	if b.MaxBytes <= 0 || b.MaxAge <= 0 || b.MaxConsumers == 0 {
		return fmt.Errorf("stream %s: every bound must be set: bytes, age and consumers", name)
	}
	return nil
}

// EnsureStreams makes the streams that are missing. One that is there keeps
// its bounds, since two processes with different settings would otherwise
// fight over it; `nats stream edit` changes them. A stream of that name that
// holds something else is an error.
func (c *Conn) EnsureStreams(ctx context.Context, s Streams) error {
	for _, b := range []struct {
		name string
		b    Bounds
	}{{StreamEvents, s.Events}, {StreamReceipts, s.Receipts}, {StreamJournal, s.Journal}, {StreamInventory, s.Inventory}} {
		if err := b.b.check(b.name); err != nil {
			return err
		}
	}
	for _, cfg := range s.configs() {
		err := c.ensureStream(ctx, cfg)
		if errors.Is(err, nats.ErrNoResponders) {
			return fmt.Errorf("%w: the server has no JetStream; switch it on (nats-server -js, or jetstream {} in its file)", err)
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
	}
	if err := c.ensureLease(ctx, max(s.Replicas, 1)); err != nil {
		return fmt.Errorf("bucket %s: %w", BucketLease, err)
	}
	return nil
}

// KeepStreams makes the streams as soon as the server is there, and again when
// it has come back without its store, until ctx ends.
func (c *Conn) KeepStreams(ctx context.Context, s Streams) error {
	said := ""
	for ctx.Err() == nil {
		reconnected := c.reconnection()
		wait := streamsEvery
		if err := c.EnsureStreams(ctx, s); err != nil {
			wait = streamsRetry
			if text := err.Error(); ctx.Err() == nil && text != said {
				said = text
				c.log.Warn("the streams are not there yet; trying again", "err", err)
			}
		} else {
			said = ""
		}
		select {
		case <-ctx.Done():
		case <-reconnected:
		case <-time.After(wait):
		}
	}
	return ctx.Err()
}

// A server that lost its store is noticed on reconnecting; one that somebody
// took a stream from, by looking.
const (
	streamsEvery = time.Minute
	streamsRetry = time.Second
)

func (c *Conn) ensureStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	have, err := c.js.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = c.js.CreateStream(ctx, cfg)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		have, err = c.js.Stream(ctx, cfg.Name) // another process was first
	}
	if err != nil {
		return err
	}
	is := have.CachedInfo().Config
	if !slices.Equal(is.Subjects, cfg.Subjects) || is.MaxMsgsPerSubject > 0 != (cfg.MaxMsgsPerSubject > 0) {
		return fmt.Errorf("is there with subjects %v and %d messages per subject, want %v and %d: it is not ours; remove or rename it",
			is.Subjects, is.MaxMsgsPerSubject, cfg.Subjects, cfg.MaxMsgsPerSubject)
	}
	c.tooFew(cfg.Name, is.Replicas, cfg.Replicas)
	return nil
}

// tooFew says once that a stream is on fewer servers than it should be. It is
// not changed here: that is no right of the processes.
func (c *Conn) tooFew(stream string, is, want int) {
	c.mu.Lock()
	said := c.few[stream]
	c.few[stream] = is < want
	c.mu.Unlock()
	if is < want && !said {
		c.log.Warn("a stream is on fewer servers than the file asks for; `nats stream edit` changes it",
			"stream", stream, "replicas", is, "want", want)
	}
}

func (c *Conn) ensureLease(ctx context.Context, replicas int) error {
	have, err := c.js.Stream(ctx, streamLease)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		if err == nil {
			c.tooFew(streamLease, have.CachedInfo().Config.Replicas, replicas)
		}
		return err
	}
	_, err = c.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: BucketLease, Description: "leases of leadership", History: 1,
		MaxBytes: 1 << 20, Storage: jetstream.FileStorage, Replicas: replicas,
		LimitMarkerTTL: time.Minute,
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		return nil
	}
	return err
}
