package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// TestGroupSharesASync holds the file so that changes gather: all of them are
// then on disk with few transactions, and one that refuses spoils no other.
func TestGroupSharesASync(t *testing.T) {
	const callers = 20
	for _, c := range []struct {
		name   string
		refuse int // the caller whose change is refused, or none
		most   int // transactions
	}{
		{"all go well", -1, 2},
		{"one refuses", 7, callers + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := openLedger(filepath.Join(t.TempDir(), "l.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			refusal := errors.New("no")
			id := func() (n int) {
				if err := l.db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil }); err != nil {
					t.Fatal(err)
				}
				return n
			}
			held, err := l.db.Begin(true)
			if err != nil {
				t.Fatal(err)
			}
			errs := make([]error, callers)
			var wg sync.WaitGroup
			call := func(i int) {
				wg.Go(func() {
					errs[i] = l.update(func(tx *bbolt.Tx) error {
						if err := tx.Bucket(bucketMeta).Put(fmt.Append(nil, i), []byte("here")); err != nil || i != c.refuse {
							return err
						}
						return refusal
					})
				})
			}
			wait := func(queued int) {
				t.Helper()
				for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
					l.group.mu.Lock()
					n, busy := len(l.group.queue), l.group.busy
					l.group.mu.Unlock()
					if busy && n == queued {
						return
					}
					if time.Now().After(end) {
						t.Fatalf("%d changes wait, want %d", n, queued)
					}
				}
			}
			call(0) // waits for the file with its change, all others behind it
			wait(0)
			for i := 1; i < callers; i++ {
				call(i)
			}
			wait(callers - 1)
			if err := held.Rollback(); err != nil {
				t.Fatal(err)
			}
			before := id()
			wg.Wait()
			if got := id() - before; got > c.most {
				t.Errorf("%d transactions for %d changes, want at most %d", got, callers, c.most)
			}
			for i, err := range errs {
				want := error(nil)
				if i == c.refuse {
					want = refusal
				}
				if !errors.Is(err, want) {
					t.Errorf("caller %d got %v, want %v", i, err, want)
				}
				_ = l.db.View(func(tx *bbolt.Tx) error {
					if there := tx.Bucket(bucketMeta).Get(fmt.Append(nil, i)) != nil; there != (i != c.refuse) {
						t.Errorf("caller %d: change there: %v", i, there)
					}
					return nil
				})
			}
		})
	}
}

// TestSentReceiptsAreForgotten: what the bus has stored is not sent again by
// the next run.
func TestSentReceiptsAreForgotten(t *testing.T) {
	l, err := openLedger(filepath.Join(t.TempDir(), "l.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var keys []uint64
	for range 3 {
		key, err := l.end(outcome{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if err := l.sent(keys[0], keys[2]); err != nil {
		t.Fatal(err)
	}
	left, _, err := l.waiting()
	if err != nil || len(left) != 1 || left[0] != keys[1] {
		t.Errorf("%v wait, want %d alone (%v)", left, keys[1], err)
	}
}
