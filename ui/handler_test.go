package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var testTime = time.Date(2026, 11, 30, 3, 12, 0, 0, time.UTC)

// serve runs the handler over a sample fleet whose clock stands still.
func serve(t *testing.T, fleet *sample, control Control) *httptest.Server {
	t.Helper()
	return serveWith(t, Options{Fleet: fleet, Decisions: fleet, Control: control, Brakes: brakes{}, Version: "v9"})
}

func serveWith(t *testing.T, o Options) *httptest.Server {
	t.Helper()
	o.Now = func() time.Time { return testTime }
	web := httptest.NewServer(Handler(o))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	return web
}

// ruled is what rules said at one time.
type ruled []RuleAlert

func (r ruled) Alerts() []RuleAlert { return r }

// ruledFleet has an alert of each kind.
func ruledFleet(fleet *sample) ruled { return ruledAt(fleet, testTime) }

func ruledAt(fleet *sample, testTime time.Time) ruled {
	hot := fleet.devices[3]
	return ruled{
		{Rule: "Watchdog", Firing: true, Since: testTime.Add(-time.Hour), FiredAt: testTime.Add(-time.Hour), Value: 1, Labels: map[string]string{"alertname": "Watchdog", "severity": "none"}, Annotations: map[string]string{"summary": "Alerting works"}},
		{Rule: "GPUNodeClockSkew", Since: testTime.Add(-time.Minute), Value: 1.5, Labels: map[string]string{"alertname": "GPUNodeClockSkew", "severity": "warning", "node": hot.node}, Annotations: map[string]string{"summary": "Clock of " + hot.node + " is off by 1.5 s"}},
		{Rule: "GPUThermalHeadroomLow", Firing: true, Since: testTime.Add(-9 * time.Minute), FiredAt: testTime.Add(-4 * time.Minute), Value: 3.25, Labels: map[string]string{"alertname": "GPUThermalHeadroomLow", "severity": "warning", "component": "thermal", "node": hot.node}, Annotations: map[string]string{"summary": "The hottest GPU on " + hot.node + " is 3.2 °C from slowing down"}},
		{Rule: "GPUMissing", Firing: true, Since: testTime.Add(-8 * time.Minute), FiredAt: testTime.Add(-7 * time.Minute), Value: math.NaN(), Labels: map[string]string{"alertname": "GPUMissing", "severity": "critical", "node": hot.node, "uuid": hot.uuid}, Annotations: map[string]string{
			"summary": "GPU " + hot.uuid + " is gone from " + hot.node, "description": "It was there and does not answer.", "runbook_url": "docs/runbooks/GPUMissing.md", "first_check": "evenkeel get gpus -l node=" + hot.node,
		}},
	}
}

// brakes is a rebalancer with a breaker open and acts paused.
type brakes struct{}

func (brakes) Breakers() []telemetry.BreakerTrip {
	return []telemetry.BreakerTrip{{Open: true, Domain: "row-a", Reason: "3 of 5 acts failed"}, {Domain: "row-b", Reason: "closed again"}}
}

func (brakes) Modes() []telemetry.ModeChange {
	yes, no := true, false
	return []telemetry.ModeChange{{Paused: &yes, All: true, By: "ann"}, {Paused: &no, By: "ann"}, {Mode: telemetry.Enforce, By: "bob"}, {Paused: &yes, By: "eve"}}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func ask(t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, data}
}

func TestRoutesAreThoseDescribed(t *testing.T) {
	described := map[string]bool{}
	paths, _ := at(readSpec(t).tree, "paths").(map[string]any)
	for path, operations := range paths {
		for method := range operations.(map[string]any) {
			described[strings.ToUpper(method)+" "+path] = true
		}
	}
	s := &server{}
	for _, r := range s.routes() {
		key := r.method + " " + strings.ReplaceAll(r.path, "...}", "}")
		if !described[key] {
			t.Errorf("%s is served and not described", key)
		}
		delete(described, key)
	}
	for key := range described {
		t.Errorf("%s is described and not served", key)
	}
}

// words are members of closed lists, for filled records.
var words = map[string]string{
	"ActKind": "cap", "Class": "gentle", "Mode": "enforce", "Outcome": "verified", "RefusalReason": "budget", "StepKind": "power_cap", "Result": "done", "RefuseReason": "limit",
	"Quality": "ok", "Verdict": "approve", "WorkloadRef": "k8s:vision/Job/train-0", "ID": "d-000000",
}

// everything is a sample fleet in which each field of the API has a value
// somewhere.
func everything(t *testing.T) *sample {
	fleet := newSample(256, testTime, 10*time.Minute)
	if len(fleet.decisions) < 3 {
		t.Fatalf("the sample fleet made %d decisions, want at least 3", len(fleet.decisions))
	}
	full := &telemetry.Decision{}
	fill(reflect.ValueOf(full).Elem(), "", words)
	open := *full
	open.ID, open.Ended, open.Act = "d-000001", time.Time{}, nil
	open.Target.UUID = fleet.devices[0].uuid // it is open, so that it holds the device
	fleet.decisions = append(fleet.decisions, full, &open)
	var nodes []*cluster.Node
	for n := range fleet.view.Nodes() {
		nodes = append(nodes, n)
	}
	var workloads []*cluster.Workload
	for w := range fleet.view.Workloads() {
		workloads = append(workloads, w)
	}
	nodes[0].DriverFault, nodes[0].Unschedulable, nodes[0].Doubt = "driver not loaded", true, "another machine speaks for it: boot id b-1 and b-2"
	nodes[2].GPUs[1].DoubtfulIdentity = true
	fleet.view = cluster.NewView(testTime, nodes, workloads)
	return fleet
}

func TestAnswersAreAsDescribed(t *testing.T) {
	fleet, s := everything(t), readSpec(t)
	web := serveWith(t, Options{Fleet: fleet, Decisions: fleet, Control: leader{}, Brakes: brakes{}, Version: "v9", Alerts: ruledFleet(fleet), Past: newPast(t, fleet, 16)})
	off := serve(t, fleet, nil)
	uuid, hung := fleet.devices[0].uuid, fleet.devices[9].uuid
	target := url.PathEscape(fleet.decisions[0].Target.UUID)
	for _, c := range []struct{ path, described string }{
		{"/nodes", ""}, {"/nodes?state=gone", "/nodes"}, {"/nodes/" + fleet.devices[0].node, "/nodes/{name}"},
		{"/gpus", ""}, {"/gpus?sort=headroom&limit=3", "/gpus"}, {"/gpus/" + uuid, "/gpus/{uuid}"}, {"/gpus/" + hung, "/gpus/{uuid}"}, {"/gpus/" + fleet.devices[6].uuid, "/gpus/{uuid}"}, {"/gpus/" + target, "/gpus/{uuid}"},
		{"/gpus/" + uuid + "/history", "/gpus/{uuid}/history"}, {"/workloads", ""}, {"/workloads/" + string(workloadRef(0)), "/workloads/{ref}"},
		{"/decisions", ""}, {"/decisions?limit=1000", "/decisions"}, {"/decisions/d-000000", "/decisions/{id}"}, {"/decisions/" + fleet.decisions[0].ID, "/decisions/{id}"},
		{"/gpus/" + uuid + "/history?from=1h", "/gpus/{uuid}/history"}, {"/nodes/" + fleet.devices[0].node + "/history?from=30m", "/nodes/{name}/history"}, {"/history?from=1h", "/history"},
		{"off/gpus/" + uuid + "/history?from=1h", "/gpus/{uuid}/history"},
		{"/observations?limit=3", "/observations"}, {"/observations/" + fleet.devices[0].node, "/observations/{node}"}, {"/decisions?limit=1", "/decisions"}, {"/alerts", ""},
		{"/plan", ""}, {"/snapshot", ""}, {"/nothing", "error"}, {"/gpus?sort=beauty", "error"},
	} {
		if c.described == "" {
			c.described = c.path
		}
		base, path := web.URL, c.path
		if rest, without := strings.CutPrefix(path, "off"); without {
			base, path = off.URL, rest
		}
		a := ask(t, "GET", base+Prefix+path, "")
		var schema any
		if c.described == "error" {
			schema = map[string]any{"$ref": "#/components/schemas/Error"}
		} else if schema = at(s.tree, "paths", c.described, "get", "responses", "200", "content", "application/json", "schema"); schema == nil {
			schema = at(s.tree, "components", "responses", "Plan", "content", "application/json", "schema")
		}
		if (a.status == 200) != (c.described != "error") {
			t.Errorf("%s: status %d: %.200s", c.path, a.status, a.body)
			continue
		}
		bad := s.check(c.path, schema.(map[string]any), decode(t, a.body))
		for _, b := range bad[:min(10, len(bad))] {
			t.Error(b)
		}
	}
	for _, e := range lastWords(t, fleet) {
		for _, b := range s.check("stream", map[string]any{"$ref": "#/components/schemas/" + e.name}, decode(t, e.data)) {
			t.Error(b)
		}
	}
	// Error's own fields are described in place; everything else must have been met.
	for _, name := range s.unmet() {
		t.Errorf("%s is described and no answer has it", name)
	}
}

func TestSpecIsClosed(t *testing.T) {
	refs := regexp.MustCompile(`\$ref: '#/([^']+)'`).FindAllSubmatch(openapiYAML, -1)
	s := readSpec(t)
	used := map[string]bool{}
	for _, r := range refs {
		path := strings.Split(string(r[1]), "/")
		used[string(r[1])] = true
		if at(s.tree, path...) == nil {
			t.Errorf("%s does not exist", r[1])
		}
	}
	for _, kind := range []string{"schemas", "responses", "parameters"} {
		all, _ := at(s.tree, "components", kind).(map[string]any)
		for name := range all {
			if !used["components/"+kind+"/"+name] {
				t.Errorf("%s/%s is not used", kind, name)
			}
		}
	}
	for word, lists := range map[string]any{
		"Outcome": telemetry.Outcomes, "ActKind": telemetry.Ladder, "ThrottleReason": telemetry.ThrottleReasons, "GPUState": rowStates,
		"HostVerdictName": cluster.HostVerdicts[:],
		"IdleCause":       []string{cluster.IdleNoProcess, cluster.IdleFinishedHolding, cluster.IdleWaitingData, cluster.IdleWaitingNetwork, cluster.IdleCPUStarved, cluster.IdleThrottled, cluster.IdleUnknown},
		"ContentionKind":  []string{cluster.ContentionNeighbour, cluster.ContentionNVLink, cluster.ContentionNetwork},
		"FabricState":     []string{cluster.FabricOK, cluster.FabricDegraded, cluster.FabricErrors, cluster.FabricNotReady, cluster.FabricUnconnected, cluster.FabricUnknown},
		"HealthClass": []string{
			cluster.HealthOK, cluster.HealthWatch, cluster.HealthDegraded, cluster.HealthResetNeeded, cluster.HealthDrainNeeded, cluster.HealthLost, cluster.HealthHung,
			cluster.HealthAbsent, cluster.HealthDoubtful, cluster.HealthUnknown,
		},
	} {
		var want []string
		for v := reflect.ValueOf(lists); len(want) < v.Len(); {
			want = append(want, v.Index(len(want)).String())
		}
		var got []string
		for _, e := range list(at(s.tree, "components", "schemas", word, "enum")) {
			got = append(got, e.(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %v, the code %v", word, got, want)
		}
	}
	var got, want []string
	for _, e := range list(at(s.tree, "components", "schemas", "Refusal", "properties", "reason", "enum")) {
		got = append(got, e.(string))
	}
	for _, r := range telemetry.RefusalReasons {
		want = append(want, string(r))
	}
	if !slices.Equal(got, want) {
		t.Errorf("refusal reasons: %v, the code has %v", got, want)
	}
}

func TestFiltersAndOrder(t *testing.T) {
	fleet := newSample(256, testTime, 5*time.Minute)
	web := serve(t, fleet, leader{})
	type gpuList struct {
		Total int
		Items []GPU
	}
	get := func(q string) gpuList {
		t.Helper()
		a := ask(t, "GET", web.URL+Prefix+"/gpus"+q, "")
		if a.status != 200 {
			t.Fatalf("%s: %d %s", q, a.status, a.body)
		}
		var l gpuList
		unmarshal(t, a.body, &l)
		return l
	}
	if l := get(""); l.Total != 256 || len(l.Items) != 256 {
		t.Errorf("all: total %d, %d items, want 256", l.Total, len(l.Items))
	}
	if l := get("?node=" + fleet.devices[0].node); l.Total != 8 {
		t.Errorf("by node: %d, want 8", l.Total)
	}
	if l := get("?state=hung"); l.Total != 1 || l.Items[0].HungCall == "" || l.Items[0].Headroom != nil || l.Items[0].Fresh {
		t.Errorf("hung: %+v", l)
	}
	if l := get("?workload=" + url.QueryEscape(string(workloadRef(1)))); l.Total != 16 || l.Items[0].Workloads[0].Owner != "vision" {
		t.Errorf("by workload: %d, want 16", l.Total)
	}
	if l := get("?owner=nobody"); l.Total != 0 || l.Items == nil {
		t.Errorf("by owner nobody: %+v, want an empty list", l)
	}
	for _, q := range []string{"?sort=headroom", "?sort=-headroom"} {
		l := get(q)
		for i := 1; i < len(l.Items); i++ {
			a, b := l.Items[i-1].Headroom, l.Items[i].Headroom
			switch {
			case a == nil && b != nil:
				t.Fatalf("%s: an unknown value stands before a known one at %d", q, i)
			case a != nil && b != nil && (*a > *b) != (q == "?sort=-headroom") && *a != *b:
				t.Fatalf("%s: %v before %v", q, *a, *b)
			}
		}
	}
	if l := get("?sort=headroom&limit=5"); l.Total != 256 || len(l.Items) != 5 {
		t.Errorf("limit: total %d, %d items", l.Total, len(l.Items))
	}
	silent := fleet.devices[40]
	if l := get("?node=" + silent.node); l.Items[0].Fresh {
		t.Errorf("a GPU of a silent node is said to be fresh: %+v", l.Items[0])
	}
}

func TestDecisionsAreFiltered(t *testing.T) {
	fleet := newSample(256, testTime, 10*time.Minute)
	web := serve(t, fleet, leader{})
	first := fleet.decisions[len(fleet.decisions)-1]
	get := func(q string) List[telemetry.Decision] {
		t.Helper()
		a := ask(t, "GET", web.URL+Prefix+"/decisions"+q, "")
		if a.status != 200 {
			t.Fatalf("%s: %d %s", q, a.status, a.body)
		}
		var l List[telemetry.Decision]
		unmarshal(t, a.body, &l)
		return l
	}
	all := get("?limit=1000")
	if all.APIVersion != "evenkeel/v1" || all.Total != len(fleet.decisions) || all.Items[0].ID != fleet.decisions[0].ID {
		t.Fatalf("all: %s, total %d, first %s; want %d, newest first", all.APIVersion, all.Total, all.Items[0].ID, len(fleet.decisions))
	}
	for q, want := range map[string]func(*telemetry.Decision) bool{
		"outcome=verified":               func(d *telemetry.Decision) bool { return d.Outcome == telemetry.OutcomeVerified },
		"policy=power":                   func(d *telemetry.Decision) bool { return d.Policy == "power" },
		"target=" + first.Target.UUID:    func(d *telemetry.Decision) bool { return d.Target.UUID == first.Target.UUID },
		"target=" + first.Target.Node:    func(d *telemetry.Decision) bool { return d.Target.Node == first.Target.Node },
		"since=5m":                       func(d *telemetry.Decision) bool { return !d.Time.Before(testTime.Add(-5 * time.Minute)) },
		"since=2026-11-30T03%3A10%3A00Z": func(d *telemetry.Decision) bool { return !d.Time.Before(testTime.Add(-2 * time.Minute)) },
	} {
		n := 0
		for _, d := range fleet.decisions {
			if want(d) {
				n++
			}
		}
		if l := get("?limit=1000&" + q); l.Total != n {
			t.Errorf("%s: %d, want %d", q, l.Total, n)
		}
	}
	text := ask(t, "GET", web.URL+Prefix+"/decisions/"+first.ID+"/explain", "")
	var want strings.Builder
	first.Explain(&want)
	if string(text.body) != want.String() || !strings.HasPrefix(text.header.Get("Content-Type"), "text/plain") {
		t.Errorf("explain: %s %q", text.header.Get("Content-Type"), text.body)
	}
}

func TestBrakesAreTold(t *testing.T) {
	web := serve(t, newSample(8, testTime, time.Second), leader{})
	var u Update
	a := ask(t, "GET", web.URL+Prefix+"/snapshot", "")
	if err := json.Unmarshal(a.body, &struct{ Summary **Summary }{&u.Summary}); err != nil {
		t.Fatal(err)
	}
	if s := u.Summary; s.Paused != "disruptive" || s.PausedBy != "eve" || len(s.Breakers) != 1 || s.Breakers[0].Domain != "row-a" {
		t.Errorf("%+v", s)
	}
}

// TestErrorsSayWhatToDo: every refusal has one form and words of help.
func TestErrorsSayWhatToDo(t *testing.T) {
	web := serve(t, newSample(16, testTime, time.Minute), nil)
	for _, c := range []struct {
		method, path, body string
		status             int
		code, says         string
	}{
		{"GET", "/nowhere", "", 404, "not_found", "openapi.yaml"},
		{"GET", "/gpus/GPU-x", "", 404, "not_found", "/gpus lists"},
		{"GET", "/gpus/GPU-x/history", "", 404, "not_found", "/gpus lists"},
		{"GET", "/nodes/x", "", 404, "not_found", "/nodes lists"},
		{"GET", "/workloads/k8s:a/Job/b", "", 404, "not_found", "/workloads lists"},
		{"GET", "/workloads/nonsense", "", 400, "bad_reference", "want <kind>:<name>"},
		{"GET", "/explain/workload/k8s:a", "", 400, "bad_reference", "want k8s:"},
		{"GET", "/decisions/d-9", "", 404, "not_found", "/decisions lists"},
		{"POST", "/gpus", "", 405, "method_not_allowed", "use GET"},
		{"DELETE", "/plan", "", 405, "method_not_allowed", "use GET, HEAD, POST"},
		{"GET", "/gpus?sort=beauty", "", 400, "bad_parameter", "headroom, temperature"},
		{"GET", "/gpus?limit=0", "", 400, "bad_parameter", "from 1 to"},
		{"GET", "/gpus?state=ill", "", 400, "bad_parameter", "unknown, ok, hung"},
		{"GET", "/gpus?nod=a", "", 400, "bad_parameter", "there are node"},
		{"GET", "/gpus?node=a&node=b", "", 400, "bad_parameter", "give it once"},
		{"GET", "/snapshot?x=1", "", 400, "bad_parameter", "takes no parameters"},
		{"GET", "/decisions?since=yesterday", "", 400, "bad_parameter", "90m"},
		{"GET", "/decisions?outcome=good", "", 400, "bad_parameter", "recommended"},
		{"GET", "/explain/nothing", "", 503, "no_leader", "evenkeel rebalancer"},
		{"POST", "/plan", "{", 400, "bad_body", "not JSON"},
		{"POST", "/plan", `"` + strings.Repeat("x", mostPlanBytes) + `"`, 413, "too_large", "65536 bytes"},
	} {
		a := ask(t, c.method, web.URL+Prefix+c.path, c.body)
		var e Error
		unmarshal(t, a.body, &e)
		if a.status != c.status || e.Error.Code != c.code || !strings.Contains(e.Error.Message, c.says) {
			t.Errorf("%s %s: %d %s, want %d %s with %q", c.method, c.path, a.status, a.body, c.status, c.code, c.says)
		}
		if a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %s", c.method, c.path, a.header.Get("Content-Type"))
		}
	}
}

// silence is a leader that does not answer in time, or refuses.
type silence struct{ err error }

func (s silence) Control(context.Context, string, []byte) ([]byte, error) { return nil, s.err }

// says is a leader with one answer.
type says string

func (s says) Control(context.Context, string, []byte) ([]byte, error) { return []byte(s), nil }

func TestLeaderIsAsked(t *testing.T) {
	fleet := newSample(16, testTime, time.Minute)
	web := serve(t, fleet, leader{})
	if a := ask(t, "GET", web.URL+Prefix+"/explain/nothing", ""); a.status != 200 || !strings.Contains(string(a.body), `asked: {"nothing":true}`) {
		t.Errorf("nothing: %d %s", a.status, a.body)
	}
	if a := ask(t, "GET", web.URL+Prefix+"/explain/workload/slurm:12_3", ""); a.status != 200 || !strings.Contains(string(a.body), `"workload":"slurm:12_3"`) {
		t.Errorf("workload: %d %s", a.status, a.body)
	}
	if a := ask(t, "POST", web.URL+Prefix+"/plan", `{"policies":[]}`); a.status != 200 || string(a.body) != `{"acts":[]}` {
		t.Errorf("plan: %d %s", a.status, a.body)
	}
	if a := ask(t, "POST", web.URL+Prefix+"/plan", "{}", "Origin", "https://elsewhere.example", "Sec-Fetch-Site", "cross-site"); a.status != 403 || !strings.Contains(string(a.body), "cross_origin") {
		t.Errorf("a foreign page's plan: %d %s", a.status, a.body)
	}
	for _, rubbish := range []string{"", "{", `{"words":"x"}`} {
		if a := ask(t, "GET", serve(t, fleet, says(rubbish)).URL+Prefix+"/explain/nothing", ""); a.status != 502 {
			t.Errorf("a leader that says %q: %d %s", rubbish, a.status, a.body)
		}
	}
	for err, want := range map[error]int{errors.New("no leader holds the lease"): 503, fmt.Errorf("ask: %w", context.DeadlineExceeded): 504} {
		if a := ask(t, "GET", serve(t, fleet, silence{err}).URL+Prefix+"/plan", ""); a.status != want {
			t.Errorf("%v: %d %s, want %d", err, a.status, a.body, want)
		}
	}
}

func TestPageIsServed(t *testing.T) {
	web := serve(t, newSample(0, testTime, 0), nil)
	index := ask(t, "GET", web.URL+"/", "")
	if index.status != 200 || !strings.Contains(string(index.body), `id="page"`) {
		t.Fatalf("%d %s", index.status, index.body)
	}
	csp := index.header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("policy %q lacks %q", csp, want)
		}
	}
	if strings.Contains(csp, "unsafe") || index.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("too open: %v", index.header)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]*)"`).FindAllStringSubmatch(string(index.body), -1) {
		a := ask(t, "GET", web.URL+m[1], "", "Accept-Encoding", "gzip")
		if a.status != 200 || a.header.Get("Content-Encoding") != "gzip" || a.header.Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", m[1], a.status, a.header)
		}
		again := ask(t, "GET", web.URL+m[1], "", "Accept-Encoding", "gzip", "If-None-Match", a.header.Get("ETag"))
		if again.status != 304 || len(again.body) != 0 {
			t.Errorf("%s again: %d, %d bytes", m[1], again.status, len(again.body))
		}
	}
	if a := ask(t, "GET", web.URL+"/nowhere", ""); a.status != 404 {
		t.Errorf("/nowhere: %d", a.status)
	}
	if a := ask(t, "POST", web.URL+"/", "x"); a.status != 405 {
		t.Errorf("POST /: %d", a.status)
	}
	if a := ask(t, "GET", web.URL+Prefix+"/openapi.yaml", ""); a.status != 200 || string(a.body) != string(openapiYAML) {
		t.Errorf("openapi.yaml: %d, %d bytes", a.status, len(a.body))
	}
}
