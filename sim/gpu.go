package sim

import (
	"fmt"
	"math"
	"time"
)

// Constants of the power and clock model, the same for all products.
const (
	// staticShare of the power above idle does not follow the core clock:
	// memory, leakage, links. The rest goes with its cube, voltage included.
	staticShare = 0.15

	// slowdownClock is what hardware slowdown leaves of the highest clock, and
	// slowdownReleaseC by how much the core must cool before it ends.
	slowdownClock    = 0.5
	slowdownReleaseC = 3.0

	// Software slowdown drops the clock to softClockFloor as soon as a sensor
	// shows more than the highest operating temperature. From softReleaseC below
	// it climbs back, by softClimb of the highest clock in one time constant. So
	// a hot GPU swings, which costs more work than the heat itself asks for, and
	// the members of a gang do so each at its own time.
	softClockFloor = 0.72
	softClimb      = 0.3
	softReleaseC   = 1.5
	sensorStepC    = 0.5 // half of what a sensor resolves

	// Memory runs warmer than the core, the more so the busier it is.
	memoryIdleC = 3.0
	memoryBusyC = 3.0
	memoryTau   = 4 * time.Second

	// Activity wanders by this share, within its own bounds.
	activityNoise = 0.012
	noiseTau      = 5 * time.Second

	// A member that waits for its gang spins: this share of its activity stays.
	waitingShare = 0.35

	// The power average that the driver serves.
	averageTau = time.Second
)

// throttle is a reason for a lower clock whose time is counted.
type throttle int

// In the order of the shared file.
const (
	throttlePower throttle = iota
	throttleSoftThermal
	throttleHardThermal
	throttleKinds
)

// Bits of the clock event reasons, as NVML numbers them.
const (
	reasonIdle        = 1 << 0
	reasonPower       = 1 << 2
	reasonHardware    = 1 << 3
	reasonSoftThermal = 1 << 5
	reasonHardThermal = 1 << 6
	reasonPowerBrake  = 1 << 7
	reasonSyncBoost   = 1 << 4
	reasonsSupported  = reasonIdle | reasonPower | reasonHardware | reasonSyncBoost |
		reasonSoftThermal | reasonHardThermal | reasonPowerBrake
)

// stepFactors are what a step's length makes of the time constants, computed
// once for all GPUs.
type stepFactors struct {
	dt                  time.Duration
	seconds             float64
	noiseKeep, noiseAdd float64
	memory, average     float64
}

func newStepFactors(dt time.Duration) stepFactors {
	keep := math.Exp(-dt.Seconds() / noiseTau.Seconds())
	return stepFactors{
		dt: dt, seconds: dt.Seconds(),
		noiseKeep: keep, noiseAdd: math.Sqrt(1 - keep*keep),
		memory:  approach(dt, memoryTau),
		average: approach(dt, averageTau),
	}
}

// approach is the share of the way that a first-order system goes in dt.
func approach(dt, tau time.Duration) float64 {
	return -math.Expm1(-dt.Seconds() / tau.Seconds())
}

// gpu is the state of one device. It holds no pointer besides its product, so
// that a world of thousands costs the collector nothing.
type gpu struct {
	model *Model
	node  int32
	slot  int32
	job   int32 // index, -1 when idle
	noise splitmix

	// Its own cooling, drawn once, and what a fault does to it.
	resistance float64
	cooling    float64 // multiplier of the resistance, 1 when sound
	tau        time.Duration
	coreStep   float64 // approach(dt, tau) for the current dt

	lost, hung, stuck, blank, denied bool

	// What the driver holds it to.
	limitW float64

	// What the processes that claim it want, all together.
	claimShare float64
	claimBytes uint64

	// The load, set by job and claims at each step.
	activity   float64 // share of the work units busy at full speed
	claimed    float64 // the part of it that is the claims'
	crowd      float64 // what everybody gets of what they want, 1 unless it is too much
	memoryBusy float64
	busyRatio  float64 // kernels resident
	wanderNow  float64

	// The physics.
	clock      float64 // share of the highest
	speed      float64 // of work at that clock, 1 = unhindered
	rate       float64 // of work done, after waiting for the gang
	powerW     float64
	averageW   float64
	airC       float64
	coreC      float64
	memoryC    float64
	softClock  float64 // highest clock that software slowdown allows
	hardSlow   bool    // hardware slowdown is engaged
	reasons    uint64
	throttledS [throttleKinds]float64

	energyJ     float64
	busyS       float64
	memoryBytes uint64
	pcieTx      float64
	pcieRx      float64
	nvlink      float64 // bytes in each direction, all links

	// What the sensors say: frozen while they are stuck.
	readCoreC, readMemoryC float64
}

// demandW is the power that an activity asks for at a clock.
func (m *Model) demandW(activity, clock float64) float64 {
	return m.IdleWatts + activity*(m.LoadWatts-m.IdleWatts)*
		(staticShare+(1-staticShare)*clock*clock*clock)
}

// clockAt is the highest clock at which an activity stays within a limit.
func (m *Model) clockAt(activity, limitW float64) float64 {
	dynamic := activity * (m.LoadWatts - m.IdleWatts)
	if dynamic <= 0 {
		return 1
	}
	cube := ((limitW-m.IdleWatts)/dynamic - staticShare) / (1 - staticShare)
	floor := m.IdleClockMHz / m.SMClockMHz
	if cube <= floor*floor*floor {
		return floor
	}
	return min(1, math.Cbrt(cube))
}

// setLimit takes a power limit that the product allows.
func (g *gpu) setLimit(watts float64) error {
	m := g.model
	if !(watts >= m.MinLimit && watts <= m.MaxLimit) {
		return fmt.Errorf("%w: %.0f W is not between %.0f and %.0f", ErrLimitRange, watts, m.MinLimit, m.MaxLimit)
	}
	g.limitW = watts
	return nil
}

// regulate is what driver and hardware do about heat: they follow temperatures
// and set the highest clock that setClock may choose.
func (g *gpu) regulate(dt time.Duration) {
	m := g.model
	over := g.coreC - m.GPUMaxC - sensorStepC
	if m.MemoryMaxC > 0 {
		over = max(over, g.memoryC-m.MemoryMaxC-sensorStepC)
	}
	switch {
	case over >= 0:
		g.softClock = softClockFloor
	case over < -softReleaseC:
		g.softClock = min(1, g.softClock+softClimb*dt.Seconds()/g.tau.Seconds())
	}
	if g.coreC >= m.SlowdownC {
		g.hardSlow = true
	} else if g.coreC < m.SlowdownC-slowdownReleaseC {
		g.hardSlow = false
	}
}

// setClock finds the clock that load, limit and temperature allow, and why it
// is no higher. computeShare says how much of the work waits for the core.
func (g *gpu) setClock(computeShare float64) {
	m := g.model
	g.reasons = 0
	if g.activity <= 0 {
		g.clock, g.speed = m.IdleClockMHz/m.SMClockMHz, 0
		g.reasons = reasonIdle
		return
	}
	g.clock = m.clockAt(g.activity, g.limitW)
	if g.clock < 1 {
		g.reasons |= reasonPower
	}
	if g.softClock < g.clock {
		g.reasons |= reasonSoftThermal
		g.clock = g.softClock
	}
	if g.hardSlow {
		g.reasons |= reasonHardware | reasonHardThermal
		g.clock = min(g.clock, slowdownClock)
	}
	g.speed = 1 / (1 - computeShare + computeShare/g.clock)
}

// draw turns the work done into power, energy and the time spent throttled.
func (g *gpu) draw(k stepFactors) {
	m := g.model
	done := g.activity - g.claimed
	if g.speed > 0 {
		done *= waitingShare + (1-waitingShare)*g.rate/(g.speed*g.crowd)
	}
	g.powerW = m.demandW(done+g.claimed, g.clock)
	g.averageW += (g.powerW - g.averageW) * k.average
	g.energyJ += g.powerW * k.seconds
	g.busyS += g.busyRatio * k.seconds
	for kind, bit := range [throttleKinds]uint64{reasonPower, reasonSoftThermal, reasonHardThermal} {
		if g.reasons&bit != 0 {
			g.throttledS[kind] += k.seconds
		}
	}
}

// warm moves core and memory towards what the power of this step makes of them.
func (g *gpu) warm(k stepFactors) {
	g.coreC += (g.targetC() - g.coreC) * g.coreStep
	g.memoryC += (g.memoryTargetC() - g.memoryC) * k.memory
	g.regulate(k.dt)
	g.sense()
}

func (g *gpu) targetC() float64 {
	return g.airC + g.resistance*g.cooling*g.powerW
}

func (g *gpu) memoryTargetC() float64 {
	return g.coreC + memoryIdleC + memoryBusyC*g.memoryBusy
}

func (g *gpu) sense() {
	if g.stuck {
		return
	}
	g.readCoreC, g.readMemoryC = g.coreC, g.memoryC
}

// headroomC is what is left to slowdown, of core and memory the smaller.
func (g *gpu) headroomC() float64 {
	room := g.model.SlowdownC - g.coreC
	if g.model.MemoryMaxC > 0 {
		room = min(room, g.model.MemoryMaxC-g.memoryC)
	}
	return room
}
