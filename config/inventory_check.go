package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// maxSaid bounds how many faults of a file are told at once.
const maxSaid = 20

// resolved is a file with its names written out and its places looked up.
type resolved struct {
	nodes []telemetry.InventoryNode
	errs  []error
}

func (r *resolved) fault(line int, format string, args ...any) {
	at := ""
	if line > 0 {
		at = fmt.Sprintf("line %d: ", line)
	}
	r.errs = append(r.errs, errors.New(at+fmt.Sprintf(format, args...)))
}

// rack is where a rack is and what it gives its nodes.
type rack struct {
	line    int
	row     Word
	domains InventoryDomains
}

// placed is a node's place in a rack, with the line that says so.
type placed struct {
	rack string
	line int
}

// Validate implements File: it writes out all names and checks them against each
// other.
func (c *Inventory) Validate() error {
	c.found = resolved{}
	r := &c.found
	rows, inRow := r.rows(c.Rows)
	racks, inRack := r.racks(c.Racks, rows, inRow, len(c.Rows) > 0)
	lines := r.list(c, rows, racks, inRack)
	for name, at := range inRack {
		if _, ok := lines[name]; !ok {
			r.fault(at.line, "rack %s has node %s, which is not under nodes%s", at.rack, name, meant(r, name, lines))
		}
	}
	r.identities(c)
	r.tenants(c.Tenants)
	r.budgets(c.Budgets)
	slices.SortStableFunc(r.errs, func(a, b error) int { return strings.Compare(lineOf(a), lineOf(b)) })
	if more := len(r.errs) - maxSaid; more > 0 {
		r.errs = append(r.errs[:maxSaid], fmt.Errorf("and %d more", more))
	}
	return errors.Join(r.errs...)
}

// lineOf makes faults sort by their lines.
func lineOf(err error) string {
	var line int
	if _, scan := fmt.Sscanf(err.Error(), "line %d:", &line); scan != nil {
		return ""
	}
	return fmt.Sprintf("%9d", line)
}

// names writes out a name and refuses what no subject or label could carry.
func (r *resolved) names(what string, w Word) []string {
	if w.Text == "" {
		r.fault(w.Line, "a %s has no name", what)
		return nil
	}
	list, err := expand(w.Text)
	if err != nil {
		r.fault(w.Line, "%s %v", what, err)
		return nil
	}
	for _, n := range list {
		if err := telemetry.CheckText(n); err != nil {
			r.fault(w.Line, "%s %q: %v", what, n, err)
			return nil
		}
	}
	return list
}

// rows returns the rows, and which racks are listed there.
func (r *resolved) rows(rows []InventoryRow) (map[string]InventoryRow, map[string]Word) {
	known, inRow := map[string]InventoryRow{}, map[string]Word{}
	for _, row := range rows {
		r.domains(row.InventoryDomains)
		for _, name := range r.names("row", row.Name) {
			if old, twice := known[name]; twice {
				r.fault(row.Name.Line, "row %s is listed twice, first on line %d; keep one", name, old.Name.Line)
				continue
			}
			known[name] = row
			for _, w := range row.Racks {
				for _, rack := range r.names("rack", w) {
					if old, twice := inRow[rack]; twice {
						r.fault(w.Line, "rack %s is in row %s, and in row %s on line %d; keep one", rack, name, old.Text, old.Line)
						continue
					}
					inRow[rack] = Word{name, w.Line}
				}
			}
		}
	}
	return known, inRow
}

// racks returns the racks with what their rows give them, and which nodes are
// listed there.
func (r *resolved) racks(list []InventoryRack, rows map[string]InventoryRow, inRow map[string]Word, strict bool) (map[string]rack, map[string]placed) {
	racks, inRack := map[string]rack{}, map[string]placed{}
	for _, item := range list {
		r.domains(item.InventoryDomains)
		for _, name := range r.names("rack", item.Name) {
			if old, twice := racks[name]; twice {
				r.fault(item.Name.Line, "rack %s is listed twice, first on line %d; keep one", name, old.line)
				continue
			}
			row := item.Row
			if by, ok := inRow[name]; ok {
				if row.Text != "" && row.Text != by.Text {
					r.fault(row.Line, "rack %s is in row %s, and in row %s on line %d; keep one", name, row.Text, by.Text, by.Line)
				}
				row = by
			}
			r.knownAs("row", row, rows, strict)
			racks[name] = rack{item.Name.Line, row, item.under(rows[row.Text].InventoryDomains)}
			for _, w := range item.Nodes {
				for _, node := range r.names("node", w) {
					if old, twice := inRack[node]; twice {
						r.fault(w.Line, "node %s is in rack %s, and in rack %s on line %d; keep one", node, name, old.rack, old.line)
						continue
					}
					inRack[node] = placed{name, w.Line}
				}
			}
		}
	}
	for name, row := range inRow {
		if _, ok := racks[name]; !ok && len(list) > 0 {
			r.fault(row.Line, "row %s has rack %s, which is not under racks%s", row.Text, name, meant(r, name, racks))
		} else if !ok {
			racks[name] = rack{row.Line, row, rows[row.Text].InventoryDomains}
		}
	}
	return racks, inRack
}

// knownAs refuses a place that the file lists others of, but not this one.
func (r *resolved) knownAs(what string, w Word, known map[string]InventoryRow, strict bool) {
	if _, ok := known[w.Text]; w.Text != "" && strict && !ok {
		r.fault(w.Line, "%s %s is not under %ss%s", what, w.Text, what, meant(r, w.Text, known))
	}
}

// list writes out the nodes, and returns the line of each.
func (r *resolved) list(c *Inventory, rows map[string]InventoryRow, racks map[string]rack, inRack map[string]placed) map[string]int {
	lines := map[string]int{}
	for i := range c.Nodes {
		item := &c.Nodes[i]
		r.domains(item.InventoryDomains)
		r.group(item)
		names := r.names("node", item.Name)
		aliases, in := r.aliases(item, len(names)), r.inRacks(item, len(names))
		for k, name := range names {
			if first, twice := lines[name]; twice {
				r.fault(item.Name.Line, "node %s is listed twice, first on line %d; keep one", name, first)
				continue
			}
			if lines[name] = item.Name.Line; len(r.nodes) == maxNames {
				r.fault(item.Name.Line, "more than %d nodes; split the fleet", maxNames)
				return lines
			}
			n := r.node(item, name, Word{at(in, k, len(names)), item.Rack.Line}, rows, racks, inRack, len(c.Rows) > 0)
			for _, a := range aliases {
				n.Aliases = append(n.Aliases, a[k])
			}
			r.nodes = append(r.nodes, n)
		}
	}
	return lines
}

// group checks what all nodes of an entry have in common.
func (r *resolved) group(item *InventoryNodes) {
	line := item.Name.Line
	switch {
	case item.GPUs < 0 || item.GPUs > telemetry.MaxGPUs:
		r.fault(line, "node %s: gpus is %d, want 0 to %d", item.Name.Text, item.GPUs, telemetry.MaxGPUs)
	case len(item.UUIDs) > telemetry.MaxGPUs:
		r.fault(line, "node %s: %d uuids, at most %d", item.Name.Text, len(item.UUIDs), telemetry.MaxGPUs)
	case item.GPUs > 0 && len(item.UUIDs) > item.GPUs:
		r.fault(line, "node %s: gpus is %d and uuids are %d; leave gpus out, or raise it", item.Name.Text, item.GPUs, len(item.UUIDs))
	case len(item.Aliases) > telemetry.MaxAliases:
		r.fault(line, "node %s: %d aliases, at most %d", item.Name.Text, len(item.Aliases), telemetry.MaxAliases)
	case len(item.Marks) > telemetry.MaxMarks:
		r.fault(line, "node %s: %d marks, at most %d", item.Name.Text, len(item.Marks), telemetry.MaxMarks)
	}
	for k, v := range item.Marks {
		if err := errors.Join(telemetry.CheckText(k), telemetry.CheckWord(v)); err != nil {
			r.fault(line, "node %s: mark %q: %v", item.Name.Text, k, err)
		}
	}
	if err := telemetry.CheckWord(item.Model.Text); err != nil {
		r.fault(item.Model.Line, "model: %v", err)
	}
}

// aliases writes out the other names, each list as long as that of the nodes.
func (r *resolved) aliases(item *InventoryNodes, count int) [][]string {
	var out [][]string
	for _, w := range item.Aliases {
		list := r.names("alias", w)
		if list != nil && count > 0 && len(list) != count {
			r.fault(w.Line, "alias %s stands for %d names and node %s for %d; write one name for each node", w.Text, len(list), item.Name.Text, count)
			continue
		}
		if list != nil && count > 0 {
			out = append(out, list)
		}
	}
	return out
}

// inRacks writes out the racks that an entry's nodes fill one after the other,
// as many in each.
func (r *resolved) inRacks(item *InventoryNodes, count int) []string {
	if item.Rack.Text == "" || count == 0 {
		return nil
	}
	list := r.names("rack", item.Rack)
	if len(list) > 0 && count%len(list) != 0 {
		r.fault(item.Rack.Line, "%d nodes do not fill %d racks evenly; list the nodes of each rack under racks", count, len(list))
		return nil
	}
	return list
}

// at is the rack of the k-th of count nodes.
func at(racks []string, k, count int) string {
	if len(racks) == 0 {
		return ""
	}
	return racks[k*len(racks)/count]
}

func (r *resolved) node(item *InventoryNodes, name string, in Word, rows map[string]InventoryRow, racks map[string]rack, inRack map[string]placed, strictRows bool) telemetry.InventoryNode {
	row := item.Row
	if by, ok := inRack[name]; ok {
		if in.Text != "" && in.Text != by.rack {
			r.fault(in.Line, "node %s is in rack %s, and in rack %s on line %d; keep one", name, in.Text, by.rack, by.line)
		}
		in = Word{by.rack, by.line}
	}
	of, known := racks[in.Text]
	if in.Text != "" && len(racks) > 0 && !known {
		r.fault(in.Line, "rack %s is not under racks%s", in.Text, meant(r, in.Text, racks))
	}
	if of.row.Text != "" {
		if row.Text != "" && row.Text != of.row.Text {
			r.fault(row.Line, "node %s is in row %s, and its rack %s in row %s on line %d; keep one", name, row.Text, in.Text, of.row.Text, of.row.Line)
		}
		row = of.row
	}
	r.knownAs("row", row, rows, strictRows)
	d := item.under(of.domains).under(rows[row.Text].InventoryDomains)
	n := telemetry.InventoryNode{
		Name: name, Rack: in.Text, Row: row.Text, Feed: d.Feed.Text,
		PowerDomain: d.Power.Text, CoolingDomain: d.Cooling.Text, NVLinkDomain: d.NVLink.Text, NetworkDomain: d.Network.Text,
		ExpectedGPUs: max(item.GPUs, len(item.UUIDs)), Model: item.Model.Text, Marks: maps.Clone(item.Marks), Unschedulable: item.Unschedulable,
	}
	for _, u := range item.UUIDs {
		n.ExpectedUUIDs = append(n.ExpectedUUIDs, u.Text)
	}
	return n
}

// under fills what is left open from what is above.
func (d InventoryDomains) under(above InventoryDomains) InventoryDomains {
	for _, f := range []struct{ to, from *Word }{
		{&d.Feed, &above.Feed}, {&d.Power, &above.Power}, {&d.Cooling, &above.Cooling}, {&d.NVLink, &above.NVLink}, {&d.Network, &above.Network},
	} {
		if f.to.Text == "" {
			*f.to = *f.from
		}
	}
	return d
}

func (r *resolved) domains(d InventoryDomains) {
	for _, w := range []Word{d.Feed, d.Power, d.Cooling, d.NVLink, d.Network} {
		if err := telemetry.CheckWord(w.Text); err != nil {
			r.fault(w.Line, "%q: %v", w.Text, err)
		}
	}
}

// identities refuses names and devices that two nodes claim.
func (r *resolved) identities(c *Inventory) {
	type claim struct {
		node string
		line int
	}
	names, uuids := map[string]claim{}, map[string]claim{}
	entry := map[string]*InventoryNodes{}
	for i := range c.Nodes {
		for _, name := range r.quiet(c.Nodes[i].Name.Text) {
			if entry[name] == nil {
				entry[name] = &c.Nodes[i]
				names[name] = claim{name, c.Nodes[i].Name.Line}
			}
		}
	}
	for i := range r.nodes {
		n := &r.nodes[i]
		item := entry[n.Name]
		for k, a := range n.Aliases {
			line := item.Aliases[min(k, len(item.Aliases)-1)].Line
			if old, taken := names[a]; taken {
				r.fault(line, "alias %s of node %s is taken by node %s on line %d; a name means one node", a, n.Name, old.node, old.line)
				continue
			}
			names[a] = claim{n.Name, line}
		}
		for k, u := range n.ExpectedUUIDs {
			line := item.UUIDs[k].Line
			old, taken := uuids[u]
			switch {
			case taken && old.node != n.Name && old.line == line:
				r.fault(line, "uuids are those of one node, and %s stands for several; list the nodes one by one, or give gpus", item.Name.Text)
				return
			case taken:
				r.fault(line, "GPU %s of node %s is on node %s on line %d too; a device is on one node", u, n.Name, old.node, old.line)
			}
			if err := telemetry.CheckText(u); err != nil {
				r.fault(line, "GPU %q: %v", u, err)
			}
			uuids[u] = claim{n.Name, line}
		}
	}
}

// quiet writes out a name whose faults have been told.
func (r *resolved) quiet(pattern string) []string {
	list, err := expand(pattern)
	if err != nil {
		return nil
	}
	return list
}

func (r *resolved) tenants(list []InventoryTenant) {
	seen := map[string]int{}
	for _, t := range list {
		switch first, twice := seen[t.Name.Text]; {
		case telemetry.CheckText(t.Name.Text) != nil:
			r.fault(t.Name.Line, "tenant %q: %v", t.Name.Text, telemetry.CheckText(t.Name.Text))
		case twice:
			r.fault(t.Name.Line, "tenant %s is listed twice, first on line %d; keep one", t.Name.Text, first)
		case !(t.Entitlement >= 0) || math.IsInf(t.Entitlement, 0):
			r.fault(t.Name.Line, "tenant %s: entitlement is %g, want a number of GPUs", t.Name.Text, t.Entitlement)
		}
		seen[t.Name.Text] = t.Name.Line
	}
}

// budgets refuses a budget that no node is under: it would hold nothing.
func (r *resolved) budgets(list []InventoryBudget) {
	domains, seen := map[string]bool{}, map[string]int{}
	for i := range r.nodes {
		domains[r.nodes[i].PowerDomain] = true
	}
	delete(domains, "")
	for _, b := range list {
		first, twice := seen[b.Domain.Text]
		switch {
		case b.Domain.Text == "":
			r.fault(b.Domain.Line, "a budget has no domain")
			continue
		case !domains[b.Domain.Text]:
			r.fault(b.Domain.Line, "budget of domain %s: no node, rack or row with nodes has this power_domain%s", b.Domain.Text, meant(r, b.Domain.Text, domains))
		case twice:
			r.fault(b.Domain.Line, "domain %s has two budgets, the first on line %d; keep one", b.Domain.Text, first)
		case b.Power == 0:
			r.fault(b.Domain.Line, "budget of domain %s: power is missing, such as 40kW", b.Domain.Text)
		}
		seen[b.Domain.Text] = b.Domain.Line
	}
}

// meant names the known word that a misspelt one may stand for.
func meant[V any](r *resolved, word string, known map[string]V) string {
	if len(r.errs) >= maxSaid {
		return "" // not told any more, and not worth the search
	}
	if near := nearest(word, slices.Sorted(maps.Keys(known))); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}
