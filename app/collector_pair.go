package app

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// collectorLease is how long a collector that speaks may be silent.
const collectorLease = 3 * time.Second

// share is what a collector serves, and by which lease it is the one that speaks
// for it. The zero value is the whole fleet, alone.
type share struct {
	name       string
	partitions telemetry.PartitionSet
	lease      collector.Lease
}

func shareOf(cfg *config.Collector, conn *bus.Conn) (share, error) {
	partitions, err := telemetry.ParsePartitions(cfg.Partitions)
	if err != nil {
		return share{}, err
	}
	lease := conn.Lease(bus.CollectorLease(partitions), collectorLease).Announced()
	// Two on one host may have its name in common, not an address.
	return share{name: cfg.Name + "@" + cfg.Listen, partitions: partitions, lease: lease}, nil
}

func (s share) options(o collector.Options) collector.Options {
	o.Name, o.Partitions, o.Lease = s.name, s.partitions, s.lease
	return o
}
