package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

const (
	// requestWithin bounds a request whose context has no deadline.
	requestWithin = 10 * time.Second
	// handlersAtOnce bounds what one node or leader works on at a time; more
	// waits in the client.
	handlersAtOnce = 64
	errorHeader    = "Evenkeel-Error"
)

// RequestOrder hands a signed order to the node's agent and returns its
// answer, an encoded receipt. telemetry.ErrNoAgent means that no agent listens.
// The caller repeats until it has a receipt or the order has expired: the
// agent does it once.
func (c *Conn) RequestOrder(ctx context.Context, node string, data []byte) ([]byte, error) {
	m, err := c.request(ctx, telemetry.OrderSubject(node), data, telemetry.ErrNoAgent)
	if err != nil {
		return nil, fmt.Errorf("order to %s: %w", node, err)
	}
	return m.Data, nil
}

// Control asks the leader. telemetry.ErrNoLeader means that there is none,
// telemetry.ErrRefused that it said no.
func (c *Conn) Control(ctx context.Context, verb string, body []byte) ([]byte, error) {
	m, err := c.request(ctx, telemetry.ControlSubject(verb), body, telemetry.ErrNoLeader)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	if text, bad := m.Header[errorHeader]; bad {
		return nil, fmt.Errorf("%s: %w: %s", verb, telemetry.ErrRefused, strings.Join(text, " "))
	}
	return m.Data, nil
}

func (c *Conn) request(ctx context.Context, subject string, data []byte, absent error) (*nats.Msg, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestWithin)
		defer cancel()
	}
	m, err := c.nc.RequestWithContext(ctx, subject, data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, absent
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		return nil, ErrNotConnected
	}
	return m, err
}

// HandleOrders calls fn with every order for the node and sends back what it
// returns. fn is called for several orders at a time; an empty answer is not
// sent. stop waits for those under way.
func (c *Conn) HandleOrders(node string, fn func(data []byte) []byte) (stop func(), err error) {
	return c.serve(telemetry.OrderSubject(node), func(m *nats.Msg) {
		if answer := fn(m.Data); len(answer) > 0 {
			c.respond(m, &nats.Msg{Data: answer})
		}
	})
}

// ServeControl answers the verbs that are asked of the leader. Only the leader
// serves. fn is called for several requests at a time; its error goes back as
// text. stop waits for those under way.
func (c *Conn) ServeControl(fn func(ctx context.Context, verb string, body []byte) ([]byte, error)) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	prefix := telemetry.ControlSubject("")
	unserve, err := c.serve(telemetry.ControlSubject("*"), func(m *nats.Msg) {
		answer, err := fn(ctx, strings.TrimPrefix(m.Subject, prefix), m.Data)
		reply := &nats.Msg{Data: answer}
		if err != nil {
			text := strings.Join(strings.Fields(err.Error()), " ") // a header is one line
			reply = &nats.Msg{Header: nats.Header{errorHeader: []string{text}}}
		}
		c.respond(m, reply)
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return func() { cancel(); unserve() }, nil
}

func (c *Conn) respond(m, reply *nats.Msg) {
	if m.Reply == "" {
		return
	}
	if err := m.RespondMsg(reply); err != nil {
		c.publishErrors.Add(1)
		c.log.Warn("answer not sent", "subject", m.Subject, "err", err)
	}
}

func (c *Conn) serve(subject string, fn func(m *nats.Msg)) (func(), error) {
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		stopped bool
		slots   = make(chan struct{}, handlersAtOnce)
	)
	unsubscribe, err := c.subscribe(subject, 4096, 64<<20, func(m *nats.Msg) {
		slots <- struct{}{}
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			<-slots
			return
		}
		running.Go(func() {
			defer func() { <-slots }()
			fn(m)
		})
	})
	if err != nil {
		return nil, err
	}
	return func() {
		unsubscribe()
		if c.nc.IsConnected() {
			_ = c.nc.FlushTimeout(time.Second) // so that whoever asks next learns at once that nobody is here
		}
		mu.Lock()
		stopped = true
		mu.Unlock()
		running.Wait()
	}, nil
}
