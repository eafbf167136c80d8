package cli

import (
	"net/url"
	"slices"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/app/command"
)

// term is one condition of a selector.
type term struct {
	path, value string
	not         bool
}

// selector is what -l asks for: all of its terms.
type selector []term

// parseSelector reads a=b,c!=d.
func parseSelector(s string) (selector, error) {
	var out selector
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
		out = append(out, term{path, strings.TrimPrefix(value, "="), not})
	}
	return out, nil
}

// split gives the API the terms that it filters by itself; the rest is left.
func (s selector) split(k *kind) (url.Values, selector) {
	query, rest := url.Values{}, selector{}
	for _, t := range s {
		if t.not || t.value == "" || !slices.Contains(k.filters, t.path) || query.Has(t.path) {
			rest = append(rest, t)
			continue
		}
		query.Set(t.path, t.value)
	}
	return query, rest
}

// check refuses a field that no item has, so that a misspelt one does not
// select nothing in silence.
func (s selector) check(k *kind, items []item) error {
	for _, t := range s {
		if !k.has(t.path, items) {
			return command.Usagef("%s have no field %q to select by; `-o json` shows those they have", k.names[0], t.path)
		}
	}
	return nil
}

func (s selector) keeps(it item) bool {
	for _, t := range s {
		if holds(at(it, t.path), t.value) == t.not {
			return false
		}
	}
	return true
}

// holds says whether a field has a value, or is a list with it.
func holds(v any, want string) bool {
	if v == nil {
		return false
	}
	if xs, ok := v.([]any); ok {
		return slices.ContainsFunc(xs, func(x any) bool { return word(x) == want })
	}
	return cell(v, "") == want
}
