package cluster

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// observe writes the observation of what is known now. Messages that are already
// there are used again; every field is set or cleared.
func (j *Judge) observe(x *Judged, f *telemetry.Frame, age time.Duration) {
	o := x.Message
	x.values, x.ends = x.values[:0], x.ends[:0]
	o.SetSchema(telemetry.Schema)
	o.SetCluster(j.cluster)
	o.SetNode(j.node)
	o.SetBootId(j.source.boot)
	o.SetIncarnation(j.source.incarnation)
	o.SetSequence(f.GetSequence())
	o.SetSampleTimeUnixNano(f.GetSampleTimeUnixNano())
	o.SetAgeMs(millis(age))
	o.SetSkewMs(j.clock.skew.Milliseconds())
	o.SetClockSynchronized(j.synced)
	o.SetPeriodMs(uint64(j.source.period.Milliseconds()))
	o.SetDriverFault(j.fault)
	o.SetDoubt(j.doubt)
	j.observeCoverage(o)
	j.observeHost(o)
	j.observeAir(o)
	j.observeRefused(o)
	gpus := o.GetGpus()
	gpus = gpus[:min(len(j.tracks), cap(gpus))]
	for len(gpus) < len(j.tracks) {
		gpus = append(gpus, nil)
	}
	for i, t := range j.tracks {
		if gpus[i] == nil {
			gpus[i] = newGPUObservation()
		}
		x.values = t.observe(gpus[i], x.values, &j.now)
		x.ends = append(x.ends, len(x.values))
		j.observeHealth(t, gpus[i])
		j.observeIdle(t, gpus[i])
		j.observeFabric(t, gpus[i])
		j.observeContention(t, gpus[i])
	}
	if len(o.GetGpus()) != len(gpus) { // setting a list allocates
		o.SetGpus(gpus)
	}
}

// newGPUObservation comes with what every device has, in one allocation.
func newGPUObservation() *telemetry.GPUObservation {
	x := new(struct {
		gpu    telemetry.GPUObservation
		health telemetry.Health
		power  telemetry.Power
	})
	x.gpu.SetHealth(&x.health)
	x.gpu.SetPower(&x.power)
	return &x.gpu
}

// observeCoverage counts the devices that are seen. One that another has
// replaced is no longer expected.
func (j *Judge) observeCoverage(o *telemetry.Observation) {
	expected, fresh := 0, 0
	for _, t := range j.tracks {
		if t.replacedBy == "" {
			expected++
		}
		if _, s, ok := t.current(telemetry.GPUTemperatureCelsiusCore, &j.now); ok && s.trusted() && t.state == telemetry.GPUState_GPU_STATE_OK {
			fresh++
		}
	}
	o.SetGpusExpected(uint32(expected))
	o.SetGpusFresh(uint32(fresh))
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

// observe writes what is known of a device, and appends its values.
func (t *track) observe(g *telemetry.GPUObservation, to []Value, k *tick) []Value {
	g.SetUuid(t.uuid)
	g.SetPci(t.pci)
	g.SetModel(t.model)
	g.SetArch(t.arch)
	g.SetDriver(t.driver)
	g.SetIndex(t.index)
	g.SetGeneration(t.generation)
	g.SetState(t.state)
	if len(t.members.list) > 0 || len(g.GetMembers()) > 0 {
		g.SetMembers(t.members.list)
	}
	g.ClearHung()
	if t.hungCall != "" {
		g.SetHung(telemetry.HungCall_builder{Call: t.hungCall, ForMs: t.hungMS}.Build())
	}
	head, hasHead := t.headroom(k)
	hasHead = hasHead && t.state != telemetry.GPUState_GPU_STATE_ABSENT
	to = t.values(to, k, head, hasHead)
	t.thermal(g, head, hasHead)
	t.limits(g, k)
	return to
}

// forgotten is how long a value is told as stale before it counts as not
// there, in periods of its class.
const forgotten = 12

// values appends what is known, stale values with that quality. A headroom that
// the node did not send stands under its id like one that it did.
func (t *track) values(to []Value, k *tick, head slot, hasHead bool) []Value {
	if t.state == telemetry.GPUState_GPU_STATE_ABSENT {
		return to
	}
	slots := &t.slots
	headAt := slotOf[telemetry.GPUThermalHeadroomCelsius] - 1
	for i := range wiredSeries {
		s := slots[i]
		if uint8(i) == headAt && hasHead {
			s = head
		}
		if s.q == 0 || s.unsupported() {
			continue
		}
		w := &wiredSeries[i]
		age := k.at - s.at
		if age > k.gone[w.class] {
			slots[i] = slot{}
			continue
		}
		q := s.quality()
		if age > k.stale[w.class] {
			q = telemetry.Quality_QUALITY_STALE
		}
		to = append(to, Value{V: s.v, AgeMs: age, ID: uint16(w.id), Quality: uint8(q)})
	}
	return to
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

func (t *track) limits(g *telemetry.GPUObservation, k *tick) {
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
