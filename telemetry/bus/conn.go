package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// ErrNotConnected is returned at once by whatever cannot be sent now.
var ErrNotConnected = errors.New("no connection to the bus")

// InProcess is a server in the same process, which is reached without a socket.
type InProcess interface {
	InProcessConn() (net.Conn, error)
}

// Options say where the bus is and who connects.
type Options struct {
	// URLs of the servers, such as nats://127.0.0.1:4222. Not used with InProcess.
	URLs []string
	// InProcess is the server in this process, if there is one.
	InProcess InProcess
	// User is who connects: x.<node>, a.<node>, collector, rebalancer, reader.
	// It also names the inbox, so it is needed with a key or credentials too.
	// Empty is for a server without users.
	User string
	// One of these proves the user.
	Password     string
	NKeySeedFile string
	CredsFile    string
	// TLS as a whole, or as files that are read again on each reconnect.
	TLS               *tls.Config
	CAFile            string
	CertFile, KeyFile string
	// ReconnectWait and ReconnectJitter spread a fleet that comes back; 2 s and
	// 10 s unless set.
	ReconnectWait, ReconnectJitter time.Duration
	// OutboxLimit bounds the events and receipts that wait for the server; 1024
	// unless set.
	OutboxLimit int
	Log         *slog.Logger
}

// Conn is one connection in one role. It is safe for concurrent use.
type Conn struct {
	nc *nats.Conn
	js jetstream.JetStream
	// ahead is js for what is sent without waiting; it bounds the wait for an
	// answer that does not come.
	ahead jetstream.JetStream
	log   *slog.Logger
	out   *outbox

	publishErrors atomic.Uint64
	malformed     atomic.Uint64
	async         [len(errorKinds)]atomic.Uint64

	mu         sync.Mutex
	subs       map[*nats.Subscription]struct{}
	goneDrops  uint64               // drops of subscriptions that have ended
	connected  chan struct{}        // closed when the connection first stands
	again      chan struct{}        // closed and made anew each time it stands again
	lastAsync  map[string]time.Time // when an error out of band was logged, by subject and text
	lastReason string               // of the connection errors logged, so that each is said once
	few        map[string]bool      // streams on too few servers, of which that was said
}

// Connect begins a connection and returns without waiting for the server: it
// is tried again for as long as it takes. Ready waits for it.
func Connect(o Options) (*Conn, error) {
	c := &Conn{log: o.Log, subs: map[*nats.Subscription]struct{}{}, lastAsync: map[string]time.Time{}, connected: make(chan struct{}), again: make(chan struct{}), few: map[string]bool{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	opts, err := c.natsOptions(o)
	if err != nil {
		return nil, err
	}
	if c.nc, err = nats.Connect(strings.Join(o.URLs, ","), opts...); err != nil {
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	if c.js, err = jetstream.New(c.nc); err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	if c.ahead, err = jetstream.New(c.nc, jetstream.WithPublishAsyncTimeout(2*time.Second)); err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	limit := o.OutboxLimit
	if limit <= 0 {
		limit = 1024
	}
	c.out = newOutbox(c, limit)
	return c, nil
}

func (c *Conn) natsOptions(o Options) ([]nats.Option, error) {
	wait, jitter := o.ReconnectWait, o.ReconnectJitter
	if wait <= 0 {
		wait = 2 * time.Second
	}
	if jitter <= 0 {
		jitter = 10 * time.Second
	}
	opts := []nats.Option{
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a key may be turned in the middle of a day
		nats.ReconnectWait(wait),
		nats.ReconnectJitter(jitter, jitter),
		nats.ReconnectBufSize(-1), // an old frame is worthless
		nats.PingInterval(15 * time.Second),
		nats.FlusherTimeout(5 * time.Second),
		nats.ErrorHandler(c.onAsyncError),
		nats.ConnectHandler(c.onConnected),
		nats.ReconnectHandler(c.onConnected),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) { c.onConnectionError(nc, "bus connection lost", err) }),
		nats.ReconnectErrHandler(func(nc *nats.Conn, err error) { c.onConnectionError(nc, "bus not reached", err) }),
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	} else if len(o.URLs) == 0 {
		return nil, errors.New("bus: no server URL; want at least one, such as nats://127.0.0.1:4222")
	}
	if o.User != "" {
		opts = append(opts, nats.Name(o.User), nats.CustomInboxPrefix(telemetry.InboxPrefix(o.User)))
	}
	return appendIdentity(opts, o)
}

func appendIdentity(opts []nats.Option, o Options) ([]nats.Option, error) {
	switch {
	case o.CredsFile != "":
		opts = append(opts, nats.UserCredentials(o.CredsFile))
	case o.NKeySeedFile != "":
		opt, err := nats.NkeyOptionFromSeed(o.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("bus key %s: %w; want a file with an NKey user seed (SU…)", o.NKeySeedFile, err)
		}
		opts = append(opts, opt)
	case o.Password != "":
		if o.User == "" {
			return nil, errors.New("bus: a password without a user")
		}
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	if o.TLS != nil {
		opts = append(opts, nats.Secure(o.TLS))
	}
	if o.CAFile != "" {
		opts = append(opts, nats.RootCAs(o.CAFile))
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("bus: a TLS certificate needs its key, and a key its certificate")
	}
	if o.CertFile != "" {
		opts = append(opts, nats.ClientCert(o.CertFile, o.KeyFile))
	}
	return opts, nil
}

// Ready waits until the connection stands.
func (c *Conn) Ready(ctx context.Context) error {
	select {
	case <-c.connected:
		return nil
	case <-ctx.Done():
		reason := "no answer"
		c.mu.Lock()
		if c.lastReason != "" {
			reason = c.lastReason
		}
		c.mu.Unlock()
		return fmt.Errorf("%w (%s): %w", ErrNotConnected, reason, ctx.Err())
	}
}

// Connected says whether the connection stands now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Flush waits until the server has taken what was published and stored what
// was in the outbox.
func (c *Conn) Flush(ctx context.Context) error {
	if err := c.out.flush(ctx); err != nil {
		return err
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flush the bus: %w", err)
	}
	return nil
}

// Close ends the connection and everything that runs on it. What the outbox
// still holds is lost; call Flush first.
func (c *Conn) Close() {
	c.out.close()
	c.nc.Close()
}

func (c *Conn) onConnected(nc *nats.Conn) {
	c.mu.Lock()
	c.lastReason = ""
	select {
	case <-c.connected:
	default:
		close(c.connected)
	}
	close(c.again)
	c.again = make(chan struct{})
	c.mu.Unlock()
	c.log.Info("bus connected", "server", nc.ConnectedUrlRedacted())
}

// reconnection is closed when the connection next stands again.
func (c *Conn) reconnection() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.again
}

// onConnectionError logs each reason once until the connection stands again:
// an hour without a bus is not worth a thousand lines.
func (c *Conn) onConnectionError(nc *nats.Conn, what string, err error) {
	if err == nil || nc.IsClosed() {
		return
	}
	c.mu.Lock()
	again := c.lastReason == err.Error()
	c.lastReason = err.Error()
	c.mu.Unlock()
	if !again {
		c.log.Warn(what, "err", err)
	}
}

// publish sends at most once.
func (c *Conn) publish(subject string, data []byte) error {
	if err := c.nc.Publish(subject, data); err != nil {
		c.publishErrors.Add(1)
		if errors.Is(err, nats.ErrReconnectBufExceeded) {
			return ErrNotConnected
		}
		return fmt.Errorf("publish %s: %w", subject, err)
	}
	return nil
}

// subscribe registers fn, which must only enqueue.
func (c *Conn) subscribe(subject string, messages, bytes int, fn nats.MsgHandler) (func(), error) {
	sub, err := c.nc.Subscribe(subject, fn)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	if err := sub.SetPendingLimits(messages, bytes); err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	c.mu.Lock()
	c.subs[sub] = struct{}{}
	c.mu.Unlock()
	return sync.OnceFunc(func() {
		dropped, _ := sub.Dropped()
		c.mu.Lock()
		delete(c.subs, sub)
		c.goneDrops += uint64(max(dropped, 0))
		c.mu.Unlock()
		_ = sub.Unsubscribe() // fails only when the connection has ended, and the subscription with it
	}), nil
}
