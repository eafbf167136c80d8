package exporter

import (
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	wellTicks   = 5                // in a row, before a GPU is said to be back
	driverGrace = 10 * time.Second // for a driver that comes up together with us
)

// condition is what the last event said of a GPU.
type condition struct {
	kind  telemetry.EventKind // empty: nothing is wrong
	since time.Time
	what  string
	well  int // ticks in a row without what it says
}

// watchGPU tells when a GPU hangs, is lost or is back, each once.
func (e *Exporter) watchGPU(g *gpu, now time.Time) {
	bad, what := telemetry.EventKind(""), ""
	switch {
	case g.lost:
		bad, what = telemetry.EventGPULost, g.why()
	case g.hung != callNone && !g.up:
		bad, what = telemetry.EventGPUHung, callNames[g.hung]
	}
	t := &g.told
	switch {
	case bad == "" && t.kind == "":
	case bad == "":
		if !g.up || g.hung != callNone {
			t.well = 0
			return
		}
		if t.well++; t.well < wellTicks {
			return
		}
		detail := fmt.Sprintf("lost for %v: %s", round(now.Sub(t.since)), t.what)
		if t.kind == telemetry.EventGPUHung {
			detail = fmt.Sprintf("hung for %v, first in %s", round(now.Sub(t.since)), t.what)
		}
		e.tellOf(g, telemetry.Event{Time: now, Kind: telemetry.EventGPUBack, Class: ClassInformational, Detail: detail})
		*t = condition{}
		e.listener.listen(g.uuid)
	case bad == t.kind:
		t.well = 0
	case bad == telemetry.EventGPUHung:
		*t = condition{kind: bad, since: now.Add(-g.hungFor), what: what}
		e.tellOf(g, telemetry.Event{Time: now, Kind: bad, Class: ClassHardware, Detail: fmt.Sprintf("%s has not returned for %v", what, round(g.hungFor))})
	default:
		*t = condition{kind: bad, since: now, what: what}
		e.tellOf(g, telemetry.Event{Time: now, Kind: bad, Class: ClassHardware, Action: ActionRestartNode, Detail: what})
	}
}

// why is what the driver said when it lost a GPU.
func (g *gpu) why() string {
	switch {
	case g.device == nil && g.findErr != nil:
		return g.findErr.Error()
	case g.got && g.front.fatalErr != nil:
		return g.front.fatalErr.Error()
	}
	return string(Lost)
}

// watchRecovery tells when the driver's verdict on a GPU is another than it was
// when this process first read it.
func (e *Exporter) watchRecovery(g *gpu, now time.Time) {
	v, ok := g.value(int(slotOf[telemetry.GPURecoveryAction]))
	if !ok || g.recovery == v && g.recoveryKnown {
		return
	}
	was, known := int(g.recovery), g.recoveryKnown
	g.recovery, g.recoveryKnown = v, true
	if !known {
		return
	}
	a := struct{ class, action, what string }{ClassUnknown, ActionSupport, "an action that this version does not know"}
	if i := int(v); i < len(recoveryActions) {
		a = recoveryActions[i]
	}
	e.tellOf(g, telemetry.Event{
		Time: now, Kind: telemetry.EventRecoveryAction, Code: int(v), Class: a.class, Action: a.action,
		Detail: fmt.Sprintf("%s, was %d", a.what, was),
	})
}

func (e *Exporter) tellOf(g *gpu, v telemetry.Event) {
	v.UUID, v.PCI, v.Source = g.uuid, g.id.PCI, "exporter"
	e.events.tell(v)
}

// watchDriver tells when the driver goes and when it is back. One that is up
// from the start is no news.
func (e *Exporter) watchDriver(now time.Time) {
	t := &e.driverTold
	switch up := e.state.up; {
	case up && t.kind != "":
		e.events.tell(telemetry.Event{
			Time: now, Kind: telemetry.EventDriverUp, Class: ClassInformational, Source: "exporter",
			Detail: fmt.Sprintf("down for %v: %s", round(now.Sub(t.since)), t.what),
		})
		*t = condition{}
	case up:
		e.wasUp, t.since = true, time.Time{}
	case t.kind != "":
	default:
		if t.since.IsZero() {
			t.since = now
		}
		if !e.wasUp && now.Sub(e.start) < driverGrace {
			return
		}
		t.kind, t.what = telemetry.EventDriverDown, string(e.state.fault)
		v := telemetry.Event{Time: now, Kind: t.kind, Class: ClassSoftware, Source: "exporter", Detail: t.what}
		if d, ok := errors.AsType[*DriverError](e.state.err); ok {
			v.Code, v.Detail = d.Code, e.state.err.Error()
		}
		e.events.tell(v)
	}
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
