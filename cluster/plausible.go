package cluster

import "github.com/evenkeel-gpu/evenkeel/telemetry"

// plausible refuses to trust a counter that fell while the device's parts
// stayed, and a temperature that jumped; the next sample confirms or denies.
func plausible(w *wired, last slot, v float64, k *tick, newParts bool) bool {
	switch {
	case w.counter:
		return v >= last.v || newParts
	case w.celsius:
		since := float64(k.at-last.at) / 1000
		return since > 30 || max(v-last.v, last.v-v) <= 20+15*since
	}
	return true
}

// sensorFault is a way in which a device's values contradict each other. What is
// contradicted becomes suspect: it is shown, and nothing rests on it.
type sensorFault uint8

const (
	sensorFine sensorFault = iota
	// sensorStuck: power changed enough to move the temperature by stuckCelsius,
	// and it did not move at all.
	sensorStuck
	// sensorCool: the hardware throttles for heat, and the headroom is large.
	sensorCool
	// sensorHot: the headroom is gone for long, and nothing throttles.
	sensorHot
	// sensorCounters: kernels run, and the profiling counters stand still.
	sensorCounters
)

func (f sensorFault) String() string {
	switch f {
	case sensorStuck:
		return "the temperature does not follow the power: its sensor is suspect"
	case sensorCool:
		return "throttled for heat though the headroom is large: the headroom is suspect"
	case sensorHot:
		return "no headroom is left and nothing throttles: the headroom is suspect"
	case sensorCounters:
		return "kernels run and the profiling counters stand still"
	}
	return ""
}

const (
	stuckCelsius    = 8.0
	coolHeadroom    = 15.0
	hotHeadroom     = -3.0 // beyond what rounding and the offset's own error make
	runningRatio    = 0.5
	contradictTimes = 10 // seconds in excess
	// Fans hold a temperature against power that changes slowly, so only changes
	// within about stuckSeconds count, and none of the first stuckSettle.
	stuckSeconds = 300.0
	stuckSettle  = 30
)

// sensor watches for contradictions.
type sensor struct {
	fault  sensorFault
	judged bool // in this second
	// t is the temperature as it stands, p what the lagged power was when it
	// came to that.
	t, p            float64
	has             bool
	stuck           bool
	cool, hot, idle sustained
}

func (s *sensor) bad() bool { return s.fault != sensorFine }

// watchSensor compares values of now with each other, once a second.
func (t *track) watchSensor(k *tick) {
	s := &t.sensor
	temp, ts, hasT := t.current(telemetry.GPUTemperatureCelsiusCore, k)
	head, hasHead := t.headroom(k)
	hwHeat, _, hasHW := t.current(telemetry.GPUThrottleActiveHWThermal, k)
	swHeat, _, hasSW := t.current(telemetry.GPUThrottleActiveSWThermal, k)
	slowed, _, _ := t.current(telemetry.GPUThrottleActiveHWSlowdown, k)
	util, _, hasUtil := t.current(telemetry.GPUUtilizationRatio, k)
	sm, _, hasSM := t.current(telemetry.GPUSMActiveRatio, k)
	s.judged = hasT && ts.usable()
	if hasT {
		s.follow(temp, &t.fit)
	}
	s.cool.see(hasHead && hasHW && hwHeat != 0 && head.v >= coolHeadroom, hwHeat == 0 || head.v < coolHeadroom, contradictTimes)
	s.hot.see(hasHead && hasHW && hasSW && head.v <= hotHeadroom && hwHeat == 0 && swHeat == 0 && slowed == 0, head.v > hotHeadroom || hwHeat != 0 || swHeat != 0 || slowed != 0, contradictTimes)
	dram, _, hasDRAM := t.current(telemetry.GPUDRAMActiveRatio, k)
	still := hasUtil && hasSM && util >= runningRatio && sm == 0 && (!hasDRAM || dram == 0)
	s.idle.see(still, !still, contradictTimes)
	switch {
	case s.stuck:
		s.fault = sensorStuck
	case s.cool.on:
		s.fault = sensorCool
	case s.hot.on:
		s.fault = sensorHot
	case s.idle.on:
		s.fault = sensorCounters
	default:
		s.fault = sensorFine
	}
}

// follow looks whether the temperature moves when the learned resistance says
// that it must. A room that cools by just as much as the power rises would look
// the same, and does not last.
func (s *sensor) follow(temp float64, m *thermal) {
	if !m.hasR || m.n < stuckSettle {
		s.has, s.stuck = false, s.stuck && temp == s.t
		return
	}
	p := m.lags[m.lagAt].x
	if !s.has || temp != s.t {
		s.t, s.p, s.has, s.stuck = temp, p, true, false
		return
	}
	if d := m.r * (p - s.p); d >= stuckCelsius || d <= -stuckCelsius {
		s.stuck = true
	}
	s.p += (p - s.p) / stuckSeconds
}

// doubtValue says whether a contradiction touches a series.
func (s *sensor) doubtValue(id telemetry.ID) bool {
	switch s.fault {
	case sensorFine:
		return false
	case sensorCounters:
		return id == telemetry.GPUSMActiveRatio || id == telemetry.GPUTensorActiveRatio || id == telemetry.GPUDRAMActiveRatio
	case sensorStuck:
		return id == telemetry.GPUTemperatureCelsiusCore || id == telemetry.GPUThermalHeadroomCelsius
	}
	return id == telemetry.GPUThermalHeadroomCelsius
}
