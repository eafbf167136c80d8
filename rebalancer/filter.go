package rebalancer

import (
	"math/bits"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
)

// filterKey names what samples are counted for: the act of a policy on a GPU,
// or its undo.
type filterKey struct {
	Policy, UUID string
	Undo         bool
}

// filterState is the last samples of one target, the newest in the lowest bit.
// It counts samples by their own time: a pass without a new sample adds
// nothing, however often it runs.
type filterState struct {
	Last        time.Time
	Incarnation uint64
	Bits        uint64
	Len         int
}

// add counts one sample. A restart of the source or a gap longer than the age
// at which a value is stale starts over: samples from before it say nothing
// about a run of samples.
func (f filterState) add(n *cluster.Node, r cluster.Reading, hit bool, m int) filterState {
	gap := r.At.Sub(f.Last)
	switch {
	case f.Len > 0 && f.Incarnation == n.Incarnation && gap <= n.Period/2:
		return f // the same sample again, its time moved a little by the clock fit
	case f.Incarnation != n.Incarnation || gap > cluster.StaleAfter(r.ID, n.Period):
		f = filterState{Incarnation: n.Incarnation}
	}
	f.Last, f.Bits, f.Len = r.At, f.Bits<<1, min(f.Len+1, m)
	if hit {
		f.Bits |= 1
	}
	if m < maxFilter {
		f.Bits &= 1<<m - 1
	}
	return f
}

func (f filterState) hits() int { return bits.OnesCount64(f.Bits) }

// clear says that a full run of samples was within the mark.
func (f filterState) clear(m int) bool { return f.Bits == 0 && f.Len >= m }
