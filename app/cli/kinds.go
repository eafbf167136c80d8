package cli

import (
	"slices"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/app/command"
)

// column is one field of a table; wide ones only show with -o wide.
type column struct {
	head string
	path string // key of the item, dots for nesting
	unit string
	wide bool
}

// kind is what can be asked for: its names with the first as the API has it,
// what identifies an item, its table, and the fields that the API itself
// filters by.
type kind struct {
	names   []string
	key     []string
	columns []column
	filters []string
	paged   bool
}

// kinds are all of them, in the order of the help.
var kinds = []*kind{
	{[]string{"nodes", "node", "no"}, []string{"name"}, []column{
		{"NAME", "name", "", false}, {"STATE", "state", "", false}, {"ROW", "row", "", false}, {"RACK", "rack", "", false},
		{"GPUS", "gpus", "", false}, {"FRESH", "gpus_fresh", "", false}, {"HEADROOM", "least_headroom_celsius", "celsius", false},
		{"POWER", "power_watts", "watts", false}, {"HOST", "host", "holds", false}, {"AGE", "age_seconds", "seconds", false},
		{"FAULT", "driver_fault", "", true}, {"DOUBT", "doubt", "", true}, {"SKEW", "clock_skew_seconds", "seconds", true}, {"INLET", "inlet_celsius", "celsius", true}},
		[]string{"row", "rack", "state"}, false},
	{[]string{"gpus", "gpu"}, []string{"node", "uuid"}, []column{
		{"NODE", "node", "", false}, {"GPU", "index", "", false}, {"UUID", "uuid", "", false}, {"STATE", "state", "", false}, {"HEALTH", "health.class", "", false},
		{"HEADROOM", "headroom_celsius", "celsius", false}, {"TEMP", "temperature_core_celsius", "celsius", false}, {"POWER", "power_watts", "watts", false},
		{"LIMIT", "power_limit_watts", "watts", false}, {"UTIL", "utilization_ratio", "%", false}, {"IDLE", "idle.cause", "", false}, {"HELD-BY", "held_by", "", false},
		{"MODEL", "model", "", true}, {"THROTTLE", "throttle", "", true}, {"CONTENTION", "contention.kind", "", true}, {"FABRIC", "fabric.state", "", true},
		{"AGE", "age_seconds", "seconds", true}, {"WORKLOAD", "workloads", "", true}},
		[]string{"node", "row", "rack", "state"}, false},
	{[]string{"workloads", "workload", "wl"}, []string{"ref"}, []column{
		{"WORKLOAD", "ref", "", false}, {"OWNER", "owner", "", false}, {"PRIORITY", "priority", "", false}, {"STATE", "state", "", false},
		{"GPUS", "gpus", "#", false}, {"IDLE", "verdicts.gpus_idle", "", false}, {"UTIL", "verdicts.utilization_ratio", "%", false}, {"HEADROOM", "verdicts.least_headroom_celsius", "celsius", false},
		{"POWER", "verdicts.power_watts", "watts", false}, {"CONTENTION", "verdicts.contention", "", true}, {"NAME", "name", "", true}, {"START", "start", "time", true}, {"SOURCE", "source", "", true}},
		[]string{"owner", "state"}, false},
	{[]string{"decisions", "decision", "de"}, []string{"id"}, []column{
		{"ID", "id", "", false}, {"TIME", "time", "time", false}, {"POLICY", "policy", "", false}, {"ACT", "act", "", false},
		{"NODE", "target.node", "", false}, {"UUID", "target.uuid", "", false}, {"OUTCOME", "outcome", "", false}, {"WHY", "why", "", false},
		{"MODE", "mode", "", true}, {"WORKLOAD", "target.workload", "", true}, {"ENDING", "ending", "", true}},
		[]string{"policy", "act", "outcome"}, true},
	{[]string{"alerts", "alert", "al"}, []string{"name", "labels"}, []column{
		{"SEVERITY", "severity", "", false}, {"STATE", "state", "", false}, {"SINCE", "since", "time", false}, {"NAME", "name", "", false},
		{"NODE", "labels.node", "", false}, {"SUMMARY", "summary", "", false}, {"UUID", "labels.uuid", "", true}, {"VALUE", "value", "", true}, {"RUNBOOK", "runbook_url", "", true}},
		[]string{"name", "state", "severity"}, false},
}

// KindNames lists the kinds for help and completion.
func KindNames() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.names[0])
	}
	return out
}

func kindOf(name string) (*kind, error) {
	for _, k := range kinds {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k, nil
		}
	}
	return nil, command.Usagef("no kind %q; want one of %s", name, strings.Join(KindNames(), ", "))
}

// has says whether a field is known: from the table, or because at least one
// item has it. What is not known of an item is absent, so an item alone cannot
// tell.
func (k *kind) has(path string, items []item) bool {
	return len(items) == 0 ||
		slices.ContainsFunc(k.columns, func(c column) bool { return c.path == path || strings.HasPrefix(c.path, path+".") }) ||
		slices.ContainsFunc(items, func(i item) bool { return at(i, path) != nil })
}

// id tells an item from the others of its kind.
func (k *kind) id(it item) string {
	var parts []string
	for _, path := range k.key {
		parts = append(parts, cell(at(it, path), ""))
	}
	return strings.Join(parts, " ")
}

// shown are the columns of a table.
func (k *kind) shown(wide bool) []column {
	return slices.DeleteFunc(slices.Clone(k.columns), func(c column) bool { return c.wide && !wide })
}
