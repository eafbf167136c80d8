package agent

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// phase is how far an order has come. Each is on disk before the next begins.
type phase string

const (
	received  phase = "received"  // nothing was done yet
	started   phase = "started"   // the device may have been written, processes may have been signalled
	signalled phase = "signalled" // processes have been; their grace runs
	ended     phase = "ended"     // the receipt is final
)

// entry is one order in the ledger.
type entry struct {
	Order telemetry.Order `json:"order"`
	Phase phase           `json:"phase"`
	// Found is the limit read before the write, Will what holds if the write
	// takes effect; both are set once started.
	Found   float64           `json:"found,omitempty"`
	Will    *hold             `json:"will,omitempty"`
	Preempt *preemption       `json:"preempt,omitempty"`
	Receipt telemetry.Receipt `json:"receipt"`
	// Gone says why the effect no longer holds: undone, superseded, taken over.
	Gone  string    `json:"gone,omitempty"`
	Ended time.Time `json:"ended,omitzero"`
}

// hold is a power limit that is ours until its lease ends. Found is what to
// put back, Set what must still be there for us to do so. Or is set while it is
// not known whether Set was written: then the limit may also be the earlier one
// of ours that it was to replace.
type hold struct {
	Step     string    `json:"step"`
	Decision string    `json:"decision"`
	UUID     string    `json:"uuid"`
	Found    float64   `json:"found"`
	Set      float64   `json:"set"`
	Or       float64   `json:"or,omitempty"`
	Until    time.Time `json:"until"`
	BootID   string    `json:"boot_id"`
}

// is says whether a limit is what we set.
func (h hold) is(now float64) bool { return near(now, h.Set) || h.Or > 0 && near(now, h.Or) }

var (
	bucketMeta   = []byte("meta")
	bucketOrders = []byte("orders") // id → entry
	bucketHolds  = []byte("holds")  // uuid → hold
	bucketOut    = []byte("out")    // sequence → receipt that the bus has not stored yet
	keyEpoch     = []byte("epoch")
)

// maxOut bounds the receipts kept for a bus that is away.
const maxOut = 4096

// ledger is the memory that outlives the agent. Each change is all or nothing,
// and on disk when the call returns.
type ledger struct {
	db    *bbolt.DB
	group group
}

func openLedger(path string) (*ledger, error) {
	// Nobody else may list the folder; owners must get through to their notices.
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("ledger %s is in use: another agent runs on this node", path)
	}
	if err != nil {
		return nil, fmt.Errorf("ledger %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketMeta, bucketOrders, bucketHolds, bucketOut} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger %s: %w", path, err), db.Close())
	}
	return &ledger{db: db}, nil
}

func (l *ledger) close() error { return l.db.Close() }

func get[T any](tx *bbolt.Tx, bucket, key []byte) (v T, ok bool, err error) {
	data := tx.Bucket(bucket).Get(key)
	if data == nil {
		return v, false, nil
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, false, fmt.Errorf("ledger: %s %q: %w", bucket, key, err)
	}
	return v, true, nil
}

func put(tx *bbolt.Tx, bucket, key []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("ledger: %s %q: %w", bucket, key, err)
	}
	return tx.Bucket(bucket).Put(key, data)
}

// errEpoch is a fenced leader; its text says which and what to do.
type errEpoch string

func (e errEpoch) Error() string { return string(e) }

// checkEpoch compares an order's epoch with the highest seen.
func checkEpoch(tx *bbolt.Tx, e telemetry.Epoch) (raise bool, err error) {
	highest, seen, err := get[telemetry.Epoch](tx, bucketMeta, keyEpoch)
	switch {
	case err != nil:
		return false, err
	case !seen:
		return true, nil
	case e.Incarnation != highest.Incarnation:
		return false, errEpoch(fmt.Sprintf("epoch of lease bucket %s, but this node knows bucket %s: if the bucket was made anew on purpose, start the agent once with --accept-epoch",
			e.Incarnation, highest.Incarnation))
	case e.Revision < highest.Revision:
		return false, errEpoch(fmt.Sprintf("epoch %d is behind %d, the highest seen: its leader has been replaced", e.Revision, highest.Revision))
	}
	return e.Revision > highest.Revision, nil
}

func (l *ledger) checkEpoch(e telemetry.Epoch) error {
	return l.db.View(func(tx *bbolt.Tx) error { _, err := checkEpoch(tx, e); return err })
}

func (l *ledger) forgetEpoch() error {
	return l.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Delete(keyEpoch) })
}

// receive takes an order in, unless one of its id is there, and raises the
// epoch. An errEpoch takes nothing in. An order of that id from an earlier life
// of the lease bucket steps aside; moved is what it holds, under its new name.
func (l *ledger) receive(o *telemetry.Order) (known *entry, moved *hold, err error) {
	err = l.update(func(tx *bbolt.Tx) error {
		known, moved = nil, nil
		e, ok, err := get[entry](tx, bucketOrders, []byte(o.ID))
		if err != nil {
			return err
		}
		if ok && sameLife(&e.Order, o) {
			known = &e
			return nil
		}
		raise, err := checkEpoch(tx, o.Epoch)
		if err != nil {
			return err
		}
		if raise {
			if err := put(tx, bucketMeta, keyEpoch, o.Epoch); err != nil {
				return err
			}
		}
		if ok {
			if moved, err = stepAside(tx, e); err != nil {
				return err
			}
		}
		return put(tx, bucketOrders, []byte(o.ID), entry{Order: *o, Phase: received})
	})
	return known, moved, err
}

// stepAside gives an order of an earlier life a name that nobody will give
// again, and what it holds with it.
func stepAside(tx *bbolt.Tx, e entry) (*hold, error) {
	was, uuid := e.Order.ID, e.Order.Target.UUID
	e.Order.ID = was + "@" + e.Order.Epoch.Incarnation
	if err := put(tx, bucketOrders, []byte(e.Order.ID), e); err != nil {
		return nil, err
	}
	h, ok, err := get[hold](tx, bucketHolds, []byte(uuid))
	if err != nil || !ok || h.Step != was {
		return nil, err
	}
	h.Step = e.Order.ID
	return &h, put(tx, bucketHolds, []byte(uuid), h)
}

// start records that the device is about to be written, with all that is
// needed to find out later whether it was.
func (l *ledger) start(id string, found float64, will hold) error {
	return l.change(id, func(e *entry) { e.Phase, e.Found, e.Will = started, found, &will })
}

// begin records that processes are about to be signalled, and which.
func (l *ledger) begin(id string, p *preemption) error {
	return l.change(id, func(e *entry) { e.Phase, e.Preempt = started, p })
}

// signalled records that they have been, and what is known of them since.
func (l *ledger) signalled(id string, p *preemption) error {
	return l.change(id, func(e *entry) { e.Phase, e.Preempt = signalled, p })
}

// change alters an order that has no final receipt yet.
func (l *ledger) change(id string, alter func(*entry)) error {
	return l.update(func(tx *bbolt.Tx) error {
		e, ok, err := get[entry](tx, bucketOrders, []byte(id))
		if err != nil || !ok || e.Phase == ended {
			return errors.Join(err, fmt.Errorf("ledger: order %s is not under way", id))
		}
		alter(&e)
		return put(tx, bucketOrders, []byte(id), e)
	})
}

// outcome is what an order, or the agent by itself, has brought about.
type outcome struct {
	receipt telemetry.Receipt
	// hold replaces what holds on its device; drop removes what holds on this one.
	hold *hold
	drop string
	// gone tells the step whose effect no longer holds, and why.
	gone, why string
}

// end makes a result final: the receipt, what holds now, and the receipt once
// more for the bus, all or nothing. It returns the key under which the receipt
// waits for the bus.
func (l *ledger) end(out outcome, now time.Time) (key uint64, err error) {
	err = l.update(func(tx *bbolt.Tx) error {
		if err := endOrder(tx, out, now); err != nil {
			return err
		}
		holds := tx.Bucket(bucketHolds)
		if out.drop != "" {
			if err := holds.Delete([]byte(out.drop)); err != nil {
				return err
			}
		}
		if out.hold != nil {
			if err := put(tx, bucketHolds, []byte(out.hold.UUID), *out.hold); err != nil {
				return err
			}
		}
		key, err = queue(tx, out.receipt)
		return err
	})
	return key, err
}

func endOrder(tx *bbolt.Tx, out outcome, now time.Time) error {
	id := []byte(out.receipt.StepID)
	if e, ok, err := get[entry](tx, bucketOrders, id); err != nil {
		return err
	} else if ok && e.Phase != ended {
		e.Phase, e.Receipt, e.Ended = ended, out.receipt, now
		if err := put(tx, bucketOrders, id, e); err != nil {
			return err
		}
	}
	if out.gone == "" {
		return nil
	}
	e, ok, err := get[entry](tx, bucketOrders, []byte(out.gone))
	if err != nil || !ok {
		return err
	}
	e.Gone = out.why
	e.Receipt.Undone = out.why
	return put(tx, bucketOrders, []byte(out.gone), e)
}

// queue keeps a receipt until the bus has stored it.
func queue(tx *bbolt.Tx, r telemetry.Receipt) (uint64, error) {
	b := tx.Bucket(bucketOut)
	key, err := b.NextSequence()
	if err != nil {
		return 0, err
	}
	for c := b.Cursor(); ; {
		k, _ := c.First()
		if k == nil || binary.BigEndian.Uint64(k)+maxOut > key {
			break
		}
		if err := c.Delete(); err != nil {
			return 0, err
		}
	}
	return key, put(tx, bucketOut, binary.BigEndian.AppendUint64(nil, key), r)
}

// sent forgets receipts that the bus has stored.
func (l *ledger) sent(keys ...uint64) error {
	if len(keys) == 0 {
		return nil
	}
	return l.update(func(tx *bbolt.Tx) error {
		for _, key := range keys {
			if err := tx.Bucket(bucketOut).Delete(binary.BigEndian.AppendUint64(nil, key)); err != nil {
				return err
			}
		}
		return nil
	})
}

// waiting returns the receipts that the bus has not stored, oldest first.
func (l *ledger) waiting() (keys []uint64, receipts []telemetry.Receipt, err error) {
	err = l.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketOut).ForEach(func(k, v []byte) error {
			var r telemetry.Receipt
			if err := json.Unmarshal(v, &r); err != nil {
				return err
			}
			keys, receipts = append(keys, binary.BigEndian.Uint64(k)), append(receipts, r)
			return nil
		})
	})
	return keys, receipts, err
}

func (l *ledger) entry(id string) (e entry, ok bool, err error) {
	err = l.db.View(func(tx *bbolt.Tx) error {
		e, ok, err = get[entry](tx, bucketOrders, []byte(id))
		return err
	})
	return e, ok, err
}

func (l *ledger) holds() (all []hold, err error) {
	err = l.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketHolds).ForEach(func(_, v []byte) error {
			var h hold
			if err := json.Unmarshal(v, &h); err != nil {
				return err
			}
			all = append(all, h)
			return nil
		})
	})
	return all, err
}

// unfinished returns the orders that have no receipt yet.
func (l *ledger) unfinished() (all []entry, err error) {
	err = l.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketOrders).ForEach(func(_, v []byte) error {
			var e entry
			if err := json.Unmarshal(v, &e); err != nil {
				return err
			}
			if e.Phase != ended {
				all = append(all, e)
			}
			return nil
		})
	})
	return all, err
}

// prune forgets orders that ended before a time and have expired: they could
// not be carried out again anyway. What still holds is kept.
func (l *ledger) prune(before time.Time) (n int, err error) {
	err = l.db.Update(func(tx *bbolt.Tx) error {
		keep := map[string]bool{}
		err := tx.Bucket(bucketHolds).ForEach(func(_, v []byte) error {
			var h hold
			if err := json.Unmarshal(v, &h); err != nil {
				return err
			}
			keep[h.Step] = true
			return nil
		})
		if err != nil {
			return err
		}
		var old [][]byte // deleting under a cursor would skip
		orders := tx.Bucket(bucketOrders)
		err = orders.ForEach(func(k, v []byte) error {
			var e entry
			if err := json.Unmarshal(v, &e); err != nil {
				return err
			}
			if e.Phase == ended && e.Ended.Before(before) && e.Order.Expires.Before(before) && !keep[string(k)] {
				old = append(old, bytes.Clone(k))
			}
			return nil
		})
		for _, k := range old {
			err = errors.Join(err, orders.Delete(k))
		}
		n = len(old)
		return err
	})
	return n, err
}

// sameOrder says whether two orders of one id ask for the same. A new leader
// may sign the step anew, with another epoch and other times.
func sameOrder(a, b *telemetry.Order) bool {
	type essence struct {
		Kind   telemetry.StepKind
		Target telemetry.Target
		Params telemetry.Params
	}
	x, errX := json.Marshal(essence{a.Kind, a.Target, a.Params})
	y, errY := json.Marshal(essence{b.Kind, b.Target, b.Params})
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
