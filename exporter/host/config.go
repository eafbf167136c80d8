package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/toml"
	"github.com/influxdata/toml/ast"
)

// DefaultPeriod is how often a reader runs, MinPeriod at most.
const (
	DefaultPeriod = 15 * time.Second
	MinPeriod     = time.Second
)

// Config is what the host's file says.
type Config struct {
	Period    time.Duration
	Inputs    []Input
	Endpoints []Endpoint
	Mounts    Mounts
	Ports     bool // of the compute network, by the kernel's own files
}

// Input is one configured plugin.
type Input struct {
	Name      string
	plugin    telegraf.Input
	translate translation
}

// Mounts are network file systems, each probed by a process of its own.
type Mounts struct {
	Probe bool `toml:"probe"`
	// FSTypes are the types to probe; names that end in * are beginnings.
	FSTypes []string `toml:"fstypes"`
}

// networked are file systems that block when their server is away.
var networked = []string{"nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "beegfs", "gpfs", "wekafs", "9p", "fuse.*"}

// Default is the host without a file.
func Default() (*Config, error) {
	c := &Config{Period: DefaultPeriod, Mounts: Mounts{Probe: true, FSTypes: networked}, Ports: true}
	for i := range plugins {
		p := &plugins[i]
		usual := p.usual
		if p.name == "infiniband" {
			if _, err := os.Stat(portsRoot); err == nil {
				usual = "\n"
			}
		}
		if usual == "" {
			continue
		}
		table, err := toml.Parse([]byte(usual))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if err := c.add(p, table); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Parse reads a file: [[inputs.NAME]] as Telegraf has it, and [host],
// [[endpoints]] and [mounts] of our own. A key that nobody knows is an error.
func Parse(text []byte) (*Config, error) {
	root, err := toml.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("host file: %w", err)
	}
	c := &Config{Period: DefaultPeriod, Mounts: Mounts{Probe: true, FSTypes: networked}, Ports: true}
	var errs []error
	for _, name := range sorted(root.Fields) {
		switch name {
		case "host":
			errs = append(errs, c.head(root.Fields[name]))
		case "mounts":
			errs = append(errs, decode(name, root.Fields[name], &c.Mounts))
		case "endpoints":
			errs = append(errs, c.endpoints(root.Fields[name]))
		case "inputs":
			errs = append(errs, c.inputs(root.Fields[name]))
		default:
			errs = append(errs, fmt.Errorf("host file: %s is not known; want host, inputs, endpoints or mounts", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func sorted(fields map[string]interface{}) []string {
	var names []string
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func decode(name string, from, to any) error {
	table, ok := from.(*ast.Table)
	if !ok {
		return fmt.Errorf("host file: %s: want one table [%s]", name, name)
	}
	if err := toml.UnmarshalTable(table, to); err != nil {
		return fmt.Errorf("host file: %s, line %d: %w", name, table.Line, err)
	}
	return nil
}

func (c *Config) head(from any) error {
	var head struct {
		Interval string `toml:"interval"`
		Ports    *bool  `toml:"ports"`
	}
	if err := decode("host", from, &head); err != nil {
		return err
	}
	if head.Ports != nil {
		c.Ports = *head.Ports
	}
	if head.Interval == "" {
		return nil
	}
	period, err := time.ParseDuration(head.Interval)
	if err != nil || period < MinPeriod {
		return fmt.Errorf("host file: host.interval %q: want %v or more, such as 15s", head.Interval, MinPeriod)
	}
	c.Period = period
	return nil
}

func tables(name string, from any) ([]*ast.Table, error) {
	switch t := from.(type) {
	case *ast.Table:
		return []*ast.Table{t}, nil
	case []*ast.Table:
		return t, nil
	}
	return nil, fmt.Errorf("host file: %s: want tables [[%s]]", name, name)
}

func (c *Config) inputs(from any) error {
	all, ok := from.(*ast.Table)
	if !ok {
		return errors.New("host file: inputs: want tables [[inputs.NAME]]")
	}
	var errs []error
	for _, name := range sorted(all.Fields) {
		i := slices.IndexFunc(plugins, func(p plugin) bool { return p.name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("host file: inputs.%s is no input of ours; want one of %s", name, strings.Join(names(), ", ")))
			continue
		}
		list, err := tables("inputs."+name, all.Fields[name])
		errs = append(errs, err)
		for _, t := range list {
			errs = append(errs, c.add(&plugins[i], t))
		}
	}
	return errors.Join(errs...)
}

func names() []string {
	var list []string
	for i := range plugins {
		list = append(list, plugins[i].name)
	}
	return list
}

// add makes a plugin of its table, as Telegraf does.
func (c *Config) add(p *plugin, table *ast.Table) error {
	in := p.make()
	if err := toml.UnmarshalTable(table, in); err != nil {
		return fmt.Errorf("host file: inputs.%s, line %d: %w", p.name, table.Line, err)
	}
	name := p.name
	for n := 2; slices.ContainsFunc(c.Inputs, func(i Input) bool { return i.Name == name }); n++ {
		name = fmt.Sprintf("%s_%d", p.name, n)
	}
	c.Inputs = append(c.Inputs, Input{Name: name, plugin: in, translate: p.translate})
	return nil
}
