package rebalancer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// confirmed is a sighting that has passed the filter.
type confirmed struct {
	Sighting
	policy Policy
	spec   PolicySpec
	filter filterState
}

// target is what a refusal is about: the GPU, or the workload on it whose turn
// it is.
func (c *confirmed) target() telemetry.Target {
	if c.Victim != nil {
		return c.Victim.Target
	}
	return c.Violation.Target
}

// decide looks for violations and answers them, the policy of the highest
// priority and then the worst first, ties by node and GPU.
func (p *pass) decide() {
	var found []confirmed
	for _, pol := range p.Policies {
		spec := pol.Spec()
		for _, s := range pol.Detect(p.scene) {
			if c, ok := p.confirm(spec, s); ok {
				c.policy = pol
				found = append(found, c)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b confirmed) int {
		return cmp.Or(cmp.Compare(b.spec.Priority, a.spec.Priority), cmp.Compare(b.Severity, a.Severity),
			strings.Compare(a.Node.Name, b.Node.Name), strings.Compare(a.GPU.UUID, b.GPU.UUID), strings.Compare(a.spec.Type, b.spec.Type))
	})
	for _, c := range found {
		p.answer(c)
	}
}

// confirm counts a sample and says whether enough of them are beyond the mark.
// A value in doubt is not counted at all.
func (p *pass) confirm(spec PolicySpec, s Sighting) (confirmed, bool) {
	if r := Doubt(p.now, s.Node, s.GPU, s.Violation.Target, s.Readings, s.Missing); r != nil {
		if s.Beyond || s.Missing != "" {
			p.refused.add(*r)
		}
		return confirmed{}, false
	}
	key := filterKey{spec.Type, s.GPU.UUID, false}
	f := p.mem.filters[key].add(s.Node, s.Readings[0], s.Beyond, spec.Filter.M)
	put(&p.mem.filters, key, f)
	if f.clear(spec.Filter.M) {
		delete(p.mem.filters, key)
		p.lapse(spec, s)
	}
	if !s.Beyond {
		return confirmed{}, false
	}
	v := &s.Violation
	v.Seen, v.Of, v.Needed = f.hits(), f.Len, spec.Filter.N
	if s.Sure {
		v.Seen, v.Of, v.Needed = 1, 1, 1
	}
	if v.Seen < v.Needed {
		p.refused.add(RefuseNumbers(telemetry.RefusalUnconfirmed, v.Target, float64(v.Seen), float64(v.Needed), "samples",
			"%s is %s, beyond the mark of %s, in %d of the last %d samples; %d of %d are needed",
			v.Signal, telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Mark, v.Unit), v.Seen, v.Of, spec.Filter.N, spec.Filter.M))
		return confirmed{}, false
	}
	return confirmed{Sighting: s, spec: spec, filter: f}, true
}

// standingFor finds the decision that waits for a person on this target.
func (p *pass) standingFor(policy, uuid string) *telemetry.Decision {
	for _, d := range p.scene.byGPU[uuid] {
		if d.Policy == policy && d.Target.UUID == uuid && standing(d) && !p.handled(d.ID) {
			return d
		}
	}
	return nil
}

// handled says that this pass has already written about a decision.
func (p *pass) handled(id string) bool {
	return p.written[id] != nil
}

// lapse ends a standing decision whose signal came back by itself.
func (p *pass) lapse(spec PolicySpec, s Sighting) {
	d := p.standingFor(spec.Type, s.GPU.UUID)
	if d == nil {
		return
	}
	v := s.Violation
	p.end(d, telemetry.OutcomeExpired, "no longer needed: %s is %s, within the mark of %s for %d samples",
		v.Signal, telemetry.Number(v.Value, v.Unit), telemetry.Number(v.Mark, v.Unit), spec.Filter.M)
}
