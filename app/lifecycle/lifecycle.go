// Package lifecycle runs the parts of a process together and ends them together.
//
// In: parts as functions of a context, listeners with their handlers. Out: the
// first error, with the name of the part. Never: a part that outlives the
// process's context.
//
// To add a part: one Add or Serve in a wiring function of app.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/oklog/run"
)

// Process is a set of parts that live and die together: the first to return
// stops the others.
type Process struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  run.Group
}

// New starts an empty process that ends with ctx.
func New(ctx context.Context) *Process {
	p := &Process{}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.group.Add(func() error { <-p.ctx.Done(); return nil }, func(error) { p.cancel() })
	return p
}

// Add runs a part until the process ends. Its error names it.
func (p *Process) Add(name string, fn func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(p.ctx)
	p.group.Add(func() error {
		if err := fn(ctx); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}, func(error) { cancel() })
}

// writeTimeout is how long an answer may take to be read.
const writeTimeout = 30 * time.Second

// Serve adds an HTTP server on a listener that is already bound.
func (p *Process) Serve(name string, ln net.Listener, h http.Handler) {
	p.ServeWeb(name, ln, h, Web{})
}

func server(requests context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		// A client that does not read must not hold what serves it. A stream
		// moves its own deadline on.
		WriteTimeout: writeTimeout,
		BaseContext:  func(net.Listener) context.Context { return requests },
	}
}

func shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close()
	}
}

// Run waits for the first part to end, stops the others, and returns its error.
func (p *Process) Run() error { return p.group.Run() }

// Listen binds an address and, if it is taken, says which and what to do.
func Listen(what, addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is taken by another process; stop it or choose another address, by --listen or `listen` in the file", what, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return ln, nil
}
