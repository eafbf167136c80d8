package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/app/command"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Query is what `get` was asked.
type Query struct {
	Kind   string
	Output string // table, wide, json, yaml
	// Selector keeps items whose fields equal all of a=b,c=d; != excludes.
	Selector string
	SortBy   string
	Watch    bool
}

// column is one field of a table; wide ones only show with -o wide.
type column struct {
	head string
	path string // key of the item, dots for nesting
	unit string
	wide bool
}

// kinds are what can be asked for, with aliases, in the order of the help.
var kinds = []struct {
	names   []string
	columns []column
}{
	{[]string{"nodes", "node", "no"}, []column{
		{"NAME", "name", "", false}, {"STATE", "state", "", false}, {"ROW", "row", "", false}, {"RACK", "rack", "", false},
		{"GPUS", "gpus", "", false}, {"FRESH", "gpus_fresh", "", false}, {"HEADROOM", "least_headroom_celsius", "celsius", false},
		{"POWER", "power_watts", "watts", false}, {"AGE", "age_seconds", "seconds", false}, {"FAULT", "driver_fault", "", true}, {"SKEW", "clock_skew_seconds", "seconds", true}}},
	{[]string{"gpus", "gpu"}, []column{
		{"NODE", "node", "", false}, {"GPU", "index", "", false}, {"UUID", "uuid", "", false}, {"STATE", "state", "", false},
		{"HEADROOM", "headroom_celsius", "celsius", false}, {"TEMP", "temperature_core_celsius", "celsius", false}, {"POWER", "power_watts", "watts", false},
		{"LIMIT", "power_limit_watts", "watts", false}, {"UTIL", "utilization_ratio", "%", false}, {"HELD-BY", "held_by", "", false},
		{"MODEL", "model", "", true}, {"THROTTLE", "throttle", "", true}, {"HEALTH", "health.class", "", true}, {"WORKLOAD", "workloads", "", true}}},
	{[]string{"workloads", "workload", "wl"}, []column{
		{"WORKLOAD", "ref", "", false}, {"OWNER", "owner", "", false}, {"PRIORITY", "priority", "", false}, {"STATE", "state", "", false},
		{"GPUS", "gpus", "#", false}, {"START", "start", "", true}, {"SOURCE", "source", "", true}}},
	{[]string{"decisions", "decision", "de"}, []column{
		{"ID", "id", "", false}, {"TIME", "time", "time", false}, {"POLICY", "policy", "", false}, {"ACT", "act", "", false},
		{"NODE", "target.node", "", false}, {"UUID", "target.uuid", "", false}, {"OUTCOME", "outcome", "", false}, {"WHY", "why", "", false},
		{"MODE", "mode", "", true}, {"ENDING", "ending", "", true}}},
}

// KindNames lists the kinds for help and completion.
func KindNames() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.names[0])
	}
	return out
}

func columnsOf(kind string) (string, []column, error) {
	for _, k := range kinds {
		if slices.Contains(k.names, strings.ToLower(kind)) {
			return k.names[0], k.columns, nil
		}
	}
	return "", nil, command.Usagef("no kind %q; want one of %s", kind, strings.Join(KindNames(), ", "))
}

// Print prints what was asked for; with Watch again every second until ctx ends.
func (c *Client) Print(ctx context.Context, w io.Writer, q Query) error {
	kind, columns, err := columnsOf(q.Kind)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"", "table", "wide", "json", "yaml"}, q.Output) {
		return command.Usagef("output %q; want table, wide, json or yaml", q.Output)
	}
	keep, err := selector(q.Selector)
	if err != nil {
		return err
	}
	var last string
	for {
		body, err := c.Get(ctx, kind, url.Values{})
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := render(&out, body, q, columns, keep); err != nil {
			return err
		}
		if s := out.String(); s != last {
			if _, err := io.WriteString(w, s); err != nil {
				return err
			}
			last = s
		}
		if !q.Watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

type item = map[string]any

func render(w io.Writer, body []byte, q Query, columns []column, keep func(item) bool) error {
	var list struct {
		APIVersion string `json:"apiVersion"`
		Items      []item `json:"items"`
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(&list); err != nil {
		return fmt.Errorf("the collector's answer is not the list it should be: %w", err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(i item) bool { return !keep(i) })
	if q.SortBy != "" {
		if !sortable(list.Items, q.SortBy, columns) {
			return command.Usagef("%s have no field %q to sort by; `-o json` shows those they have", q.Kind, q.SortBy)
		}
		slices.SortStableFunc(list.Items, func(a, b item) int { return compare(at(a, q.SortBy), at(b, q.SortBy)) })
	}
	switch q.Output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"apiVersion": list.APIVersion, "items": list.Items})
	case "yaml":
		return printYAML(w, map[string]any{"apiVersion": list.APIVersion, "items": list.Items})
	}
	if len(list.Items) == 0 {
		_, err := fmt.Fprintln(w, "nothing found")
		return err
	}
	return table(w, list.Items, columns, q.Output == "wide")
}

// sortable reports whether path names a field: a column, or what at least one
// item has. What is not known is absent, so an item alone cannot tell.
func sortable(items []item, path string, columns []column) bool {
	return len(items) == 0 ||
		slices.ContainsFunc(columns, func(c column) bool { return c.path == path }) ||
		slices.ContainsFunc(items, func(i item) bool { return at(i, path) != nil })
}

// printYAML goes through JSON so that numbers stay what they are.
func printYAML(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(data, &node); err != nil {
		return err
	}
	blockStyle(&node)
	out, err := yaml.Marshal(&node)
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}

func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c)
	}
}

func table(w io.Writer, items []item, columns []column, wide bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.wide && !wide })
	heads := make([]string, len(shown))
	for i, c := range shown {
		heads[i] = c.head
	}
	fmt.Fprintln(tw, strings.Join(heads, "\t"))
	for _, it := range items {
		cells := make([]string, len(shown))
		for i, c := range shown {
			cells[i] = cell(at(it, c.path), c.unit)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// at follows a dotted path into an item; nil if it leads nowhere.
func at(it item, path string) any {
	var v any = it
	for key := range strings.SplitSeq(path, ".") {
		m, ok := v.(item)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// cell prints a value for a person; unknown is a dash, never a zero.
func cell(v any, unit string) string {
	switch x := v.(type) {
	case nil:
		return "-"
	case json.Number:
		f, err := x.Float64()
		switch {
		case err != nil || unit == "":
			return x.String()
		case unit == "%":
			return fmt.Sprintf("%.0f%%", 100*f)
		}
		return telemetry.Number(f, unit)
	case string:
		if unit == "time" {
			if t, err := time.Parse(time.RFC3339Nano, x); err == nil {
				return t.Local().Format("15:04:05")
			}
		}
		if x == "" {
			return "-"
		}
		return x
	case []any:
		if unit == "#" {
			return fmt.Sprint(len(x))
		}
		return list(x)
	}
	return fmt.Sprint(v)
}

func list(xs []any) string {
	if len(xs) == 0 {
		return "-"
	}
	out := make([]string, len(xs))
	for i, x := range xs {
		if m, ok := x.(item); ok {
			x = m["ref"]
		}
		out[i] = fmt.Sprint(x)
	}
	return strings.Join(out, ",")
}

func compare(a, b any) int {
	an, aok := number(a)
	bn, bok := number(b)
	if aok && bok {
		return cmp.Compare(an, bn)
	}
	if aok != bok { // unknown last
		if aok {
			return -1
		}
		return 1
	}
	return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
}

func number(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}

// selector compiles a=b,c!=d into a filter.
func selector(s string) (func(item) bool, error) {
	type term struct {
		path, value string
		not         bool
	}
	var terms []term
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		path, value, ok := strings.Cut(part, "=")
		not := strings.HasSuffix(path, "!")
		path = strings.TrimSuffix(path, "!")
		if !ok || path == "" {
			return nil, command.Usagef("selector %q: want field=value or field!=value, several separated by commas", part)
		}
		terms = append(terms, term{path, strings.TrimPrefix(value, "="), not})
	}
	return func(it item) bool {
		for _, t := range terms {
			v := at(it, t.path)
			if got := cell(v, ""); (v != nil && got == t.value) == t.not {
				return false
			}
		}
		return true
	}, nil
}
