package app

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

// process is a set of parts that live and die together: the first to return
// stops the others.
type process struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  run.Group
}

func newProcess(ctx context.Context) *process {
	p := &process{}
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.group.Add(func() error { <-p.ctx.Done(); return nil }, func(error) { p.cancel() })
	return p
}

// add runs a part until the process ends. Its error names it.
func (p *process) add(name string, fn func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(p.ctx)
	p.group.Add(func() error {
		if err := fn(ctx); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}, func(error) { cancel() })
}

// serve adds an HTTP server on a listener that is already bound.
func (p *process) serve(name string, ln net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	p.group.Add(func() error {
		if err := srv.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}, func(error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close() // an open event stream does not end by itself
		}
	})
}

func (p *process) run() error { return p.group.Run() }

// Listen binds an address and, if it is taken, says which and what to do.
func Listen(what, addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is taken by another process; stop it or choose another address with --listen", what, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return ln, nil
}
