package bench

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

const (
	dialTimeout  = 10 * time.Second
	writeTimeout = 2 * time.Second // a socket that takes nothing for so long is cut
	readBuffer   = 512             // there is little to read, and ten thousand who do
)

// client is one connection to the bus that publishes, answers pings, and
// remembers what it was refused. It speaks the protocol itself: ten thousand
// clients of the library would use more of the machine than what they measure.
type client struct {
	server *server
	user   string

	mu   sync.Mutex // of writes
	conn net.Conn

	ended   atomic.Bool   // the run is over
	stored  atomic.Uint64 // events that a stream has
	refused atomic.Uint64 // -ERR lines
	lastErr atomic.Pointer[string]
}

// server is where the bus is, and how users prove who they are.
type server struct {
	address string
	tls     *tls.Config // nil: only if the server wants it, or tls:// says so
	secret  func(user string) (secret, error)
}

// secret proves a user: a password, or a signing seed with its JWT if there is
// one. The zero secret is for a server without users.
type secret struct {
	password, jwt string
	seed          []byte
}

// newServer takes the first of the URLs.
func newServer(rawURL string, conf *tls.Config, of func(string) (secret, error)) (*server, error) {
	first, _, _ := strings.Cut(rawURL, ",")
	u, err := url.Parse(strings.TrimSpace(first))
	if err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls" {
		return nil, fmt.Errorf("bus %q: want nats://HOST:PORT or tls://HOST:PORT", first)
	}
	port := u.Port()
	if port == "" {
		port = "4222"
	}
	s := &server{address: net.JoinHostPort(u.Hostname(), port), secret: of}
	if conf != nil || u.Scheme == "tls" {
		s.tls = conf.Clone()
		if s.tls == nil {
			s.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if s.tls.ServerName == "" {
			s.tls.ServerName = u.Hostname()
		}
	}
	return s, nil
}

// secretFile is the file in a folder that proves a user, and of which kind it
// is: USER.creds, USER.nk or USER.password.
func secretFile(dir, user string) (file, kind string, err error) {
	for _, kind := range []string{".creds", ".nk", ".password"} {
		file := filepath.Join(dir, user+kind)
		if _, err := os.Stat(file); err == nil {
			return file, kind, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", "", err
		}
	}
	return "", "", fmt.Errorf("%s holds neither %s.creds nor %s.nk nor %s.password", dir, user, user, user)
}

// secretsIn reads what proves a user from a folder.
func secretsIn(dir string) func(user string) (secret, error) {
	return func(user string) (secret, error) {
		file, kind, err := secretFile(dir, user)
		if err != nil {
			return secret{}, err
		}
		data, err := os.ReadFile(file)
		switch {
		case err != nil:
			return secret{}, err
		case kind == ".creds":
			return credentials(user, data)
		case kind == ".nk":
			return secret{seed: bytes.TrimSpace(data)}, nil
		}
		return secret{password: string(bytes.TrimSpace(data))}, nil
	}
}

// identify puts into the options of who listens what proves him, from a folder.
func identify(o *bus.Options, dir string) error {
	file, kind, err := secretFile(dir, o.User)
	if err != nil {
		return err
	}
	switch kind {
	case ".creds":
		o.CredsFile = file
	case ".nk":
		o.NKeySeedFile = file
	default:
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		o.Password = string(bytes.TrimSpace(data))
	}
	return nil
}

func credentials(user string, data []byte) (secret, error) {
	jwt, err := nkeys.ParseDecoratedJWT(data)
	if err != nil {
		return secret{}, fmt.Errorf("credentials of %s: %w", user, err)
	}
	pair, err := nkeys.ParseDecoratedNKey(data)
	if err != nil {
		return secret{}, fmt.Errorf("credentials of %s: %w", user, err)
	}
	seed, err := pair.Seed()
	return secret{jwt: jwt, seed: seed}, err
}

// info is what the server says first.
type info struct {
	TLSRequired bool   `json:"tls_required"`
	Nonce       string `json:"nonce"`
	MaxPayload  int    `json:"max_payload"`
}

// hello is what the client answers.
type hello struct {
	Verbose   bool   `json:"verbose"`
	Pedantic  bool   `json:"pedantic"`
	User      string `json:"user,omitempty"`
	Pass      string `json:"pass,omitempty"`
	JWT       string `json:"jwt,omitempty"`
	NKey      string `json:"nkey,omitempty"`
	Signature string `json:"sig,omitempty"`
	Name      string `json:"name"`
	Lang      string `json:"lang"`
	Version   string `json:"version"`
	Protocol  int    `json:"protocol"`
	Headers   bool   `json:"headers"`
	Echo      bool   `json:"echo"`
}

// dial connects a user and returns when the server has taken it.
func (c *client) dial() error {
	conn, err := net.DialTimeout("tcp", c.server.address, dialTimeout)
	if err != nil {
		return fmt.Errorf("connect %s to the bus: %w", c.user, err)
	}
	_ = conn.SetDeadline(time.Now().Add(dialTimeout))
	conn, err = c.greet(conn)
	if err != nil {
		return fmt.Errorf("connect %s to the bus at %s: %w", c.user, c.server.address, err)
	}
	_ = conn.SetDeadline(time.Time{})
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	return nil
}

func (c *client) greet(conn net.Conn) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		_ = conn.Close()
		return nil, err
	}
	// The answer to CONNECT is a line; nothing may be read beyond it, as the
	// connection is handed on.
	line, err := readLine(conn)
	if err != nil {
		return fail(err)
	}
	text, ok := strings.CutPrefix(line, "INFO ")
	var in info
	if !ok || json.Unmarshal([]byte(text), &in) != nil {
		return fail(fmt.Errorf("it answers %.60q, which is no NATS server", line))
	}
	conf := c.server.tls
	if in.TLSRequired && conf == nil {
		return fail(errors.New("the server wants TLS; give tls:// and --ca"))
	}
	if conf != nil {
		secure := tls.Client(conn, conf)
		if err := secure.Handshake(); err != nil {
			return fail(err)
		}
		conn = secure
	}
	h := hello{Name: c.user, Lang: "go", Version: "evenkeel-bench", Protocol: 1, Headers: true}
	if err := c.prove(&h, in.Nonce); err != nil {
		return fail(err)
	}
	out, err := json.Marshal(h)
	if err != nil {
		return fail(err)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s\r\nSUB %s.stored 1\r\nPING\r\n", out, telemetry.InboxPrefix(c.user)); err != nil {
		return fail(err)
	}
	for {
		line, err := readLine(conn)
		switch {
		case err != nil:
			return fail(err)
		case line == "PONG":
			return conn, nil
		case strings.HasPrefix(line, "-ERR"):
			return fail(fmt.Errorf("refused: %s", strings.TrimPrefix(line, "-ERR ")))
		}
	}
}

func (c *client) prove(h *hello, nonce string) error {
	if c.server.secret == nil {
		return nil
	}
	s, err := c.server.secret(c.user)
	if err != nil {
		return err
	}
	switch {
	case s.password != "":
		h.User, h.Pass = c.user, s.password
	case len(s.seed) > 0:
		pair, err := nkeys.FromSeed(s.seed)
		if err != nil {
			return fmt.Errorf("key of %s: %w", c.user, err)
		}
		sig, err := pair.Sign([]byte(nonce))
		if err != nil {
			return err
		}
		h.Signature = base64.RawURLEncoding.EncodeToString(sig)
		if h.JWT = s.jwt; s.jwt == "" {
			h.NKey, err = pair.PublicKey()
		}
		return err
	}
	return nil
}

// readLine reads a line byte by byte, so that nothing behind it is taken.
func readLine(conn net.Conn) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < 64<<10; {
		if _, err := conn.Read(one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return strings.TrimSuffix(string(line), "\r"), nil
		}
		line = append(line, one[0])
	}
	return "", errors.New("the server's line has no end")
}

// listen answers the server's pings until the connection ends, and returns why.
func (c *client) listen() error {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn == nil {
		return net.ErrClosed
	}
	in := bufio.NewReaderSize(conn, readBuffer)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // a long INFO; its end is a line too
		case err != nil:
			return err
		case bytes.HasPrefix(line, []byte("PING")):
			if err := c.write([]byte("PONG\r\n")); err != nil {
				return err
			}
		case stored(line):
			c.stored.Add(1)
		case bytes.HasPrefix(line, []byte("-ERR")):
			c.refused.Add(1)
			text := strings.TrimSpace(string(line[4:]))
			c.lastErr.Store(&text)
		}
	}
}

// write sends whole protocol lines. One that cannot be sent ends the connection.
func (c *client) write(data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return net.ErrClosed
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.conn.Write(data)
	if err != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
	return err
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}
