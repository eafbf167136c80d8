package ui

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// listAt asks for a list that has to be there.
func listAt[T any](t *testing.T, web *httptest.Server, path string) List[T] {
	t.Helper()
	a := ask(t, "GET", web.URL+Prefix+path, "")
	if a.status != 200 {
		t.Fatalf("%s: %d %s", path, a.status, a.body)
	}
	var l List[T]
	unmarshal(t, a.body, &l)
	return l
}

// TestDecisionsByCursor: the pages together are the whole list, each decision
// once, also where one of a filter has changed meanwhile.
func TestDecisionsByCursor(t *testing.T) {
	fleet := newSample(256, testTime, 10*time.Minute)
	web := serve(t, fleet, nil)
	for _, filter := range []string{"", "&outcome=verified", "&act=cap", "&open=true", "&open=false", "&act=migrate"} {
		want := listAt[telemetry.Decision](t, web, "/decisions?limit=1000"+filter)
		var got []string
		for next := ""; ; {
			page := listAt[telemetry.Decision](t, web, "/decisions?limit=3"+filter+"&cursor="+next)
			if page.Total != want.Total || len(page.Items) > 3 {
				t.Fatalf("%s: a page of %d of %d, want %d", filter, len(page.Items), page.Total, want.Total)
			}
			for _, d := range page.Items {
				got = append(got, d.ID)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		var all []string
		for _, d := range want.Items {
			all = append(all, d.ID)
		}
		if !slices.Equal(got, all) {
			t.Errorf("%s: pages give %v, the list is %v", filter, got, all)
		}
		if filter == "" && len(all) < 7 {
			t.Errorf("only %d decisions", len(all))
		}
	}
	first := fleet.decisions[1].ID
	done := *fleet.decisions[1]
	done.Outcome, done.Ended = telemetry.OutcomeUndone, testTime
	fleet.decisions = slices.Clone(fleet.decisions)
	fleet.decisions[1] = &done // no longer open: it still is a place in the list
	if l := listAt[telemetry.Decision](t, web, "/decisions?open=true&cursor="+first); len(l.Items) > 0 && l.Items[0].ID != fleet.decisions[2].ID {
		t.Errorf("after %s comes %s", first, l.Items[0].ID)
	}
	fleet.decisions = slices.Delete(slices.Clone(fleet.decisions), 1, 2)
	if a := ask(t, "GET", web.URL+Prefix+"/decisions?cursor="+first, ""); a.status != 410 || !strings.Contains(string(a.body), "ask again without cursor") {
		t.Errorf("a cursor at what is gone: %d %s", a.status, a.body)
	}
}

func TestObservations(t *testing.T) {
	fleet := newSample(256, testTime, time.Minute)
	web := serve(t, fleet, nil)
	var got []string
	for next := ""; ; {
		page := listAt[Observation](t, web, "/observations?limit=5&cursor="+next)
		if page.Total != 32 {
			t.Fatalf("total %d, want 32", page.Total)
		}
		for _, o := range page.Items {
			got = append(got, o.Node)
		}
		if next = page.Next; next == "" {
			break
		}
	}
	if len(got) != 32 || !slices.IsSorted(got) {
		t.Errorf("pages give %v", got)
	}
	node := func(i int) string { return fleet.devices[i].node }
	for filter, want := range map[string]string{
		"host=storage_stalled":                      node(8),
		"host=cpu_starved":                          "",
		"idle=finished_holding":                     node(11),
		"idle=no_process":                           node(7*8) + " " + node(16*8) + " " + node(25*8),
		"contention=nvlink":                         node(10),
		"fabric=degraded":                           node(5),
		"health=reset_needed":                       node(14),
		"gpu_state=lost":                            node(3),
		"state=gone":                                node(40),
		"node=" + node(24):                          node(24),
		"host=storage_stalled&idle=waiting_data":    node(12),
		"node=" + node(24) + "&contention=nvlink":   "",
		"row=a&rack=a01&contention=noisy_neighbour": node(6),
	} {
		var names []string
		for _, o := range listAt[Observation](t, web, "/observations?"+filter).Items {
			names = append(names, o.Node)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s: %v, want %s", filter, names, want)
		}
	}
	o := listAt[Observation](t, web, "/observations?node="+node(0)).Items[0]
	g := o.GPUs[5]
	n, _ := fleet.view.Node(node(0))
	if g.Fabric.State != cluster.FabricDegraded || g.Fabric.LinksUp != 17 || g.Health.Evidence[1] != "Xid 74 on NVLink 7" || len(g.Values) != 10 || g.Values[0].Quality != "ok" || g.Values[0].AgeMS != 150 {
		t.Errorf("%+v", g)
	}
	if *g.Headroom != n.GPUs[5].HeadroomC.V || *o.AgeMS != 200 || o.SkewMS != 12 || o.GPUsFresh != 7 || o.GPUsExpected != 8 {
		t.Errorf("%+v", o)
	}
}

func TestAlerts(t *testing.T) {
	fleet := newSample(16, testTime, time.Second)
	web := serveWith(t, Options{Fleet: fleet, Decisions: fleet, Alerts: ruledFleet(fleet)})
	l := listAt[Alert](t, web, "/alerts")
	var names []string
	for _, a := range l.Items {
		names = append(names, a.Name+" "+a.State)
	}
	if got := strings.Join(names, ", "); got != "GPUMissing firing, GPUThermalHeadroomLow firing, GPUNodeClockSkew pending, Watchdog firing" {
		t.Errorf("in order: %s", got)
	}
	a := l.Items[0]
	if a.Severity != "critical" || a.Value != nil || a.Runbook != "docs/runbooks/GPUMissing.md" || a.Labels["uuid"] == "" || a.Labels["severity"] != "" || a.FiringSince.Sub(a.Since) != time.Minute {
		t.Errorf("%+v", a)
	}
	for filter, want := range map[string]int{"state=firing": 3, "severity=warning": 2, "node=" + fleet.devices[3].node: 3, "node=x": 0, "name=Watchdog": 1} {
		if l := listAt[Alert](t, web, "/alerts?"+filter); l.Total != want {
			t.Errorf("%s: %d, want %d", filter, l.Total, want)
		}
	}
	s := newServer(Options{Fleet: fleet, Decisions: fleet, Alerts: ruledFleet(fleet), Now: func() time.Time { return testTime }})
	if c := take(s.Options).summary.Alerts; *c != (AlertCount{Firing: 2, Critical: 1, Pending: 1}) {
		t.Errorf("counted: %+v", c)
	}
	off := serve(t, fleet, nil)
	if a := ask(t, "GET", off.URL+Prefix+"/alerts", ""); a.status != 503 || !strings.Contains(string(a.body), "rules_off") || !strings.Contains(string(a.body), "store.enabled") {
		t.Errorf("without rules: %d %s", a.status, a.body)
	}
}

// TestAnswersOverHTTP: tags, compression, HEAD, other methods, bounds.
func TestAnswersOverHTTP(t *testing.T) {
	fleet := newSample(256, testTime, time.Minute)
	web := serve(t, fleet, nil)
	base := web.URL + Prefix
	for _, path := range []string{"/gpus", "/workloads", "/decisions", "/observations?limit=1", "/nodes/" + fleet.devices[0].node} {
		for _, encoding := range []string{"gzip", "identity", "gzip;q=0", "br, gzip;q=0.5"} {
			a := ask(t, "GET", base+path, "", "Accept-Encoding", encoding)
			zipped := a.header.Get("Content-Encoding") == "gzip"
			if want := strings.Contains(encoding, "gzip") && !strings.HasSuffix(encoding, "q=0") && path != "/nodes/"+fleet.devices[0].node; zipped != want && len(a.body) > 0 && path != "/decisions" {
				t.Errorf("%s with %s: compressed %v, want %v", path, encoding, zipped, want)
			}
			tag := a.header.Get("ETag")
			if tag == "" || a.header.Get("Cache-Control") != "no-cache" || !strings.Contains(a.header.Get("Vary"), "Accept-Encoding") {
				t.Errorf("%s: %v", path, a.header)
			}
			again := ask(t, "GET", base+path, "", "Accept-Encoding", encoding, "If-None-Match", `"other", W/`+tag)
			if again.status != 304 || len(again.body) > 0 || again.header.Get("ETag") != tag {
				t.Errorf("%s again: %d, %d bytes", path, again.status, len(again.body))
			}
			head := ask(t, "HEAD", base+path, "", "Accept-Encoding", encoding)
			if head.status != 200 || len(head.body) > 0 || head.header.Get("ETag") != tag || head.header.Get("Content-Type") != "application/json" {
				t.Errorf("HEAD %s: %d, %d bytes, %v", path, head.status, len(head.body), head.header)
			}
		}
	}
	fleet.decisions = fleet.decisions[1:]
	tag := ask(t, "GET", base+"/decisions", "").header.Get("ETag")
	fleet.decisions = fleet.decisions[1:]
	if a := ask(t, "GET", base+"/decisions", "", "If-None-Match", tag); a.status != 200 {
		t.Errorf("a list that changed: %d", a.status)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		for path, allow := range map[string]string{"/gpus": "GET, HEAD", "/alerts": "GET, HEAD", "/stream": "GET, HEAD", "/decisions/d-1": "GET, HEAD"} {
			if a := ask(t, method, base+path, ""); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != allow || !strings.Contains(string(a.body), "method_not_allowed") {
				t.Errorf("%s %s: %d, Allow %q, %s", method, path, a.status, a.header.Get("Allow"), a.body)
			}
		}
	}
	if a := ask(t, "GET", base+"/gpus?node="+strings.Repeat("x", mostQueryBytes), ""); a.status != http.StatusRequestURITooLong || !strings.Contains(string(a.body), "too_large") {
		t.Errorf("a long query: %d %s", a.status, a.body)
	}
	if a := ask(t, "GET", base+"/gpus?sort=beauty", ""); a.header.Get("ETag") != "" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("an error is kept: %v", a.header)
	}
}
