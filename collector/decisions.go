package collector

import (
	"slices"
	"sync"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// decisions is the journal as folded: the latest state of each decision. What
// is handed out never changes; a changed decision is a new value.
type decisions struct {
	mu    sync.RWMutex
	limit int
	byID  map[string]*telemetry.Decision
	order []string              // by first record, oldest first
	list  []*telemetry.Decision // newest first; nil if it has to be made again

	breakers map[string]telemetry.BreakerTrip // by domain
	modes    []telemetry.ModeChange
	refused  *telemetry.Record
}

// maxModes bounds the mode changes kept.
const maxModes = 100

func newDecisions(limit int) *decisions {
	return &decisions{limit: limit, byID: map[string]*telemetry.Decision{}, breakers: map[string]telemetry.BreakerTrip{}}
}

// clear forgets everything.
func (d *decisions) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byID, d.order, d.list = map[string]*telemetry.Decision{}, nil, nil
	d.breakers, d.modes, d.refused = map[string]telemetry.BreakerTrip{}, nil, nil
}

// fold takes a record and says whether anything changed that is shown.
func (d *decisions) fold(r telemetry.Record) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	if r.Decision != nil && r.Decision.ID != "" {
		d.put(r.Decision)
		changed = true
	}
	if r.Approval != nil {
		if old, ok := d.byID[r.Approval.Decision]; ok {
			now := *old
			now.Approval = r.Approval
			d.put(&now)
			changed = true
		}
	}
	if r.Breaker != nil {
		d.breakers[r.Breaker.Domain] = *r.Breaker
		changed = true
	}
	if r.Mode != nil {
		if d.modes = append(d.modes, *r.Mode); len(d.modes) > maxModes {
			d.modes = slices.Clone(d.modes[len(d.modes)-maxModes:])
		}
		changed = true
	}
	if r.Refused != nil {
		d.refused = &r
		changed = true
	}
	return changed
}

func (d *decisions) put(now *telemetry.Decision) {
	d.list = nil
	if _, known := d.byID[now.ID]; !known {
		if len(d.order) >= d.limit {
			d.evict()
		}
		d.order = append(d.order, now.ID)
	}
	d.byID[now.ID] = now
}

// evict drops the oldest decision that holds nothing any more, else the oldest.
func (d *decisions) evict() {
	at := slices.IndexFunc(d.order, func(id string) bool { return !d.byID[id].Open() })
	at = max(at, 0)
	delete(d.byID, d.order[at])
	d.order = slices.Delete(d.order, at, at+1)
}

func (d *decisions) newestFirst() []*telemetry.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.list == nil {
		d.list = make([]*telemetry.Decision, len(d.order))
		for i, id := range d.order {
			d.list[len(d.order)-1-i] = d.byID[id]
		}
	}
	return slices.Clip(d.list)
}

func (d *decisions) get(id string) (*telemetry.Decision, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	x, ok := d.byID[id]
	return x, ok
}

// receipts keeps the latest receipts.
type receipts struct {
	mu   sync.Mutex
	list []telemetry.Receipt // oldest first
}

const maxReceipts = 1000

func (r *receipts) add(x telemetry.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == maxReceipts {
		r.list = append(r.list[:0], r.list[1:]...)
	}
	r.list = append(r.list, x)
}

func (r *receipts) newestFirst() []telemetry.Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.list)
	slices.Reverse(out)
	return out
}
