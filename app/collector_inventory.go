package app

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/config"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// inventoryFile is the file source of a collector; nil without a file.
func inventoryFile(path string, conn *bus.Conn) *collector.InventoryFile {
	if path == "" {
		return nil
	}
	return &collector.InventoryFile{
		Path: path, Publish: conn.PublishInventory,
		Parse: func(name string, data []byte) (telemetry.Inventory, error) {
			inv, err := config.ParseInventory(name, data)
			if err != nil {
				return telemetry.Inventory{}, err
			}
			return inv.Snapshot(time.Time{}), nil
		},
	}
}
