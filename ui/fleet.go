package ui

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// mostGPUs bounds a list of devices; it is above any fleet this serves.
const mostGPUs = 200_000

func (s *server) nodes(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "row", "rack", "state")
	if err != nil {
		return err
	}
	if err := oneOf("state", q.Get("state"), []string{string(cluster.NodeUp), string(cluster.NodeGone), string(cluster.NodeUnknown)}); err != nil {
		return err
	}
	now, items := s.Now(), []Node{}
	for n := range s.Fleet.View().Nodes() {
		if wanted(q.Get("row"), n.Row) && wanted(q.Get("rack"), n.Rack) && wanted(q.Get("state"), string(n.State)) {
			items = append(items, nodeJSON(n, now))
		}
	}
	return respond(w, r, http.StatusOK, List[Node]{APIVersion, len(items), items})
}

func wanted(filter, value string) bool { return filter == "" || filter == value }

func (s *server) node(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	n, ok := s.Fleet.View().Node(r.PathValue("name"))
	if !ok {
		return problem(http.StatusNotFound, "not_found", "node %q is not known; %s/nodes lists those that are", r.PathValue("name"), Prefix)
	}
	return respond(w, r, http.StatusOK, nodeJSON(n, s.Now()))
}

// gpuOrder compares two devices; a value that is not known comes last whatever
// the direction.
type gpuOrder struct {
	name string
	key  func(GPU) *float64
}

var gpuOrders = []gpuOrder{
	{"headroom", func(g GPU) *float64 { return g.Headroom }},
	{"temperature", func(g GPU) *float64 { return g.Core }},
	{"power", func(g GPU) *float64 { return g.Power }},
	{"utilization", func(g GPU) *float64 { return g.Utilization }},
	{"age", func(g GPU) *float64 { return g.AgeSeconds }},
}

func (s *server) gpus(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "node", "row", "rack", "state", "workload", "owner", "sort", "limit")
	if err != nil {
		return err
	}
	if err := oneOf("state", q.Get("state"), rowStates); err != nil {
		return err
	}
	limit, err := limitOr(q, mostGPUs, mostGPUs)
	if err != nil {
		return err
	}
	items := s.matchingGPUs(q.Get)
	if err := sortGPUs(items, q.Get("sort")); err != nil {
		return err
	}
	return respond(w, r, http.StatusOK, List[GPU]{APIVersion, len(items), items[:min(limit, len(items))]})
}

func (s *server) matchingGPUs(filter func(string) string) []GPU {
	v, now, items := s.Fleet.View(), s.Now(), []GPU{}
	held := holders(s.Decisions.Decisions())
	for n, g := range v.GPUs() {
		if !wanted(filter("node"), n.Name) || !wanted(filter("row"), n.Row) || !wanted(filter("rack"), n.Rack) || !wanted(filter("state"), string(g.State)) {
			continue
		}
		item := gpuJSON(v, n, g, held[g.UUID], now)
		ref, owner := filter("workload"), filter("owner")
		if ref+owner != "" && !slices.ContainsFunc(item.Workloads, func(w WorkloadName) bool {
			return wanted(ref, string(w.Ref)) && wanted(owner, w.Owner)
		}) {
			continue
		}
		items = append(items, item)
	}
	return items
}

func sortGPUs(items []GPU, by string) error {
	if by == "" {
		return nil
	}
	name, down := strings.CutPrefix(by, "-")
	i := slices.IndexFunc(gpuOrders, func(o gpuOrder) bool { return o.name == name })
	if i < 0 {
		var names []string
		for _, o := range gpuOrders {
			names = append(names, o.name)
		}
		return problem(http.StatusBadRequest, "bad_parameter", "sort %q is none of %s; a minus in front sorts down", by, strings.Join(names, ", "))
	}
	slices.SortStableFunc(items, func(a, b GPU) int {
		x, y := gpuOrders[i].key(a), gpuOrders[i].key(b)
		switch {
		case x == nil || y == nil:
			return cmp.Compare(btoi(x == nil), btoi(y == nil))
		case down:
			return cmp.Compare(*y, *x)
		}
		return cmp.Compare(*x, *y)
	})
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *server) gpu(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	v, now := s.Fleet.View(), s.Now()
	n, g, ok := v.GPU(r.PathValue("uuid"))
	if !ok {
		return noGPU(r)
	}
	held := holders(s.Decisions.Decisions())[g.UUID]
	return respond(w, r, http.StatusOK, GPUDetail{gpuJSON(v, n, g, held, now), readingsJSON(g, now)})
}

func noGPU(r *http.Request) error {
	return problem(http.StatusNotFound, "not_found", "GPU %q is not known; %s/gpus lists those that are", r.PathValue("uuid"), Prefix)
}

func (s *server) history(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "since")
	if err != nil {
		return err
	}
	since, err := sinceOf(q.Get("since"), s.Now())
	if err != nil {
		return err
	}
	uuid := r.PathValue("uuid")
	points := s.Fleet.History(uuid)
	if _, _, ok := s.Fleet.View().GPU(uuid); !ok && len(points) == 0 {
		return noGPU(r)
	}
	from, _ := slices.BinarySearchFunc(points, since, func(p Point, t time.Time) int {
		if p.At.After(t) {
			return 1
		}
		return -1
	})
	items := make([]Instant, 0, len(points)-from)
	for _, p := range points[from:] {
		items = append(items, Instant{
			Time: p.At, Headroom: pointer(p.Headroom), Core: pointer(p.Core), Memory: pointer(p.Memory), Power: pointer(p.Power),
			Limit: pointer(p.Limit), Utilization: pointer(p.Utilization), Clock: pointer(p.Clock),
		})
	}
	return respond(w, r, http.StatusOK, History{APIVersion, uuid, items})
}

// sinceOf reads a time, or a duration back from now. Empty is the beginning.
func sinceOf(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, problem(http.StatusBadRequest, "bad_parameter", "since %q: give a time such as 2026-01-31T22:00:00Z, or a duration back from now such as 90m", text)
	}
	return t, nil
}

func (s *server) workloads(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "owner", "kind", "node", "state")
	if err != nil {
		return err
	}
	items := []Workload{}
	for wl := range s.Fleet.View().Workloads() {
		if wanted(q.Get("owner"), wl.Owner) && wanted(q.Get("kind"), wl.Ref.Kind()) && wanted(q.Get("state"), wl.State) && (q.Get("node") == "" || slices.ContainsFunc(wl.GPUs, func(g *cluster.GPU) bool { return g.Node == q.Get("node") })) {
			items = append(items, workloadJSON(wl))
		}
	}
	return respond(w, r, http.StatusOK, List[Workload]{APIVersion, len(items), items})
}

func (s *server) workload(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	ref := telemetry.WorkloadRef(r.PathValue("ref"))
	wl, ok := s.Fleet.View().Workload(ref)
	if !ok {
		return noWorkload(ref)
	}
	return respond(w, r, http.StatusOK, workloadJSON(wl))
}

func noWorkload(ref telemetry.WorkloadRef) error {
	if err := ref.Check(); err != nil {
		return problem(http.StatusBadRequest, "bad_reference", "%v", err)
	}
	return problem(http.StatusNotFound, "not_found", "workload %q is not known; %s/workloads lists those that are", ref, Prefix)
}
