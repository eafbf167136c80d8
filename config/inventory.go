package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Inventory is the file in which people write down what their fleet is made of.
// Every name may stand for many: gpu-[001-128,130].
type Inventory struct {
	Head    `yaml:",inline"`
	Rows    []InventoryRow    `yaml:"rows,omitempty"`
	Racks   []InventoryRack   `yaml:"racks,omitempty"`
	Nodes   []InventoryNodes  `yaml:"nodes,omitempty"`
	Tenants []InventoryTenant `yaml:"tenants,omitempty"`
	Budgets []InventoryBudget `yaml:"budgets,omitempty"`

	found resolved
}

// InventoryDomains are what nodes share. A node takes from its rack, and a rack
// from its row, what it does not say itself.
type InventoryDomains struct {
	Feed    Word `yaml:"feed,omitempty"`
	Power   Word `yaml:"power_domain,omitempty"`
	Cooling Word `yaml:"cooling_domain,omitempty"`
	NVLink  Word `yaml:"nvlink_domain,omitempty"`
	Network Word `yaml:"network_domain,omitempty"`
}

// InventoryRow is a row of racks.
type InventoryRow struct {
	Name             Word  `yaml:"name"`
	Racks            Words `yaml:"racks,omitempty"`
	InventoryDomains `yaml:",inline"`
}

// InventoryRack is one rack, or several alike.
type InventoryRack struct {
	Name             Word  `yaml:"name"`
	Row              Word  `yaml:"row,omitempty"`
	Nodes            Words `yaml:"nodes,omitempty"`
	InventoryDomains `yaml:",inline"`
}

// InventoryNodes is one node, or several alike. An alias has as many names as
// the node's own name has.
type InventoryNodes struct {
	Name    Word  `yaml:"name"`
	Aliases Words `yaml:"aliases,omitempty"`
	Rack    Word  `yaml:"rack,omitempty"`
	Row     Word  `yaml:"row,omitempty"`
	// GPUs is how many a node should have; UUIDs names them, of one node only.
	GPUs             int               `yaml:"gpus,omitempty"`
	UUIDs            Words             `yaml:"uuids,omitempty"`
	Model            Word              `yaml:"model,omitempty"`
	Marks            map[string]string `yaml:"marks,omitempty"`
	Unschedulable    bool              `yaml:"unschedulable,omitempty"`
	InventoryDomains `yaml:",inline"`
}

// InventoryTenant is a group with the GPUs it is entitled to.
type InventoryTenant struct {
	Name        Word    `yaml:"name"`
	Entitlement float64 `yaml:"entitlement"`
}

// InventoryBudget is what a power domain may draw.
type InventoryBudget struct {
	Domain Word `yaml:"domain"`
	Power  Watt `yaml:"power"`
}

// Word is a text that knows its line.
type Word struct {
	Text string
	Line int
}

// UnmarshalYAML reads a scalar.
func (w *Word) UnmarshalYAML(value *yaml.Node) error {
	if value.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: want a word here, not a list or a map; one that begins with [ needs quotes", value.Line)
	}
	w.Text, w.Line = value.Value, value.Line
	return nil
}

// Words is a list of words; a single one needs no brackets.
type Words []Word

// UnmarshalYAML reads a scalar or a list of scalars.
func (w *Words) UnmarshalYAML(value *yaml.Node) error {
	list := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode {
		list = value.Content
	}
	*w = make(Words, len(list))
	for i, n := range list {
		if err := (*w)[i].UnmarshalYAML(n); err != nil {
			return err
		}
	}
	return nil
}

// Watt is a power with its unit: 800 W, 12kW, 1.5MW.
type Watt float64

// UnmarshalYAML reads a number with its unit.
func (w *Watt) UnmarshalYAML(value *yaml.Node) error {
	text := strings.TrimSpace(value.Value)
	number, unit := text, 0.0
	for _, u := range []struct {
		name string
		of   float64
	}{{"kW", 1e3}, {"MW", 1e6}, {"W", 1}} {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.of
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || unit == 0 {
		return fmt.Errorf("line %d: power %q: want a number with a unit, such as 800W, 40kW or 1.5MW", value.Line, value.Value)
	}
	if v *= unit; !(v > 0) || math.IsInf(v, 0) || v > telemetry.MaxBudgetWatts {
		return fmt.Errorf("line %d: power %q: want more than 0 and at most %g W", value.Line, value.Value, telemetry.MaxBudgetWatts)
	}
	*w = Watt(v)
	return nil
}

// LoadInventory reads an inventory file.
func LoadInventory(path string) (*Inventory, error) {
	inv := new(Inventory)
	if path == "" {
		return nil, fmt.Errorf("inventory: no file named")
	}
	return inv, Load(path, "Inventory", inv)
}

// ParseInventory is LoadInventory for a content that was read.
func ParseInventory(name string, data []byte) (*Inventory, error) {
	inv := new(Inventory)
	return inv, Parse(name, "Inventory", data, inv)
}

// Snapshot is the inventory as it goes over the bus, every name written out.
// Its generation is the sender's to count.
func (c *Inventory) Snapshot(now time.Time) telemetry.Inventory {
	inv := telemetry.Inventory{Source: telemetry.SourceFile, Time: now, Nodes: c.found.nodes}
	for _, t := range c.Tenants {
		inv.Tenants = append(inv.Tenants, telemetry.Tenant{Name: t.Name.Text, Entitlement: t.Entitlement})
	}
	for _, b := range c.Budgets {
		inv.Budgets = append(inv.Budgets, telemetry.PowerBudget{Domain: b.Domain.Text, Watts: float64(b.Power)})
	}
	return inv
}
