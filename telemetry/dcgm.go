package telemetry

import "slices"

// DCGMVersion is the release of dcgm-exporter whose default counter file
// DCGMFamilies follows.
const DCGMVersion = "4.5.3-4.8.2"

// DCGMFamily is one family of dcgm-exporter's default counter file and what it
// is made from.
type DCGMFamily struct {
	Name string
	Help string
	Type Type
	From []string // fields of the catalogue's series, added up; none where there is no source
	Less []string // what is taken off that sum
	Unit float64  // one of theirs in base units of ours
	// Lacks says why the family is not served.
	Lacks string
}

// Series is the ids of what the family is made from, the last less of which
// are taken off.
func (d *DCGMFamily) Series() (ids []ID, less int) {
	for _, field := range slices.Concat(d.From, d.Less) {
		for i := range Catalog {
			for _, s := range Catalog[i].Series {
				if s.Field == field && Catalog[i].Per == PerGPU {
					ids = append(ids, s.ID)
				}
			}
		}
	}
	return ids, len(d.Less)
}

const (
	noGPM     = "no reader of the profiling counters yet"
	noReader  = "no reader yet"
	noLicense = "licences of virtual GPUs are not read"
)

// DCGMFamilies are in the order of that file. Its NVLink counter is a rate
// there and falls; here it only grows, in the same unit, so that rate() tells
// what a panel means by it.
var DCGMFamilies = []DCGMFamily{
	{"DCGM_FI_DEV_SM_CLOCK", "SM clock, MHz.", Gauge, []string{"clock_hertz_sm"}, nil, 1e6, ""},
	{"DCGM_FI_DEV_MEM_CLOCK", "Memory clock, MHz.", Gauge, []string{"clock_hertz_memory"}, nil, 1e6, ""},
	{"DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature, celsius.", Gauge, []string{"temperature_celsius_memory"}, nil, 1, ""},
	{"DCGM_FI_DEV_GPU_TEMP", "Core temperature, celsius.", Gauge, []string{"temperature_celsius_core"}, nil, 1, ""},
	{"DCGM_FI_DEV_POWER_USAGE", "Power drawn, watts.", Gauge, []string{"power_watts"}, nil, 1, ""},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy used, millijoules.", Counter, []string{"energy_joules"}, nil, 1e-3, ""},
	{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets sent again.", Counter, []string{"pcie_replays"}, nil, 1, ""},
	{"DCGM_FI_DEV_GPU_UTIL", "Time with a kernel running, percent.", Gauge, []string{"utilization_ratio"}, nil, 1e-2, ""},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "Time with device memory in use, percent.", Gauge, []string{"memory_utilization_ratio"}, nil, 1e-2, ""},
	{"DCGM_FI_DEV_ENC_UTIL", "Encoder in use, percent.", Gauge, nil, nil, 1e-2, noReader},
	{"DCGM_FI_DEV_DEC_UTIL", "Decoder in use, percent.", Gauge, nil, nil, 1e-2, noReader},
	{"DCGM_FI_DEV_XID_ERRORS", "Last Xid, 0 for none since the exporter began.", Gauge, []string{"xid_errors"}, nil, 1, ""},
	{"DCGM_FI_DEV_FB_FREE", "Device memory free, MiB.", Gauge, []string{"memory_total_bytes"}, []string{"memory_used_bytes", "memory_reserved_bytes"}, 1 << 20, ""},
	{"DCGM_FI_DEV_FB_USED", "Device memory in use, MiB.", Gauge, []string{"memory_used_bytes"}, nil, 1 << 20, ""},
	{"DCGM_FI_DEV_FB_RESERVED", "Device memory reserved, MiB.", Gauge, []string{"memory_reserved_bytes"}, nil, 1 << 20, ""},
	{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Traffic over all NVLinks, both directions, in 1000 KiB.", Counter, []string{"nvlink_total_bytes_tx", "nvlink_total_bytes_rx"}, nil, 1024 * 1000, ""},
	{"DCGM_FI_DEV_VGPU_LICENSE_STATUS", "Licence of a virtual GPU.", Gauge, nil, nil, 1, noLicense},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.", Counter, []string{"row_remap_uncorrectable"}, nil, 1, ""},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.", Counter, []string{"row_remap_correctable"}, nil, 1, ""},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 if a row could not be remapped.", Gauge, []string{"row_remap_failed"}, nil, 1, ""},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Time with the graphics engine active.", Gauge, nil, nil, 1, noGPM},
	{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Cycles with a tensor pipe active.", Gauge, nil, nil, 1, noGPM},
	{"DCGM_FI_PROF_DRAM_ACTIVE", "Cycles with device memory active.", Gauge, nil, nil, 1, noGPM},
	{"DCGM_FI_PROF_PCIE_TX_BYTES", "PCIe bytes sent a second.", Gauge, nil, nil, 1, noGPM},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", "PCIe bytes received a second.", Gauge, nil, nil, 1, noGPM},
}
