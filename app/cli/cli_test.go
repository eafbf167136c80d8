package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const gpus = `{"apiVersion":"evenkeel/v1","total":3,"items":[
{"uuid":"GPU-b","node":"n1","index":1,"state":"ok","headroom_celsius":12.25,"temperature_core_celsius":70,"power_watts":690.4,"power_limit_watts":700,"utilization_ratio":0.97,"held_by":["d-000001"],"workloads":[{"ref":"k8s:a/Job/t"}],"health":{"class":"ok"}},
{"uuid":"GPU-a","node":"n1","index":0,"state":"lost"},
{"uuid":"GPU-c","node":"n2","index":0,"state":"ok","headroom_celsius":3}]}`

func server(t *testing.T) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/evenkeel/v1/gpus":
			_, _ = w.Write([]byte(gpus))
		case "/api/evenkeel/v1/decisions/d-000001/explain":
			_, _ = w.Write([]byte("because\n"))
		case "/api/evenkeel/v1/decisions/d-000001":
			_, _ = w.Write([]byte(`{"id":"d-000001","target":{"node":"n1"}}`))
		case "/api/evenkeel/v1/plan":
			_, _ = w.Write([]byte(`{"text":"nothing to do\n"}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"code":"not_found","message":"no such decision; evenkeel get decisions lists them"}}`))
		}
	}))
	t.Cleanup(s.Close)
	return NewClient(strings.TrimPrefix(s.URL, "http://"))
}

func TestGet(t *testing.T) {
	c := server(t)
	for name, tc := range map[string]struct {
		q    Query
		want string
		err  string
	}{
		"table": {Query{Kind: "gpus", SortBy: "headroom_celsius"}, "" +
			"NODE  GPU  UUID   STATE  HEADROOM  TEMP   POWER  LIMIT  UTIL  HELD-BY\n" +
			"n2    0    GPU-c  ok     3 °C      -      -      -      -     -\n" +
			"n1    1    GPU-b  ok     12.2 °C   70 °C  690 W  700 W  97%   d-000001\n" +
			"n1    0    GPU-a  lost   -         -      -      -      -     -\n", ""},
		"selected":     {Query{Kind: "gpu", Selector: "node=n1,state!=lost", Output: "json"}, "{\n  \"apiVersion\": \"evenkeel/v1\",\n  \"items\": [\n    {\n      \"headroom_celsius\": 12.25,", ""},
		"yaml":         {Query{Kind: "gpus", Selector: "uuid=GPU-c", Output: "yaml"}, "apiVersion: evenkeel/v1\nitems:\n    - headroom_celsius: 3\n      index: 0\n      node: n2\n      state: ok\n      uuid: GPU-c\n", ""},
		"none":         {Query{Kind: "gpus", Selector: "node=n9"}, "nothing found\n", ""},
		"bad kind":     {Query{Kind: "pods"}, "", `no kind "pods"; want one of nodes, gpus, workloads, decisions`},
		"bad output":   {Query{Kind: "gpus", Output: "xml"}, "", "want table, wide, json or yaml"},
		"bad field":    {Query{Kind: "gpus", SortBy: "temperature"}, "", `gpus have no field "temperature"`},
		"bad selector": {Query{Kind: "gpus", Selector: "node"}, "", "want field=value"},
		"api error":    {Query{Kind: "nodes"}, "", "no such decision; evenkeel get decisions lists them"},
	} {
		var b bytes.Buffer
		err := c.Print(context.Background(), &b, tc.q)
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		case tc.err == "" && (err != nil || !strings.HasPrefix(b.String(), tc.want)):
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, b.String(), tc.want)
		}
	}
}

func TestWideShowsMore(t *testing.T) {
	var b bytes.Buffer
	if err := server(t).Print(context.Background(), &b, Query{Kind: "gpus", Output: "wide", Selector: "uuid=GPU-b"}); err != nil || !strings.Contains(b.String(), "k8s:a/Job/t") {
		t.Error(b.String(), err)
	}
}

func TestExplainAndPlan(t *testing.T) {
	c := server(t)
	for what, want := range map[string]string{"d-000001": "because\n"} {
		var b bytes.Buffer
		if err := c.Explain(context.Background(), &b, what, ""); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v", what, b.String(), err)
		}
	}
	var b bytes.Buffer
	if err := c.Explain(context.Background(), &b, "d-000001", "yaml"); err != nil || b.String() != "id: d-000001\ntarget:\n    node: n1\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	for _, bad := range []string{"d-9", "workload/what", "job-1"} {
		if err := c.Explain(context.Background(), &b, bad, ""); err == nil {
			t.Errorf("%s explained", bad)
		}
	}
	b.Reset()
	for output, want := range map[string]string{"": "nothing to do\n", "yaml": "text: |\n    nothing to do\n", "json": "{\n  \"text\": \"nothing to do\\n\"\n}\n"} {
		b.Reset()
		if err := c.Plan(context.Background(), &b, output); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v", output, b.String(), err)
		}
	}
}

func TestNoCollector(t *testing.T) {
	c := NewClient("127.0.0.1:1")
	if err := c.Print(context.Background(), &bytes.Buffer{}, Query{Kind: "gpus"}); err == nil || !strings.Contains(err.Error(), "evenkeel up") {
		t.Error(err)
	}
}
