package telemetry

import (
	"fmt"
	"strings"
	"time"
)

// SourceFile is the source of what people write down in the collector's file.
const SourceFile = "file"

// Inventory is the full snapshot of one source, with a generation that grows
// with each change. It is sent every minute and on change.
type Inventory struct {
	Source     string              `json:"source"`
	Generation uint64              `json:"generation"`
	Time       time.Time           `json:"time"`
	Nodes      []InventoryNode     `json:"nodes,omitempty"`
	Workloads  []InventoryWorkload `json:"workloads,omitempty"`
	Tenants    []Tenant            `json:"tenants,omitempty"`
	Budgets    []PowerBudget       `json:"budgets,omitempty"`
}

// InventoryNode is a node as a source knows it.
type InventoryNode struct {
	Name          string            `json:"name"`
	Aliases       []string          `json:"aliases,omitempty"`
	ExpectedUUIDs []string          `json:"expected_uuids,omitempty"`
	ExpectedGPUs  int               `json:"expected_gpus,omitempty"`
	Rack          string            `json:"rack,omitempty"`
	Row           string            `json:"row,omitempty"`
	Feed          string            `json:"feed,omitempty"`
	PowerDomain   string            `json:"power_domain,omitempty"`
	CoolingDomain string            `json:"cooling_domain,omitempty"`
	NVLinkDomain  string            `json:"nvlink_domain,omitempty"`
	NetworkDomain string            `json:"network_domain,omitempty"`
	Marks         map[string]string `json:"marks,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
	Model         string            `json:"model,omitempty"`
}

// WorkloadRef names a workload across backends: k8s:<ns>/<Kind>/<name>,
// slurm:<jobid>[_n][+n], proc:<node>/<pid>@<start>.
type WorkloadRef string

// Kind is the backend part of the reference.
func (r WorkloadRef) Kind() string {
	kind, _, _ := strings.Cut(string(r), ":")
	return kind
}

// Check refuses a reference that no backend could resolve.
func (r WorkloadRef) Check() error {
	kind, rest, ok := strings.Cut(string(r), ":")
	if !ok || rest == "" {
		return fmt.Errorf("workload %q: want <kind>:<name>", r)
	}
	switch kind {
	case "k8s":
		if strings.Count(rest, "/") != 2 {
			return fmt.Errorf("workload %q: want k8s:<namespace>/<Kind>/<name>", r)
		}
	case "slurm":
	case "proc":
		node, p, ok := strings.Cut(rest, "/")
		if _, _, at := strings.Cut(p, "@"); !ok || !at || node == "" {
			return fmt.Errorf("workload %q: want proc:<node>/<pid>@<start>", r)
		}
	default:
		return fmt.Errorf("workload %q: kind %q is none of k8s, slurm, proc", r, kind)
	}
	return nil
}

// InventoryWorkload is a workload as its scheduler knows it.
type InventoryWorkload struct {
	Ref        WorkloadRef      `json:"ref"`
	Owner      string           `json:"owner,omitempty"`
	Tenant     string           `json:"tenant,omitempty"`
	Priority   int              `json:"priority"`
	Gang       string           `json:"gang,omitempty"`
	GangSize   int              `json:"gang_size,omitempty"`
	State      string           `json:"state,omitempty"` // waiting, running, suspended
	Members    []WorkloadMember `json:"members,omitempty"`
	Requests   Requests         `json:"requests"`
	Submitted  time.Time        `json:"submitted,omitzero"`
	Start      time.Time        `json:"start,omitzero"`
	Checkpoint *Checkpoint      `json:"checkpoint,omitempty"`
	// MaxDowntime is the workload's own limit; zero means that none is set.
	MaxDowntime  Duration `json:"max_downtime,omitempty"`
	MinRunTime   Duration `json:"min_run_time,omitempty"`
	OptOut       []string `json:"opt_out,omitempty"`
	PDBRoom      *int     `json:"pdb_room,omitempty"`
	Restarts     int      `json:"restarts,omitempty"`
	LocalData    bool     `json:"local_data,omitempty"`
	QueueOwner   string   `json:"queue_owner,omitempty"`
	NodeSelector []string `json:"node_selector,omitempty"`
}

// WorkloadMember is one pod, job step or process of a workload. GPUs are the
// devices its scheduler gave it, where the scheduler knows.
type WorkloadMember struct {
	ID   string   `json:"id"`
	Node string   `json:"node,omitempty"`
	GPUs []string `json:"gpus,omitempty"`
}

// Requests is what a workload asked for.
type Requests struct {
	GPUs        int     `json:"gpus,omitempty"`
	MIGProfile  string  `json:"mig_profile,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	Model       string  `json:"model,omitempty"`
	Share       float64 `json:"share,omitempty"`
}

// Checkpoint says how a workload saves its state and when it last did.
type Checkpoint struct {
	Signal string    `json:"signal,omitempty"`
	Grace  Duration  `json:"grace,omitempty"`
	Last   time.Time `json:"last,omitzero"`
}

// Tenant is a group with an entitlement to GPUs.
type Tenant struct {
	Name        string  `json:"name"`
	Entitlement float64 `json:"entitlement"`
}

// PowerBudget is what a power domain may draw.
type PowerBudget struct {
	Domain string   `json:"domain"`
	Watts  float64  `json:"watts"`
	Nodes  []string `json:"nodes,omitempty"`
}

// Duration is a time.Duration that reads and writes as text ("10m").
type Duration time.Duration

// MarshalText writes the duration with its unit.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration with its unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, such as 30s or 10m", text)
	}
	*d = Duration(v)
	return nil
}
