package telemetry

import "math"

// ID numbers one series of the catalogue. For series that travel in a frame's
// GPU message it is also the protobuf field number, so it is never reused.
// Ranges: 1–199 GPU, 200–299 link, 300–399 instance and process, 400–599 node,
// 600 and up Evenkeel's own.
type ID uint32

// Type is the Prometheus type of a metric.
type Type string

// The metric types of the catalogue. Info is a gauge that is always 1 and
// carries strings in labels.
const (
	Gauge   Type = "gauge"
	Counter Type = "counter"
	Info    Type = "info"
)

// Per says what one series describes.
type Per string

// What a series can describe.
const (
	PerGPU      Per = "gpu"
	PerLink     Per = "link"
	PerInstance Per = "instance"
	PerProcess  Per = "process"
	PerNode     Per = "node"
	PerSelf     Per = "self"
)

// Rate is the rate class of a row: how often it is read and sent, and so when
// it is stale (three periods of its own class).
type Rate string

// Rate classes. Links are read every 5 s, the slow part every 15 s and on
// change, OnDemand rows have no rhythm of their own.
const (
	Fast     Rate = "fast"
	Link     Rate = "link"
	Slow     Rate = "slow"
	OnDemand Rate = "on_demand"
)

// Origin says who makes the value.
type Origin string

// Origins. Node values travel in frames; judged values exist from the
// collector on; self values describe the process that serves them.
const (
	FromNode  Origin = "node"
	FromJudge Origin = "judge"
	FromSelf  Origin = "self"
)

// Arch is a set of GPU architectures.
type Arch uint16

// Architectures, oldest first.
const (
	Turing Arch = 1 << iota
	Ampere
	Ada
	Hopper
	Blackwell
	AllArchs       = Turing | Ampere | Ada | Hopper | Blackwell
	AdaAndLater    = Ada | Hopper | Blackwell
	HopperAndLater = Hopper | Blackwell
)

// Wire is how a value travels in the GPU message: an integer of Kind that
// times Scale gives base units. Bits rows share one field, a bit a series.
type Wire struct {
	Kind  WireKind
	Scale float64
}

// WireKind is the protobuf type of a wire field.
type WireKind string

// Wire kinds. NoWire rows do not travel in the GPU message: they are judged,
// a process's own, or go as a Sample because their labels are open.
const (
	NoWire WireKind = ""
	U32    WireKind = "uint32"
	U64    WireKind = "uint64"
	S32    WireKind = "sint32"
	Bits   WireKind = "bits"
)

// Series is one combination of closed label values of a row.
type Series struct {
	ID     ID
	Field  string   // protobuf field and, in camel case, the Go constant
	Values []string // label values, in the order of Row.Labels
	Rate   Rate     // where it is not the row's; RateOf tells
}

// Row is one metric.
type Row struct {
	Name   string
	Help   string
	Unit   string
	Type   Type
	Per    Per
	Rate   Rate
	Origin Origin
	Labels []string // beyond node and, per GPU and below, uuid
	Archs  Arch
	Min    float64 // valid range in base units; outside is dropped and counted
	Max    float64
	Wire   Wire
	Series []Series
}

var inf = math.Inf(1)

var (
	ratio   = Wire{U32, 1e-4}
	celsius = Wire{S32, 0.1}
	milli   = Wire{U32, 1e-3}
	mega    = Wire{U32, 1e6}
	micros  = Wire{U64, 1e-6}
	count   = Wire{U64, 1}
	small   = Wire{U32, 1}
	bits    = Wire{Bits, 1}
)

// ThrottleReasons are the closed label values of the throttle metrics, in the
// order of their bits on the wire.
var ThrottleReasons = []string{"sw_power", "sw_thermal", "hw_thermal", "hw_slowdown", "power_brake", "sync_boost", "idle", "other"}

func one(id ID, field string) []Series { return []Series{{ID: id, Field: field}} }

// open is the series of a row whose label values are not a closed list: it
// has an id, and travels as a Sample.
func open(id ID, field string) []Series { return []Series{{ID: id, Field: field}} }

func each(id ID, field string, values ...string) []Series {
	out := make([]Series, len(values))
	for i, v := range values {
		out[i] = Series{ID: id + ID(i), Field: field + "_" + v, Values: []string{v}}
	}
	return out
}

// Catalog is every metric Evenkeel knows, in id order. Frame schema,
// accessors, exposition, docs/metrics.md, alert and dashboard checks are
// generated from it or checked against it.
var Catalog = concat(gpuRows, linkRows, instanceRows, nodeRows, selfRows)

func concat(parts ...[]Row) []Row {
	var out []Row
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// gpuRows: ids below 16 cost one byte of tag, so the fast part has them.
var gpuRows = []Row{
	{"gpu_utilization_ratio", "Share of time in which at least one kernel ran, over the driver's last sample window.", "ratio", Gauge, PerGPU, Fast, FromNode, nil, AllArchs, 0, 1, ratio, one(1, "utilization_ratio")},
	{"gpu_memory_utilization_ratio", "Share of time in which device memory was read or written, over the driver's last sample window.", "ratio", Gauge, PerGPU, Fast, FromNode, nil, AllArchs, 0, 1, ratio, one(2, "memory_utilization_ratio")},
	{"gpu_busy_seconds_total", "Time in which at least one kernel ran, integrated from the driver's samples.", "seconds", Counter, PerGPU, Fast, FromNode, nil, AllArchs, 0, inf, micros, one(3, "busy_seconds")},
	{"gpu_memory_used_bytes", "Device memory in use.", "bytes", Gauge, PerGPU, Fast, FromNode, nil, AllArchs, 0, 1 << 42, count, one(4, "memory_used_bytes")},
	{"gpu_temperature_celsius", "Temperature by sensor.", "celsius", Gauge, PerGPU, Fast, FromNode, []string{"sensor"}, AllArchs, -20, 150, celsius, each(5, "temperature_celsius", "core", "memory")},
	{"gpu_thermal_headroom_celsius", "Distance to the temperature at which the device slows down; the smaller of core and memory.", "celsius", Gauge, PerGPU, Fast, FromNode, nil, AllArchs, -60, 150, celsius, one(7, "thermal_headroom_celsius")},
	{"gpu_power_watts", "Power drawn by the device.", "watts", Gauge, PerGPU, Fast, FromNode, nil, AllArchs, 0, 3000, milli, one(8, "power_watts")},
	{"gpu_clock_hertz", "Clock by domain; sm and memory every tick, graphics and video in the slow part.", "hertz", Gauge, PerGPU, Fast, FromNode, []string{"domain"}, AllArchs, 0, 20e9, mega, []Series{{9, "clock_hertz_sm", []string{"sm"}, ""}, {10, "clock_hertz_memory", []string{"memory"}, ""}, {43, "clock_hertz_graphics", []string{"graphics"}, Slow}, {44, "clock_hertz_video", []string{"video"}, Slow}}},
	{"gpu_throttle_active", "1 while the driver holds clocks down for the reason.", "", Gauge, PerGPU, Fast, FromNode, []string{"reason"}, AllArchs, 0, 1, bits, each(110, "throttle_active", ThrottleReasons...)},
	{"gpu_energy_joules_total", "Energy used since the driver was loaded.", "joules", Counter, PerGPU, Fast, FromNode, nil, AllArchs, 0, inf, Wire{U64, 1e-3}, one(12, "energy_joules")},
	{"gpu_nvlink_total_bytes_total", "Bytes over all NVLinks of the device.", "bytes", Counter, PerGPU, Fast, FromNode, []string{"direction"}, AllArchs, 0, inf, count, each(13, "nvlink_total_bytes", "tx", "rx")},
	{"gpu_sm_active_ratio", "Share of time and of multiprocessors with at least one warp resident.", "ratio", Gauge, PerGPU, Fast, FromNode, nil, HopperAndLater, 0, 1, ratio, one(15, "sm_active_ratio")},
	{"gpu_tensor_active_ratio", "Share of cycles in which a tensor pipe was active.", "ratio", Gauge, PerGPU, Fast, FromNode, nil, HopperAndLater, 0, 1, ratio, one(16, "tensor_active_ratio")},
	{"gpu_dram_active_ratio", "Share of cycles in which device memory sent or received data.", "ratio", Gauge, PerGPU, Fast, FromNode, nil, HopperAndLater, 0, 1, ratio, one(17, "dram_active_ratio")},
	{"gpu_up", "1 if the device answered within the last two ticks.", "", Gauge, PerGPU, Fast, FromNode, nil, AllArchs, 0, 1, small, one(18, "up")},
	{"gpu_throttle_seconds_total", "Time in which clocks were held down for the reason.", "seconds", Counter, PerGPU, Fast, FromNode, []string{"reason"}, AllArchs, 0, inf, micros, each(120, "throttle_seconds", ThrottleReasons...)},

	{"gpu_memory_total_bytes", "Device memory.", "bytes", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 1 << 42, count, one(30, "memory_total_bytes")},
	{"gpu_memory_reserved_bytes", "Device memory that the driver keeps for itself; neither used nor free.", "bytes", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 1 << 42, count, one(37, "memory_reserved_bytes")},
	{"gpu_power_limit_watts", "Power limit in force.", "watts", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 3000, milli, one(31, "power_limit_watts")},
	{"gpu_power_limit_min_watts", "Lowest power limit the device accepts.", "watts", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 3000, milli, one(32, "power_limit_min_watts")},
	{"gpu_power_limit_default_watts", "Power limit after a driver load.", "watts", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 3000, milli, one(33, "power_limit_default_watts")},
	{"gpu_power_limit_max_watts", "Highest power limit the device accepts.", "watts", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 3000, milli, one(34, "power_limit_max_watts")},
	{"gpu_slowdown_threshold_celsius", "Core temperature at which the device slows down, on the absolute thermal model.", "celsius", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 150, celsius, one(35, "slowdown_threshold_celsius")},
	{"gpu_slowdown_offset_celsius", "T.Limit margin at which the device slows down, on the margin thermal model.", "celsius", Gauge, PerGPU, Slow, FromNode, nil, AdaAndLater, -60, 60, celsius, one(36, "slowdown_offset_celsius")},
	{"gpu_fabric_state", "NVLink fabric registration: 1 not started, 2 in progress, 3 completed.", "", Gauge, PerGPU, Slow, FromNode, nil, HopperAndLater, 0, 3, small, one(40, "fabric_state")},
	{"gpu_recovery_action", "Action the driver asks for: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot.", "", Gauge, PerGPU, Slow, FromNode, nil, AmpereAndLater, 0, 10, small, one(41, "recovery_action")},
	{"gpu_nvlink_links_expected", "NVLinks that the device has, up or not; none where no link was ever up.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 64, small, one(42, "nvlink_links_expected")},
	{"gpu_pcie_replays_total", "PCIe packets sent again.", "", Counter, PerGPU, Slow, FromNode, nil, AllArchs, 0, inf, count, one(50, "pcie_replays")},
	{"gpu_pcie_link_width", "PCIe lanes in use.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 32, small, one(51, "pcie_link_width")},
	{"gpu_pcie_link_width_max", "PCIe lanes possible for device and slot.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 32, small, one(52, "pcie_link_width_max")},
	{"gpu_pcie_link_generation", "PCIe generation in use.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 9, small, one(53, "pcie_link_generation")},
	{"gpu_pcie_link_generation_max", "PCIe generation possible for device and slot.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 9, small, one(54, "pcie_link_generation_max")},
	{"gpu_pcie_bytes_total", "Bytes over PCIe.", "bytes", Counter, PerGPU, Link, FromNode, []string{"direction"}, AllArchs, 0, inf, count, each(55, "pcie_bytes", "tx", "rx")},
	{"gpu_ecc_errors_total", "ECC errors; volatile since the driver was loaded, aggregate over the life of the device.", "", Counter, PerGPU, Slow, FromNode, []string{"kind", "scope"}, AllArchs, 0, inf, count, []Series{
		{60, "ecc_errors_corrected_volatile", []string{"corrected", "volatile"}, ""}, {61, "ecc_errors_corrected_aggregate", []string{"corrected", "aggregate"}, ""},
		{62, "ecc_errors_uncorrected_volatile", []string{"uncorrected", "volatile"}, ""}, {63, "ecc_errors_uncorrected_aggregate", []string{"uncorrected", "aggregate"}, ""}}},
	{"gpu_row_remap_pending", "1 if a row remap waits for a reset.", "", Gauge, PerGPU, Slow, FromNode, nil, AmpereAndLater, 0, 1, small, one(64, "row_remap_pending")},
	{"gpu_row_remap_failed", "1 if a row could not be remapped.", "", Gauge, PerGPU, Slow, FromNode, nil, AmpereAndLater, 0, 1, small, one(65, "row_remap_failed")},
	{"gpu_row_remap_correctable_total", "Rows remapped for correctable errors.", "", Counter, PerGPU, Slow, FromNode, nil, AmpereAndLater, 0, inf, count, one(66, "row_remap_correctable")},
	{"gpu_row_remap_uncorrectable_total", "Rows remapped for uncorrectable errors.", "", Counter, PerGPU, Slow, FromNode, nil, AmpereAndLater, 0, inf, count, one(67, "row_remap_uncorrectable")},

	{"gpu_info", "Description of the device; join on node and uuid.", "", Info, PerGPU, Slow, FromNode, []string{"index", "pci", "model", "driver", "arch"}, AllArchs, 1, 1, Wire{}, open(80, "info")},
	{"gpu_sample_invalid_total", "Values dropped at the source, by metric and reason.", "", Counter, PerGPU, Slow, FromNode, []string{"metric", "why"}, AllArchs, 0, inf, Wire{}, open(81, "sample_invalid")},
	{"gpu_xid_errors_total", "Xid errors by code and the action it calls for.", "", Counter, PerGPU, OnDemand, FromNode, []string{"xid", "action"}, AllArchs, 0, inf, Wire{}, open(82, "xid_errors")},
	{"gpu_mig_free_slices", "MIG instances of the profile that could still be placed.", "", Gauge, PerGPU, Slow, FromNode, []string{"profile"}, AmpereAndLater, 0, 8, Wire{}, open(83, "mig_free_slices")},
	{"gpu_processes", "Processes with a context on the device; on the node exporter only. A frame names 64 of them at most.", "", Gauge, PerGPU, Link, FromNode, nil, AllArchs, 0, 1 << 22, Wire{}, open(84, "processes")},
	{"gpu_reader_failing", "1 while the reader's last run on the device failed, by what the driver said; hung while it has not come back.", "", Gauge, PerGPU, Slow, FromNode, []string{"reader", "fault"}, AllArchs, 0, 1, Wire{}, open(86, "reader_failing")},
	{"gpu_health", "1 for the health class of the device.", "", Gauge, PerGPU, Fast, FromJudge, []string{"class"}, AllArchs, 0, 1, Wire{}, open(90, "health")},
	{"gpu_allocated", "1 if a scheduler has given the device to a workload.", "", Gauge, PerGPU, Fast, FromJudge, nil, AllArchs, 0, 1, Wire{}, open(91, "allocated")},
	{"gpu_sample_age_seconds", "Age of the device's last fast sample.", "seconds", Gauge, PerGPU, Fast, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(92, "sample_age")},
	{"gpu_workload_info", "Workload that holds the device; join on node and uuid.", "", Info, PerGPU, Fast, FromJudge, []string{"workload", "kind", "owner"}, AllArchs, 1, 1, Wire{}, open(93, "workload_info")},
	{"gpu_idle_seconds", "Time since the device was last used, with the cause of its idleness.", "seconds", Gauge, PerGPU, Fast, FromJudge, []string{"cause"}, AllArchs, 0, inf, Wire{}, open(94, "idle")},
	{"gpu_health_score", "Judged health of the device, 1 for a sound one.", "", Gauge, PerGPU, Fast, FromJudge, nil, AllArchs, 0, 1, Wire{}, open(95, "health_score")},
	{"gpu_contention_ratio", "Use of what the work on the device contends for, by kind, while it does.", "ratio", Gauge, PerGPU, Fast, FromJudge, []string{"kind"}, AllArchs, 0, inf, Wire{}, open(96, "contention")},
	{"gpu_nvlink_saturation_ratio", "Share of the speed of the device's NVLinks in use, in the busier direction.", "ratio", Gauge, PerGPU, Fast, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(97, "nvlink_saturation")},
	{"gpu_nvlink_links_up", "NVLinks of the device that are active.", "", Gauge, PerGPU, Link, FromJudge, nil, AllArchs, 0, 64, Wire{}, open(98, "nvlink_links_up")},
	{"gpu_nvlink_errors_per_second", "NVLink errors of all kinds and links of the device.", "", Gauge, PerGPU, Link, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(99, "nvlink_errors_per_second")},
	{"gpu_thermal_headroom_slope_celsius_per_second", "Change of the headroom, negative while the device heats.", "", Gauge, PerGPU, Fast, FromJudge, nil, AllArchs, -inf, inf, Wire{}, open(100, "thermal_headroom_slope")},
	{"gpu_time_to_slowdown_seconds", "Time until the device slows down at the present slope.", "seconds", Gauge, PerGPU, Fast, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(101, "time_to_slowdown")},
	{"gpu_thermal_resistance_celsius_per_watt", "Learned rise of the core's temperature over its air for each watt.", "", Gauge, PerGPU, Slow, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(102, "thermal_resistance")},
	{"gpu_thermal_time_constant_seconds", "Learned time constant with which the core follows its power.", "seconds", Gauge, PerGPU, Slow, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(103, "thermal_time_constant")},
	{"gpu_thermal_base_celsius", "Learned temperature of the core without power: inlet and neighbours.", "celsius", Gauge, PerGPU, Slow, FromJudge, nil, AllArchs, -inf, inf, Wire{}, open(104, "thermal_base")},
	{"gpu_allocation_info", "What a scheduler has given the device, or its instance gi, to: a pod's container or a job step.", "", Info, PerGPU, Slow, FromNode, []string{"gi", "kind", "holder", "owner"}, AllArchs, 1, 1, Wire{}, open(185, "allocation_info")},
	{"gpu_allocations", "Grants of the device or of parts of it that schedulers on the node tell of; 64 of them are named.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 1 << 20, Wire{}, open(186, "allocations")},
	{"gpu_use_state", "1 for how the device is held: allocated_used, allocated_unused, unallocated_used, free; used or unused where nobody tells of allocations.", "", Gauge, PerGPU, Slow, FromNode, []string{"state"}, AllArchs, 0, 1, Wire{}, open(187, "use_state")},
	{"gpu_shared_by", "Workloads, as far as the node can tell, that have processes on the device; above 1, the device's values are of all of them together.", "", Gauge, PerGPU, Slow, FromNode, nil, AllArchs, 0, 1 << 20, Wire{}, open(188, "shared_by")},
	{"gpu_sharing_info", "How the device is shared: exclusive, time_slicing, mig, mps, vgpu, intercepted.", "", Info, PerGPU, Slow, FromNode, []string{"mode"}, AllArchs, 1, 1, Wire{}, open(189, "sharing_info")},
}

// AmpereAndLater is the set of architectures with row remapping and MIG.
const AmpereAndLater = Ampere | AdaAndLater

// linkRows travel as packed columns indexed by link.
var linkRows = []Row{
	{"gpu_nvlink_bytes_total", "Bytes over one NVLink.", "bytes", Counter, PerLink, Link, FromNode, []string{"link", "direction"}, AllArchs, 0, inf, count, []Series{{200, "nvlink_bytes_tx", []string{"", "tx"}, ""}, {201, "nvlink_bytes_rx", []string{"", "rx"}, ""}}},
	{"gpu_nvlink_errors_total", "NVLink errors by kind; from NVLink 5 on, crc_flit counts packets received with an error.", "", Counter, PerLink, Link, FromNode, []string{"link", "kind"}, AllArchs, 0, inf, count, []Series{
		{202, "nvlink_errors_crc_flit", []string{"", "crc_flit"}, ""}, {203, "nvlink_errors_crc_data", []string{"", "crc_data"}, ""}, {204, "nvlink_errors_replay", []string{"", "replay"}, ""}, {205, "nvlink_errors_recovery", []string{"", "recovery"}, ""}}},
	{"gpu_nvlink_up", "1 if the NVLink is up; one that is down has no other series.", "", Gauge, PerLink, Link, FromNode, []string{"link"}, AllArchs, 0, 1, small, one(206, "nvlink_up")},
}

// instanceRows describe parts of a GPU; they travel as Samples.
var instanceRows = []Row{
	{"gpu_mig_instance_info", "MIG instance; gi numbers are reused after a reconfiguration.", "", Info, PerInstance, Slow, FromNode, []string{"gi", "profile"}, AmpereAndLater, 1, 1, Wire{}, open(300, "mig_instance_info")},
	{"gpu_mig_memory_used_bytes", "Memory in use of a MIG instance.", "bytes", Gauge, PerInstance, Fast, FromNode, []string{"gi"}, AmpereAndLater, 0, 1 << 42, Wire{}, open(301, "mig_memory_used_bytes")},
	{"gpu_mig_sm_active_ratio", "Multiprocessor activity of a MIG instance.", "ratio", Gauge, PerInstance, Fast, FromNode, []string{"gi"}, HopperAndLater, 0, 1, Wire{}, open(302, "mig_sm_active_ratio")},
	{"gpu_process_memory_bytes", "Device memory of a process; on the node exporter only.", "bytes", Gauge, PerProcess, Slow, FromNode, []string{"pid", "process"}, AllArchs, 0, 1 << 42, Wire{}, open(320, "process_memory_bytes")},
	{"gpu_member_info", "Process, pod or job step with processes on the device, and where it runs; on the node exporter only.", "", Info, PerProcess, Slow, FromNode, []string{"member", "kind", "workload", "owner", "name", "place", "gi"}, AllArchs, 1, 1, Wire{}, open(340, "member_info")},
	{"gpu_member_memory_used_bytes", "Device memory of all processes of a member.", "bytes", Gauge, PerProcess, Slow, FromNode, []string{"member", "gi"}, AllArchs, 0, 1 << 42, Wire{}, open(341, "member_memory_used_bytes")},
	{"gpu_member_memory_limit_bytes", "Device memory that a member may use where its sharing sets a limit.", "bytes", Gauge, PerProcess, Slow, FromNode, []string{"member", "source"}, AllArchs, 0, 1 << 42, Wire{}, open(342, "member_memory_limit_bytes")},
	{"gpu_member_sm_limit_ratio", "Share of the multiprocessors that a member may use where its sharing sets a limit.", "ratio", Gauge, PerProcess, Slow, FromNode, []string{"member", "source"}, AllArchs, 0, 1, Wire{}, open(343, "member_sm_limit_ratio")},
}

// nodeRows describe the host and its network fabric; they travel as Samples.
var nodeRows = []Row{
	{"node_host_cpu_utilization_ratio", "Share of CPU time not idle.", "ratio", Gauge, PerNode, Slow, FromNode, nil, AllArchs, 0, 1, Wire{}, open(400, "host_cpu_utilization_ratio")},
	{"node_host_cpu_iowait_ratio", "Share of CPU time idle with I/O outstanding.", "ratio", Gauge, PerNode, Slow, FromNode, nil, AllArchs, 0, 1, Wire{}, open(401, "host_cpu_iowait_ratio")},
	{"node_host_load1", "Load average over one minute.", "", Gauge, PerNode, Slow, FromNode, nil, AllArchs, 0, 1e6, Wire{}, open(402, "host_load1")},
	{"node_host_pressure_ratio", "Share of the last ten seconds in which some task waited for the resource.", "ratio", Gauge, PerNode, Slow, FromNode, []string{"resource"}, AllArchs, 0, 1, Wire{}, open(403, "host_pressure_ratio")},
	{"node_host_memory_total_bytes", "Memory of the host.", "bytes", Gauge, PerNode, Slow, FromNode, nil, AllArchs, 0, 1 << 46, Wire{}, open(410, "host_memory_total_bytes")},
	{"node_host_memory_available_bytes", "Memory of the host that programs can still take.", "bytes", Gauge, PerNode, Slow, FromNode, nil, AllArchs, 0, 1 << 46, Wire{}, open(411, "host_memory_available_bytes")},
	{"node_host_network_bytes_total", "Bytes over a network interface.", "bytes", Counter, PerNode, Slow, FromNode, []string{"device", "direction"}, AllArchs, 0, inf, Wire{}, open(420, "host_network_bytes")},
	{"node_host_network_errors_total", "Errors of a network interface.", "", Counter, PerNode, Slow, FromNode, []string{"device", "direction"}, AllArchs, 0, inf, Wire{}, open(421, "host_network_errors")},
	{"node_host_disk_bytes_total", "Bytes read from or written to a disk.", "bytes", Counter, PerNode, Slow, FromNode, []string{"device", "direction"}, AllArchs, 0, inf, Wire{}, open(430, "host_disk_bytes")},
	{"node_host_disk_busy_seconds_total", "Time in which a disk had work.", "seconds", Counter, PerNode, Slow, FromNode, []string{"device"}, AllArchs, 0, inf, Wire{}, open(431, "host_disk_busy_seconds")},
	{"node_host_mount_stalled", "1 if a mounted file system does not answer.", "", Gauge, PerNode, Slow, FromNode, []string{"mountpoint", "fstype"}, AllArchs, 0, 1, Wire{}, open(432, "host_mount_stalled")},
	{"node_host_temperature_celsius", "Temperature of a host sensor.", "celsius", Gauge, PerNode, Slow, FromNode, []string{"sensor"}, AllArchs, -40, 150, Wire{}, open(440, "host_temperature_celsius")},
	{"node_host_inlet_celsius", "Temperature of the air that enters the node.", "celsius", Gauge, PerNode, Slow, FromNode, nil, AllArchs, -40, 80, Wire{}, open(441, "host_inlet_celsius")},
	{"node_host_fan_rpm", "Speed of a fan, in rotations per minute.", "", Gauge, PerNode, Slow, FromNode, []string{"fan"}, AllArchs, 0, 1e5, Wire{}, open(442, "host_fan_rpm")},
	{"node_host_power_watts", "Power drawn by the node.", "watts", Gauge, PerNode, Slow, FromNode, nil, AllArchs, 0, 2e5, Wire{}, open(443, "host_power_watts")},
	{"node_host_verdict", "1 while the judged verdict on the host holds, 0 while it is known not to.", "", Gauge, PerNode, Slow, FromJudge, []string{"verdict"}, AllArchs, 0, 1, Wire{}, open(450, "host_verdict")},
	{"node_gpu_air_celsius", "Air of the node as its devices feel it: the median of their temperatures without power.", "celsius", Gauge, PerNode, Slow, FromJudge, nil, AllArchs, -inf, inf, Wire{}, open(451, "gpu_air_celsius")},
	{"node_fabric_bytes_total", "Bytes over a port of the compute network.", "bytes", Counter, PerNode, Slow, FromNode, []string{"device", "port", "direction"}, AllArchs, 0, inf, Wire{}, open(500, "fabric_bytes")},
	{"node_fabric_errors_total", "Errors of a port of the compute network.", "", Counter, PerNode, Slow, FromNode, []string{"device", "port", "kind"}, AllArchs, 0, inf, Wire{}, open(501, "fabric_errors")},
	{"node_fabric_up", "1 if a port of the compute network is active.", "", Gauge, PerNode, Slow, FromNode, []string{"device", "port"}, AllArchs, 0, 1, Wire{}, open(502, "fabric_up")},
	{"node_fabric_speed_bytes_per_second", "Speed of a port of the compute network.", "bytes", Gauge, PerNode, Slow, FromNode, []string{"device", "port"}, AllArchs, 0, 1e12, Wire{}, open(503, "fabric_speed")},
	{"node_fabric_congestion_wait_seconds_total", "Time in which a port had data to send and no credit to send it.", "seconds", Counter, PerNode, Slow, FromNode, []string{"device", "port"}, AllArchs, 0, inf, Wire{}, open(504, "fabric_congestion_wait")},
	{"node_host_psu_up", "1 while a power supply reports no fault.", "", Gauge, PerNode, Slow, FromNode, []string{"psu"}, AllArchs, 0, 1, Wire{}, open(470, "host_psu_up")},
	{"node_host_feed_watts", "Power at a sensor of one supply or feed.", "watts", Gauge, PerNode, Slow, FromNode, []string{"sensor"}, AllArchs, 0, 2e5, Wire{}, open(471, "host_feed_watts")},
	{"node_host_filesystem_used_ratio", "Share of a local file system in use.", "ratio", Gauge, PerNode, Slow, FromNode, []string{"mountpoint", "fstype"}, AllArchs, 0, 1, Wire{}, open(472, "host_filesystem_used_ratio")},
	{"node_host_disk_healthy", "1 while a disk passes its own test of health.", "", Gauge, PerNode, Slow, FromNode, []string{"device"}, AllArchs, 0, 1, Wire{}, open(473, "host_disk_healthy")},
	{"node_host_disk_wear_ratio", "Share of a disk's rated endurance used; it can exceed 1.", "ratio", Gauge, PerNode, Slow, FromNode, []string{"device"}, AllArchs, 0, 10, Wire{}, open(474, "host_disk_wear_ratio")},
	{"node_gpu_passthrough_info", "GPU that is handed through to a virtual machine: the kernel has it, the driver of this node does not.", "", Info, PerNode, Slow, FromNode, []string{"pci", "device", "driver"}, AllArchs, 1, 1, Wire{}, open(460, "gpu_passthrough_info")},
}

// selfRows are what Evenkeel says of itself and of the fleet as a whole.
var selfRows = []Row{
	{"evenkeel_node_up", "1 while frames of the node arrive.", "", Gauge, PerNode, Fast, FromJudge, nil, AllArchs, 0, 1, Wire{}, open(600, "node_up")},
	{"evenkeel_node_last_frame_timestamp_seconds", "Arrival of the node's last frame.", "seconds", Gauge, PerNode, Fast, FromJudge, nil, AllArchs, 0, inf, Wire{}, open(601, "node_last_frame")},
	{"evenkeel_node_gpus_expected", "GPUs that the node should have.", "", Gauge, PerNode, Slow, FromJudge, nil, AllArchs, 0, 1024, Wire{}, open(602, "node_gpus_expected")},
	{"evenkeel_node_info", "Place of the node in the fleet.", "", Info, PerNode, Slow, FromJudge, []string{"cluster", "rack", "row", "feed"}, AllArchs, 1, 1, Wire{}, open(603, "node_info")},
	{"evenkeel_node_clock_skew_seconds", "Node clock minus collector clock.", "seconds", Gauge, PerNode, Fast, FromJudge, nil, AllArchs, -inf, inf, Wire{}, open(604, "node_clock_skew")},
	{"evenkeel_node_doubtful", "1 while the node may not be who it says.", "", Gauge, PerNode, Fast, FromJudge, nil, AllArchs, 0, 1, Wire{}, open(605, "node_doubtful")},
	{"evenkeel_frames_dropped_total", "Frames refused or lost, by reason.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"why"}, AllArchs, 0, inf, Wire{}, open(610, "frames_dropped")},
	{"evenkeel_frame_lag_seconds", "Time from sample to fold.", "seconds", Gauge, PerSelf, Fast, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(611, "frame_lag")},
	{"evenkeel_reader_success", "1 if the reader's last run succeeded.", "", Gauge, PerNode, Slow, FromNode, []string{"reader"}, AllArchs, 0, 1, Wire{}, open(620, "reader_success")},
	{"evenkeel_reader_duration_seconds", "Duration of the reader's last run.", "seconds", Gauge, PerNode, Slow, FromNode, []string{"reader"}, AllArchs, 0, inf, Wire{}, open(621, "reader_duration")},
	{"evenkeel_driver_calls_total", "Calls into the GPU driver's library.", "", Counter, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(622, "driver_calls")},
	{"evenkeel_decisions_total", "Decisions by policy, act and outcome.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"policy", "act", "outcome"}, AllArchs, 0, inf, Wire{}, open(630, "decisions")},
	{"evenkeel_refusals_total", "Acts not taken, by reason.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"reason"}, AllArchs, 0, inf, Wire{}, open(631, "refusals")},
	{"evenkeel_effect", "Effect of the last verified act on its signal.", "", Gauge, PerSelf, OnDemand, FromSelf, []string{"signal", "kind"}, AllArchs, -inf, inf, Wire{}, open(632, "effect")},
	{"evenkeel_breaker_open", "1 while the breaker stops disruptive acts.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, 1, Wire{}, open(633, "breaker_open")},
	{"evenkeel_leader", "1 on the rebalancer that may act.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, 1, Wire{}, open(634, "leader")},
	{"evenkeel_pass_seconds", "Duration of the last pass.", "seconds", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(635, "pass")},
	{"evenkeel_last_pass_timestamp_seconds", "End of the last pass.", "seconds", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(636, "last_pass")},
	{"evenkeel_act_age_seconds", "Age of the oldest act in flight, by act.", "seconds", Gauge, PerSelf, OnDemand, FromSelf, []string{"act"}, AllArchs, 0, inf, Wire{}, open(637, "act_age")},
	{"evenkeel_journal_pending", "Journal records not yet confirmed.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(638, "journal_pending")},
	{"evenkeel_store_free_ratio", "Free share of the store's disk.", "ratio", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, 1, Wire{}, open(639, "store_free_ratio")},
	{"evenkeel_power_budget_watts", "Power budget of a domain.", "watts", Gauge, PerSelf, Slow, FromSelf, []string{"domain"}, AllArchs, 0, inf, Wire{}, open(640, "power_budget")},
	{"evenkeel_feed_dropped_total", "Observations, inventories and receipts that the rebalancer had no room for.", "", Counter, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(641, "feed_dropped")},
	{"evenkeel_orders_total", "Orders at the agent, by kind and result.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"kind", "result"}, AllArchs, 0, inf, Wire{}, open(650, "orders")},
	{"evenkeel_caps_active", "Power caps the agent holds under a lease.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(651, "caps_active")},
	{"evenkeel_exporter_ticks_total", "Ticks of the node exporter.", "", Counter, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(660, "exporter_ticks")},
	{"evenkeel_driver_up", "1 while the GPU driver's library answers; the reason is a label when it does not.", "", Gauge, PerNode, Slow, FromNode, []string{"reason"}, AllArchs, 0, 1, Wire{}, open(661, "driver_up")},
	{"evenkeel_driver_call_hung_seconds", "Time for which a driver call has not returned, by device and call.", "seconds", Gauge, PerNode, Fast, FromNode, []string{"uuid", "call"}, AllArchs, 0, inf, Wire{}, open(662, "driver_call_hung")},
	{"evenkeel_events_total", "Events that the node told, by kind; a storm of one kind is one event a second.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"kind"}, AllArchs, 0, inf, Wire{}, open(668, "events")},
	{"evenkeel_events_dropped_total", "Events that were lost at the node.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"why"}, AllArchs, 0, inf, Wire{}, open(669, "events_dropped")},
	{"evenkeel_bus_connected", "1 while the process is connected to the bus.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, 1, Wire{}, open(670, "bus_connected")},
	{"evenkeel_bus_reconnects_total", "Connections to the bus that were made anew after a loss.", "", Counter, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(671, "bus_reconnects")},
	{"evenkeel_bus_errors_total", "Errors that the bus reported out of band, by kind; permission is a refused subject.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"kind"}, AllArchs, 0, inf, Wire{}, open(672, "bus_errors")},
	{"evenkeel_bus_messages_lost_total", "Messages lost at this end of the bus: not sent, handler too slow, not readable, outbox full.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"why"}, AllArchs, 0, inf, Wire{}, open(673, "bus_messages_lost")},
	{"evenkeel_bus_pending", "Events and receipts that the bus has not stored yet.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(674, "bus_pending")},
	{"evenkeel_inventory_age_seconds", "Time since the source of inventory last spoke; its last word stays in force.", "seconds", Gauge, PerSelf, OnDemand, FromSelf, []string{"source"}, AllArchs, 0, inf, Wire{}, open(710, "inventory_age")},
	{"evenkeel_inventory_generation", "Generation of the source's last word; it grows with each change.", "", Gauge, PerSelf, OnDemand, FromSelf, []string{"source"}, AllArchs, 0, inf, Wire{}, open(711, "inventory_generation")},
	{"evenkeel_inventory_nodes", "Nodes that the source of inventory lists.", "", Gauge, PerSelf, OnDemand, FromSelf, []string{"source"}, AllArchs, 0, inf, Wire{}, open(712, "inventory_nodes")},
	{"evenkeel_inventory_refused_total", "Inventories that were refused, by reason; the last good one of the source stays in force.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"why"}, AllArchs, 0, inf, Wire{}, open(713, "inventory_refused")},
	{"evenkeel_inventory_file_loads_total", "Contents of the inventory file that were taken or refused.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"result"}, AllArchs, 0, inf, Wire{}, open(714, "inventory_file_loads")},
	{"evenkeel_inventory_file_good", "1 while the inventory file can be read and is right; at 0 its last good content is in force.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, 1, Wire{}, open(715, "inventory_file_good")},
	{"evenkeel_node_values_refused_total", "Values in frames of the node that were refused, by reason.", "", Counter, PerNode, OnDemand, FromJudge, []string{"why"}, AllArchs, 0, inf, Wire{}, open(716, "node_values_refused")},
	{"evenkeel_gpus_expected", "GPUs of the fleet that should be there, by inventory or because their node reported them.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(717, "gpus_expected")},
	{"evenkeel_gpus_fresh", "GPUs of the fleet whose temperature is known, trusted and not stale.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(718, "gpus_fresh")},
	{"evenkeel_store_series", "Series that the store kept in its last sample.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(680, "store_series")},
	{"evenkeel_store_samples_refused_total", "Samples that the store did not keep: older than the last, twice in one sample, beyond its bound, or not written.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"why"}, AllArchs, 0, inf, Wire{}, open(681, "store_samples_refused")},
	{"evenkeel_store_up", "1 while the store keeps what it samples.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, 1, Wire{}, open(682, "store_up")},
	{"evenkeel_store_sample_seconds", "Time that the store's last sample of all series took.", "seconds", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(683, "store_sample")},
	{"evenkeel_collector_leader", "1 on the collector that speaks for its partitions, 0 on its standby.", "", Gauge, PerSelf, OnDemand, FromSelf, []string{"partitions"}, AllArchs, 0, 1, Wire{}, open(700, "collector_leader")},
	{"evenkeel_remote_acked_timestamp_seconds", "Time up to which the remote has acknowledged every sample of the store.", "seconds", Gauge, PerSelf, OnDemand, FromSelf, []string{"remote"}, AllArchs, 0, inf, Wire{}, open(684, "remote_acked")},
	{"evenkeel_remote_samples_sent_total", "Samples that the remote acknowledged.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"remote"}, AllArchs, 0, inf, Wire{}, open(685, "remote_samples_sent")},
	{"evenkeel_remote_samples_refused_total", "Samples that the remote refused for good, by its answer; the log has its words.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"remote", "why"}, AllArchs, 0, inf, Wire{}, open(686, "remote_samples_refused")},
	{"evenkeel_remote_retries_total", "Requests to the remote that failed and were sent again.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"remote"}, AllArchs, 0, inf, Wire{}, open(687, "remote_retries")},
	{"evenkeel_remote_lost_seconds_total", "Time whose samples the store gave up before the remote had acknowledged them.", "seconds", Counter, PerSelf, OnDemand, FromSelf, []string{"remote"}, AllArchs, 0, inf, Wire{}, open(688, "remote_lost")},
	{"evenkeel_remote_late_total", "Commits of a time that the remote had passed already; they are sent again by themselves.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"remote"}, AllArchs, 0, inf, Wire{}, open(689, "remote_late")},
	{"evenkeel_collector_takeovers_total", "Times that the collector began to speak for its partitions.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"partitions"}, AllArchs, 0, inf, Wire{}, open(701, "collector_takeovers")},
	{"evenkeel_api_streams", "Readers of the API's stream of changes.", "", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(720, "streams")},
	{"evenkeel_api_streams_ended_total", "Streams that the API ended or refused, by why: slow fell behind, hung took nothing, full came when all places were taken.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"why"}, AllArchs, 0, inf, Wire{}, open(721, "streams_ended")},
	{"evenkeel_attribution_age_seconds", "Age of what the source last said of allocations; it stays in force for ten minutes.", "seconds", Gauge, PerNode, Slow, FromNode, []string{"source"}, AllArchs, 0, inf, Wire{}, open(691, "attribution_age")},
	{"evenkeel_attribution_unmatched", "Grants of the source's last word whose id is no device known here.", "", Gauge, PerNode, Slow, FromNode, []string{"source"}, AllArchs, 0, inf, Wire{}, open(692, "attribution_unmatched")},
	{"evenkeel_spool_bytes", "Frames of an outage on the node's disk.", "bytes", Gauge, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(693, "spool_bytes")},
	{"evenkeel_spool_frames_total", "Frames that could not be sent, by result: kept on disk, sent later, lost.", "", Counter, PerSelf, OnDemand, FromSelf, []string{"result"}, AllArchs, 0, inf, Wire{}, open(694, "spool_frames")},
	{"evenkeel_samples_refused_total", "Values from beside the devices that the exporter did not take: out of range, or not as the catalogue has them.", "", Counter, PerSelf, OnDemand, FromSelf, nil, AllArchs, 0, inf, Wire{}, open(690, "samples_refused")},
}
