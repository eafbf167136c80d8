package bus_test

import (
	"github.com/evenkeel-gpu/evenkeel/agent"
	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// The bus serves these without knowing them.
var (
	_ collector.Bus      = (*bus.Conn)(nil)
	_ rebalancer.Journal = (*bus.Conn)(nil)
	_ rebalancer.Lease   = (*bus.Lease)(nil)
	_ exporter.Sink      = (*bus.FrameSink)(nil)
	_ agent.Bus          = (*bus.Conn)(nil)
)
