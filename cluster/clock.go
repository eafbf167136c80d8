package cluster

import "time"

// Bounds of what counts as a clock fault. A wall clock that is further off than
// MaxSkew, or that stepped by more than MaxStep, makes values suspect.
const (
	MaxSkew       = 30 * time.Second
	MaxStep       = 250 * time.Millisecond
	suspectFrames = 3
	// relax lets a learned minimum follow two drifting oscillators; without a
	// monotonic clock to compare with it must also forget small steps.
	relaxPPM     = 200
	relaxWallPPM = 1000
)

// clock learns how a node's clocks relate to the viewer's, from frames alone.
// Arrival minus sample time is offset plus delay, and the delay is never
// negative, so the smallest difference seen is the offset. Two differences are
// kept: against the wall clock, which may be stepped, and against the monotonic
// clock, which may stop while a machine is suspended. The smaller delay of the
// two is believed, since a step can only add to one of them.
type clock struct {
	minWall, minMono time.Duration
	lastArrival      int64
	lastSample       int64
	lastMono         int64
	skew             time.Duration
	started, hasMono bool
	diverged         int // frames in a row in which the two disagree
	suspectFor       int // frames for which values stay suspect
	sampledAt        int64
	sampled          bool
}

// take learns from a frame and returns when it was sampled by the viewer's
// clock, in nanoseconds, and whether the node's clock is at fault.
func (c *clock) take(arrival, sample, mono int64) (sampledAt int64, fault bool) {
	wall := time.Duration(arrival - sample)
	if !c.started {
		*c = clock{minWall: wall, minMono: time.Duration(arrival - mono), hasMono: mono > 0, started: true, skew: -wall}
	} else {
		c.follow(arrival, sample, mono, wall)
	}
	delay := wall - c.minWall
	if c.hasMono {
		delay = min(delay, time.Duration(arrival-mono)-c.minMono)
	}
	skew := delay - wall
	if diff := skew - c.skew; c.lastArrival != 0 && (diff > MaxStep || diff < -MaxStep) {
		c.suspectFor = suspectFrames
	}
	c.skew = skew
	c.lastArrival, c.lastSample, c.lastMono = arrival, sample, mono
	fault = c.suspectFor > 0 || skew > MaxSkew || skew < -MaxSkew
	if c.suspectFor > 0 {
		c.suspectFor--
	}
	// Samples of a node never go back in time, whatever its clock does.
	at := arrival - int64(delay)
	if c.sampled && at <= c.sampledAt {
		at = min(c.sampledAt+int64(time.Millisecond), max(arrival, c.sampledAt))
	}
	c.sampledAt, c.sampled = at, true
	return at, fault
}

// shift moves what is kept to a viewer's clock that was stepped.
func (c *clock) shift(step time.Duration) {
	c.minWall += step
	c.minMono += step
	c.lastArrival += int64(step)
	c.sampledAt += int64(step)
	c.skew -= step
}

// follow moves the minima: down to what was seen, up with the drift, and to
// each other after a step.
func (c *clock) follow(arrival, sample, mono int64, wall time.Duration) {
	since := min(time.Duration(max(arrival-c.lastArrival, 0)), time.Hour)
	switch {
	case c.hasMono && mono <= c.lastMono: // not a monotonic clock
		c.hasMono = false
	case !c.hasMono && c.lastMono == 0 && mono > 0: // it stood at zero
		c.minMono, c.hasMono = time.Duration(arrival-mono)-max(wall-c.minWall, 0), true
	}
	if !c.hasMono {
		c.minWall = min(c.minWall+since*relaxWallPPM/1e6, wall)
		if sample <= c.lastSample { // stepped back
			c.minWall = wall
			c.suspectFor = suspectFrames
		}
		return
	}
	monoOff := time.Duration(arrival - mono)
	c.minWall = min(c.minWall+since*relaxPPM/1e6, wall)
	c.minMono = min(c.minMono+since*relaxPPM/1e6, monoOff)
	apart := (wall - c.minWall) - (monoOff - c.minMono)
	if apart < MaxStep && apart > -MaxStep {
		c.diverged = 0
		return
	}
	c.suspectFor = suspectFrames
	if c.diverged++; c.diverged < suspectFrames {
		return
	}
	c.diverged = 0
	if apart > 0 {
		c.minWall += apart
	} else {
		c.minMono -= apart
	}
}
