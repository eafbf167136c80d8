package sim

import (
	"errors"
	"fmt"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Writer is what a privileged process on a node may do to its GPUs. Every call
// goes to the simulated driver, which fails as the GPU's faults have it.
type Writer struct {
	world  *World
	node   int32
	source *source // for what it reads
}

// Writer returns the writer of a node.
func (w *World) Writer(nodeName string) (*Writer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.find(nodeName, 0); err != nil {
		return nil, err
	}
	node := w.places[nodeName]
	return &Writer{world: w, node: node, source: &source{world: w, node: node, open: true}}, nil
}

// Headroom reads how far a GPU is from slowing down, in celsius, through the
// driver, as the exporter does. It waits while the GPU's driver calls hang.
func (wr *Writer) Headroom(uuid string) (celsius float64, err error) {
	n := &wr.world.nodes[wr.node]
	for slot := range n.count {
		if d := wr.source.device(slot); d.identity.UUID == uuid {
			return exporter.Headroom(d)
		}
	}
	return 0, fmt.Errorf("GPU %q is not on node %q", uuid, n.Name)
}

// enter finds a GPU by its UUID and waits while its driver calls hang. The
// caller holds the world.
func (wr *Writer) enter(call, uuid string) (*gpu, error) {
	w := wr.world
	n := &w.nodes[wr.node]
	for i := n.first; i < n.first+n.count; i++ {
		if w.ids[i].uuid != uuid {
			continue
		}
		g := &w.gpus[i]
		for g.hung {
			w.faulted.Wait()
		}
		if g.lost {
			return nil, fault(call, exporter.Lost, nvmlGPUIsLost)
		}
		return g, nil
	}
	return nil, fmt.Errorf("GPU %q is not on node %q", uuid, n.Name)
}

// PowerLimits reads a GPU's limits back.
func (wr *Writer) PowerLimits(uuid string) (telemetry.PowerLimits, error) {
	wr.world.mu.Lock()
	defer wr.world.mu.Unlock()
	g, err := wr.enter("nvmlDeviceGetPowerManagementLimit", uuid)
	if err != nil {
		return telemetry.PowerLimits{}, err
	}
	m := g.model
	return telemetry.PowerLimits{Current: g.limitW, Default: m.DefaultLimit, Min: m.MinLimit, Max: m.MaxLimit}, nil
}

// SetPowerLimit sets a GPU's limit in watts. A limit out of range is refused
// with ErrLimitRange, a GPU whose writes are denied with a DriverError.
func (wr *Writer) SetPowerLimit(uuid string, watts float64) error {
	const call = "nvmlDeviceSetPowerManagementLimit"
	wr.world.mu.Lock()
	defer wr.world.mu.Unlock()
	g, err := wr.enter(call, uuid)
	if err != nil {
		return err
	}
	if g.denied {
		return fault(call, exporter.NoPermission, nvmlNoPermission)
	}
	if err := g.setLimit(watts); err != nil {
		return errors.Join(err, fault(call, exporter.OtherFault, nvmlInvalidArgument))
	}
	return nil
}
