package rebalancer

import (
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// ringSpan is how long passes that changed nothing are remembered.
const ringSpan = time.Hour

// maxIdle bounds the ring however often the set of refusals changes.
const maxIdle = 3600

// Idle is a run of passes that changed nothing, for the same reasons.
type Idle struct {
	First  time.Time            `json:"first"`
	Last   time.Time            `json:"last"`
	Passes int                  `json:"passes"`
	Set    telemetry.RefusalSet `json:"refused"`
}

// ring holds the last hour of passes that changed nothing. Passes with the
// same reasons are one entry, so its size follows changes, not passes.
type ring struct {
	idle   []Idle
	last   []string        // the set of the newest entry
	before map[string]bool // refusals of the last pass, to count each once
}

// add takes in a pass and returns the refusals that are new in it.
func (r *ring) add(p Plan) []telemetry.Refusal {
	now := make(map[string]bool, len(p.Refused.Details))
	var fresh []telemetry.Refusal
	for _, refusal := range p.Refused.Details {
		key := refusalKey(refusal)
		if !r.before[key] && !now[key] {
			fresh = append(fresh, refusal)
		}
		now[key] = true
	}
	r.before = now
	if changesNothing(p) {
		r.extend(p)
	} else {
		r.last = nil
	}
	keep := slices.IndexFunc(r.idle, func(i Idle) bool { return p.Time.Sub(i.Last) <= ringSpan })
	if keep < 0 {
		keep = len(r.idle)
	}
	r.idle = slices.Delete(r.idle, 0, max(keep, len(r.idle)-maxIdle))
	return fresh
}

func (r *ring) extend(p Plan) {
	set := []string{"pass"} // never nil: an empty set is a set
	set = append(set, refusalKeys(p.Refused)...)
	if n := len(r.idle); n > 0 && slices.Equal(set, r.last) {
		r.idle[n-1].Last, r.idle[n-1].Set = p.Time, p.Refused
		r.idle[n-1].Passes++
		return
	}
	r.last = set
	r.idle = append(r.idle, Idle{p.Time, p.Time, 1, p.Refused})
}

// changesNothing says that a plan neither decides nor does anything.
func changesNothing(p Plan) bool {
	return !slices.ContainsFunc(p.Entries, func(e Entry) bool { return e.Refused == nil })
}
