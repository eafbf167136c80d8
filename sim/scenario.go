package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Scenario describes a world and what happens to it. It is read from YAML, and
// every key that is not known is an error with its line.
type Scenario struct {
	Name        string  `yaml:"name"`
	Description string  `yaml:"description"`
	Cluster     string  `yaml:"cluster"`
	Seed        uint64  `yaml:"seed"`
	Physics     Physics `yaml:"physics"`
	Rows        []Row   `yaml:"rows"`
	Nodes       []Node  `yaml:"nodes"`
	Jobs        []Job   `yaml:"jobs"`
	Events      []Event `yaml:"events"`
}

// Physics holds what a scenario overrides of the products and the hall.
type Physics struct {
	// TimeConstant replaces that of every product, so that a test need not wait.
	TimeConstant Duration `yaml:"time_constant"`
	// ResistanceSpread is the relative spread of cooling from GPU to GPU.
	ResistanceSpread *float64 `yaml:"resistance_spread"`
	// PreheatCPerW is what a watt of the GPU in front adds to the air of the one
	// behind it. The second half of a node's GPUs sits behind the first.
	PreheatCPerW *float64 `yaml:"preheat_celsius_per_watt"`
}

// Row is a row of racks that share their air.
type Row struct {
	Name         string  `yaml:"name"`
	InletCelsius float64 `yaml:"inlet_celsius"`
	// RecirculationCPerKW is what a kilowatt drawn in the row adds to its inlet.
	RecirculationCPerKW float64 `yaml:"recirculation_celsius_per_kilowatt"`
}

// Node is a server with GPUs of one product.
type Node struct {
	Name  string `yaml:"name"`
	Rack  string `yaml:"rack"`
	Row   string `yaml:"row"`
	Feed  string `yaml:"feed"`
	Model string `yaml:"model"`
	GPUs  int    `yaml:"gpus"`
}

// Job is a workload and where it runs.
type Job struct {
	Name     string `yaml:"name"`
	Kind     string `yaml:"kind"` // k8s, slurm or proc
	Owner    string `yaml:"owner"`
	Priority int    `yaml:"priority"`
	Shape    string `yaml:"shape"` // see Shapes
	// Gang: all members work at the rate of the slowest.
	Gang bool `yaml:"gang"`
	// GPUs places the job: NODE/INDEX or NODE/FIRST-LAST.
	GPUs      []string `yaml:"gpus"`
	MemoryGiB float64  `yaml:"memory_gib"`
	Activity  *float64 `yaml:"activity"` // instead of the shape's
	Phases    []Phase  `yaml:"phases"`   // repeated; none: steady
	Start     Duration `yaml:"start"`
	End       Duration `yaml:"end"` // 0: never
	// Checkpoint is the interval between checkpoints, 0: it keeps none.
	Checkpoint Duration `yaml:"checkpoint"`
}

// Phase is a stretch of a job's life with its own activity.
type Phase struct {
	For      Duration `yaml:"for"`
	Activity float64  `yaml:"activity"`
}

// Event happens at a time and, with For, is undone after it. It names one
// target and what changes there.
type Event struct {
	At  Duration `yaml:"at"`
	For Duration `yaml:"for"`
	// Over undoes what an earlier event of its kind did to the target.
	Over bool `yaml:"over"`

	Row          string   `yaml:"row"`
	InletCelsius *float64 `yaml:"inlet_celsius"` // of the row

	GPU     string   `yaml:"gpu"`     // NODE/INDEX
	Cooling *float64 `yaml:"cooling"` // multiplies the thermal resistance
	Fault   Fault    `yaml:"fault"`
}

// Fault is a way in which a GPU or its telemetry fails.
type Fault string

// The faults of a GPU.
const (
	FaultLost   Fault = "lost"   // fallen off the bus: every call fails, Xid 79
	FaultHung   Fault = "hung"   // every management call hangs, the work goes on
	FaultStuck  Fault = "stuck"  // its temperature sensors keep their value
	FaultBlank  Fault = "blank"  // calls succeed with a value that cannot be
	FaultDenied Fault = "denied" // writes are refused for want of permission
)

// Faults lists every fault of a GPU.
func Faults() []Fault {
	return []Fault{FaultLost, FaultHung, FaultStuck, FaultBlank, FaultDenied}
}

// Duration is a time.Duration written with its unit.
type Duration time.Duration

// UnmarshalYAML reads "1m30s".
func (d *Duration) UnmarshalYAML(value *yaml.Node) error {
	parsed, err := time.ParseDuration(value.Value)
	if err != nil || value.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is not a duration: write a number with a unit, such as 30s", value.Line, value.Value)
	}
	if parsed < 0 {
		return fmt.Errorf("line %d: a duration must not be negative", value.Line)
	}
	*d = Duration(parsed)
	return nil
}

// Shape is the load that a kind of work puts on each of its GPUs.
type Shape struct {
	Name         string
	Activity     float64 // of the work units, at full speed
	Memory       float64 // of the memory's bandwidth
	Busy         float64 // of the time, kernels resident
	ComputeShare float64 // of the run time, bound by the core's clock
	NVLinkBps    float64 // bytes per second and direction, all links of a GPU
	PCIeTxBps    float64
	PCIeRxBps    float64
}

// Shapes lists the kinds of work that jobs may name.
func Shapes() []Shape {
	return []Shape{
		{Name: "tensor-parallel", Activity: 0.93, Memory: 0.55, Busy: 0.99, ComputeShare: 0.75, NVLinkBps: 140e9, PCIeTxBps: 0.6e9, PCIeRxBps: 1.2e9},
		{Name: "data-parallel", Activity: 0.88, Memory: 0.5, Busy: 0.98, ComputeShare: 0.8, NVLinkBps: 60e9, PCIeTxBps: 1.5e9, PCIeRxBps: 2.5e9},
		{Name: "inference", Activity: 0.55, Memory: 0.7, Busy: 0.9, ComputeShare: 0.35, NVLinkBps: 25e9, PCIeTxBps: 0.3e9, PCIeRxBps: 0.5e9},
		{Name: "batch", Activity: 0.75, Memory: 0.35, Busy: 0.95, ComputeShare: 0.7, PCIeTxBps: 0.8e9, PCIeRxBps: 1.6e9},
	}
}

func shapeByName(name string) (Shape, bool) {
	for _, s := range Shapes() {
		if s.Name == name {
			return s, true
		}
	}
	return Shape{}, false
}

// ParseScenario reads a scenario. All errors carry the line they are about.
func ParseScenario(text []byte) (*Scenario, error) {
	var s Scenario
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&s); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the scenario is empty")
		}
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("a scenario is one YAML document")
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	if err := s.check(&root); err != nil {
		return nil, err
	}
	return &s, nil
}

// ParseEvent reads one event for a world of the scenario that is under way.
func (s *Scenario) ParseEvent(text []byte) (Event, error) {
	var e Event
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&e); err != nil {
		return Event{}, err
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return Event{}, err
	}
	c := scenarioCheck{
		Scenario: &Scenario{Rows: s.Rows, Nodes: s.Nodes, Events: []Event{e}}, root: &root,
		nodes: map[string]Node{}, rows: map[string]bool{},
	}
	for _, check := range []func() error{c.checkRows, c.checkNodes, c.checkEvents} {
		if err := check(); err != nil {
			return Event{}, err
		}
	}
	return e, nil
}

// gpuRange is a place in a scenario: GPUs first to last of a node.
type gpuRange struct {
	node        string
	first, last int
}

// parsePlace reads NODE/INDEX or NODE/FIRST-LAST.
func parsePlace(text string) (gpuRange, error) {
	node, indices, ok := strings.Cut(text, "/")
	if !ok || node == "" {
		return gpuRange{}, fmt.Errorf("%q is not a place: write NODE/INDEX or NODE/FIRST-LAST", text)
	}
	from, to, ranged := strings.Cut(indices, "-")
	if !ranged {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 0 || last < first {
		return gpuRange{}, fmt.Errorf("%q is not a place: write NODE/INDEX or NODE/FIRST-LAST", text)
	}
	return gpuRange{node, first, last}, nil
}
