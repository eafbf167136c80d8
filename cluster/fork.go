package cluster

import (
	"fmt"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Fork is a View with changes that have not happened. The View it came from
// never sees them; what they do not touch is shared.
type Fork struct {
	view  View
	owned map[string]bool // nodes that are the fork's own
	grown bool            // the slices are the fork's own
}

// Change is one thing to try on a Fork.
type Change struct {
	// UUID is the device.
	UUID string
	// PowerLimitW is the power limit to predict.
	PowerLimitW float64
}

// Fork returns a fork without changes.
func (v *View) Fork() *Fork { return &Fork{view: *v} }

// View is the predicted fleet. Changes made later are not in it.
func (f *Fork) View() *View {
	v := f.view
	f.owned, f.grown = nil, false
	return &v
}

// Apply predicts the effect of a change where the device will settle: power by
// the limit, temperature and headroom by the learned resistance. Without one
// the headroom of a device that is to draw less stays as it is, and that of one
// that may draw more is not known.
func (f *Fork) Apply(c Change) error {
	switch _, _, known := f.view.GPU(c.UUID); {
	case !known:
		return fmt.Errorf("predict %s: no such device in this view", c.UUID)
	case !finite(c.PowerLimitW) || c.PowerLimitW <= 0:
		return fmt.Errorf("predict %s: power limit of %g W", c.UUID, c.PowerLimitW)
	}
	g := f.own(c.UUID)
	limit := g.LimitW
	g.LimitW = Some(c.PowerLimitW)
	g.move(telemetry.GPUPowerLimitWatts, c.PowerLimitW)
	power := g.Value(telemetry.GPUPowerWatts)
	if !power.OK {
		return nil
	}
	change := predictedWatts(power.V, limit, c.PowerLimitW) - power.V
	if change == 0 {
		return nil
	}
	g.move(telemetry.GPUPowerWatts, power.V+change)
	g.SlopeCPerS, g.SecondsToSlowdown = Opt{}, Opt{}
	switch {
	case g.RCPerW.OK:
		g.warm(g.RCPerW.V * change)
	case change > 0:
		g.HeadroomC = Opt{}
	}
	return nil
}

// atLimit is how near its limit a device draws when the limit is what holds it.
const atLimit = 0.97

// predictedWatts is what a device will draw under a limit: never more than it,
// and all of it if a lower one held the device before.
func predictedWatts(now float64, old Opt, limit float64) float64 {
	if old.OK && limit > old.V && now >= atLimit*old.V {
		return limit
	}
	return min(now, limit)
}

// warm moves the temperatures of the core and the headroom.
func (g *GPU) warm(by float64) {
	if t := g.Value(telemetry.GPUTemperatureCelsiusCore); t.OK {
		g.move(telemetry.GPUTemperatureCelsiusCore, t.V+by)
	}
	if g.HeadroomC.OK {
		g.HeadroomC = Some(g.HeadroomC.V - by)
		g.move(telemetry.GPUThermalHeadroomCelsius, g.HeadroomC.V)
	}
}

// move changes a reading that is there, with its time and quality.
func (g *GPU) move(id telemetry.ID, v float64) {
	if i, ok := g.find(id); ok {
		g.readings[i].v = v
	}
}

// own gives the fork its own copy of a device, its node, and the workloads that
// point to it.
func (f *Fork) own(uuid string) *GPU {
	at := f.view.fleet.gpus[uuid]
	n := f.view.nodes[at.node]
	if !f.grown {
		f.view.nodes, f.view.workloads = slices.Clone(f.view.nodes), slices.Clone(f.view.workloads)
		f.grown, f.owned = true, map[string]bool{}
	}
	if f.owned[n.Name] {
		return n.GPUs[at.gpu]
	}
	n = n.clone()
	f.owned[n.Name] = true
	f.view.nodes[at.node] = n
	for _, i := range f.view.loads.onNode[n.Name] {
		w := *f.view.workloads[i]
		w.GPUs = slices.Clone(w.GPUs)
		for k, g := range w.GPUs {
			if g.Node == n.Name {
				_, w.GPUs[k], _ = f.view.GPU(g.UUID)
			}
		}
		f.view.workloads[i] = &w
	}
	return n.GPUs[at.gpu]
}
