package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// Random asks for any free port.
const Random = -1

// Options of a server.
type Options struct {
	// StoreDir holds the streams. One server at a time may use it.
	StoreDir string
	// Host and Port to listen on, loopback unless Host is set. Port 0 opens no
	// listener: only this process can connect.
	Host string
	Port int
	// Users who may connect. None means that whoever can connect may do
	// anything, which is refused together with a listener off loopback.
	Users []bus.User
	// MaxPayload is bus.DefaultMaxPayload unless set.
	MaxPayload int
	// MaxStoreBytes bounds the disk that streams may reserve; three quarters of
	// what is free if it is zero.
	MaxStoreBytes int64
	Log           *slog.Logger
}

// Server is a running server.
type Server struct {
	s    *server.Server
	lock *os.File
	once sync.Once
}

// Start runs a server and returns when clients can connect.
func Start(o Options) (*Server, error) {
	opts, err := o.server()
	if err != nil {
		return nil, err
	}
	if err := portFree(opts); err != nil {
		return nil, err
	}
	lock, err := lockDir(o.StoreDir)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("embedded bus: %w", err)
	}
	log := &logger{log: o.Log, fatal: make(chan string, 1)}
	if log.log == nil {
		log.log = slog.New(slog.DiscardHandler)
	}
	s.SetLoggerV2(log, false, false, false)
	e := &Server{s: s, lock: lock}
	go s.Start()
	if err := e.await(log.fatal); err != nil {
		e.Shutdown()
		return nil, err
	}
	return e, nil
}

func (e *Server) await(fatal <-chan string) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		select {
		case text := <-fatal:
			return fmt.Errorf("embedded bus: %s", text)
		default:
		}
		if e.s.ReadyForConnections(100 * time.Millisecond) {
			return nil
		}
	}
	return errors.New("embedded bus: not ready for connections after 20 s")
}

// InProcessConn makes the server reachable without a socket; see bus.Options.
func (e *Server) InProcessConn() (net.Conn, error) { return e.s.InProcessConn() }

// URL is where other processes connect; empty without a listener.
func (e *Server) URL() string {
	if a, ok := e.s.Addr().(*net.TCPAddr); ok {
		return "nats://" + a.String()
	}
	return ""
}

// Shutdown stops the server and waits until it has stopped.
func (e *Server) Shutdown() {
	e.once.Do(func() {
		e.s.Shutdown()
		e.s.WaitForShutdown()
		_ = e.lock.Close()
	})
}

func (o Options) server() (*server.Options, error) {
	if o.StoreDir == "" {
		return nil, errors.New("embedded bus: no store folder")
	}
	host := o.Host
	if host == "" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); len(o.Users) == 0 && o.Port != 0 && (ip == nil || !ip.IsLoopback()) && host != "localhost" {
		return nil, fmt.Errorf("embedded bus: listening on %s without users would let anybody give orders; name users or listen on loopback", host)
	}
	payload := o.MaxPayload
	if payload == 0 {
		payload = bus.DefaultMaxPayload
	}
	opts := &server.Options{
		ServerName: "evenkeel", Host: host, Port: o.Port, DontListen: o.Port == 0,
		NoSigs: true, MaxPayload: int32(payload), MaxControlLine: 4096,
		JetStream: true, StoreDir: o.StoreDir, SyncAlways: true, SyncInterval: 2 * time.Minute,
		JetStreamMaxStore: o.MaxStoreBytes, NoFastProducerStall: true, WriteDeadline: 10 * time.Second,
	}
	for _, u := range o.Users {
		if err := addUser(opts, u); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

func addUser(opts *server.Options, u bus.User) error {
	rights, err := bus.Permissions(u.Name)
	if err != nil {
		return fmt.Errorf("embedded bus: %w", err)
	}
	p := &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: rights.Publish},
		Subscribe: &server.SubjectPermission{Allow: rights.Subscribe},
	}
	if rights.Answers > 0 {
		p.Response = &server.ResponsePermission{MaxMsgs: 1, Expires: rights.Answers}
	}
	switch {
	case u.Password != "" && u.NKey == "":
		opts.Users = append(opts.Users, &server.User{Username: u.Name, Password: u.Password, Permissions: p})
	case u.NKey != "" && u.Password == "":
		opts.Nkeys = append(opts.Nkeys, &server.NkeyUser{Nkey: u.NKey, Permissions: p})
	default:
		return fmt.Errorf("embedded bus: user %s needs a password or an NKey, and only one of them", u.Name)
	}
	return nil
}

// portFree gives the commonest failure its plain name; the server itself would
// say it in a log line and go on without a listener.
func portFree(opts *server.Options) error {
	if opts.DontListen || opts.Port <= 0 {
		return nil
	}
	at := net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port))
	l, err := net.Listen("tcp", at)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("embedded bus: port %d on %s is taken by another process; stop it or choose another port: %w", opts.Port, opts.Host, err)
		}
		return fmt.Errorf("embedded bus: listen on %s: %w", at, err)
	}
	return l.Close()
}

// logger passes what matters on to slog and keeps the first fatal message: the
// server reports it here and returns no error.
type logger struct {
	log   *slog.Logger
	fatal chan string
}

func (l *logger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *logger) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any)  { l.log.Error(fmt.Sprintf(format, v...)) }
func (l *logger) Debugf(string, ...any)           {}
func (l *logger) Tracef(string, ...any)           {}

func (l *logger) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error(text)
	select {
	case l.fatal <- text:
	default:
	}
}
