package bus

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// DefaultMaxPayload leaves room for the inventory of a large cluster.
const DefaultMaxPayload = 8 << 20

// ServerOptions describe a server outside this process.
type ServerOptions struct {
	Name     string
	Host     string // loopback unless set
	Port     int    // 4222 unless set
	StoreDir string
	// MaxStoreBytes bounds the disk that streams may reserve; it must hold the
	// bounds of all streams. The server decides if it is zero.
	MaxStoreBytes int64
	MaxPayload    int
	// CertFile and KeyFile switch TLS on; CAFile makes client certificates
	// compulsory.
	CertFile, KeyFile, CAFile string
	Users                     []User
	// Cluster makes it one of several servers; Name must differ between them.
	Cluster *ClusterOptions
}

// ClusterOptions describe a server's place among others.
type ClusterOptions struct {
	Name     string
	Host     string // loopback unless set
	Port     int    // 6222 unless set
	Routes   []string
	User     string
	Password string
}

// ServerConfig renders the configuration file of a nats-server with our users
// and the settings that the bus relies on: each acknowledged write is on disk,
// and a slow reader is cut rather than allowed to slow the writers down.
func ServerConfig(o ServerOptions) (string, error) {
	if o.StoreDir == "" {
		return "", errors.New("server config: no store folder")
	}
	if len(o.Users) == 0 {
		return "", errors.New("server config: no users; anybody could give orders")
	}
	host, port, payload := o.Host, o.Port, o.MaxPayload
	if host == "" {
		host = "127.0.0.1"
	}
	if port == 0 {
		port = 4222
	}
	if payload == 0 {
		payload = DefaultMaxPayload
	}
	w := &confWriter{}
	if o.Name != "" {
		w.line("server_name: %s", w.quote(o.Name))
	}
	w.line("listen: %s", w.quote(net.JoinHostPort(host, strconv.Itoa(port))))
	w.line("max_payload: %d", payload)
	w.line("no_fast_producer_stall: true")
	w.line("write_deadline: \"10s\"")
	w.open("jetstream")
	w.line("store_dir: %s", w.quote(o.StoreDir))
	w.line("sync_interval: always")
	if o.MaxStoreBytes > 0 {
		w.line("max_file_store: %d", o.MaxStoreBytes)
	}
	w.close()
	if o.Cluster != nil {
		w.cluster(o)
	}
	w.tls(o)
	w.open("authorization")
	w.line("users: [")
	for _, u := range o.Users {
		w.user(u)
	}
	w.line("]")
	w.close()
	return w.b.String(), w.err
}

type confWriter struct {
	b     strings.Builder
	depth int
	err   error
}

func (w *confWriter) line(format string, args ...any) {
	w.b.WriteString(strings.Repeat("  ", w.depth))
	fmt.Fprintf(&w.b, format, args...)
	w.b.WriteByte('\n')
}

func (w *confWriter) open(name string) { w.line("%s {", name); w.depth++ }
func (w *confWriter) close()           { w.depth--; w.line("}") }

// quote refuses what the server's own syntax would read as something else.
func (w *confWriter) quote(s string) string {
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' || r == 0x7f {
			w.fail(fmt.Errorf("server config: %q holds a quote, a backslash or a control character", s))
			return `""`
		}
	}
	return `"` + s + `"`
}

func (w *confWriter) fail(err error) { w.err = errors.Join(w.err, err) }

// cluster refuses what would let anybody become a server of the cluster, which
// may say anything in anybody's name.
func (w *confWriter) cluster(o ServerOptions) {
	c, host, port := *o.Cluster, o.Cluster.Host, o.Cluster.Port
	switch {
	case o.Name == "":
		w.fail(errors.New("server config: a server of a cluster needs a name of its own"))
	case c.Name == "" || len(c.Routes) == 0:
		w.fail(errors.New("server config: a cluster needs a name and routes to its servers"))
	case c.User == "" || c.Password == "":
		w.fail(errors.New("server config: a cluster needs a user and a password for its routes"))
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if port == 0 {
		port = 6222
	}
	w.open("cluster")
	w.line("name: %s", w.quote(c.Name))
	w.line("listen: %s", w.quote(net.JoinHostPort(host, strconv.Itoa(port))))
	w.line("authorization { user: %s, password: %s, timeout: 5 }", w.quote(c.User), w.quote(c.Password))
	w.line("routes: [")
	for _, r := range c.Routes {
		w.line("  %s", w.quote((&url.URL{Scheme: "nats", User: url.UserPassword(c.User, c.Password), Host: r}).String()))
	}
	w.line("]")
	w.close()
}

func (w *confWriter) tls(o ServerOptions) {
	if o.CertFile == "" {
		if o.CAFile != "" || o.KeyFile != "" {
			w.fail(errors.New("server config: TLS needs a certificate"))
		}
		return
	}
	w.open("tls")
	w.line("cert_file: %s", w.quote(o.CertFile))
	w.line("key_file: %s", w.quote(o.KeyFile))
	w.line("min_version: \"1.3\"")
	w.line("timeout: 10") // a fleet that comes back shakes hands all at once
	if o.CAFile != "" {
		w.line("ca_file: %s", w.quote(o.CAFile))
		w.line("verify: true")
	}
	w.close()
}

func (w *confWriter) user(u User) {
	rights, err := Permissions(u.Name)
	if err != nil {
		w.fail(err)
		return
	}
	if (u.Password == "") == (u.NKey == "") {
		w.fail(fmt.Errorf("server config: user %s needs a password or an NKey, and only one of them", u.Name))
		return
	}
	if u.NKey != "" {
		if _, err := telemetry.NewTrust(u.NKey); err != nil {
			w.fail(fmt.Errorf("server config: user %s: %w", u.Name, err))
		}
		w.line("  # %s", u.Name)
		w.line("  { nkey: %s", w.quote(u.NKey))
	} else {
		w.line("  { user: %s, password: %s", w.quote(u.Name), w.quote(u.Password))
	}
	w.line("    permissions: {")
	w.line("      publish: { allow: [%s] }", w.list(rights.Publish))
	w.line("      subscribe: { allow: [%s] }", w.list(rights.Subscribe))
	if rights.Answers > 0 {
		w.line("      allow_responses: { max: 1, expires: \"%s\" }", rights.Answers)
	}
	w.line("    } }")
}

func (w *confWriter) list(subjects []string) string {
	quoted := make([]string, len(subjects))
	for i, s := range subjects {
		quoted[i] = w.quote(s)
	}
	return strings.Join(quoted, ", ")
}
