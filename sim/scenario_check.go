package sim

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// maxGPUsPerNode is what the shared file of the NVML stand-in has room for.
const maxGPUsPerNode = 16

// scenarioCheck walks a decoded scenario beside its YAML tree, which knows the
// lines.
type scenarioCheck struct {
	*Scenario
	root  *yaml.Node
	nodes map[string]Node
	rows  map[string]bool
	taken map[string]string // NODE/INDEX to job
}

func (s *Scenario) check(root *yaml.Node) error {
	c := &scenarioCheck{
		Scenario: s, root: root,
		nodes: map[string]Node{}, rows: map[string]bool{}, taken: map[string]string{},
	}
	if s.Name == "" {
		return c.errorf("a scenario needs a name")
	}
	if s.Cluster == "" {
		s.Cluster = "sim"
	}
	if len(s.Nodes) == 0 {
		return c.errorf("a scenario needs nodes")
	}
	for _, check := range []func() error{c.physics, c.checkRows, c.checkNodes, c.checkJobs, c.checkEvents} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// errorf makes an error about the place that a path of keys and indices leads
// to, or about the last place on the way that the text has.
func (c *scenarioCheck) errorAt(path []any, format string, args ...any) error {
	at := c.root
	if at.Kind == yaml.DocumentNode && len(at.Content) > 0 {
		at = at.Content[0]
	}
	for _, step := range path {
		var next *yaml.Node
		switch step := step.(type) {
		case string:
			for i := 0; at.Kind == yaml.MappingNode && i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == step {
					next = at.Content[i+1]
				}
			}
		case int:
			if at.Kind == yaml.SequenceNode && step < len(at.Content) {
				next = at.Content[step]
			}
		}
		if next == nil {
			break
		}
		at = next
	}
	return fmt.Errorf("line %d: %s", at.Line, fmt.Sprintf(format, args...))
}

func (c *scenarioCheck) errorf(format string, args ...any) error {
	return c.errorAt(nil, format, args...)
}

func (c *scenarioCheck) physics() error {
	if v := c.Physics.ResistanceSpread; v != nil && (*v < 0 || *v > 0.2) {
		return c.errorAt([]any{"physics", "resistance_spread"}, "resistance_spread must be between 0 and 0.2")
	}
	if v := c.Physics.PreheatCPerW; v != nil && (*v < 0 || *v > 0.1) {
		return c.errorAt([]any{"physics", "preheat_celsius_per_watt"}, "preheat_celsius_per_watt must be between 0 and 0.1")
	}
	return nil
}

func (c *scenarioCheck) checkRows() error {
	for i, r := range c.Rows {
		switch {
		case r.Name == "":
			return c.errorAt([]any{"rows", i}, "a row needs a name")
		case c.rows[r.Name]:
			return c.errorAt([]any{"rows", i, "name"}, "row %q is there twice", r.Name)
		case r.InletCelsius < -10 || r.InletCelsius > 70:
			return c.errorAt([]any{"rows", i, "inlet_celsius"}, "inlet_celsius must be between -10 and 70")
		case r.RecirculationCPerKW < 0 || r.RecirculationCPerKW > 1:
			return c.errorAt([]any{"rows", i, "recirculation_celsius_per_kilowatt"}, "recirculation_celsius_per_kilowatt must be between 0 and 1")
		}
		c.rows[r.Name] = true
	}
	return nil
}

func (c *scenarioCheck) checkNodes() error {
	for i, n := range c.Nodes {
		if n.Name == "" {
			return c.errorAt([]any{"nodes", i}, "a node needs a name")
		}
		if _, twice := c.nodes[n.Name]; twice {
			return c.errorAt([]any{"nodes", i, "name"}, "node %q is there twice", n.Name)
		}
		if _, known := ModelByKey(n.Model); !known {
			return c.errorAt([]any{"nodes", i, "model"}, "model %q is not known: one of %s", n.Model, modelKeys())
		}
		if n.GPUs < 1 || n.GPUs > maxGPUsPerNode {
			return c.errorAt([]any{"nodes", i, "gpus"}, "gpus must be between 1 and %d", maxGPUsPerNode)
		}
		if !c.rows[n.Row] {
			return c.errorAt([]any{"nodes", i, "row"}, "row %q is not among the rows", n.Row)
		}
		c.nodes[n.Name] = n
	}
	return nil
}

func modelKeys() string {
	list := ""
	for _, m := range Models() {
		list += ", " + m.Key
	}
	return list[2:]
}

func (c *scenarioCheck) checkJobs() error {
	names := map[string]bool{}
	for i, j := range c.Jobs {
		if j.Name == "" {
			return c.errorAt([]any{"jobs", i}, "a job needs a name")
		}
		if names[j.Name] {
			return c.errorAt([]any{"jobs", i, "name"}, "job %q is there twice", j.Name)
		}
		names[j.Name] = true
		if j.Kind != "k8s" && j.Kind != "slurm" && j.Kind != "proc" {
			return c.errorAt([]any{"jobs", i, "kind"}, "kind must be k8s, slurm or proc")
		}
		if _, known := shapeByName(j.Shape); !known {
			return c.errorAt([]any{"jobs", i, "shape"}, "shape %q is not known: tensor-parallel, data-parallel, inference or batch", j.Shape)
		}
		if j.Activity != nil && (*j.Activity < 0 || *j.Activity > 1) {
			return c.errorAt([]any{"jobs", i, "activity"}, "activity must be between 0 and 1")
		}
		if j.End != 0 && j.End <= j.Start {
			return c.errorAt([]any{"jobs", i, "end"}, "end must be after start")
		}
		for k, p := range j.Phases {
			if p.For <= 0 || p.Activity < 0 || p.Activity > 1 {
				return c.errorAt([]any{"jobs", i, "phases", k}, "a phase needs for: above 0 and activity: between 0 and 1")
			}
		}
		if err := c.checkPlaces(i, j); err != nil {
			return err
		}
	}
	return nil
}

func (c *scenarioCheck) checkPlaces(i int, j Job) error {
	if len(j.GPUs) == 0 {
		return c.errorAt([]any{"jobs", i}, "job %q has no gpus", j.Name)
	}
	for k, text := range j.GPUs {
		path := []any{"jobs", i, "gpus", k}
		place, err := c.place(text)
		if err != nil {
			return c.errorAt(path, "%v", err)
		}
		memory, _ := ModelByKey(c.nodes[place.node].Model)
		if j.MemoryGiB < 0 || j.MemoryGiB*1024*mib > float64(memory.MemoryBytes-memory.ReservedBytes) {
			return c.errorAt([]any{"jobs", i, "memory_gib"}, "job %q does not fit the memory of %s", j.Name, memory.Key)
		}
		for slot := place.first; slot <= place.last; slot++ {
			key := fmt.Sprintf("%s/%d", place.node, slot)
			if other, twice := c.taken[key]; twice {
				return c.errorAt(path, "%s runs job %q already", key, other)
			}
			c.taken[key] = j.Name
		}
	}
	return nil
}

// place reads a place and checks that the node has such GPUs.
func (c *scenarioCheck) place(text string) (gpuRange, error) {
	place, err := parsePlace(text)
	if err != nil {
		return place, err
	}
	node, known := c.nodes[place.node]
	if !known {
		return place, fmt.Errorf("node %q is not among the nodes", place.node)
	}
	if place.last >= node.GPUs {
		return place, fmt.Errorf("node %q has %d GPUs", place.node, node.GPUs)
	}
	return place, nil
}

func (c *scenarioCheck) checkEvents() error {
	for i, e := range c.Events {
		path := []any{"events", i}
		changes := 0
		for _, set := range []bool{e.InletCelsius != nil, e.Cooling != nil, e.Fault != ""} {
			if set {
				changes++
			}
		}
		if changes != 1 {
			return c.errorAt(path, "an event changes one thing: inlet_celsius, cooling or fault")
		}
		if e.Over && e.For != 0 {
			return c.errorAt(path, "an event that is over has no duration: write for or over")
		}
		if e.InletCelsius != nil {
			if !c.rows[e.Row] || e.GPU != "" {
				return c.errorAt(path, "inlet_celsius needs row: with one of the rows")
			}
			continue
		}
		place, err := c.place(e.GPU)
		if err != nil {
			return c.errorAt(append(path, "gpu"), "%v", err)
		}
		if place.first != place.last || e.Row != "" {
			return c.errorAt(path, "an event names one GPU")
		}
		if e.Cooling != nil && (*e.Cooling < 0.1 || *e.Cooling > 10) {
			return c.errorAt(append(path, "cooling"), "cooling must be between 0.1 and 10")
		}
		if e.Fault != "" && !slices.Contains(Faults(), e.Fault) {
			return c.errorAt(append(path, "fault"), "fault must be one of %v", Faults())
		}
	}
	return nil
}
