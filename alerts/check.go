package alerts

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// File is a rule file by name.
type File struct {
	Name string
	Data []byte
}

// Check says what is wrong with rule files that are used together: what
// Prometheus would refuse, and metrics that neither the catalogue nor another
// of the rules has.
func Check(files ...File) error {
	known := map[string]bool{"ALERTS": true, "ALERTS_FOR_STATE": true, "up": true}
	for i := range telemetry.Catalog {
		known[telemetry.Catalog[i].Name] = true
	}
	var errs []error
	parsed := make([]*rulefmt.RuleGroups, len(files))
	for i, f := range files {
		groups, bad := Parse(f)
		errs = append(errs, bad...)
		parsed[i] = groups
		for _, r := range rules(groups) {
			known[r.Record] = true
		}
	}
	for i, f := range files {
		for _, r := range rules(parsed[i]) {
			errs = append(errs, unknown(f.Name, r, known)...)
		}
	}
	return errors.Join(errs...)
}

// Parse reads one file as Prometheus does; each error names file and rule.
func Parse(f File) (*rulefmt.RuleGroups, []error) {
	var said strings.Builder
	groups, bad := rulefmt.Parse(f.Data, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.NewTextHandler(&said, nil)))
	if said.Len() > 0 { // its only warning
		bad = append(bad, errors.New("more than one document; Prometheus reads the first alone: put all groups into one"))
	}
	for i, err := range bad {
		bad[i] = fmt.Errorf("%s: %w", f.Name, err)
	}
	if len(bad) > 0 {
		return nil, bad
	}
	return groups, nil
}

func rules(groups *rulefmt.RuleGroups) []rulefmt.Rule {
	var out []rulefmt.Rule
	if groups != nil {
		for _, g := range groups.Groups {
			out = append(out, g.Rules...)
		}
	}
	return out
}

func unknown(file string, r rulefmt.Rule, known map[string]bool) []error {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		return []error{fmt.Errorf("%s: rule %q: %w", file, r.Alert+r.Record, err)}
	}
	var errs []error
	for _, name := range Metrics(expr) {
		if known[name] {
			continue
		}
		text := fmt.Sprintf("%s: rule %q: no metric %q: it is neither in docs/metrics.md nor recorded by these files", file, r.Alert+r.Record, name)
		if near := nearest(name, known); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		errs = append(errs, errors.New(text))
	}
	return errs
}

// Metrics are the names that an expression selects, each once, in order. A
// selector by pattern has none.
func Metrics(expr parser.Expr) []string {
	found := map[string]bool{}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if sel, ok := n.(*parser.VectorSelector); ok {
			for _, m := range sel.LabelMatchers {
				if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
					found[m.Value] = true
				}
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(found))
}

// nearest is the known name that is most like a misspelt one: by letters, or by
// most of its words.
func nearest(name string, known map[string]bool) string {
	best, at := max(len(name)/3, 3), ""
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if d := distance(name, k); d < best {
			best, at = d, k
		}
	}
	if at != "" {
		return at
	}
	most := 1 // one word in common is none: nearly all begin alike
	for _, k := range slices.Sorted(maps.Keys(known)) {
		words := strings.Split(k, "_")
		n := 0
		for _, w := range strings.Split(name, "_") {
			if slices.Contains(words, w) {
				n++
			}
		}
		if n > most || n == most && at != "" && distance(name, k) < distance(name, at) {
			most, at = n, k
		}
	}
	return at
}

// distance is the number of single-letter edits between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diag
			if a[i-1] != b[j-1] {
				cost++
			}
			diag = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
