package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
)

// Web is the web configuration file of the Prometheus exporter-toolkit: TLS and
// users of everything that a process serves over HTTP. It is read again for each
// connection, so certificates and users can change without a restart. The zero
// value is plain HTTP for everybody.
type Web struct {
	file   string
	scheme string
	log    *slog.Logger
}

// OpenWeb checks a web configuration file; no name is no file.
func OpenWeb(file string, log *slog.Logger) (Web, error) {
	w := Web{file: file, scheme: "http", log: log}
	if file == "" {
		return w, nil
	}
	if err := web.Validate(file); err != nil {
		return Web{}, fmt.Errorf("web_config_file %s: %w", file, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Web{}, fmt.Errorf("web_config_file: %w", err)
	}
	var has struct {
		TLS *yaml.Node `yaml:"tls_server_config"`
	}
	if err := yaml.Unmarshal(data, &has); err != nil {
		return Web{}, fmt.Errorf("web_config_file %s: %w", file, err)
	}
	if has.TLS != nil {
		w.scheme = "https"
	}
	return w, nil
}

// Scheme is http or https.
func (w Web) Scheme() string {
	if w.scheme == "" {
		return "http"
	}
	return w.scheme
}

// URL is where a listener is reached.
func (w Web) URL(ln net.Listener) string { return w.Scheme() + "://" + ln.Addr().String() }

func (w Web) serve(ln net.Listener, srv *http.Server) error {
	if w.file == "" {
		return srv.Serve(ln)
	}
	srv.ErrorLog = slog.NewLogLogger(w.log.Handler(), slog.LevelDebug) // whoever knocks without TLS
	return web.Serve(ln, srv, &web.FlagConfig{WebConfigFile: &w.file}, slog.New(quiet{w.log.Handler()}))
}

// quiet leaves out what the toolkit says at each start, which is said already.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

// ServeWeb is Serve with TLS and users.
func (p *Process) ServeWeb(name string, ln net.Listener, h http.Handler, w Web) {
	requests, end := context.WithCancel(context.WithoutCancel(p.ctx))
	srv := server(requests, h)
	p.group.Add(func() error {
		if err := w.serve(ln, srv); err != nil && !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}, func(error) {
		end() // an open event stream does not end by itself
		shutdown(srv)
	})
}
