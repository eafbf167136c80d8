package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// Duration is a time with its unit, as Go or as Prometheus writes it ("1.5s",
// "10m", "15d").
type Duration time.Duration

// UnmarshalYAML reads a duration; a bare number is an error with its line.
func (d *Duration) UnmarshalYAML(value *yaml.Node) error {
	v, err := time.ParseDuration(value.Value)
	if err != nil {
		var days model.Duration
		days, err = model.ParseDuration(value.Value)
		v = time.Duration(days)
	}
	if err != nil {
		return fmt.Errorf("line %d: duration %q: want a number with a unit, such as 30s, 10m or 15d", value.Line, value.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the duration with its unit.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Secret names where a secret is; its value is never part of the configuration.
type Secret struct {
	File string `yaml:"file,omitempty"`
	Env  string `yaml:"env,omitempty"`
}

// Set says whether a secret is named.
func (s Secret) Set() bool { return s.File != "" || s.Env != "" }

// Read fetches the secret.
func (s Secret) Read() (string, error) {
	switch {
	case s.File != "" && s.Env != "":
		return "", fmt.Errorf("secret names both file %s and environment variable %s; keep one", s.File, s.Env)
	case s.File != "":
		data, err := os.ReadFile(s.File)
		if err != nil {
			return "", fmt.Errorf("secret: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	case s.Env != "":
		v, ok := os.LookupEnv(s.Env)
		if !ok {
			return "", fmt.Errorf("secret: environment variable %s is not set", s.Env)
		}
		return v, nil
	}
	return "", nil
}

// NATS is the connection to the bus.
type NATS struct {
	// URL is nats://host:4222 or tls://…, several separated by commas.
	URL string `yaml:"url"`
	// Replicas is on how many servers the streams are kept that this process
	// makes: 3 with a cluster of three.
	Replicas int    `yaml:"replicas,omitempty"`
	User     string `yaml:"user,omitempty"`
	Password Secret `yaml:"password,omitempty"`
	// NKeyFile is an NKey seed, CredsFile a JWT with its seed.
	NKeyFile  string `yaml:"nkey_file,omitempty"`
	CredsFile string `yaml:"creds_file,omitempty"`
	CAFile    string `yaml:"ca_file,omitempty"`
	CertFile  string `yaml:"cert_file,omitempty"`
	KeyFile   string `yaml:"key_file,omitempty"`
}

func (n NATS) validate(required bool) error {
	ways := 0
	for _, set := range []bool{n.User != "", n.NKeyFile != "", n.CredsFile != ""} {
		if set {
			ways++
		}
	}
	for u := range strings.SplitSeq(n.URL, ",") {
		scheme, _, ok := strings.Cut(strings.TrimSpace(u), "://")
		if ok && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			return fmt.Errorf("nats.url %q: %s is no scheme of the bus; want nats:// or tls://", strings.TrimSpace(u), scheme)
		}
	}
	switch {
	case !slices.Contains([]int{0, 1, 3, 5}, n.Replicas):
		return fmt.Errorf("nats.replicas is %d, want 1, 3 or 5", n.Replicas)
	case required && n.URL == "":
		return errors.New("nats.url is empty; name the bus, such as nats://127.0.0.1:4222")
	case ways > 1:
		return errors.New("nats: user, nkey_file and creds_file exclude each other; keep one")
	case n.Password.Set() && n.User == "":
		return errors.New("nats: password without user")
	case (n.CertFile == "") != (n.KeyFile == ""):
		return errors.New("nats: cert_file and key_file go together")
	}
	return nil
}

// Exporter is the file of `evenkeel-node export`.
type Exporter struct {
	Head `yaml:",inline"`
	// Node is this node's name on the bus; the host name by default.
	Node    string `yaml:"node"`
	Cluster string `yaml:"cluster"`
	Listen  string `yaml:"listen"`
	// WebConfig is a web configuration file of the Prometheus exporter-toolkit.
	WebConfig string `yaml:"web_config_file,omitempty"`
	// Tick is how often the fast values are read: 100ms to 10s.
	Tick Duration `yaml:"tick"`
	// Library is libnvidia-ml.so.1 at another place than the loader's.
	Library string `yaml:"library,omitempty"`
	// AgentFile is where this node's agent keeps its rules of whose processes may
	// be acted on; without the file they are nobody's.
	AgentFile   string      `yaml:"agent_file"`
	Attribution Attribution `yaml:"attribution,omitempty"`
	Host        Host        `yaml:"host,omitempty"`
	Spool       Spool       `yaml:"spool,omitempty"`
	// MetricsCompat is empty, or dcgm for the families of dcgm-exporter's default
	// counter file beside ours.
	MetricsCompat string `yaml:"metrics_compat,omitempty"`
	// NATS may be left out: /metrics works without a bus.
	NATS NATS `yaml:"nats,omitempty"`
}

// DefaultExporter is the exporter without a file.
func DefaultExporter() *Exporter {
	return &Exporter{Node: hostname(), Cluster: "default", Listen: "127.0.0.1:9836", Tick: Duration(time.Second), AgentFile: "/etc/evenkeel/agent.yaml", Attribution: DefaultAttribution(), Host: DefaultHost(), Spool: DefaultSpool()}
}

// Validate implements File.
func (c *Exporter) Validate() error {
	var compat error
	if c.MetricsCompat != "" && c.MetricsCompat != "dcgm" {
		compat = fmt.Errorf("metrics_compat is %q, want dcgm or nothing", c.MetricsCompat)
	}
	return errors.Join(compat, named(c.Node, c.Cluster), listen(c.Listen), c.NATS.validate(false), c.Attribution.validate(), c.Host.validate(), c.Spool.validate(),
		between("tick", c.Tick, 100*time.Millisecond, 10*time.Second))
}

// Rebalancer is the file of `evenkeel rebalancer`.
type Rebalancer struct {
	Head    `yaml:",inline"`
	Cluster string `yaml:"cluster"`
	// Name tells this instance from others that wait for the lease.
	Name   string `yaml:"name"`
	Listen string `yaml:"listen"`
	NATS   NATS   `yaml:"nats"`
	// WebConfig is a web configuration file of the Prometheus exporter-toolkit.
	WebConfig string `yaml:"web_config_file,omitempty"`
	// SigningKey is an NKey seed file; it is made, readable by its owner only,
	// if it does not exist.
	SigningKey string `yaml:"signing_key"`
	// Mode is how far policies may go that do not say so themselves.
	Mode string `yaml:"mode"`
	// Policies are files that replace the embedded policy of the same type.
	Policies []string `yaml:"policies,omitempty"`
}

// DefaultRebalancer is what the rebalancer's file starts from: it recommends.
func DefaultRebalancer() *Rebalancer {
	return &Rebalancer{Cluster: "default", Name: hostname(), Listen: "127.0.0.1:9838", SigningKey: "/var/lib/evenkeel/rebalancer.nk", Mode: "recommend"}
}

// Validate implements File.
func (c *Rebalancer) Validate() error {
	errs := []error{named(c.Name, c.Cluster), listen(c.Listen), c.NATS.validate(true)}
	switch c.Mode {
	case "observe", "recommend", "approve", "enforce":
	default:
		errs = append(errs, fmt.Errorf("mode is %q, want observe, recommend, approve or enforce", c.Mode))
	}
	if c.SigningKey == "" {
		errs = append(errs, errors.New("signing_key is empty; name a file"))
	}
	return errors.Join(errs...)
}

// Check decodes a file of whatever kind it says it is.
func Check(name string, data []byte) (kind string, f File, err error) {
	head, err := HeadOf(name, data)
	if err != nil {
		return "", nil, err
	}
	files := map[string]File{"Exporter": DefaultExporter(), "Agent": DefaultAgent(), "Collector": DefaultCollector(), "Rebalancer": DefaultRebalancer(), "Inventory": new(Inventory)}
	f, ok := files[head.Kind]
	if !ok {
		return "", nil, fmt.Errorf("%s: kind is %q, want Exporter, Agent, Collector, Rebalancer or Inventory", name, head.Kind)
	}
	return head.Kind, f, Parse(name, head.Kind, data, f)
}

func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return ""
	}
	return h
}

func named(node, cluster string) error {
	if node == "" {
		return errors.New("the name is empty and the host has none; set node or name")
	}
	if cluster == "" {
		return errors.New("cluster is empty")
	}
	return nil
}

func listen(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen is %q, want host:port: %w", addr, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("listen is %q, want a port from 0 (any free one) to 65535", addr)
	}
	return nil
}

func between(key string, d Duration, lo, hi time.Duration) error {
	if v := time.Duration(d); v < lo || v > hi {
		return fmt.Errorf("%s is %s, want %s to %s", key, v, lo, hi)
	}
	return nil
}
