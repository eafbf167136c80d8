package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// embedded is what the names of the files in Options.Rules begin with; no path
// of a rule file does.
const embedded = "evenkeel:"

// ruleSet is every rule file, read once at start: what was checked is what is
// evaluated. It is the rule manager's loader.
type ruleSet struct {
	names  []string
	groups map[string]*rulefmt.RuleGroups
	parser parser.Parser
}

// loadRules reads the embedded files and those that the patterns name. An error
// names file, group and rule, for every bad one.
func loadRules(own fs.FS, patterns []string, log *slog.Logger) (*ruleSet, error) {
	s := &ruleSet{groups: map[string]*rulefmt.RuleGroups{}, parser: parser.NewParser(parser.Options{})}
	var errs []error
	if own != nil {
		paths, err := fs.Glob(own, "*.yaml")
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			data, err := fs.ReadFile(own, p)
			errs = append(errs, err, s.add(embedded+p, data))
		}
	}
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("rule_files: %q: %w", pattern, err))
		case len(paths) == 0 && !strings.ContainsAny(pattern, "*?["):
			errs = append(errs, fmt.Errorf("rule_files: %s: no such file", pattern))
		case len(paths) == 0:
			log.Warn("no rule file has such a name", "pattern", pattern)
		}
		for _, p := range paths {
			if _, twice := s.groups[p]; twice {
				continue
			}
			data, err := os.ReadFile(p)
			if err != nil {
				errs = append(errs, fmt.Errorf("rule_files: %w", err))
				continue
			}
			errs = append(errs, s.add(p, data))
		}
	}
	return s, errors.Join(errs...)
}

func (s *ruleSet) add(name string, data []byte) error {
	var said strings.Builder
	groups, bad := rulefmt.Parse(data, false, model.UTF8Validation, s.parser, slog.New(slog.NewTextHandler(&said, nil)))
	if said.Len() > 0 { // its only warning
		bad = append(bad, errors.New("more than one document; put all groups into the first"))
	}
	for i, err := range bad {
		bad[i] = fmt.Errorf("rule file %s: %w", name, err)
	}
	s.names = append(s.names, name)
	s.groups[name] = groups
	return errors.Join(bad...)
}

// Load implements rules.GroupLoader.
func (s *ruleSet) Load(name string, _ bool, _ model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	groups := s.groups[name]
	if groups == nil {
		return nil, []error{fmt.Errorf("rule file %s was not read at start", name)}
	}
	return groups, nil
}

// Parse implements rules.GroupLoader.
func (s *ruleSet) Parse(query string) (parser.Expr, error) { return s.parser.ParseExpr(query) }

// reads are the metrics that rules select by name, which a store that keeps only
// some series must keep.
func (s *ruleSet) reads() []string {
	found := map[string]bool{}
	for _, groups := range s.groups {
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				if expr, err := s.parser.ParseExpr(r.Expr); err == nil {
					selected(expr, found)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func selected(expr parser.Expr, found map[string]bool) {
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
}
