package rebalancer

import (
	"fmt"
	"math"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// BreakerLimits are where the breaker opens. It stops disruptive acts, stays
// open across restarts, and only a person closes it.
type BreakerLimits struct {
	// Coverage is the least share of GPUs seen fresh. Below it disruptive acts
	// are refused at once; the breaker opens when it stays below for CoverageFor
	// after it had been reached.
	Coverage    float64
	CoverageFor time.Duration
	// Disrupted is the largest share of GPUs that may be disrupted in 10 min,
	// rounded up to whole GPUs: in a small fleet the first act is no avalanche.
	Disrupted float64
	// Failed is the largest share of acts of the last 10 min that may fail, if
	// there were FailedOf and more.
	Failed   float64
	FailedOf int
}

// DefaultBreaker is the breaker of a fresh install.
var DefaultBreaker = BreakerLimits{Coverage: 0.8, CoverageFor: 10 * time.Second, Disrupted: 0.05, Failed: 0.2, FailedOf: 5}

// trip opens the breaker when a limit is passed. Acts from before a person
// closed it do not open it again.
func (p *pass) trip() {
	c := &p.mem.covered
	switch low := p.coverage.Ratio < p.Breaker.Coverage; {
	case !low:
		*c = coverage{Reached: true}
	case c.LowSince.IsZero():
		c.LowSince = p.now
	}
	p.breaker = p.mem.Breaker
	if p.breaker.Open || !p.mem.Leading {
		return
	}
	if t := p.tripped(); t != nil {
		p.add(Entry{Topic: telemetry.TopicBreaker, Breaker: t})
		p.breaker = BreakerState{*t, p.now}
	}
}

func (p *pass) tripped() *telemetry.BreakerTrip {
	if c := p.mem.covered; c.Reached && !c.LowSince.IsZero() && p.now.Sub(c.LowSince) >= p.Breaker.CoverageFor {
		return &telemetry.BreakerTrip{Open: true, Have: p.coverage.Ratio, Limit: p.Breaker.Coverage,
			Reason: fmt.Sprintf("only %d of %d GPUs are seen fresh for %s", p.coverage.Fresh, p.coverage.Expected, p.now.Sub(c.LowSince))}
	}
	var acts, failed, disrupted int
	for _, a := range p.mem.Acts {
		if a.At.Before(p.now.Add(-actsWindow)) || a.At.Before(p.mem.Breaker.Since) {
			continue
		}
		acts++
		if a.Failed {
			failed++
		}
		if a.Class == telemetry.Disruptive {
			disrupted += a.GPUs
		}
	}
	if disrupted > p.mayDisrupt() {
		share := float64(disrupted) / float64(max(p.coverage.Expected, 1))
		return &telemetry.BreakerTrip{Open: true, Have: share, Limit: p.Breaker.Disrupted,
			Reason: fmt.Sprintf("%d of %d GPUs disrupted within %s", disrupted, p.coverage.Expected, actsWindow)}
	}
	if share := float64(failed) / float64(max(acts, 1)); acts >= p.Breaker.FailedOf && share > p.Breaker.Failed {
		return &telemetry.BreakerTrip{Open: true, Have: share, Limit: p.Breaker.Failed,
			Reason: fmt.Sprintf("%d of %d acts failed within %s", failed, acts, actsWindow)}
	}
	return nil
}

// mayDisrupt is how many GPUs may be disrupted within the window.
func (p *pass) mayDisrupt() int {
	return int(math.Ceil(p.Breaker.Disrupted*float64(p.coverage.Expected) - 1e-9))
}

// disrupted counts the GPUs that were disrupted within the window, are being, or
// will be by this very plan: all that is decided in one pass is done before any
// of it is known to be.
func (p *pass) disrupted() int {
	n := p.disrupting
	for _, a := range p.mem.Acts {
		if a.Class == telemetry.Disruptive && !a.At.Before(p.now.Add(-actsWindow)) && !a.At.Before(p.mem.Breaker.Since) {
			n += a.GPUs
		}
	}
	for _, d := range p.scene.onWork {
		if d.Class == telemetry.Disruptive && !standing(d) && pendingStep(d) != nil {
			n += len(heldGPUs(d))
		}
	}
	return n
}

// unhurried stops a wave of acts before it passes what the breaker allows, and
// not after. An act that is larger than that by itself is the first, or none.
func unhurried(p *pass, c confirmed, rung telemetry.ActKind, pr Proposal) []telemetry.Refusal {
	if telemetry.ClassOf(rung) == telemetry.Gentle || len(pr.GPUs) == 0 {
		return nil
	}
	before, most := p.disrupted(), p.mayDisrupt()
	if before == 0 || before+len(pr.GPUs) <= most {
		return nil
	}
	return []telemetry.Refusal{RefuseNumbers(telemetry.RefusalBreaker, c.target(), float64(before+len(pr.GPUs)), float64(most), "GPUs",
		"%d of %d GPUs would be disrupted within %s, at most %d may be", before+len(pr.GPUs), p.coverage.Expected, actsWindow, most)}
}

// wave opens the breaker when it is all that stands against an act which would
// be done: so many at once are something for a person to look at.
func (p *pass) wave(c confirmed, rung telemetry.ActKind, refusals []telemetry.Refusal) {
	if len(refusals) != 1 || refusals[0].Reason != telemetry.RefusalBreaker || p.breaker.Open || !p.mem.Leading || p.mem.mode(c.spec, telemetry.ClassOf(rung)) != telemetry.Enforce {
		return
	}
	r := refusals[0]
	t := telemetry.BreakerTrip{Open: true, Have: *r.Have / float64(max(p.coverage.Expected, 1)), Limit: p.Breaker.Disrupted, Reason: r.Text}
	p.add(Entry{Topic: telemetry.TopicBreaker, Breaker: &t})
	p.breaker = BreakerState{t, p.now}
}
