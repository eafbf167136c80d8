package cluster

import (
	"slices"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Air is what a node's own frames tell of the air around its devices. How much
// of it is made by the row or by the node's own heat they do not tell: all
// devices of a node tend to work at the same time, so the rise that they cause
// for each other cannot be told from an error of their own resistance. That
// takes other nodes of the row, which the State has.

// observeAir writes inlet and base. Base is the median, so that one device with
// a wrong fit does not speak for the node.
func (j *Judge) observeAir(o *telemetry.Observation) {
	bases := j.bases[:0]
	for _, t := range j.tracks {
		if t.state == telemetry.GPUState_GPU_STATE_OK && t.fit.hasR && t.fit.baseW > 0 {
			bases = append(bases, t.fit.base)
		}
	}
	j.bases = bases
	inlet := j.host.inletAt != 0 && j.now.ms-j.host.inletAt <= j.now.keep[classSlow]
	if len(bases) == 0 && !inlet {
		if o.HasAir() {
			o.ClearAir()
		}
		return
	}
	a := o.GetAir()
	if a == nil {
		a = new(telemetry.Air)
		o.SetAir(a)
	}
	a.ClearInletC()
	if inlet {
		a.SetInletC(j.host.inlet)
	}
	a.ClearBaseC()
	a.SetDevices(uint32(len(bases)))
	if len(bases) > 0 {
		slices.Sort(bases)
		a.SetBaseC((bases[(len(bases)-1)/2] + bases[len(bases)/2]) / 2)
	}
}
