package ui

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Alert is what a rule says now.
type Alert struct {
	Name        string            `json:"name"`
	State       string            `json:"state"` // firing or pending
	Severity    string            `json:"severity,omitempty"`
	Since       time.Time         `json:"since"`
	FiringSince time.Time         `json:"firing_since,omitzero"`
	Value       *float64          `json:"value,omitempty"`
	Summary     string            `json:"summary,omitempty"`
	Description string            `json:"description,omitempty"`
	Runbook     string            `json:"runbook_url,omitempty"`
	FirstCheck  string            `json:"first_check,omitempty"`
	Labels      map[string]string `json:"labels"`
}

// AlertCount is the alerts in numbers. The one that always fires, so that its
// silence is noticed, is not among them.
type AlertCount struct {
	Firing   int `json:"firing"`
	Critical int `json:"critical"`
	Pending  int `json:"pending"`
}

// severities in the order in which they are shown.
var severities = []string{"critical", "warning", "info"}

// noSeverity marks an alert that says that alerting works.
const noSeverity = "none"

func alertJSON(a RuleAlert) Alert {
	out := Alert{
		Name: a.Rule, State: "pending", Severity: a.Labels["severity"], Since: a.Since, FiringSince: a.FiredAt, Value: number(a.Value),
		Summary: a.Annotations["summary"], Description: a.Annotations["description"], Runbook: a.Annotations["runbook_url"], FirstCheck: a.Annotations["first_check"],
		Labels: map[string]string{},
	}
	if a.Firing {
		out.State = "firing"
	}
	for name, value := range a.Labels {
		if name != "severity" && name != "alertname" {
			out.Labels[name] = value
		}
	}
	return out
}

func countAlerts(all []RuleAlert) *AlertCount {
	var c AlertCount
	for _, a := range all {
		switch severity := a.Labels["severity"]; {
		case severity == noSeverity:
		case !a.Firing:
			c.Pending++
		default:
			c.Firing++
			c.Critical += btoi(severity == severities[0])
		}
	}
	return &c
}

func (s *server) alerts(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "name", "state", "severity", "node")
	if err != nil {
		return err
	}
	if err := oneOf("state", q.Get("state"), []string{"firing", "pending"}); err != nil {
		return err
	}
	if s.Alerts == nil {
		return problem(http.StatusServiceUnavailable, "rules_off", "no rules are evaluated here, since the embedded store is off; set store.enabled in the collector's file, or ask the Prometheus that evaluates them")
	}
	items := []Alert{}
	for _, a := range s.Alerts.Alerts() {
		item := alertJSON(a)
		if wanted(q.Get("name"), item.Name) && wanted(q.Get("state"), item.State) && wanted(q.Get("severity"), item.Severity) && wanted(q.Get("node"), item.Labels["node"]) {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, compareAlerts)
	return respond(w, r, http.StatusOK, listOf(items))
}

// compareAlerts puts firing before pending, the worse first, then the newer.
func compareAlerts(a, b Alert) int {
	rank := func(a Alert) int {
		at := slices.Index(severities, a.Severity)
		if at < 0 {
			at = len(severities)
		}
		return at + 10*btoi(a.State != "firing") + 100*btoi(a.Severity == noSeverity)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.Since.Compare(a.Since), strings.Compare(a.Name, b.Name), strings.Compare(labelText(a.Labels), labelText(b.Labels)))
}

// labelText is labels in one order.
func labelText(labels map[string]string) string {
	var out []string
	for name, value := range labels {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
