package app

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"

	"github.com/evenkeel-gpu/evenkeel/ui"
)

// past gives the page the embedded store's series: neither package knows the
// other.
type past struct {
	engine promql.QueryEngine
	series storage.Queryable
	every  time.Duration
}

// Every implements ui.Past.
func (p past) Every() time.Duration { return p.every }

// Range implements ui.Past. What the engine bounds, such as the samples one
// query may read, is an error in its words.
func (p past) Range(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]ui.Series, error) {
	q, err := p.engine.NewRangeQuery(ctx, p.series, nil, query, from, to, step)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	matrix, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, err
	}
	out := make([]ui.Series, len(matrix))
	for i, s := range matrix {
		out[i] = ui.Series{Labels: s.Metric.Map(), Samples: make([]ui.Sample, len(s.Floats))}
		for k, f := range s.Floats {
			out[i].Samples[k] = ui.Sample{At: time.UnixMilli(f.T), V: f.F}
		}
	}
	return out, nil
}

// evaluated is whoever evaluates rules.
type evaluated interface {
	AlertingRules() []*rules.AlertingRule
}

// ruleAlerts gives the page what the rules say now.
type ruleAlerts struct{ of evaluated }

// Alerts implements ui.Alerts.
func (r ruleAlerts) Alerts() []ui.RuleAlert {
	var out []ui.RuleAlert
	for _, rule := range r.of.AlertingRules() {
		for _, a := range rule.ActiveAlerts() {
			out = append(out, ui.RuleAlert{
				Rule: rule.Name(), Firing: a.State == rules.StateFiring, Since: a.ActiveAt, FiredAt: a.FiredAt, Value: a.Value,
				Labels: a.Labels.Map(), Annotations: a.Annotations.Map(),
			})
		}
	}
	return out
}
