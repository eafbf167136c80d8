package ui

import (
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// APIVersion names the shape of every answer.
const APIVersion = "evenkeel/v1"

// List is a list of the API. Total counts what matched, before the limit. Next,
// given as cursor, continues the list.
type List[T any] struct {
	APIVersion string `json:"apiVersion"`
	Total      int    `json:"total"`
	Next       string `json:"next,omitempty"`
	Items      []T    `json:"items"`
}

func listOf[T any](items []T) List[T] {
	return List[T]{APIVersion: APIVersion, Total: len(items), Items: items}
}

// Node is a node as the API shows it. What is not known is absent.
type Node struct {
	Name              string            `json:"name"`
	Cluster           string            `json:"cluster,omitempty"`
	State             string            `json:"state"`
	Rack              string            `json:"rack,omitempty"`
	Row               string            `json:"row,omitempty"`
	Feed              string            `json:"feed,omitempty"`
	PowerDomain       string            `json:"power_domain,omitempty"`
	CoolingDomain     string            `json:"cooling_domain,omitempty"`
	NVLinkDomain      string            `json:"nvlink_domain,omitempty"`
	NetworkDomain     string            `json:"network_domain,omitempty"`
	GPUs              int               `json:"gpus"`
	GPUsExpected      int               `json:"gpus_expected"`
	GPUsFresh         int               `json:"gpus_fresh"`
	Hottest           *float64          `json:"least_headroom_celsius,omitempty"`
	PowerWatts        *float64          `json:"power_watts,omitempty"`
	Seen              time.Time         `json:"seen,omitzero"`
	AgeSeconds        *float64          `json:"age_seconds,omitempty"`
	PeriodSeconds     float64           `json:"period_seconds,omitempty"`
	SkewSeconds       float64           `json:"clock_skew_seconds"`
	ClockSynchronized bool              `json:"clock_synchronized"`
	DriverFault       string            `json:"driver_fault,omitempty"`
	Doubt             string            `json:"doubt,omitempty"`
	BootID            string            `json:"boot_id,omitempty"`
	Incarnation       uint64            `json:"incarnation,omitempty,string"`
	Since             time.Time         `json:"since,omitzero"`
	Heard             time.Time         `json:"heard,omitzero"`
	Inlet             *float64          `json:"inlet_celsius,omitempty"`
	Air               *float64          `json:"air_celsius,omitempty"`
	Host              []HostVerdict     `json:"host"`
	Unschedulable     bool              `json:"unschedulable,omitempty"`
	Marks             map[string]string `json:"marks,omitempty"`
	Sources           []string          `json:"sources,omitempty"`
}

// GPU is a device as the API shows it. What is not known is absent; Fresh says
// whether the values are of now.
type GPU struct {
	UUID              string         `json:"uuid"`
	Node              string         `json:"node"`
	Index             int            `json:"index"`
	PCI               string         `json:"pci,omitempty"`
	Model             string         `json:"model,omitempty"`
	Arch              string         `json:"arch,omitempty"`
	Driver            string         `json:"driver,omitempty"`
	Row               string         `json:"row,omitempty"`
	Rack              string         `json:"rack,omitempty"`
	State             string         `json:"state"`
	Fresh             bool           `json:"fresh"`
	SampledAt         time.Time      `json:"sampled_at,omitzero"`
	AgeSeconds        *float64       `json:"age_seconds,omitempty"`
	Generation        uint64         `json:"generation,omitempty"`
	DoubtfulIdentity  bool           `json:"doubtful_identity,omitempty"`
	Doubt             string         `json:"doubt,omitempty"`
	HungCall          string         `json:"hung_call,omitempty"`
	HungSeconds       float64        `json:"hung_seconds,omitempty"`
	Headroom          *float64       `json:"headroom_celsius,omitempty"`
	Slope             *float64       `json:"slope_celsius_per_second,omitempty"`
	SecondsToSlowdown *float64       `json:"seconds_to_slowdown,omitempty"`
	Core              *float64       `json:"temperature_core_celsius,omitempty"`
	Memory            *float64       `json:"temperature_memory_celsius,omitempty"`
	Power             *float64       `json:"power_watts,omitempty"`
	Limit             *float64       `json:"power_limit_watts,omitempty"`
	LimitMin          *float64       `json:"power_limit_min_watts,omitempty"`
	LimitDefault      *float64       `json:"power_limit_default_watts,omitempty"`
	LimitMax          *float64       `json:"power_limit_max_watts,omitempty"`
	Utilization       *float64       `json:"utilization_ratio,omitempty"`
	Clock             *float64       `json:"sm_clock_hertz,omitempty"`
	MemoryUsed        *float64       `json:"memory_used_bytes,omitempty"`
	MemoryTotal       *float64       `json:"memory_total_bytes,omitempty"`
	Throttle          []string       `json:"throttle"`
	Capped            bool           `json:"capped"`
	Resistance        *float64       `json:"thermal_resistance_celsius_per_watt,omitempty"`
	TimeConstant      *float64       `json:"thermal_time_constant_seconds,omitempty"`
	Base              *float64       `json:"base_temperature_celsius,omitempty"`
	HeldBy            []string       `json:"held_by,omitempty"`
	Workloads         []WorkloadName `json:"workloads"`
	Verdicts
}

// WorkloadName is a workload with its owner.
type WorkloadName struct {
	Ref   telemetry.WorkloadRef `json:"ref"`
	Owner string                `json:"owner,omitempty"`
}

// GPUDetail is a device with every value that is known of it.
type GPUDetail struct {
	GPU
	Members  []Member  `json:"members"`
	Readings []Reading `json:"readings"`
}

// Reading is one value with its age and quality.
type Reading struct {
	Metric     string            `json:"metric"`
	Labels     map[string]string `json:"labels,omitempty"`
	Value      float64           `json:"value"`
	Unit       string            `json:"unit,omitempty"`
	AgeSeconds *float64          `json:"age_seconds,omitempty"`
	Quality    string            `json:"quality"`
}

// Workload is a workload with the devices it holds.
type Workload struct {
	telemetry.InventoryWorkload
	Name     string           `json:"name,omitempty"`
	Source   string           `json:"source,omitempty"`
	Seen     time.Time        `json:"seen,omitzero"`
	GPUs     []GPUName        `json:"gpus"`
	Verdicts WorkloadVerdicts `json:"verdicts"`
}

// GPUName is a device with its place.
type GPUName struct {
	UUID     string   `json:"uuid"`
	Node     string   `json:"node"`
	Index    int      `json:"index"`
	State    string   `json:"state"`
	Headroom *float64 `json:"headroom_celsius,omitempty"`
}

// Summary is the fleet in numbers.
type Summary struct {
	ViewTime  time.Time          `json:"view_time"`
	Nodes     int                `json:"nodes"`
	NodesUp   int                `json:"nodes_up"`
	GPUs      int                `json:"gpus"`
	Coverage  telemetry.Coverage `json:"coverage"`
	States    map[string]int     `json:"states"`
	Capped    int                `json:"capped"`
	Slowed    int                `json:"slowed"` // held down for heat by the device itself
	Power     *float64           `json:"power_watts,omitempty"`
	Hottest   *GPUName           `json:"hottest,omitempty"`
	Workloads int                `json:"workloads"`
	Decisions int                `json:"decisions"`
	Open      int                `json:"decisions_open"`
	Paused    string             `json:"paused,omitempty"` // disruptive or all
	PausedBy  string             `json:"paused_by,omitempty"`
	Breakers  []OpenBreaker      `json:"breakers_open,omitempty"`
	Past      string             `json:"past"`             // memory or store
	Alerts    *AlertCount        `json:"alerts,omitempty"` // absent where no rules are evaluated
	Version   string             `json:"version,omitempty"`
}

// OpenBreaker is a breaker that stops disruptive acts until a person closes it.
type OpenBreaker struct {
	Domain string `json:"domain,omitempty"` // the fleet's has none
	Reason string `json:"reason"`
}

// DecisionLine is a decision in the few fields that a list shows; each has the
// name and meaning it has in the whole record.
type DecisionLine struct {
	ID      string            `json:"id"`
	Time    time.Time         `json:"time"`
	Policy  string            `json:"policy"`
	Mode    telemetry.Mode    `json:"mode"`
	Act     telemetry.ActKind `json:"act"`
	Class   telemetry.Class   `json:"class"`
	Target  telemetry.Target  `json:"target"`
	Outcome telemetry.Outcome `json:"outcome"`
	Why     string            `json:"why"`
	Ended   time.Time         `json:"ended,omitzero"`
}

// Update is one event of the stream. A snapshot has every part; a change has
// the parts that changed, and in Gone the decisions that are no longer told of.
type Update struct {
	APIVersion      string         `json:"apiVersion,omitempty"`
	ID              string         `json:"id"`
	Time            time.Time      `json:"time"`
	Summary         *Summary       `json:"summary,omitempty"`
	Columns         []string       `json:"columns,omitempty"`
	States          []string       `json:"states,omitempty"`
	ThrottleReasons []string       `json:"throttle_reasons,omitempty"`
	Nodes           []NodePlace    `json:"nodes,omitempty"`
	GPUs            []GPUPlace     `json:"gpus,omitempty"`
	Rows            []Row          `json:"rows,omitempty"`
	Placements      []Placement    `json:"placements,omitempty"`
	Decisions       []DecisionLine `json:"decisions,omitempty"`
	Gone            []string       `json:"decisions_gone,omitempty"`
}

// NodePlace is where a node stands and whether it is heard.
type NodePlace struct {
	Name        string `json:"name"`
	Row         string `json:"row,omitempty"`
	Rack        string `json:"rack,omitempty"`
	State       string `json:"state"`
	Expected    int    `json:"gpus_expected"`
	DriverFault string `json:"driver_fault,omitempty"`
}

// GPUPlace is a device as rows and placements refer to it: by its place in
// the list.
type GPUPlace struct {
	UUID  string `json:"uuid"`
	Node  int    `json:"node"` // place in nodes
	Index int    `json:"index"`
	Model string `json:"model,omitempty"`
}

// Placement is what runs on a device.
type Placement struct {
	GPU       int            `json:"gpu"` // place in gpus
	Workloads []WorkloadName `json:"workloads"`
}
