package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Endpoint is an accelerator's own exporter, whose families are mapped onto the
// catalogue.
type Endpoint struct {
	Name string `toml:"name"`
	URL  string `toml:"url"`
	// Device is the label by which the endpoint tells its devices apart; Prefix
	// is put before it, so that no other vendor's device has the same name.
	Device string `toml:"device"`
	Prefix string `toml:"prefix"`
	Map    []Rule `toml:"map"`
}

// Rule maps one family.
type Rule struct {
	From string `toml:"from"`
	To   string `toml:"to"`
	// Scale is what the family's value is multiplied by to be in base units.
	Scale float64 `toml:"scale"`
	// Match are labels that a series must have with these values.
	Match map[string]string `toml:"match"`
	// Labels are values of the row's own labels: fixed, or $name for the value of
	// the series' label.
	Labels map[string]string `toml:"labels"`

	row *telemetry.Row
	id  telemetry.ID
}

const (
	// maxScrape bounds an endpoint's answer, scrapeWait how long it may take.
	maxScrape  = 16 << 20
	scrapeWait = 10 * time.Second
)

func (c *Config) endpoints(from any) error {
	list, err := tables("endpoints", from)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range list {
		var e Endpoint
		if err := decode("endpoints", t, &e); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, e.check())
		c.Endpoints = append(c.Endpoints, e)
	}
	return errors.Join(errs...)
}

// check finds the rows that the rules name.
func (e *Endpoint) check() error {
	u, err := url.Parse(e.URL)
	if e.Name == "" || err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("host file: endpoint %q, url %q: want a name and an http or https URL", e.Name, e.URL)
	}
	var errs []error
	for i := range e.Map {
		r := &e.Map[i]
		if r.Scale == 0 {
			r.Scale = 1
		}
		errs = append(errs, r.find(e))
	}
	if len(e.Map) == 0 {
		errs = append(errs, fmt.Errorf("host file: endpoint %s maps nothing; add [[endpoints.map]]", e.Name))
	}
	return errors.Join(errs...)
}

func (r *Rule) find(e *Endpoint) error {
	i := slices.IndexFunc(telemetry.Catalog, func(row telemetry.Row) bool { return row.Name == r.To })
	if i < 0 {
		return fmt.Errorf("host file: endpoint %s: %s is no metric of ours; docs/metrics.md lists them", e.Name, r.To)
	}
	r.row = &telemetry.Catalog[i]
	r.id = r.row.Series[0].ID
	switch {
	case r.row.Origin != telemetry.FromNode || r.row.Per != telemetry.PerGPU && r.row.Per != telemetry.PerNode:
		return fmt.Errorf("host file: endpoint %s: %s is not read on nodes; map onto a metric of a GPU or a node", e.Name, r.To)
	case r.row.Per == telemetry.PerGPU && e.Device == "":
		return fmt.Errorf("host file: endpoint %s: %s is a device's; name the label of the device with device = ", e.Name, r.To)
	case r.From == "":
		return fmt.Errorf("host file: endpoint %s: a rule for %s without from", e.Name, r.To)
	}
	for _, l := range r.row.Labels {
		if r.Labels[l] == "" {
			return fmt.Errorf("host file: endpoint %s: %s has a label %s; say in labels what it is", e.Name, r.To, l)
		}
	}
	for l := range r.Labels {
		if !slices.Contains(r.row.Labels, l) {
			return fmt.Errorf("host file: endpoint %s: %s has no label %s", e.Name, r.To, l)
		}
	}
	return nil
}

// scrape reads an endpoint once.
func (e *Endpoint) scrape(ctx context.Context, to *samples) error {
	ctx, cancel := context.WithTimeout(ctx, scrapeWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("endpoint %s answers %s", e.Name, resp.Status)
	}
	return e.read(io.LimitReader(resp.Body, maxScrape), to)
}

// read maps what the text tells. Of a text that is broken nothing is told.
func (e *Endpoint) read(text io.Reader, to *samples) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, err)
	}
	for i := range e.Map {
		r := &e.Map[i]
		for _, m := range families[r.From].GetMetric() {
			r.tell(e, m, to)
		}
	}
	return nil
}

func (r *Rule) tell(e *Endpoint, m *dto.Metric, to *samples) {
	label := func(name string) string {
		for _, l := range m.GetLabel() {
			if l.GetName() == name {
				return l.GetValue()
			}
		}
		return ""
	}
	for name, want := range r.Match {
		if label(name) != want {
			return
		}
	}
	uuid := ""
	if r.row.Per == telemetry.PerGPU {
		device := label(e.Device)
		if device == "" {
			to.refused++
			return
		}
		uuid = exporter.CleanLabel(e.Prefix + device)
	}
	values := make([]string, len(r.row.Labels))
	for i, name := range r.row.Labels {
		values[i] = r.Labels[name]
		if from, ok := cutDollar(values[i]); ok {
			values[i] = label(from)
		}
	}
	if v, ok := valueOf(m); ok {
		to.put(r.id, uuid, v*r.Scale, values...)
	}
}

func cutDollar(s string) (string, bool) {
	if len(s) > 1 && s[0] == '$' {
		return s[1:], true
	}
	return s, false
}

func valueOf(m *dto.Metric) (float64, bool) {
	switch {
	case m.Gauge != nil:
		return m.GetGauge().GetValue(), true
	case m.Counter != nil:
		return m.GetCounter().GetValue(), true
	case m.Untyped != nil:
		return m.GetUntyped().GetValue(), true
	}
	return 0, false // a histogram is no single value
}
