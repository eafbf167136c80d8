package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/app/command"
)

// Query is what `get` was asked.
type Query struct {
	Kind   string
	Output string // table, wide, json, yaml
	// Selector keeps items whose fields equal all of a=b,c=d; != excludes.
	Selector string
	// SortBy is a field; a minus in front sorts down.
	SortBy string
	// Limit is the most decisions to list; all if 0.
	Limit int
	Watch bool
}

// asked is a query as understood.
type asked struct {
	Query
	kind  *kind
	where url.Values
	rest  selector
}

func (q Query) understand() (asked, error) {
	k, err := kindOf(q.Kind)
	if err != nil {
		return asked{}, err
	}
	if !slices.Contains([]string{"", "table", "wide", "json", "yaml"}, q.Output) {
		return asked{}, command.Usagef("output %q; want table, wide, json or yaml", q.Output)
	}
	if q.Limit < 0 {
		return asked{}, command.Usagef("limit %d; want at least 1, or 0 for all", q.Limit)
	}
	terms, err := parseSelector(q.Selector)
	if err != nil {
		return asked{}, err
	}
	a := asked{Query: q, kind: k}
	a.where, a.rest = terms.split(k)
	return a, nil
}

// Print prints what was asked for; with Watch also what changes, until ctx ends.
func (c *Client) Print(ctx context.Context, w io.Writer, q Query) error {
	a, err := q.understand()
	if err != nil {
		return err
	}
	if q.Watch {
		return c.watch(ctx, w, a)
	}
	items, err := c.items(ctx, a)
	if err != nil {
		return err
	}
	return c.render(w, a, items)
}

// page is the most items that one request may ask for.
const page = 1000

// items are what was asked for, selected and sorted.
func (c *Client) items(ctx context.Context, a asked) ([]item, error) {
	all, total, err := c.list(ctx, a)
	if err != nil {
		return nil, err
	}
	if err := a.rest.check(a.kind, all); err != nil {
		return nil, err
	}
	items := slices.DeleteFunc(all, func(i item) bool { return !a.rest.keeps(i) })
	if a.kind.paged && a.Limit > 0 && len(items) > a.Limit {
		items = items[:a.Limit]
	}
	if by, down := strings.CutPrefix(a.SortBy, "-"); by != "" {
		if !a.kind.has(by, items) {
			return nil, command.Usagef("%s have no field %q to sort by; `-o json` shows those they have", a.kind.names[0], by)
		}
		slices.SortStableFunc(items, func(x, y item) int {
			p, q := at(x, by), at(y, by)
			if down && p != nil && q != nil {
				p, q = q, p
			}
			return compare(p, q)
		})
	}
	if len(a.rest) == 0 && total > len(items) {
		c.note("these are the newest %d of %d; --limit 0 lists all", len(items), total)
	}
	return items, nil
}

// list asks for the items, page by page if need be.
func (c *Client) list(ctx context.Context, a asked) (items []item, total int, err error) {
	query := a.where
	if a.kind.paged {
		query.Set("limit", strconv.Itoa(page))
		if a.Limit > 0 && len(a.rest) == 0 {
			query.Set("limit", strconv.Itoa(min(a.Limit, page)))
		}
	}
	for {
		body, err := c.Get(ctx, a.kind.names[0], query)
		if err != nil {
			return nil, 0, err
		}
		var l struct {
			Total int    `json:"total"`
			Next  string `json:"next"`
			Items []item `json:"items"`
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		if err := dec.Decode(&l); err != nil {
			return nil, 0, fmt.Errorf("the collector's answer is not the list it should be: %w", err)
		}
		items, total = append(items, l.Items...), l.Total
		if l.Next == "" || a.Limit > 0 && len(a.rest) == 0 && len(items) >= a.Limit {
			query.Del("cursor")
			return items, total, nil
		}
		query.Set("cursor", l.Next)
	}
}

const apiVersion = "evenkeel/v1"

func (c *Client) render(w io.Writer, a asked, items []item) error {
	if items == nil {
		items = []item{}
	}
	switch a.Output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"apiVersion": apiVersion, "items": items})
	case "yaml":
		return printYAML(w, map[string]any{"apiVersion": apiVersion, "items": items})
	}
	if len(items) == 0 {
		c.note("no %s found", a.kind.names[0])
		return nil
	}
	columns := a.kind.shown(a.Output == "wide")
	rows := [][]string{heads(columns)}
	for _, it := range items {
		rows = append(rows, cells(columns, it))
	}
	return table(w, "", rows)
}

func heads(columns []column) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = c.head
	}
	return out
}

func cells(columns []column, it item) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = cell(at(it, c.path), c.unit)
	}
	return out
}

// table prints rows in columns, each line behind an indent.
func table(w io.Writer, indent string, rows [][]string) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, indent+strings.Join(r, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
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
