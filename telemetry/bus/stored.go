package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// lookBack is how far into the past a new follower of receipts and events
// begins: longer than any lease, so that what still holds is known.
const lookBack = time.Hour

// PublishReceipt stores what became of a step: it is sent again until the
// server has it. stored, if not nil, is called then. An error means that it
// can never be stored.
func (c *Conn) PublishReceipt(node string, r telemetry.Receipt, stored func()) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode receipt of %s: %w", r.StepID, err)
	}
	// A step may have several receipts (done, and later undone), and the same
	// one may be sent by two runs of an agent: the content is the identity.
	sum := sha256.Sum256(data)
	return c.out.put(&letter{telemetry.ReceiptSubject(node), hex.EncodeToString(sum[:16]), data, stored})
}

// PublishEvent stores an event: it is sent again until the server has it.
func (c *Conn) PublishEvent(e telemetry.Event) error {
	if e.ID == "" || e.Node == "" {
		return fmt.Errorf("event without id or node")
	}
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return c.out.put(&letter{telemetry.EventSubject(e.Node), e.Node + "/" + e.ID, data, nil})
}

// Receipts calls fn with every receipt, those of the last hour first. fn must
// only enqueue and must not call stop.
func (c *Conn) Receipts(fn func(subject string, r telemetry.Receipt)) (stop func(), err error) {
	return stored(c, StreamReceipts, fn)
}

// Events calls fn with every event, those of the last hour first. fn must only
// enqueue and must not call stop.
func (c *Conn) Events(fn func(subject string, e telemetry.Event)) (stop func(), err error) {
	return stored(c, StreamEvents, fn)
}

func stored[T any](c *Conn, stream string, fn func(string, T)) (func(), error) {
	s := start{policy: jetstream.DeliverByStartTimePolicy, since: time.Now().Add(-lookBack)}
	return c.background(context.Background(), stream, s, func(_ uint64, m jetstream.Msg) {
		var v T
		if c.decode(m, &v) {
			fn(m.Subject(), v)
		}
	})
}

// PublishInventory replaces the last inventory of its source.
func (c *Conn) PublishInventory(ctx context.Context, inv telemetry.Inventory) error {
	if inv.Source == "" {
		return fmt.Errorf("inventory without source")
	}
	data, err := json.Marshal(inv)
	if err != nil {
		return fmt.Errorf("encode inventory of %s: %w", inv.Source, err)
	}
	if limit := c.maxPayload(); int64(len(data)) > limit {
		return fmt.Errorf("inventory of %s is %d bytes and the server's max_payload %d: raise max_payload (up to 64 MB), or split the source",
			inv.Source, len(data), limit)
	}
	if _, err := c.js.Publish(ctx, telemetry.InventorySubject(inv.Source), data); err != nil {
		return fmt.Errorf("publish inventory of %s: %w", inv.Source, err)
	}
	return nil
}

// Inventories calls fn with every inventory snapshot, the last of each source
// first, until ctx ends or stop is called. fn must not call stop.
func (c *Conn) Inventories(ctx context.Context, fn func(telemetry.Inventory)) (stop func(), err error) {
	return c.background(ctx, StreamInventory, start{policy: jetstream.DeliverAllPolicy}, func(_ uint64, m jetstream.Msg) {
		var inv telemetry.Inventory
		if !c.decode(m, &inv) {
			return
		}
		if m.Subject() != telemetry.InventorySubject(inv.Source) {
			c.malformed.Add(1) // the subject is what the server enforced
			c.log.Warn("inventory left out: it speaks for another source than that of its subject", "subject", m.Subject(), "source", inv.Source)
			return
		}
		fn(inv)
	})
}
