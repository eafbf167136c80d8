package ui

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Prefix is where the API lives.
const Prefix = "/api/evenkeel/v1"

// server is the handler's state: its options and the stream's hub.
type server struct {
	Options
	hub *hub
	// patience is how long a write of a stream may hang.
	patience time.Duration
}

// route is one path of the API. The list of routes and openapi.yaml are
// compared by a test.
type route struct {
	method, path string
	serve        func(http.ResponseWriter, *http.Request) error
}

func (s *server) routes() []route {
	return []route{
		{"GET", "/nodes", s.nodes},
		{"GET", "/nodes/{name}", s.node},
		{"GET", "/nodes/{name}/history", s.nodeHistory},
		{"GET", "/gpus", s.gpus},
		{"GET", "/gpus/{uuid}", s.gpu},
		{"GET", "/gpus/{uuid}/history", s.gpuHistory},
		{"GET", "/history", s.fleetHistory},
		{"GET", "/observations", s.observations},
		{"GET", "/observations/{node}", s.observation},
		{"GET", "/workloads", s.workloads},
		{"GET", "/workloads/{ref...}", s.workload},
		{"GET", "/decisions", s.decisions},
		{"GET", "/decisions/{id}", s.decision},
		{"GET", "/decisions/{id}/explain", s.explainDecision},
		{"GET", "/alerts", s.alerts},
		{"GET", "/explain/workload/{ref...}", s.explainWorkload},
		{"GET", "/explain/nothing", s.explainNothing},
		{"GET", "/plan", s.plan},
		{"POST", "/plan", s.plan},
		{"GET", "/snapshot", s.snapshot},
		{"GET", "/stream", s.stream},
		{"GET", "/openapi.yaml", s.openapi},
	}
}

// Handler serves the page at / and the API under Prefix. Streams end with
// their request's context: a server that shuts down cancels its BaseContext,
// or closes what is still open.
func Handler(o Options) http.Handler { return newServer(o).handler() }

func newServer(o Options) *server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Streams == nil {
		o.Streams = uncounted{}
	}
	return &server{Options: o, hub: newHub(o), patience: streamWrite}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	allowed := map[string][]string{}
	for _, r := range s.routes() {
		path := Prefix + r.path
		mux.Handle(r.method+" "+path, s.wrap(r.serve))
		allowed[path] = append(allowed[path], r.method)
	}
	for path, methods := range allowed {
		mux.Handle(path, s.wrap(methodNotAllowed(methods)))
	}
	mux.Handle("/", s.wrap(newPage().serve))
	mux.Handle(Prefix+"/", s.wrap(notFound))
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(s.wrap(crossOrigin))
	return headers(guard.Handler(mux))
}

// headers sets what every answer carries. The page needs nothing but its own
// origin, and nobody may frame it.
func headers(next http.Handler) http.Handler {
	csp := strings.Join([]string{
		"default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'", "manifest-src 'self'",
		"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
	}, "; ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", csp)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// methodNotAllowed answers with what is possible; where there is GET there is HEAD.
func methodNotAllowed(methods []string) func(http.ResponseWriter, *http.Request) error {
	methods = slices.Clone(methods)
	if at := slices.Index(methods, http.MethodGet); at >= 0 {
		methods = slices.Insert(methods, at+1, http.MethodHead)
	}
	allow := strings.Join(methods, ", ")
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Allow", allow)
		return problem(http.StatusMethodNotAllowed, "method_not_allowed", "%s is not possible on %s; use %s", r.Method, r.URL.Path, allow)
	}
}

func crossOrigin(http.ResponseWriter, *http.Request) error {
	return problem(http.StatusForbidden, "cross_origin", "this request comes from another site's page; send it from the page served here, or without a browser")
}

func notFound(_ http.ResponseWriter, r *http.Request) error {
	return problem(http.StatusNotFound, "not_found", "there is no %s; %s/openapi.yaml lists what there is", r.URL.Path, Prefix)
}
