package ui

import (
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Limits of a list of observations: each has every value of its devices.
const (
	usualObservations = 100
	mostObservations  = 1000
)

// Observation is the judged state of one node as last told, by the names that
// it has on the wire.
type Observation struct {
	Cluster           string           `json:"cluster,omitempty"`
	Node              string           `json:"node"`
	State             string           `json:"state"`
	BootID            string           `json:"boot_id,omitempty"`
	Incarnation       uint64           `json:"incarnation,omitempty,string"`
	SampleTime        time.Time        `json:"sample_time,omitzero"`
	AgeMS             *int64           `json:"age_ms,omitempty"`
	SkewMS            int64            `json:"skew_ms"`
	ClockSynchronized bool             `json:"clock_synchronized"`
	PeriodMS          int64            `json:"period_ms,omitempty"`
	DriverFault       string           `json:"driver_fault,omitempty"`
	Doubt             string           `json:"doubt,omitempty"`
	GPUsExpected      int              `json:"gpus_expected"`
	GPUsFresh         int              `json:"gpus_fresh"`
	Host              []HostVerdict    `json:"host"`
	GPUs              []GPUObservation `json:"gpus"`
}

// GPUObservation is the judged state of one device.
type GPUObservation struct {
	UUID              string   `json:"uuid"`
	PCI               string   `json:"pci,omitempty"`
	Index             int      `json:"index"`
	Model             string   `json:"model,omitempty"`
	State             string   `json:"state"`
	Doubt             string   `json:"doubt,omitempty"`
	Values            []Value  `json:"values"`
	Headroom          *float64 `json:"headroom_c,omitempty"`
	Slope             *float64 `json:"slope_c_per_s,omitempty"`
	SecondsToSlowdown *float64 `json:"seconds_to_slowdown,omitempty"`
	Resistance        *float64 `json:"r_c_per_w,omitempty"`
	TimeConstant      *float64 `json:"tau_s,omitempty"`
	Base              *float64 `json:"base_c,omitempty"`
	Power             Power    `json:"power"`
	Verdicts
	Members []Member `json:"members"`
}

// Value is one judged value by its id in the catalogue.
type Value struct {
	ID      int               `json:"id"`
	Metric  string            `json:"metric"`
	Labels  map[string]string `json:"labels,omitempty"`
	V       float64           `json:"v"`
	AgeMS   int64             `json:"age_ms"`
	Quality string            `json:"quality"`
}

// Power is the limits of a device.
type Power struct {
	Min     *float64 `json:"min_w,omitempty"`
	Default *float64 `json:"default_w,omitempty"`
	Limit   *float64 `json:"limit_w,omitempty"`
	Max     *float64 `json:"max_w,omitempty"`
}

func observationJSON(n *cluster.Node, now time.Time) Observation {
	out := Observation{
		Cluster: n.Cluster, Node: n.Name, State: string(n.State), BootID: n.BootID, Incarnation: n.Incarnation, SampleTime: n.Seen,
		SkewMS: n.Skew.Milliseconds(), ClockSynchronized: n.ClockSynchronized, PeriodMS: n.Period.Milliseconds(),
		DriverFault: n.DriverFault, Doubt: n.Doubt, GPUsExpected: max(n.Expected, len(n.GPUs)), Host: hostJSON(n), GPUs: make([]GPUObservation, 0, len(n.GPUs)),
	}
	if !n.Seen.IsZero() {
		ms := max(0, now.Sub(n.Seen).Milliseconds())
		out.AgeMS = &ms
	}
	for _, g := range n.GPUs {
		if _, fresh := sampled(n, g, now); fresh {
			out.GPUsFresh++
		}
		out.GPUs = append(out.GPUs, GPUObservation{
			UUID: g.UUID, PCI: g.PCI, Index: g.Index, Model: g.Model, State: string(g.State), Doubt: doubtOf(n, g), Values: valuesJSON(g, now),
			Headroom: pointer(g.HeadroomC), Slope: pointer(g.SlopeCPerS), SecondsToSlowdown: pointer(g.SecondsToSlowdown),
			Resistance: pointer(g.RCPerW), TimeConstant: pointer(g.TauS), Base: pointer(g.BaseC),
			Power:    Power{pointer(g.MinW), pointer(g.DefaultW), pointer(limitOf(g)), pointer(g.MaxW)},
			Verdicts: verdictsJSON(g), Members: membersJSON(g),
		})
	}
	return out
}

func valuesJSON(g *cluster.GPU, now time.Time) []Value {
	out := []Value{}
	for r := range g.Readings() {
		row, series, ok := telemetry.Lookup(r.ID)
		if !ok || math.IsNaN(r.V) || math.IsInf(r.V, 0) {
			continue
		}
		out = append(out, Value{
			ID: int(r.ID), Metric: row.Name, Labels: labelsOf(row, series), V: r.V, AgeMS: max(0, now.Sub(r.At).Milliseconds()), Quality: qualityName(r.Quality),
		})
	}
	return out
}

// gpuWord is a filter on what is judged of a node's devices.
type gpuWord struct {
	name string
	of   func(*cluster.GPU) string
}

var gpuWords = []gpuWord{
	{"gpu_state", func(g *cluster.GPU) string { return string(g.State) }},
	{"idle", func(g *cluster.GPU) string { return g.IdleCause }},
	{"contention", func(g *cluster.GPU) string {
		if g.Contention == nil {
			return ""
		}
		return g.Contention.Kind
	}},
	{"fabric", func(g *cluster.GPU) string { return g.Fabric.State }},
	{"health", func(g *cluster.GPU) string { return g.Health }},
}

func (s *server) observations(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "node", "row", "rack", "state", "host", "gpu_state", "idle", "contention", "fabric", "health", "limit", "cursor")
	if err != nil {
		return err
	}
	if err := oneOf("state", q.Get("state"), nodeStates); err != nil {
		return err
	}
	if err := oneOf("host", q.Get("host"), cluster.HostVerdicts[:]); err != nil {
		return err
	}
	limit, err := limitOr(q, usualObservations, mostObservations)
	if err != nil {
		return err
	}
	list, now := List[Observation]{APIVersion: APIVersion, Items: []Observation{}}, s.Now()
	for n := range s.Fleet.View().Nodes() {
		if !observed(n, q.Get) {
			continue
		}
		list.Total++
		switch {
		case n.Name <= q.Get("cursor"):
		case len(list.Items) < limit:
			list.Items = append(list.Items, observationJSON(n, now))
		case list.Next == "":
			list.Next = list.Items[limit-1].Node
		}
	}
	return respond(w, r, http.StatusOK, list)
}

// observed says whether a node passes the filters.
func observed(n *cluster.Node, filter func(string) string) bool {
	if !wanted(filter("node"), n.Name) || !wanted(filter("row"), n.Row) || !wanted(filter("rack"), n.Rack) || !wanted(filter("state"), string(n.State)) {
		return false
	}
	if host := filter("host"); host != "" {
		if holds, known, _ := n.HostHolds(host); !known || !holds {
			return false
		}
	}
	for _, word := range gpuWords {
		if want := filter(word.name); want != "" && !slices.ContainsFunc(n.GPUs, func(g *cluster.GPU) bool { return word.of(g) == want }) {
			return false
		}
	}
	return true
}

func (s *server) observation(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	n, ok := s.Fleet.View().Node(r.PathValue("node"))
	if !ok {
		return problem(http.StatusNotFound, "not_found", "node %q is not known; %s/nodes lists those that are", r.PathValue("node"), Prefix)
	}
	return respond(w, r, http.StatusOK, observationJSON(n, s.Now()))
}
