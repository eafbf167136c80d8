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
	if err := oneOf("state", q.Get("state"), nodeStates); err != nil {
		return err
	}
	now, items := s.Now(), []Node{}
	for n := range s.Fleet.View().Nodes() {
		if wanted(q.Get("row"), n.Row) && wanted(q.Get("rack"), n.Rack) && wanted(q.Get("state"), string(n.State)) {
			items = append(items, nodeJSON(n, now))
		}
	}
	return respond(w, r, http.StatusOK, listOf(items))
}

var nodeStates = []string{string(cluster.NodeUp), string(cluster.NodeGone), string(cluster.NodeUnknown)}

func wanted(filter, value string) bool { return filter == "" || filter == value }

func (s *server) node(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	n, ok := s.Fleet.View().Node(r.PathValue("name"))
	if !ok {
		return noNode(r)
	}
	return respond(w, r, http.StatusOK, nodeJSON(n, s.Now()))
}

func noNode(r *http.Request) error {
	return problem(http.StatusNotFound, "not_found", "node %q is not known; %s/nodes lists those that are", r.PathValue("name"), Prefix)
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
	return respond(w, r, http.StatusOK, List[GPU]{APIVersion: APIVersion, Total: len(items), Items: items[:min(limit, len(items))]})
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
	return respond(w, r, http.StatusOK, GPUDetail{gpuJSON(v, n, g, held, now), membersJSON(g), readingsJSON(g, now)})
}

func noGPU(r *http.Request) error {
	return problem(http.StatusNotFound, "not_found", "GPU %q is not known; %s/gpus lists those that are", r.PathValue("uuid"), Prefix)
}

// sinceOf reads a time, or a duration back from now. Empty is the beginning.
func sinceOf(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return instant("since", text, now)
}

func (s *server) workloads(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "owner", "kind", "node", "state")
	if err != nil {
		return err
	}
	v, now, items := s.Fleet.View(), s.Now(), []Workload{}
	for wl := range v.Workloads() {
		if wanted(q.Get("owner"), wl.Owner) && wanted(q.Get("kind"), wl.Ref.Kind()) && wanted(q.Get("state"), wl.State) && (q.Get("node") == "" || slices.ContainsFunc(wl.GPUs, func(g *cluster.GPU) bool { return g.Node == q.Get("node") })) {
			items = append(items, workloadJSON(v, wl, now))
		}
	}
	return respond(w, r, http.StatusOK, listOf(items))
}

func (s *server) workload(w http.ResponseWriter, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	ref := telemetry.WorkloadRef(r.PathValue("ref"))
	v := s.Fleet.View()
	wl, ok := v.Workload(ref)
	if !ok {
		return noWorkload(ref)
	}
	return respond(w, r, http.StatusOK, workloadJSON(v, wl, s.Now()))
}

func noWorkload(ref telemetry.WorkloadRef) error {
	if err := ref.Check(); err != nil {
		return problem(http.StatusBadRequest, "bad_reference", "%v", err)
	}
	return problem(http.StatusNotFound, "not_found", "workload %q is not known; %s/workloads lists those that are", ref, Prefix)
}
