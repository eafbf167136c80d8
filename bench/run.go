package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

const (
	dialers    = 32               // at a time
	maxSenders = 4                // goroutines that send
	settle     = 30 * time.Second // at most, for the last observations
	quiet      = time.Second      // without any, after which no more are waited for
	retryDial  = 2 * time.Second
)

// run is one run of the generator.
type run struct {
	o       *Options
	log     *slog.Logger
	server  *server
	nodes   []*node
	clients []*client
	ear     *ear
	slip    histogram
	lost    atomic.Uint64 // connections that ended
}

// Run sends and listens until the duration is over or ctx ends, and reports.
// It fails where there is nothing to report; a failed expectation is in the
// report.
func Run(ctx context.Context, o Options, log *slog.Logger) (*Report, error) {
	if err := errors.Join(o.Check(), o.checkPlaces()); err != nil {
		return nil, err
	}
	if err := checkFiles(o.connections()); err != nil {
		return nil, err
	}
	r := &run{o: &o, log: log, ear: newEar(&o, time.Now())}
	w, err := newWorld(ctx, &o)
	if err != nil {
		return nil, err
	}
	conn, stop, err := r.listen(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer stop()
	r.fleet(w)
	defer r.hangUp()
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	return r.measure(ctx, w)
}

// listen opens the connection of who reads observations.
func (r *run) listen(ctx context.Context) (*bus.Conn, func(), error) {
	var secrets func(string) (secret, error)
	o := r.o.Bus
	switch {
	case r.o.Credentials != "":
		secrets = secretsIn(r.o.Credentials)
		if err := identify(&o, r.o.Credentials); err != nil {
			return nil, nil, fmt.Errorf("who listens: %w", err)
		}
	case r.o.Password != "":
		secrets = func(string) (secret, error) { return secret{password: r.o.Password}, nil }
	}
	var err error
	if r.server, err = newServer(o.URLs[0], o.TLS, secrets); err != nil {
		return nil, nil, err
	}
	conn, err := bus.Connect(o)
	if err != nil {
		return nil, nil, err
	}
	ready, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := conn.Ready(ready); err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("%s: %w", o.URLs[0], err)
	}
	stop, err := conn.Observations(r.ear.observation)
	if err == nil {
		err = conn.Flush(ready)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, stop, nil
}

// fleet makes the nodes and their clients.
func (r *run) fleet(w *world) {
	lies := rand.New(rand.NewPCG(r.o.Seed, 2))
	clean, _ := r.o.ticks()
	n := r.o.connections()
	for i := range r.o.Nodes {
		num := number(i)
		x := &node{
			index: i, number: num, name: r.o.Prefix + num, template: i % len(w.nodes), turn: i,
			// A fleet does not start in one second: half of the warm-up is for it.
			first: i % max(1, clean/2),
			phase: phaseOf(r.o.Prefix+num, r.o.Period),
		}
		x.put = []byte("PUB " + telemetry.PartitionSubject(telemetry.FamilyFrame, x.name) + " ")
		if lies.Float64() < r.o.Faults[FaultLieTime] {
			x.ahead = lieTimeAhead * time.Millisecond
		}
		if i < n {
			r.clients = append(r.clients, &client{server: r.server, user: telemetry.ExporterUser(x.name)})
		}
		x.client = r.clients[i%n]
		if r.o.Devices != nil {
			x.devices = r.o.Devices(i)
		}
		r.nodes = append(r.nodes, x)
	}
}

// connect opens every connection before the first frame.
func (r *run) connect(ctx context.Context) error {
	jobs := make(chan *client)
	errs := make(chan error, dialers)
	var wg sync.WaitGroup
	for range min(dialers, len(r.clients)) {
		wg.Go(func() {
			for c := range jobs {
				if err := c.dial(); err != nil {
					errs <- err
					return
				}
				go r.keep(ctx, c)
			}
		})
	}
	var err error
	for _, c := range r.clients {
		select {
		case jobs <- c:
		case err = <-errs:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			break
		}
	}
	close(jobs)
	wg.Wait()
	select {
	case e := <-errs:
		err = errors.Join(err, e)
	default:
	}
	return err
}

// keep listens on a connection, and opens it again for as long as the run goes.
func (r *run) keep(ctx context.Context, c *client) {
	for {
		err := c.listen()
		if c.ended.Load() || ctx.Err() != nil {
			return
		}
		r.lost.Add(1)
		r.log.Warn("connection lost", "user", c.user, "err", err)
		for c.close(); ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryDial + time.Duration(rand.Int64N(int64(retryDial)))):
			}
			if c.ended.Load() {
				return
			}
			if err := c.dial(); err == nil {
				break
			}
		}
	}
}

func (r *run) hangUp() {
	for _, c := range r.clients {
		c.ended.Store(true)
		c.close()
	}
}

// measure is the run proper.
func (r *run) measure(ctx context.Context, w *world) (*Report, error) {
	m := &meter{o: r.o, log: r.log}
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := time.Now().Truncate(r.o.Period).Add(2 * r.o.Period)
	for _, n := range r.nodes {
		n.restart(start.Add(-time.Duration(n.index) * time.Millisecond))
	}
	clean, total := r.o.ticks()
	t := newTicks()
	go t.make(ctx, w, start, total)
	senders := r.senders(t, clean, total)
	var wg sync.WaitGroup
	errs := make([]error, len(senders))
	for i, s := range senders {
		wg.Go(func() {
			if errs[i] = s.run(ctx, start); errs[i] != nil {
				cancel()
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	m.window(start.Add(time.Duration(clean)*r.o.Period), &r.ear.measuring, done)
	interrupted := ctx.Err() != nil
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.settle()
	return r.report(m, senders, interrupted), nil
}

// senders divides the nodes, each share in the order of its phases.
func (r *run) senders(t *ticks, clean, total int) []*sender {
	out := make([]*sender, min(maxSenders, len(r.nodes)))
	for i := range out {
		out[i] = &sender{
			o: r.o, ear: r.ear, ticks: t, rng: rand.New(rand.NewPCG(r.o.Seed, 100+uint64(i))), clean: clean, total: total,
			made: newInjected(), slip: &r.slip,
		}
	}
	for i, n := range r.nodes {
		s := out[i%len(out)]
		s.nodes = append(s.nodes, n)
	}
	for _, s := range out {
		slices.SortFunc(s.nodes, func(a, b *node) int { return int(a.phase - b.phase) })
	}
	return out
}

// settle waits for the last observations for as long as some come.
func (r *run) settle() {
	heard, since := r.ear.heard.Load(), time.Now()
	for end := since.Add(settle); time.Now().Before(end) && time.Since(since) < quiet && r.ear.waiting() > 0; {
		time.Sleep(50 * time.Millisecond)
		if n := r.ear.heard.Load(); n != heard {
			heard, since = n, time.Now()
		}
	}
	r.ear.end()
}
