package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	promnotes "github.com/prometheus/prometheus/util/notifications"
	promapi "github.com/prometheus/prometheus/web/api/v1"
)

// apiRoot is where Prometheus has its API.
const apiRoot = "/api/v1"

// patience is how long an answer may take to be read.
const patience = 30 * time.Second

// served lists the endpoints that are answered, below apiRoot; one that ends in
// a slash stands for those below it. What would change something, scrapes, or
// shows what this process does not have is not.
var served = []string{
	"/query", "/query_range", "/query_exemplars", "/format_query", "/parse_query",
	"/labels", "/label/", "/series", "/metadata",
	"/rules", "/alerts", "/alertmanagers",
	"/status/buildinfo", "/status/runtimeinfo", "/status/flags", "/status/config", "/status/tsdb",
}

// newAPI is Prometheus's API over the store. It is the only caller of its NewAPI,
// whose arguments change with each version.
func newAPI(s *Store) http.Handler {
	started := time.Now()
	retention := model.Duration(s.o.Retention).String()
	external, _ := url.Parse(s.o.ExternalURL) // the ruler has checked it
	api := promapi.NewAPI(
		s.engine, s.db, nil, s.db,
		func(context.Context) promapi.ScrapePoolsRetriever { return nil },
		func(context.Context) promapi.TargetRetriever { return described{&s.sampler.meta} },
		func(context.Context) promapi.AlertmanagerRetriever { return s.ruler },
		func() config.Config { return *s.conf },
		map[string]string{"storage.tsdb.retention.time": retention, "query.lookback-delta": model.Duration(lookback).String()},
		promapi.GlobalURLOptions{ListenAddress: external.Host, Host: external.Host, Scheme: external.Scheme},
		func(f http.HandlerFunc) http.HandlerFunc { return f },
		s.db, s.db.folder.dir,
		false, false, 0, // no administration, no search
		s.log,
		func(context.Context) promapi.RulesRetriever { return s.ruler },
		0, 0, 0, // no remote read
		false,
		regexp.MustCompile("^$"), // pages of other origins read nothing
		func() (promapi.RuntimeInfo, error) { return runtimeInfo(started, retention), nil },
		version(),
		func() []promnotes.Notification { return nil },
		func() (<-chan promnotes.Notification, func(), bool) { return nil, func() {}, false },
		s.o.Registry, s.o.Registry,
		nil,
		false, nil, false, false, false, // no writing
		lookback,
		false, false,
		overridden(promapi.ErrorUnavailable, http.StatusServiceUnavailable),
		nil,
		promapi.OpenAPIOptions{},
		s.ruler.set.parser,
		false, s.o.Query.Timeout,
	)
	r := route.New()
	api.Register(r)
	return gate(http.StripPrefix(apiRoot, r))
}

// overridden gives one kind of error another status. A Prometheus that is not
// ready answers 503 before it looks at the request; ours says why with it.
func overridden[E comparable](kind E, code int) func(E, error) (int, bool) {
	return func(is E, _ error) (int, bool) { return code, is == kind }
}

// gate lets the served endpoints through, and each answer go out only once it
// is complete: a client that does not read must not hold the database.
func gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, apiRoot)
		for _, p := range served {
			if path != p && (!strings.HasSuffix(p, "/") || !strings.HasPrefix(path, p)) {
				continue
			}
			if r.Method != http.MethodGet && r.Method != http.MethodPost && r.Method != http.MethodHead {
				refuse(w, http.StatusMethodNotAllowed, "bad_data", "want GET or POST")
				return
			}
			if r.Method == http.MethodHead {
				r = r.Clone(r.Context())
				r.Method = http.MethodGet
			}
			// The server's deadline would run while the answer is made; a query has
			// its own timeout.
			control := http.NewResponseController(w)
			_ = control.SetWriteDeadline(time.Time{})
			answer := &whole{ResponseWriter: w, code: http.StatusOK}
			next.ServeHTTP(answer, r)
			_ = control.SetWriteDeadline(time.Now().Add(patience))
			w.WriteHeader(answer.code)
			_, _ = answer.body.WriteTo(w)
			return
		}
		refuse(w, http.StatusNotFound, "not_found", "the collector answers "+apiRoot+" for "+strings.Join(served, ", ")+"; not "+path)
	})
}

// refuse answers as Prometheus does.
func refuse(w http.ResponseWriter, code int, kind, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": "error", "errorType": kind, "error": text})
}

type whole struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (a *whole) WriteHeader(code int)        { a.code = code }
func (a *whole) Write(p []byte) (int, error) { return a.body.Write(p) }

// described gives the API what is known of each family, as if one target had
// been scraped.
type described struct{ meta *metadata }

// TargetsActive implements promapi.TargetRetriever.
func (d described) TargetsActive() map[string][]*scrape.Target {
	t := scrape.NewTarget(labels.EmptyLabels(), &config.ScrapeConfig{}, nil, nil)
	t.SetMetadataStore(d.meta)
	return map[string][]*scrape.Target{"evenkeel": {t}}
}

// TargetsDropped implements promapi.TargetRetriever.
func (described) TargetsDropped() map[string][]*scrape.Target { return nil }

// TargetsDroppedCounts implements promapi.TargetRetriever.
func (described) TargetsDroppedCounts() map[string]int { return nil }

// ScrapePoolConfig implements promapi.TargetRetriever.
func (described) ScrapePoolConfig(string) (*config.ScrapeConfig, error) {
	return nil, errors.New("nothing is scraped")
}

func runtimeInfo(started time.Time, retention string) promapi.RuntimeInfo {
	host, _ := os.Hostname()
	return promapi.RuntimeInfo{
		StartTime: started.UTC(), Hostname: host, ServerTime: time.Now().UTC(), ReloadConfigSuccess: true, LastConfigTime: started.UTC(),
		GoroutineCount: runtime.NumGoroutine(), GOMAXPROCS: runtime.GOMAXPROCS(0), GOMEMLIMIT: debug.SetMemoryLimit(-1),
		StorageRetention: retention,
	}
}

// version is that of the Prometheus whose packages these are: clients go by it
// for what may be asked.
func version() *promapi.PrometheusVersion {
	v := &promapi.PrometheusVersion{GoVersion: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/prometheus/prometheus" {
				v.Version, v.Branch = released(m.Version), "evenkeel"
			}
		}
		v.Revision = info.Main.Version
	}
	return v
}

// released turns a version of the module, v0.316.0, into that of the release,
// 3.16.0.
func released(module string) string {
	parts := strings.Split(strings.TrimPrefix(module, "v0."), ".")
	if len(parts) != 2 || len(parts[0]) != 3 {
		return module
	}
	minor := strings.TrimLeft(parts[0][1:], "0")
	if minor == "" {
		minor = "0"
	}
	return parts[0][:1] + "." + minor + "." + parts[1]
}
