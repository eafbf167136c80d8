package ui

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what is told of the past.
const (
	recent       = 10 * time.Minute // what Fleet.History reaches back
	mostInstants = 1000
	fitInstants  = 500 // of a range without a step
	longestPast  = 10 * 366 * 24 * time.Hour
	pastTimeout  = 20 * time.Second
)

// steps are those that a range without a step gets, by its length.
var steps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
	30 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 28 * 24 * time.Hour,
}

// extent is the range that was asked for. Without a step memory's samples are
// given as they came.
type extent struct {
	from, to time.Time
	step     time.Duration
}

// extentOf reads from, to and step. since is an older name of from.
func extentOf(q url.Values, now time.Time) (extent, error) {
	x := extent{from: now.Add(-recent), to: now}
	name := "from"
	if q.Get("since") != "" {
		if name = "since"; q.Get("from") != "" {
			return x, problem(http.StatusBadRequest, "bad_parameter", "from and since are one; give from")
		}
	}
	var err error
	if text := q.Get(name); text != "" {
		if x.from, err = instant(name, text, now); err != nil {
			return x, err
		}
	}
	if text := q.Get("to"); text != "" {
		if x.to, err = instant("to", text, now); err != nil {
			return x, err
		}
		if q.Get(name) == "" {
			x.from = x.to.Add(-recent)
		}
	}
	if text := q.Get("step"); text != "" {
		if x.step, err = stepOf(text); err != nil {
			return x, err
		}
	}
	return x, x.check(now, name)
}

func (x extent) check(now time.Time, name string) error {
	switch {
	case x.from.After(now.Add(time.Second)):
		return problem(http.StatusBadRequest, "bad_parameter", "%s %s is in the future; now is %s", name, stamp(x.from), stamp(now))
	case x.from.After(x.to):
		return problem(http.StatusBadRequest, "bad_parameter", "%s %s is after to %s", name, stamp(x.from), stamp(x.to))
	case now.Sub(x.from) > longestPast:
		return problem(http.StatusBadRequest, "bad_parameter", "%s %s is more than ten years ago; ask for less", name, stamp(x.from))
	case x.step > 0 && x.to.Sub(x.from)/x.step > mostInstants:
		return problem(http.StatusBadRequest, "bad_parameter", "%s by %s are %d points, %d are the most; give a step of %s or more, or ask for less",
			span(x.to.Sub(x.from)), span(x.step), x.to.Sub(x.from)/x.step, mostInstants, span(fitting(x.to.Sub(x.from), mostInstants)))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// span words a duration without units of zero.
func span(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// instant reads a time, seconds since 1970, or a duration back from now.
func instant(name, text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	if d, ok := duration(text); ok {
		return now.Add(-d), nil
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil && v >= 1e8 && v < 1e11 {
		return time.UnixMilli(int64(math.Round(v * 1000))).UTC(), nil
	}
	return time.Time{}, problem(http.StatusBadRequest, "bad_parameter", "%s %q: give a time such as 2026-01-31T22:00:00Z, seconds since 1970, or a duration back from now such as 90m or 2d", name, text)
}

// duration reads one with a unit; days too.
func duration(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		return time.Duration(n * 24 * float64(time.Hour)), err == nil && n >= 0 && n <= 36500
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0 && text != "0"
}

func stepOf(text string) (time.Duration, error) {
	d, ok := duration(text)
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n < 1e9 {
		d, ok = time.Duration(n)*time.Second, true
	}
	if !ok || d < time.Second || d%time.Second != 0 {
		return 0, problem(http.StatusBadRequest, "bad_parameter", "step %q: give whole seconds, such as 15s, 5m or 1h, at least 1s", text)
	}
	return d, nil
}

// fitting is the least usual step that gives a range at most so many points.
func fitting(length time.Duration, points int) time.Duration {
	for _, s := range steps {
		if length/s <= time.Duration(points) {
			return s
		}
	}
	return steps[len(steps)-1]
}

// subject is whose past is told: devices in memory, a selector in the store.
type subject struct {
	devices [][]Point
	// labels select its series; among says that they are of several devices.
	labels string
	among  bool
	// whole are the expressions of the fleet, by field, instead of a selector;
	// the first that has an answer counts.
	whole []wholeField
}

// remembered says whether memory has anything of it.
func (s subject) remembered() bool {
	return slices.ContainsFunc(s.devices, func(points []Point) bool { return len(points) > 0 })
}

type wholeField struct {
	at    func(*Instant) **float64
	exprs []string
}

// past answers from memory what memory has, and what is older from the store.
func (s *server) past(ctx context.Context, x extent, raw bool, of subject) (History, error) {
	now := s.Now()
	h := History{APIVersion: APIVersion, From: x.from, To: x.to, Source: "memory", Items: []Instant{}}
	edge := now.Add(-recent) // what is later is in memory
	older := x.from.Before(edge.Add(-time.Second)) || len(of.whole) > 0
	switch {
	case older && s.Past == nil:
		if x.to.Before(edge) || len(of.whole) > 0 {
			return h, problem(http.StatusServiceUnavailable, "store_off", "what is older than %s is kept by the embedded store alone, which is off; set store.enabled in the collector's file", span(recent))
		}
		h.From, h.Note = edge, fmt.Sprintf("what is before %s is not kept: the embedded store is off", stamp(edge))
		older = false
	case older:
		h.Source = "store"
	}
	from := h.From
	if x.step == 0 && (older || !raw) {
		x.step = fitting(x.to.Sub(from), fitInstants)
	}
	if older {
		x.step = max(x.step, s.Past.Every())
		until := x.to
		if border := edge.Add(x.step - 1).Truncate(x.step); of.remembered() && until.After(border) {
			until = border // from here on memory has whole steps
		}
		items, err := s.stored(ctx, extent{from, until, x.step}, of)
		if err != nil {
			return h, err
		}
		h.Items, from = append(h.Items, items...), until
	}
	h.Step = x.step.Seconds()
	if len(of.devices) == 0 || !x.to.After(from) {
		return h, nil
	}
	remembered := h.remember(extent{from, x.to, x.step}, of)
	if len(h.Items) > 0 && len(remembered) > 0 {
		h.Source = "both"
	} else if len(remembered) > 0 {
		h.Source = "memory"
	}
	h.Items = append(h.Items, remembered...)
	return h, nil
}

// remember is what memory has of a range, folded into steps if there are any.
func (h *History) remember(x extent, of subject) []Instant {
	if x.step > 0 {
		return gathered(of.devices, x.from, x.to, x.step)
	}
	var out []Instant
	for i := range of.devices[0] {
		if p := &of.devices[0][i]; p.At.After(x.from) && !p.At.After(x.to) {
			out = append(out, instantOf(p))
		}
	}
	return out
}

// stored asks the store. Each step tells of what was sampled since the one
// before, over at least two samples so that a late one makes no hole.
func (s *server) stored(ctx context.Context, x extent, of subject) ([]Instant, error) {
	ctx, cancel := context.WithTimeout(ctx, pastTimeout)
	defer cancel()
	x.from = x.from.Truncate(x.step).Add(x.step)
	if x.from.After(x.to) {
		return nil, nil
	}
	window := fmt.Sprintf("%ds", int(max(x.step, 2*s.Past.Every()).Seconds()))
	out := make([]Instant, int(x.to.Sub(x.from)/x.step)+1)
	fill := func(at func(*Instant) **float64, exprs ...string) error {
		for _, expr := range exprs {
			series, err := s.Past.Range(ctx, expr, x.from, x.to, x.step)
			if err != nil {
				return pastError(ctx, err)
			}
			if len(series) == 0 {
				continue
			}
			for _, v := range series[0].Samples {
				i := int(v.At.Sub(x.from) / x.step)
				if i >= 0 && i < len(out) && !math.IsNaN(v.V) && !math.IsInf(v.V, 0) {
					value := v.V
					*at(&out[i]) = &value
				}
			}
			return nil
		}
		return nil
	}
	for _, w := range of.whole {
		if err := fill(w.at, w.exprs...); err != nil {
			return nil, err
		}
	}
	if of.labels != "" {
		for _, f := range fields {
			labels := strings.Trim(of.labels+","+f.labels, ",")
			if err := fill(f.at, fmt.Sprintf("%s(%s_over_time(%s{%s}[%s]))", f.devices.function(), f.time.function(), f.series, labels, window)); err != nil {
				return nil, err
			}
		}
		if of.among {
			if err := fill(func(i *Instant) **float64 { return &i.GPUs }, fmt.Sprintf("count(count_over_time(gpu_temperature_celsius{%s,sensor=\"core\"}[%s]))", of.labels, window)); err != nil {
				return nil, err
			}
		}
	}
	known := out[:0]
	for i := range out {
		if out[i] != (Instant{}) {
			out[i].Time = x.from.Add(time.Duration(i) * x.step).UTC()
			known = append(known, out[i])
		}
	}
	return known, nil
}

func pastError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return problem(http.StatusGatewayTimeout, "store_slow", "the store did not answer within %s; ask for a shorter range or a longer step", pastTimeout)
	}
	return problem(http.StatusServiceUnavailable, "store_failed", "the store cannot answer: %v", err)
}

func (s *server) gpuHistory(w http.ResponseWriter, r *http.Request) error {
	x, raw, err := s.extent(r)
	if err != nil {
		return err
	}
	uuid := r.PathValue("uuid")
	points := s.Fleet.History(uuid)
	_, _, known := s.Fleet.View().GPU(uuid)
	if !known && len(points) == 0 && s.Past == nil {
		return noGPU(r)
	}
	h, err := s.past(r.Context(), x, raw, subject{devices: [][]Point{points}, labels: "uuid=" + strconv.Quote(uuid)})
	if err != nil {
		return err
	}
	if h.UUID = uuid; !known && len(h.Items) == 0 {
		return noGPU(r)
	}
	return respond(w, r, http.StatusOK, h)
}

func (s *server) nodeHistory(w http.ResponseWriter, r *http.Request) error {
	x, _, err := s.extent(r)
	if err != nil {
		return err
	}
	name := r.PathValue("name")
	of := subject{labels: "node=" + strconv.Quote(name), among: true}
	n, known := s.Fleet.View().Node(name)
	if known {
		for _, g := range n.GPUs {
			of.devices = append(of.devices, s.Fleet.History(g.UUID))
		}
	} else if s.Past == nil {
		return noNode(r)
	}
	h, err := s.past(r.Context(), x, false, of)
	if err != nil {
		return err
	}
	if h.Node = name; !known && len(h.Items) == 0 {
		return noNode(r)
	}
	return respond(w, r, http.StatusOK, h)
}

// fleetFields are read from what the rules record by node, so that a fleet's
// past does not read every GPU again; without these rules from the GPUs.
var fleetFields = []wholeField{
	{func(i *Instant) **float64 { return &i.Headroom }, []string{"min(node:gpu_thermal_headroom_celsius:min)", "min(gpu_thermal_headroom_celsius)"}},
	{func(i *Instant) **float64 { return &i.Power }, []string{"sum(node:gpu_power_watts:sum)", "sum(gpu_power_watts)"}},
	{func(i *Instant) **float64 { return &i.Utilization }, []string{"avg(gpu_utilization_ratio)"}},
	{func(i *Instant) **float64 { return &i.GPUs }, []string{"sum(node:gpus_up:sum)", "sum(gpu_up)"}},
	{func(i *Instant) **float64 { return &i.Coverage }, []string{
		"sum(node:gpus_up:sum) / sum(evenkeel_node_gpus_expected > 0)", "sum(gpu_up) / sum(evenkeel_node_gpus_expected > 0)",
	}},
}

func (s *server) fleetHistory(w http.ResponseWriter, r *http.Request) error {
	x, _, err := s.extent(r)
	if err != nil {
		return err
	}
	h, err := s.past(r.Context(), x, false, subject{whole: fleetFields})
	if err != nil {
		return err
	}
	return respond(w, r, http.StatusOK, h)
}

// extent reads the range of a request; raw says that no step was asked for.
func (s *server) extent(r *http.Request) (x extent, raw bool, err error) {
	q, err := query(r, "from", "to", "step", "since")
	if err != nil {
		return x, false, err
	}
	x, err = extentOf(q, s.Now())
	return x, x.step == 0, err
}
