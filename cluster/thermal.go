package cluster

import "math"

// thermal learns how a device heats: dT/dt = (base + R·P − T)/τ, with base the
// temperature at zero power (inlet air and neighbours), R the resistance to it
// and τ the time constant.
//
// For each τ of a grid the power is passed through the lag of that τ. The
// temperature is then linear in the lagged power, a constant, and what is left
// of the state before the first sample, so three sums of squares with
// forgetting give R and base, and the residual says which τ fits. Temperatures
// come in whole degrees; as this regression has them on one side only, rounding
// adds noise but no bias.
//
// A result is given only if the data can carry it: see identify. What was
// learned is then kept, since resistance and time constant belong to the
// hardware; base is followed all the time.
type thermal struct {
	lags  [len(tauGrid)]lag
	w     float64 // effective number of samples
	sT    float64
	sTT   float64
	lastP float64
	lastS float64 // time of the last sample, seconds
	n     int

	r, tau, base float64
	hasR, hasTau bool
	lagAt        int // index of the lag that base is followed with
	baseW        float64

	plateau plateau
}

// lag is the state for one time constant: the lagged power x, the decaying
// start e, and their sums.
type lag struct {
	x, e                            float64
	sX, sE, sXX, sXE, sEE, sXT, sET float64
}

// tauGrid spans liquid-cooled devices to large passive heat sinks, in seconds.
var tauGrid = [...]float64{2.5, 4, 6, 9, 13, 19, 28, 42, 63, 95, 140, 210}

const (
	forget = 400.0 // seconds
	// refT and refP centre the sums, so that they keep their precision.
	refT, refP = 50.0, 300.0
	// A gap longer than this starts anew: the power in it is not known.
	maxGap = 12.0
	// Physical bounds of a resistance, from cold plates to passive cards.
	minR, maxR = 0.004, 3.0
	minSamples = 30
	// leastSwing is the swing of temperature (twice its standard deviation) the
	// power must explain: below, rounding to whole degrees may be a fifth of it.
	leastSwing = 6.0
	// unseen is how much of the swing may still be to come.
	unseen = 0.5
	// maxResidual is where the model does not describe the device.
	maxResidual = 2.0
	// agree is how far the resistances of all time constants that the data
	// allow may differ from the best one.
	agree = 0.15
	// baseForget is the memory of base, in seconds.
	baseForget = 60.0
)

// decays are the factors by which everything fades in a time step. Devices of
// one frame share them.
type decays struct {
	dt         float64
	lag        [len(tauGrid)]float64
	keep, base float64
}

func (d *decays) over(dt float64) *decays {
	if d.dt != dt {
		d.dt, d.keep, d.base = dt, math.Exp(-dt/forget), math.Exp(-dt/baseForget)
		for i, tau := range tauGrid {
			d.lag[i] = math.Exp(-dt / tau)
		}
	}
	return d
}

// take learns from one sample: seconds, celsius, watts, and the node's period.
func (m *thermal) take(d *decays, at, t, p, period float64) {
	dt := at - m.lastS
	if m.n > 0 && dt <= 0 {
		return
	}
	if m.n == 0 || dt > max(maxGap, 3*period) {
		m.start(at, p)
		return
	}
	d = d.over(dt)
	mean := (p+m.lastP)/2 - refP
	dT := t - refT
	m.w, m.sT, m.sTT = m.w*d.keep+1, m.sT*d.keep+dT, m.sTT*d.keep+dT*dT
	for i := range m.lags {
		m.lags[i].take(d.lag[i], d.keep, mean, dT)
	}
	m.lastS, m.lastP = at, p
	m.n++
	if m.n%5 == 0 && m.n >= minSamples {
		m.identify()
	}
	m.plateau.take(at, t, p)
	if !m.hasR && m.plateau.agreed > 0 {
		m.r, m.hasR, m.lagAt, m.baseW = m.plateau.agreed, true, len(tauGrid)/2, 0
	}
	m.followBase(d.base, t)
}

func (m *thermal) start(at, p float64) {
	learned := *m
	*m = thermal{r: learned.r, tau: learned.tau, hasR: learned.hasR, hasTau: learned.hasTau, lagAt: learned.lagAt, plateau: learned.plateau}
	m.plateau.interrupt()
	for i := range m.lags {
		m.lags[i] = lag{x: p - refP, e: 1}
	}
	m.lastS, m.lastP, m.n = at, p, 1
}

func (m *thermal) shift(seconds float64) {
	m.lastS += seconds
	m.plateau.from += seconds
	if m.plateau.held > 0 {
		m.plateau.held += seconds
	}
}

func (l *lag) take(a, keep, p, t float64) {
	l.x = a*l.x + (1-a)*p
	if l.e *= a; l.e < faded {
		l.fade()
	}
	x, e := l.x, l.e
	l.sX = l.sX*keep + x
	l.sE = l.sE*keep + e
	l.sXX = l.sXX*keep + x*x
	l.sXE = l.sXE*keep + x*e
	l.sEE = l.sEE*keep + e*e
	l.sXT = l.sXT*keep + x*t
	l.sET = l.sET*keep + e*t
}

// faded is where the start no longer matters. Without an end to it, its products
// and sums would decay into numbers so small that processors take a hundred times
// as long for each.
const faded = 1e-30

func (l *lag) fade() {
	l.e = 0
	for _, sum := range [...]*float64{&l.sE, &l.sXE, &l.sEE, &l.sET} {
		if math.Abs(*sum) < faded {
			*sum = 0
		}
	}
}

// candidate is the least-squares answer for one time constant.
type candidate struct {
	r, sse, swing float64
	ok            bool
}

// solve eliminates the constant and the start from the normal equations.
func (m *thermal) solve(l *lag) candidate {
	xx := l.sXX - l.sX*l.sX/m.w
	xe := l.sXE - l.sX*l.sE/m.w
	ee := l.sEE - l.sE*l.sE/m.w + 1e-3
	xt := l.sXT - l.sX*m.sT/m.w
	et := l.sET - l.sE*m.sT/m.w
	tt := m.sTT - m.sT*m.sT/m.w
	own := xx - xe*xe/ee // what of x the start does not explain
	if !(own > 1e-6) {
		return candidate{}
	}
	r := (xt - xe*et/ee) / own
	sse := tt - et*et/ee - r*(xt-xe*et/ee)
	return candidate{r: r, sse: max(sse, 0), swing: 2 * math.Abs(r) * math.Sqrt(own/m.w), ok: true}
}

// identify takes resistance and time constant if the data allow only time
// constants near each other, and all of them give nearly the same resistance.
func (m *thermal) identify() {
	var all [len(tauGrid)]candidate
	best := -1
	for i := range m.lags {
		all[i] = m.solve(&m.lags[i])
		if all[i].ok && (best < 0 || all[i].sse < all[best].sse) {
			best = i
		}
	}
	if best < 0 {
		return
	}
	b := all[best]
	noise := max(b.sse/m.w, 1.0/12)
	if b.r < minR || b.r > maxR || b.swing < leastSwing || noise > maxResidual*maxResidual {
		return
	}
	// The answer to the last change of power must have been seen for the most
	// part: the beginning of a long answer looks like the whole of a short one.
	if b.r*math.Abs(m.lags[best].x-(m.lastP-refP)) > unseen*b.swing {
		return
	}
	// Residuals of rounding repeat themselves for many samples, so a difference
	// must be far beyond what independent noise would need.
	limit := b.sse + 200*noise
	lo, hi := best, best
	for i, c := range all {
		if !c.ok || c.sse > limit {
			continue
		}
		if math.Abs(c.r-b.r) > agree*b.r {
			return
		}
		lo, hi = min(lo, i), max(hi, i)
	}
	// Power makes the temperature follow with one time constant; what fits many,
	// or those at the ends of the grid, may be the inlet at work.
	if lo == 0 || hi == len(tauGrid)-1 || hi-lo > 2 {
		return
	}
	if !m.hasR || m.lagAt != best {
		m.baseW = 0
	}
	m.r, m.hasR, m.lagAt = b.r, true, best
	m.tau, m.hasTau = refine(all[best-1], b, all[best+1], best), true
}

// refine places the minimum between grid points by a parabola in log τ.
func refine(before, at, after candidate, i int) float64 {
	if !before.ok || !after.ok {
		return tauGrid[i]
	}
	curve := before.sse - 2*at.sse + after.sse
	shift := 0.0
	if curve > 0 {
		shift = max(min((before.sse-after.sse)/(2*curve), 0.5), -0.5)
	}
	return tauGrid[i] * math.Exp(shift*math.Log(tauGrid[i+1]/tauGrid[i]))
}

// followBase keeps the temperature at zero power as a slow mean.
func (m *thermal) followBase(keep, t float64) {
	if !m.hasR {
		return
	}
	now := t - m.r*(m.lags[m.lagAt].x+refP)
	m.baseW = m.baseW*keep + 1
	m.base += (now - m.base) / m.baseW
}

// plateau finds stretches in which power and temperature held still. Two of
// them give a resistance, but also a wrong one if the inlet changed meanwhile;
// so it counts only when the next pair gives nearly the same.
type plateau struct {
	from, sumP, sumT   float64
	minP, maxP         float64
	minT, maxT         float64
	n                  int
	heldP, heldT, held float64 // the last plateau and its end; zero for none
	counted            bool    // the present stretch has been compared
	r                  float64 // of the last pair
	agreed             float64
}

const (
	plateauSeconds = 90.0
	// plateausWithin bounds the time between two plateaus, as base drifts.
	plateausWithin = 1800.0
	plateauWatts   = 15.0
	plateauCelsius = 1.01
)

func (q *plateau) interrupt() { q.n = 0 }

func (q *plateau) take(at, t, p float64) {
	if q.n > 0 {
		lowP, highP := min(q.minP, p), max(q.maxP, p)
		lowT, highT := min(q.minT, t), max(q.maxT, t)
		if highP-lowP > max(plateauWatts, 0.06*highP) || highT-lowT > plateauCelsius {
			q.n = 0
		} else {
			q.minP, q.maxP, q.minT, q.maxT = lowP, highP, lowT, highT
		}
	}
	if q.n == 0 {
		q.from, q.sumP, q.sumT, q.counted = at, 0, 0, false
		q.minP, q.maxP, q.minT, q.maxT = p, p, t, t
	}
	q.n++
	q.sumP, q.sumT = q.sumP+p, q.sumT+t
	if at-q.from < plateauSeconds || q.n < 20 {
		return
	}
	meanP, meanT := q.sumP/float64(q.n), q.sumT/float64(q.n)
	if !q.counted && q.held > 0 {
		q.compare(meanP-q.heldP, meanT-q.heldT, q.from-q.held)
	}
	q.heldP, q.heldT, q.held, q.counted = meanP, meanT, at, true
}

// compare takes a pair of plateaus that are far enough apart for rounding not
// to matter.
func (q *plateau) compare(dP, dT, apart float64) {
	r := dT / dP
	if math.Abs(dP) < 2*plateauWatts || math.Abs(dT) < leastSwing || apart > plateausWithin || r < minR || r > maxR {
		q.r = 0
		return
	}
	if q.r > 0 && math.Abs(r-q.r) <= agree*q.r {
		q.agreed = (r + q.r) / 2
	}
	q.r = r
}
