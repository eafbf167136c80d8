package alerts

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// embedded is every embedded rule, by file.
func embedded(t *testing.T) map[string][]rulefmt.Rule {
	t.Helper()
	names, err := fs.Glob(Files(), "*.yaml")
	if err != nil || len(names) < 4 {
		t.Fatalf("%v: %v", names, err)
	}
	out := map[string][]rulefmt.Rule{}
	for _, name := range names {
		data, err := fs.ReadFile(Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		groups, bad := Parse(File{name, data})
		if len(bad) > 0 {
			t.Fatal(bad)
		}
		out[name] = rules(groups)
	}
	return out
}

// row is the catalogue's row of a name.
func row(name string) *telemetry.Row {
	for i := range telemetry.Catalog {
		if telemetry.Catalog[i].Name == name {
			return &telemetry.Catalog[i]
		}
	}
	return nil
}

// labelsOf are the labels that a row's series have, with the values of those
// whose values are a closed list.
func labelsOf(r *telemetry.Row) map[string][]string {
	out := map[string][]string{}
	switch r.Per {
	case telemetry.PerGPU, telemetry.PerLink, telemetry.PerInstance:
		out["node"], out["uuid"] = nil, nil
	case telemetry.PerNode, telemetry.PerProcess:
		out["node"] = nil
	}
	for i, l := range r.Labels {
		out[l] = nil
		for _, s := range r.Series {
			if len(s.Values) > i && s.Values[i] != "" {
				out[l] = append(out[l], s.Values[i])
			}
		}
	}
	if r.Name == "gpu_xid_errors_total" {
		out["action"] = []string{"RESET_GPU", "RESTART_BM", "DRAIN_AND_RESET", "BUS_RESET"}
	}
	return out
}

// TestRulesStandOnTheCatalogue: every selector names a metric of the catalogue,
// or one that is recorded, with labels that it has and values that they take;
// every grouping and join uses labels that Evenkeel gives.
func TestRulesStandOnTheCatalogue(t *testing.T) {
	recorded := map[string]map[string][]string{}
	files := embedded(t)
	for _, rs := range files {
		for _, r := range rs {
			if r.Record != "" {
				level, _, _ := strings.Cut(r.Record, ":")
				recorded[r.Record] = map[string][]string{level: nil}
				if r.Record == "node:rack:info" {
					recorded[r.Record]["rack"] = nil
				}
			}
		}
	}
	known := []string{"node", "uuid", "rack", "reader", "call", "link", "kind", "xid", "action", "why", "partitions"}
	selectors := 0
	for file, rs := range files {
		for _, r := range rs {
			expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
			if err != nil {
				t.Fatal(err)
			}
			parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
				switch n := n.(type) {
				case *parser.VectorSelector:
					selectors++
					have := recorded[n.Name]
					if c := row(n.Name); c != nil {
						have = labelsOf(c)
					}
					if have == nil {
						t.Errorf("%s: %s%s selects %q, which nobody has", file, r.Alert, r.Record, n.Name)
					}
					for _, m := range n.LabelMatchers {
						if m.Name == model.MetricNameLabel {
							continue
						}
						values, ok := have[m.Name]
						if !ok {
							t.Errorf("%s: %s%s: %s has no label %q", file, r.Alert, r.Record, n.Name, m.Name)
						}
						if len(values) > 0 {
							for _, v := range strings.Split(m.Value, "|") {
								if !slices.Contains(values, v) {
									t.Errorf("%s: %s%s: %s{%s} is never %q", file, r.Alert, r.Record, n.Name, m.Name, v)
								}
							}
						}
					}
				case *parser.AggregateExpr:
					if n.Without {
						t.Errorf("%s: %s%s groups without: labels of targets stay", file, r.Alert, r.Record)
					}
					for _, l := range n.Grouping {
						if !slices.Contains(known, l) {
							t.Errorf("%s: %s%s groups by %q", file, r.Alert, r.Record, l)
						}
					}
				case *parser.BinaryExpr:
					if n.VectorMatching != nil {
						for _, l := range n.VectorMatching.MatchingLabels {
							if !slices.Contains(known, l) {
								t.Errorf("%s: %s%s joins on %q", file, r.Alert, r.Record, l)
							}
						}
					}
				}
				return nil
			})
		}
	}
	if selectors < 40 {
		t.Errorf("%d selectors looked at", selectors)
	}
}

// TestXidActions: the actions that the alert waits for are those that the
// exporter writes.
func TestXidActions(t *testing.T) {
	source, err := os.ReadFile("../exporter/xid.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, action := range labelsOf(row("gpu_xid_errors_total"))["action"] {
		if !strings.Contains(string(source), `"`+action+`"`) {
			t.Errorf("no Xid has the action %s", action)
		}
	}
}

// TestEveryAlertIsComplete: labels, annotations with a value and its unit, a
// runbook with all its parts, and a case in which it fires and one in which not.
func TestEveryAlertIsComplete(t *testing.T) {
	cases := casesByName(t)
	seen := map[string]bool{}
	for file, rs := range embedded(t) {
		for _, r := range rs {
			if r.Alert == "" {
				continue
			}
			if seen[r.Alert] {
				t.Errorf("%s: two alerts named %s", file, r.Alert)
			}
			seen[r.Alert] = true
			if !slices.Contains([]string{"critical", "warning", "info", "none"}, r.Labels["severity"]) || r.Labels["component"] == "" {
				t.Errorf("%s: labels %v", r.Alert, r.Labels)
			}
			for _, a := range []string{"summary", "description", "runbook_url", "first_check"} {
				if r.Annotations[a] == "" {
					t.Errorf("%s has no %s", r.Alert, a)
				}
			}
			if s := r.Annotations["summary"]; !strings.Contains(s, "$value") && !regexp.MustCompile(`\d`).MatchString(s) {
				t.Errorf("%s: no value in %q", r.Alert, s)
			}
			if got, want := r.Annotations["runbook_url"], Runbooks+r.Alert+".md"; got != want {
				t.Errorf("%s: runbook_url %q, want %q", r.Alert, got, want)
			}
			runbook(t, r.Alert)
			if !cases[r.Alert+" fires"] || !cases[r.Alert+" quiet"] && r.Alert != "Watchdog" {
				t.Errorf("%s: want a case %q and one %q in testdata", r.Alert, r.Alert+" fires", r.Alert+" quiet")
			}
		}
	}
	if len(seen) < 30 {
		t.Errorf("%d alerts", len(seen))
	}
	books, _ := filepath.Glob("../" + Runbooks + "*.md")
	for _, b := range books {
		if name := strings.TrimSuffix(filepath.Base(b), ".md"); !seen[name] && name != "README" {
			t.Errorf("%s is of no alert", b)
		}
	}
}

func runbook(t *testing.T, alert string) {
	data, err := os.ReadFile("../" + Runbooks + alert + ".md")
	if err != nil {
		t.Error(err)
		return
	}
	for _, part := range []string{"# " + alert, "**Meaning.**", "**Impact.**", "**First look.**", "**Decide.**", "**Mitigate.**", "**Verify.**", "**False positives.**"} {
		if !strings.Contains(string(data), part) {
			t.Errorf("%s.md has no part %q", alert, part)
		}
	}
}

// casesByName are the names of the unit tests in testdata.
func casesByName(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	paths, _ := filepath.Glob("testdata/*_test.yaml")
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		var f struct {
			Tests []struct{ Name string }
		}
		if err := yaml.Unmarshal(data, &f); err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Tests {
			out[c.Name] = true
		}
	}
	return out
}

// promtools are Debian's 2.42, which people have, and that of go.mod, which says
// no version of itself.
func promtools(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	cache, _ := os.UserCacheDir()
	for _, p := range []string{
		"promtool", filepath.Join(cache, "evenkeel/tools/debian/usr/bin/promtool"),
		filepath.Join(os.Getenv("EVENKEEL_PROMETHEUS3"), "promtool"), filepath.Join(cache, "evenkeel/tools/prometheus@v0.316.0/promtool"),
	} {
		path, err := exec.LookPath(p)
		if err != nil {
			continue
		}
		version, _ := exec.Command(path, "--version").CombinedOutput()
		switch {
		case strings.Contains(string(version), "version 2.42"):
			out["2.42"] = path
		case filepath.Base(filepath.Dir(path)) == "prometheus@v0.316.0":
			out["3.16"] = path
		}
	}
	return out
}

// TestPromtool runs the unit tests of the rules as people's own Prometheus reads
// them, old and new.
func TestPromtool(t *testing.T) {
	tools := promtools(t)
	tests, _ := filepath.Glob("testdata/*_test.yaml")
	for _, version := range []string{"2.42", "3.16"} {
		t.Run(version, func(t *testing.T) {
			tool, ok := tools[version]
			if !ok {
				t.Skip("no promtool " + version + ": run scripts/install test and scripts/test")
			}
			if out, err := exec.Command(tool, append([]string{"test", "rules"}, tests...)...).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			all := filepath.Join(t.TempDir(), "all.yaml")
			var text bytes.Buffer
			if err := Write(&text, "https://example.org/books/"); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(text.String(), "runbook_url: https://example.org/books/"); n < 30 {
				t.Errorf("%d runbooks under the base", n)
			}
			if err := os.WriteFile(all, text.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(tool, "check", "rules", all).CombinedOutput(); err != nil {
				t.Errorf("what is printed as one file: %v\n%s", err, out)
			}
		})
	}
}

// TestCasesCanFail changes each alert, to one that never fires and to one that
// always does, and wants the unit tests to notice.
func TestCasesCanFail(t *testing.T) {
	tool, ok := promtools(t)["2.42"]
	if !ok {
		t.Skip("no promtool 2.42: run scripts/install test")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "testdata"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, Files()); err != nil {
		t.Fatal(err)
	}
	for file, rs := range embedded(t) {
		if file == "recording.yaml" {
			continue
		}
		original, _ := fs.ReadFile(Files(), file)
		for _, r := range rs {
			for what, expr := range map[string]string{"never fires": "vector(1) > 1", "always fires": "vector(1)"} {
				if r.Alert == "Watchdog" && what == "always fires" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), replaceExpr(t, original, r.Alert, expr), 0o600); err != nil {
					t.Fatal(err)
				}
				cases := filepath.Join(dir, "testdata", "cases.yaml")
				if err := os.WriteFile(cases, casesOf(t, file, r.Alert), 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := exec.Command(tool, "test", "rules", cases).CombinedOutput()
				if err == nil || !strings.Contains(string(out), r.Alert) {
					t.Errorf("%s that %s: no case fails\n%s", r.Alert, what, out)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, file), original, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// casesOf are the unit tests of one alert.
func casesOf(t *testing.T, file, alert string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", strings.TrimSuffix(file, ".yaml")+"_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	doc := map[string]any{}
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	doc["tests"] = slices.DeleteFunc(doc["tests"].([]any), func(c any) bool {
		name, _, _ := strings.Cut(c.(map[string]any)["name"].(string), " ")
		return name != alert
	})
	out, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func replaceExpr(t *testing.T, file []byte, alert, expr string) []byte {
	t.Helper()
	var doc struct {
		Groups []struct {
			Name  string
			Rules []map[string]any
		}
	}
	if err := yaml.Unmarshal(file, &doc); err != nil {
		t.Fatal(err)
	}
	for _, g := range doc.Groups {
		for _, r := range g.Rules {
			if r["alert"] == alert {
				r["expr"] = expr
			}
		}
	}
	out, err := yaml.Marshal(map[string]any{"groups": lower(doc.Groups)})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func lower(groups []struct {
	Name  string
	Rules []map[string]any
}) []map[string]any {
	var out []map[string]any
	for _, g := range groups {
		out = append(out, map[string]any{"name": g.Name, "rules": g.Rules})
	}
	return out
}

// TestCheck: what Prometheus refuses, and what nobody has, with file and rule.
func TestCheck(t *testing.T) {
	group := func(rules ...string) []byte {
		return fmt.Appendf(nil, "groups: [{name: g, rules: [%s]}]\n", strings.Join(rules, ", "))
	}
	for want, data := range map[string][]byte{
		"": group("{record: 'a:b', expr: gpu_up}", "{alert: A, expr: 'a:b == 0 or up == 0 or ALERTS'}"),
		`f.yaml: rule "A": no metric "gpu_temp_celsius": it is neither in docs/metrics.md nor recorded by these files; did you mean "gpu_temperature_celsius"?`: group("{alert: A, expr: gpu_temp_celsius > 3}"),
		`no metric "nosuch"`:             group("{alert: A, expr: 'sum(rate(nosuch[5m]))'}"),
		`group "g", rule 1, "A"`:         group("{alert: A, expr: 'gpu_up ='}"),
		"field exprr not found":          group("{alert: A, exprr: gpu_up}"),
		`f.yaml: more than one document`: append(group("{alert: A, expr: gpu_up}"), "---\ngroups: []\n"...),
		"error parsing template":         nil,
	} {
		if data == nil {
			data = group("{alert: A, expr: gpu_up, annotations: {summary: '{{ nosuch }}'}}")
			want = "nosuch"
		}
		err := Check(File{"f.yaml", data})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("want %q, have %v", want, err)
		}
	}
	// What one file records, another may use.
	if err := Check(File{"1", group("{alert: A, expr: 'x:y'}")}, File{"2", group("{record: 'x:y', expr: gpu_up}")}); err != nil {
		t.Error(err)
	}
	var own []File
	for _, name := range slices.Sorted(maps.Keys(embedded(t))) {
		data, _ := fs.ReadFile(Files(), name)
		own = append(own, File{name, data})
	}
	if err := Check(own...); err != nil {
		t.Error(err)
	}
}

// TestKeepAndFor: nothing that comes and goes between two samples flaps, and
// what is kept is kept for two samples of 15 s at least.
func TestKeepAndFor(t *testing.T) {
	for _, rs := range embedded(t) {
		for _, r := range rs {
			if r.Alert == "" || r.Alert == "Watchdog" {
				continue
			}
			if keep := time.Duration(r.KeepFiringFor); keep > 0 && keep < time.Minute {
				t.Errorf("%s: keep_firing_for %s", r.Alert, keep)
			}
			if r.For == 0 && r.KeepFiringFor == 0 {
				t.Errorf("%s has neither for nor keep_firing_for", r.Alert)
			}
		}
	}
}
