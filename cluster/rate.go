package cluster

// meter turns a counter into a rate. A counter that falls was reset, has
// wrapped, or was misread once; the three look alike at first, so nothing is
// told until the next reading: one above the old level means that the low one was
// wrong, any other begins anew. Neither ever gives a negative rate or one made of
// a whole counter.
type meter struct {
	v         float64
	at        int64 // milliseconds, like tick.ms
	perSecond float32
	phase     meterPhase
	known     bool
}

type meterPhase uint8

const (
	meterEmpty meterPhase = iota
	meterSteady
	meterFell // v and at are of before
)

// take folds a reading. After a gap longer than keep milliseconds the meter
// starts anew: an average over it would say nothing of now.
func (m *meter) take(v float64, at, keep int64) {
	switch {
	case m.phase == meterEmpty, at-m.at > keep, at < m.at, v < m.v && m.phase == meterFell:
		*m = meter{v: v, at: at, phase: meterSteady}
	case at == m.at: // the same reading, told again
	case v < m.v:
		m.phase, m.known = meterFell, false
	default:
		m.perSecond, m.known = float32((v-m.v)*1000/float64(at-m.at)), true
		m.v, m.at, m.phase = v, at, meterSteady
	}
}

// rate is the rate over the last interval, if that interval ended no longer
// than keep milliseconds before now.
func (m *meter) rate(now, keep int64) (float64, bool) {
	return float64(m.perSecond), m.known && now-m.at <= keep
}

// sustained is a condition that must be seen several times before it holds, and
// be gone as often before it ceases: neither a burst nor a pause decides.
type sustained struct {
	count uint8
	on    bool
}

// see counts one look: beyond the mark, clear of it, or between the two, which
// changes nothing.
func (s *sustained) see(beyond, clear bool, times uint8) bool {
	switch {
	case beyond:
		s.count = min(s.count+1, times)
	case clear && s.count > 0:
		s.count--
	}
	switch s.count {
	case times:
		s.on = true
	case 0:
		s.on = false
	}
	return s.on
}
