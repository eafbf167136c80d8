package cluster

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// observe writes the observation of what is known now. Messages that o already
// has are used again; every field is set or cleared.
func (j *Judge) observe(o *telemetry.Observation, seq uint64, sample int64, age time.Duration) {
	o.SetSchema(telemetry.Schema)
	o.SetCluster(j.cluster)
	o.SetNode(j.node)
	o.SetBootId(j.source.boot)
	o.SetIncarnation(j.source.incarnation)
	o.SetSequence(seq)
	o.SetSampleTimeUnixNano(sample)
	o.SetAgeMs(millis(age))
	o.SetSkewMs(j.clock.skew.Milliseconds())
	o.SetClockSynchronized(j.synced)
	o.SetPeriodMs(uint64(j.source.period.Milliseconds()))
	o.SetGpusExpected(uint32(len(j.tracks)))
	o.SetDriverFault(j.fault)
	j.observeRefused(o)
	gpus := o.GetGpus()
	gpus = gpus[:min(len(j.tracks), cap(gpus))]
	for len(gpus) < len(j.tracks) {
		gpus = append(gpus, nil)
	}
	for i, t := range j.tracks {
		if gpus[i] == nil {
			gpus[i] = new(telemetry.GPUObservation)
		}
		t.observe(gpus[i], j.now)
	}
	if len(o.GetGpus()) != len(gpus) { // setting a list allocates
		o.SetGpus(gpus)
	}
}

func (j *Judge) observeRefused(o *telemetry.Observation) {
	if len(o.GetRefused()) > 0 {
		o.SetRefused(nil)
	}
	if j.refused == (refusals{}) {
		return
	}
	var list []*telemetry.RefusedValues
	for i, n := range j.refused {
		if n > 0 {
			list = append(list, telemetry.RefusedValues_builder{Why: refusedWhys[i], Count: n}.Build())
		}
	}
	o.SetRefused(list)
	j.refused = refusals{}
}

func millis(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), int64(^uint32(0))))
}

func (t *track) observe(g *telemetry.GPUObservation, k tick) {
	g.SetUuid(t.uuid)
	g.SetPci(t.pci)
	g.SetModel(t.model)
	g.SetArch(t.arch)
	g.SetDriver(t.driver)
	g.SetIndex(t.index)
	g.SetGeneration(t.generation)
	g.SetState(t.state)
	if len(t.members) > 0 || len(g.GetMembers()) > 0 {
		g.SetMembers(t.members)
	}
	g.ClearHung()
	if t.hungCall != "" {
		g.SetHung(telemetry.HungCall_builder{Call: t.hungCall, ForMs: t.hungMS}.Build())
	}
	head, hasHead := t.headroom(k)
	hasHead = hasHead && t.state != telemetry.GPUState_GPU_STATE_ABSENT
	t.values(g, k, head, hasHead)
	t.thermal(g, head, hasHead)
	t.limits(g, k)
	h := g.GetHealth()
	if h == nil {
		h = new(telemetry.Health)
		g.SetHealth(h)
	}
	class, score, reason := t.health(k)
	h.SetClass(class)
	h.SetScore(score)
	h.SetReason(reason)
}

// forgotten is how long a value is told as stale before it counts as not
// there, in periods of its class.
const forgotten = 12

// values lists what is known, stale values with that quality. A headroom that
// the node did not send stands under its id like one that it did.
func (t *track) values(g *telemetry.GPUObservation, k tick, head slot, hasHead bool) {
	if t.state == telemetry.GPUState_GPU_STATE_ABSENT {
		if len(g.GetValues()) > 0 {
			g.SetValues(g.GetValues()[:0])
		}
		return
	}
	slots := &t.slots
	headAt := slotOf[telemetry.GPUThermalHeadroomCelsius] - 1
	n := 0
	vs := room(g.GetValues())
	for i := range wiredSeries {
		s := slots[i]
		if uint8(i) == headAt && hasHead {
			s = head
		}
		if s.q == 0 {
			continue
		}
		w := &wiredSeries[i]
		age := time.Duration(k.at-s.at) * time.Millisecond
		if age > forgotten*Period(w.rate, k.period) {
			slots[i] = slot{}
			continue
		}
		q := s.quality()
		if stale(w.rate, s, k) {
			q = telemetry.Quality_QUALITY_STALE
		}
		v := vs[n]
		v.SetId(uint32(w.id))
		v.SetV(s.v)
		v.SetAgeMs(k.at - s.at)
		v.SetQuality(q)
		n++
	}
	if len(g.GetValues()) != n {
		g.SetValues(vs[:n])
	}
}

// room returns messages for every series: those that are there, or a block in
// one allocation.
func room(vs []*telemetry.Value) []*telemetry.Value {
	if cap(vs) < len(wiredSeries) {
		block := make([]telemetry.Value, len(wiredSeries))
		vs = make([]*telemetry.Value, len(wiredSeries))
		for i := range block {
			vs[i] = &block[i]
		}
	}
	vs = vs[:len(wiredSeries)]
	for i := range vs {
		if vs[i] == nil {
			vs[i] = new(telemetry.Value)
		}
	}
	return vs
}

// thermal tells where the temperature is and goes, and what was learned.
func (t *track) thermal(g *telemetry.GPUObservation, head slot, hasHead bool) {
	g.ClearHeadroomC()
	g.ClearSlopeCPerS()
	g.ClearSecondsToSlowdown()
	if hasHead {
		g.SetHeadroomC(head.v)
	}
	if slope, ok := t.trend.slope(); ok && t.state == telemetry.GPUState_GPU_STATE_OK {
		g.SetSlopeCPerS(slope)
		switch {
		case !hasHead:
		case head.v <= 0:
			g.SetSecondsToSlowdown(0)
		case slope <= -leastSlope:
			g.SetSecondsToSlowdown(head.v / -slope)
		}
	}
	g.ClearRCPerW()
	g.ClearTauS()
	g.ClearBaseC()
	if !t.fit.hasR {
		return
	}
	g.SetRCPerW(t.fit.r)
	if t.fit.baseW > 0 {
		g.SetBaseC(t.fit.base)
	}
	if t.fit.hasTau {
		g.SetTauS(t.fit.tau)
	}
}

func (t *track) limits(g *telemetry.GPUObservation, k tick) {
	p := g.GetPower()
	if p == nil {
		p = new(telemetry.Power)
	}
	p.ClearMinW()
	p.ClearDefaultW()
	p.ClearLimitW()
	p.ClearMaxW()
	some := false
	put := func(id telemetry.ID, set func(float64)) {
		if v, _, ok := t.current(id, k); ok {
			set(v)
			some = true
		}
	}
	put(telemetry.GPUPowerLimitMinWatts, p.SetMinW)
	put(telemetry.GPUPowerLimitDefaultWatts, p.SetDefaultW)
	put(telemetry.GPUPowerLimitWatts, p.SetLimitW)
	put(telemetry.GPUPowerLimitMaxWatts, p.SetMaxW)
	if !some {
		g.ClearPower()
		return
	}
	g.SetPower(p)
}
