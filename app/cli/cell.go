package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

type item = map[string]any

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
		if t, err := time.Parse(time.RFC3339Nano, x); err == nil && unit == "time" {
			return t.UTC().Format("2006-01-02 15:04:05")
		}
		return cmp.Or(x, "-")
	case []any:
		switch unit {
		case "#":
			return fmt.Sprint(len(x))
		case "holds":
			x = slices.DeleteFunc(slices.Clone(x), func(v any) bool { m, _ := v.(item); return m["holds"] != true })
		}
		return list(x)
	case item:
		var out []string
		for _, key := range slices.Sorted(maps.Keys(x)) {
			out = append(out, key+"="+cell(x[key], ""))
		}
		return cmp.Or(strings.Join(out, ","), "-")
	}
	return fmt.Sprint(v)
}

// list names the items of a list: by reference or name where they have one.
func list(xs []any) string {
	out := make([]string, len(xs))
	for i, x := range xs {
		out[i] = word(x)
	}
	return cmp.Or(strings.Join(out, ","), "-")
}

func word(x any) string {
	m, ok := x.(item)
	if !ok {
		return fmt.Sprint(x)
	}
	for _, key := range []string{"ref", "name", "uuid", "id"} {
		if v, ok := m[key]; ok {
			return fmt.Sprint(v)
		}
	}
	return cell(m, "")
}

func compare(a, b any) int {
	an, aok := number(a)
	bn, bok := number(b)
	switch {
	case aok && bok:
		return cmp.Compare(an, bn)
	case aok != bok: // a number before what is none
		return cmp.Compare(btoi(bok), btoi(aok))
	case (a == nil) != (b == nil): // unknown last
		return cmp.Compare(btoi(a == nil), btoi(b == nil))
	}
	return cmp.Compare(cell(a, ""), cell(b, ""))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func number(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}
