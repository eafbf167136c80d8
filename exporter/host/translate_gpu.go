package host

import (
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const mib = 1 << 20

// ofNvidiaSMI is for where the driver's library cannot be used and its program
// can. The exporter leaves out what it reads itself.
func ofNvidiaSMI(p *point, to *samples) {
	uuid := p.tags["uuid"]
	if p.name != "nvidia_smi" || uuid == "" {
		return
	}
	to.field(p, "utilization_gpu", 0.01, telemetry.GPUUtilizationRatio, uuid)
	to.field(p, "utilization_memory", 0.01, telemetry.GPUMemoryUtilizationRatio, uuid)
	to.field(p, "memory_used", mib, telemetry.GPUMemoryUsedBytes, uuid)
	to.field(p, "memory_total", mib, telemetry.GPUMemoryTotalBytes, uuid)
	to.field(p, "temperature_gpu", 1, telemetry.GPUTemperatureCelsiusCore, uuid, "core")
	to.field(p, "power_draw", 1, telemetry.GPUPowerWatts, uuid)
	to.field(p, "power_limit", 1, telemetry.GPUPowerLimitWatts, uuid)
	to.field(p, "clocks_current_sm", 1e6, telemetry.GPUClockHertzSM, uuid, "sm")
	to.field(p, "clocks_current_memory", 1e6, telemetry.GPUClockHertzMemory, uuid, "memory")
	to.field(p, "clocks_current_graphics", 1e6, telemetry.GPUClockHertzGraphics, uuid, "graphics")
	to.field(p, "clocks_current_video", 1e6, telemetry.GPUClockHertzVideo, uuid, "video")
	to.field(p, "pcie_link_gen_current", 1, telemetry.GPUPCIeLinkGeneration, uuid)
	to.field(p, "pcie_link_width_current", 1, telemetry.GPUPCIeLinkWidth, uuid)
	to.field(p, "remapped_rows_correctable", 1, telemetry.GPURowRemapCorrectable, uuid)
	to.field(p, "remapped_rows_uncorrectable", 1, telemetry.GPURowRemapUncorrectable, uuid)
	for field, id := range map[string]telemetry.ID{"remapped_rows_pending": telemetry.GPURowRemapPending, "remapped_rows_failure": telemetry.GPURowRemapFailed} {
		switch p.fields[field] {
		case "Yes":
			to.put(id, uuid, 1)
		case "No":
			to.put(id, uuid, 0)
		}
	}
}

// ofROCmSMI: AMD's devices have no UUID of NVIDIA's form; the unique id of the
// card stands for it, else its name on the bus.
func ofROCmSMI(p *point, to *samples) {
	uuid := p.tags["gpu_unique_id"]
	if uuid == "" || strings.EqualFold(uuid, "N/A") {
		uuid = p.tags["name"]
	}
	if uuid == "" {
		return
	}
	uuid = "AMD-" + uuid
	to.field(p, "utilization_gpu", 0.01, telemetry.GPUUtilizationRatio, uuid)
	to.field(p, "memory_used", 1, telemetry.GPUMemoryUsedBytes, uuid)
	to.field(p, "memory_total", 1, telemetry.GPUMemoryTotalBytes, uuid)
	core := "temperature_sensor_junction"
	if _, ok := p.number(core); !ok {
		core = "temperature_sensor_edge"
	}
	to.field(p, core, 1, telemetry.GPUTemperatureCelsiusCore, uuid, "core")
	to.field(p, "temperature_sensor_memory", 1, telemetry.GPUTemperatureCelsiusMemory, uuid, "memory")
	to.field(p, "power_draw", 1, telemetry.GPUPowerWatts, uuid)
	to.field(p, "clocks_current_sm", 1e6, telemetry.GPUClockHertzSM, uuid, "sm")
	to.field(p, "clocks_current_memory", 1e6, telemetry.GPUClockHertzMemory, uuid, "memory")
}
