package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel-gpu/evenkeel/app/command"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares an answer with the one that was approved.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
	for line := range strings.Lines(got) {
		if strings.TrimRight(line, " \n")+"\n" != line {
			t.Errorf("%s: a line with blanks at its end or without an end: %q", name, line)
		}
	}
}

func TestGet(t *testing.T) {
	c := serve(t, newFleet(), true)
	for _, q := range []Query{
		{Kind: "nodes"}, {Kind: "nodes", Output: "wide"}, {Kind: "gpus"}, {Kind: "gpus", Output: "wide"}, {Kind: "workloads"}, {Kind: "workloads", Output: "wide"},
		{Kind: "decisions"}, {Kind: "decisions", Output: "wide"}, {Kind: "alerts"}, {Kind: "alerts", Output: "wide"},
		{Kind: "gpus", Output: "yaml", Selector: "uuid=" + uuidC}, {Kind: "decisions", Output: "json", Selector: "outcome=undone"},
	} {
		var out, notes bytes.Buffer
		c.Notes = &notes
		if err := c.Print(t.Context(), &out, q); err != nil {
			t.Errorf("%+v: %v", q, err)
			continue
		}
		golden(t, strings.Trim("get-"+q.Kind+"-"+q.Output, "-"), out.String())
		if notes.Len() > 0 {
			t.Errorf("%+v: %s", q, notes.String())
		}
	}
}

func TestDescribe(t *testing.T) {
	c := serve(t, newFleet(), true)
	for name, what := range map[string][2]string{
		"gpu": {"gpu", uuidA}, "gpu-idle": {"gpu", "a-1/1"}, "gpu-hung": {"gpus", "b-1/0"}, "node": {"node", "a-1"}, "node-gone": {"no", "b-1"},
		"workload": {"workload", string(train)}, "decision": {"decision", "d-000002"}, "decision-undone": {"de", "d-000001"},
	} {
		var out bytes.Buffer
		if err := c.Describe(t.Context(), &out, what[0], what[1]); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		golden(t, "describe-"+name, out.String())
	}
	var out bytes.Buffer
	if err := serve(t, newFleet(), false).Describe(t.Context(), &out, "node", "b-1"); err != nil || !strings.Contains(out.String(), "no rules are evaluated") {
		t.Errorf("without rules: %v\n%s", err, out.String())
	}
}

func TestSelectAndSort(t *testing.T) {
	c := serve(t, newFleet(), true)
	for _, tc := range []struct{ kind, selector, sort, want string }{
		{"gpus", "", "headroom_celsius", "A B C"},
		{"gpus", "", "-headroom_celsius", "B A C"}, // unknown stays last
		{"gpus", "", "node", "A B C"},
		{"gpus", "", "-node", "C A B"},
		{"gpus", "node=a-1", "", "A B"},
		{"gpus", "node=a-1,uuid!=" + uuidA, "", "B"},
		{"gpus", "state!=ok", "", "C"},
		{"gpus", "idle.cause=finished_holding", "", "B"},
		{"gpus", "idle.cause!=finished_holding", "", "A C"},
		{"gpus", "held_by=d-000002", "", "A"},
		{"gpus", "workloads=" + string(train), "", "A B"},
		{"gpus", "throttle=sw_power,index=1", "", "B"},
		{"gpus", "contention.kind=noisy_neighbour", "", ""}, // a field that none has now
		{"decisions", "outcome=acted", "", "2"},
		{"decisions", "outcome!=acted", "", "1"},
		{"decisions", "target.node=a-1", "time", "1 2"},
		{"alerts", "severity=critical", "", "GPUDriverCallHung"},
		{"nodes", "marks.pool=train", "", "a-1"},
		{"workloads", "owner=nobody", "", ""},
	} {
		a, err := Query{Kind: tc.kind, Selector: tc.selector, SortBy: tc.sort}.understand()
		if err != nil {
			t.Fatal(err)
		}
		items, err := c.items(t.Context(), a)
		if err != nil {
			t.Errorf("%s -l %q --sort-by %q: %v", tc.kind, tc.selector, tc.sort, err)
			continue
		}
		var got []string
		for _, it := range items {
			name := a.kind.id(it)
			switch tc.kind {
			case "gpus":
				_, name, _ = strings.Cut(name, "GPU-0000000")
				name = strings.ToUpper(name[:1])
			case "decisions":
				name = strings.TrimLeft(name, "d-0")
			}
			got = append(got, strings.Fields(name)[0])
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s -l %q --sort-by %q: %v, want %s", tc.kind, tc.selector, tc.sort, got, tc.want)
		}
	}
}

// TestWrongCalls: what the caller got wrong is a wrong call, what is not there
// is a failure; each says what to do.
func TestWrongCalls(t *testing.T) {
	c := serve(t, newFleet(), false)
	for _, tc := range []struct {
		do    func(*bytes.Buffer) error
		usage bool
		says  string
	}{
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "pods"}) }, true, `no kind "pods"; want one of nodes, gpus, workloads, decisions, alerts`},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "gpus", Output: "xml"}) }, true, "want table, wide, json or yaml"},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "gpus", SortBy: "warmth"}) }, true, `gpus have no field "warmth"`},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "gpus", Selector: "node"}) }, true, "want field=value"},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "gpus", Selector: "nod=a-1"}) }, true, `gpus have no field "nod" to select by`},
		{func(b *bytes.Buffer) error {
			return c.Print(t.Context(), b, Query{Kind: "gpus", Selector: "state=ill"})
		}, true, `state "ill" is none of unknown, ok, hung`},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "decisions", Limit: -1}) }, true, "want at least 1"},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "alerts"}) }, false, "store.enabled"},
		{func(b *bytes.Buffer) error { return c.Print(t.Context(), b, Query{Kind: "alerts", Watch: true}) }, false, "store.enabled"},
		{func(b *bytes.Buffer) error {
			return c.Print(t.Context(), b, Query{Kind: "gpus", SortBy: "warmth", Watch: true})
		}, true, `gpus have no field "warmth"`},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "pod", "x") }, true, "no kind"},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "alert", "x") }, true, "not described one by one"},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "gpu", "a-1/x") }, true, "node/index such as a-1/0"},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "gpu", "a-1/7") }, false, `node "a-1" has no GPU 7 among the 2 known`},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "gpu", "GPU-x") }, false, `GPU "GPU-x" is not known`},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "node", "../gpus") }, false, "is not known"},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "workload", "x") }, true, "want <kind>:<name>"},
		{func(b *bytes.Buffer) error { return c.Describe(t.Context(), b, "decision", "d-9") }, false, "get decisions"},
	} {
		var out bytes.Buffer
		err := tc.do(&out)
		if err == nil || !strings.Contains(err.Error(), tc.says) || out.Len() > 0 || command.IsUsage(err) != tc.usage {
			t.Errorf("%v (usage %v), output %q; want %q (usage %v)", err, command.IsUsage(err), out.String(), tc.says, tc.usage)
		}
	}
}

func TestNothingFoundIsNoted(t *testing.T) {
	c := serve(t, newFleet(), true)
	var out, notes bytes.Buffer
	c.Notes = &notes
	if err := c.Print(t.Context(), &out, Query{Kind: "gpus", Selector: "node=n9"}); err != nil || out.Len() > 0 || notes.String() != "no gpus found\n" {
		t.Errorf("%v, %q, noted %q", err, out.String(), notes.String())
	}
	for output, want := range map[string]string{"json": "{\n  \"apiVersion\": \"evenkeel/v1\",\n  \"items\": []\n}\n", "yaml": "apiVersion: evenkeel/v1\nitems: []\n"} {
		out.Reset()
		if err := c.Print(t.Context(), &out, Query{Kind: "gpus", Selector: "node=n9", Output: output}); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", output, out.String(), err)
		}
	}
}

// TestLimits: the newest decisions, and a word on the rest.
func TestLimits(t *testing.T) {
	f := newFleet()
	first := f.decisions[0]
	f.decisions = nil
	for range 2500 {
		d := *first
		d.ID = "d-" + string(rune('a'+len(f.decisions)%26)) + strings.Repeat("x", len(f.decisions)/26)
		f.decisions = append(f.decisions, &d)
	}
	c := serve(t, f, true)
	for limit, want := range map[int]int{1: 1, 100: 100, 1500: 1500, 0: 2500, 9999: 2500} {
		var out, notes bytes.Buffer
		c.Notes = &notes
		if err := c.Print(t.Context(), &out, Query{Kind: "decisions", Output: "json", Limit: limit}); err != nil {
			t.Fatal(err)
		}
		var l struct{ Items []struct{ ID string } }
		if err := json.Unmarshal(out.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, d := range l.Items {
			seen[d.ID] = true
		}
		if len(l.Items) != want || len(seen) != want || (notes.Len() > 0) != (want < 2500) {
			t.Errorf("limit %d: %d decisions, %d of them different, noted %q", limit, len(l.Items), len(seen), notes.String())
		}
	}
}

func TestExplainAndPlan(t *testing.T) {
	c := serve(t, newFleet(), true)
	explain := func(what, output string) (string, error) {
		var b bytes.Buffer
		err := c.Explain(t.Context(), &b, what, output)
		return b.String(), err
	}
	if text, err := explain("d-000002", ""); err != nil || !strings.Contains(text, "\nWhy\n") {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := explain("nothing", ""); err != nil || text != "Nothing is beyond its mark.\n" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := explain("d-000002", "yaml"); err != nil || !strings.Contains(text, "\nid: d-000002\n") {
		t.Errorf("%q, %v", text, err)
	}
	for _, bad := range []string{"d-9", "workload/what", "job-1"} {
		if _, err := explain(bad, ""); err == nil {
			t.Errorf("%s explained", bad)
		}
	}
	for output, want := range map[string]string{"": "nothing to do\n", "yaml": "text: |\n    nothing to do\n", "json": "{\n  \"text\": \"nothing to do\\n\"\n}\n"} {
		var b bytes.Buffer
		if err := c.Plan(t.Context(), &b, output); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v", output, b.String(), err)
		}
	}
}

func TestNoCollector(t *testing.T) {
	c := NewClient("127.0.0.1:1")
	for _, watch := range []bool{false, true} {
		if err := c.Print(context.Background(), &bytes.Buffer{}, Query{Kind: "gpus", Watch: watch}); err == nil || !strings.Contains(err.Error(), "evenkeel up") {
			t.Error(err)
		}
	}
}

func TestNames(t *testing.T) {
	c := serve(t, newFleet(), true)
	for kind, want := range map[string]string{"nodes": "a-1 b-1", "gpu": "a-1/0 a-1/1 b-1/0", "workloads": string(train), "decision": "d-000002 d-000001", "pods": ""} {
		if got := strings.Join(c.Names(t.Context(), kind), " "); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}
