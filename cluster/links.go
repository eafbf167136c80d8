package cluster

import (
	"iter"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// LinkValue is a value of one NVLink of a device.
type LinkValue struct {
	UUID string
	ID   telemetry.ID
	Link int
	V    float64
}

// linkIDs are the per-link series, in the order of their ids.
var linkIDs = func() []telemetry.ID {
	var out []telemetry.ID
	for id := telemetry.ID(200); id < 300; id++ {
		if row := telemetry.RowOf(id); row != nil && row.Per == telemetry.PerLink {
			out = append(out, id)
		}
	}
	return out
}()

// linkTable holds the links of a device, a row of slots per link.
type linkTable struct {
	at    uint32
	mask  uint64
	slots []float64 // len(linkIDs) for each link, noValue where there is none
}

// takeLinks keeps the per-link columns of a frame that carries them.
func (t *track) takeLinks(g *telemetry.GPU, k *tick, keep bool) {
	mask := g.GetLinkMask() | g.GetLinkDownMask()
	if !keep || mask == 0 {
		return
	}
	l := &t.links
	l.at, l.mask = k.at-min(g.GetLinkAgeMs(), maxAge), mask
	l.slots = l.slots[:0]
	for link := range telemetry.MaxLinks {
		if l.mask>>link == 0 {
			break
		}
		for _, id := range linkIDs {
			v, ok := g.LinkValue(id, link)
			if !ok || !telemetry.RowOf(id).InRange(v) {
				v = noValue
			}
			l.slots = append(l.slots, v)
		}
	}
}

// Links yields the values of single links that are not stale, by device, link
// and id. The judge must have been made with links.
func (j *Judge) Links() iter.Seq[LinkValue] {
	return func(yield func(LinkValue) bool) {
		for _, t := range j.tracks {
			if t.state == telemetry.GPUState_GPU_STATE_ABSENT || j.now.isStale(classLink, t.links.at) {
				continue
			}
			for i, v := range t.links.slots {
				link := i / len(linkIDs)
				if v == noValue {
					continue
				}
				if !yield(LinkValue{UUID: t.uuid, ID: linkIDs[i%len(linkIDs)], Link: link, V: v}) {
					return
				}
			}
		}
	}
}

// noValue marks a hole; link values are never negative.
const noValue = -1
