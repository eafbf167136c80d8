package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// InventoryFile is the inventory that people write down. The collector that is
// active tells the fleet of it; another only looks whether it is right.
type InventoryFile struct {
	Path string
	// Parse turns a content into a snapshot, or says what is wrong with it.
	Parse func(name string, data []byte) (telemetry.Inventory, error)
	// Publish replaces the last inventory of its source on the bus.
	Publish func(context.Context, telemetry.Inventory) error
	// Active says whether this collector speaks for the file; its own Active if
	// nil.
	Active func() bool
}

const (
	// inventoryPoll is how often the file is read. Reading sees what a watch
	// does not: a mounted folder that is swapped, a network file system.
	inventoryPoll = time.Second
	// inventoryEvery is how often its content is told again, inventoryRetry when
	// after a failure.
	inventoryEvery = time.Minute
	inventoryRetry = 5 * time.Second
	// maxInventoryFile bounds what is read.
	maxInventoryFile = 32 << 20
)

// fileSource follows the file.
type fileSource struct {
	InventoryFile
	c *Collector

	seen    []byte // content as last read, taken or not
	fresh   bool   // seen was new at the last reading: it may still be written
	problem string
	good    *telemetry.Inventory
	due     time.Time
	silent  bool // was not active when last looked

	mu    sync.Mutex
	known *telemetry.Inventory // the newest word of this source, ours or another's
}

func (s *fileSource) run(ctx context.Context) {
	tick := time.NewTicker(inventoryPoll)
	defer tick.Stop()
	for first := true; ; first = false {
		s.look(first)
		s.tell(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look reads the file. A content counts once it was read twice: one that is
// being written is half of what it will be, and may well be right YAML. At the
// start there is nothing better.
func (s *fileSource) look(first bool) {
	data, err := readInventory(s.Path)
	if err != nil {
		s.seen, s.fresh = nil, false
		s.refuse(err)
		return
	}
	if s.seen == nil || !bytes.Equal(data, s.seen) {
		s.seen, s.fresh = data, true
		if !first {
			return
		}
	}
	if !s.fresh {
		return
	}
	s.fresh = false
	inv, err := s.Parse(s.Path, data)
	if err == nil {
		inv.Source = telemetry.SourceFile
		err = telemetry.CheckInventory(&inv)
	}
	if err != nil {
		s.refuse(err)
		return
	}
	if s.problem != "" {
		s.c.log.Info("inventory file is right again", "file", s.Path)
	}
	s.problem = ""
	s.c.metrics.inventory.file(true)
	if s.good == nil || !sameInventory(s.good, &inv) {
		s.c.log.Info("inventory file taken", "file", s.Path, "nodes", len(inv.Nodes), "tenants", len(inv.Tenants), "budgets", len(inv.Budgets))
		s.good, s.due = &inv, time.Time{}
	}
}

// refuse says what is wrong with the file, once for each thing that is.
func (s *fileSource) refuse(err error) {
	if err.Error() == s.problem {
		return
	}
	s.problem = err.Error()
	kept := "nothing of it is known to this process; the last word on the bus holds"
	if s.good != nil {
		kept = fmt.Sprintf("what it said before stays in force, %d nodes", len(s.good.Nodes))
	}
	s.c.metrics.inventory.file(false)
	s.c.log.Error("inventory file refused; `evenkeel check config` says the same", "file", s.Path, "err", err, "kept", kept)
}

func readInventory(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("inventory: %s is not a file", path), err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxInventoryFile+1))
	if err == nil && len(data) > maxInventoryFile {
		err = fmt.Errorf("inventory: %s is larger than %d MiB", path, maxInventoryFile>>20)
	}
	return data, err
}

// tell folds the content here and sends it, when it is due. The bus being away
// costs the others the news, not this process.
func (s *fileSource) tell(ctx context.Context) {
	if s.Active != nil && !s.Active() {
		s.silent = true
		return
	}
	now := s.c.opts.Now()
	if s.silent {
		s.silent, s.due = false, time.Time{} // the one before may have said something else
	}
	if s.good == nil || now.Before(s.due) && !s.contradicted() {
		return
	}
	inv := s.numbered(now)
	s.c.takeInventory(inv)
	s.due = now.Add(inventoryEvery)
	if err := s.Publish(ctx, inv); err != nil && ctx.Err() == nil {
		s.due = now.Add(inventoryRetry)
		s.c.metrics.inventory.unsent.Do(now, func() {
			s.c.log.Warn("inventory not sent; the rebalancer has the one before", "err", err, "retry_in", inventoryRetry)
		})
	}
}

// numbered is the content with its generation: one more than that of the last
// word of this source if it says something else, whoever spoke it.
func (s *fileSource) numbered(now time.Time) telemetry.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	inv := *s.good
	inv.Time, inv.Generation = now, 1
	if s.known != nil {
		inv.Generation = s.known.Generation
		if !sameInventory(s.known, &inv) {
			inv.Generation++
		}
	}
	s.known = &inv
	return inv
}

// heard takes note of what was said in the name of this source.
func (s *fileSource) heard(inv *telemetry.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || inv.Generation >= s.known.Generation {
		s.known = inv
	}
}

// contradicted says that something else than the content was said last.
func (s *fileSource) contradicted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known != nil && !sameInventory(s.known, s.good)
}

// sameInventory says that two differ in nothing but number and time.
func sameInventory(a, b *telemetry.Inventory) bool {
	x, y := *a, *b
	x.Generation, x.Time = y.Generation, y.Time
	return reflect.DeepEqual(&x, &y)
}
