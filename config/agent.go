package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Agent is the file of `evenkeel-node agent`.
type Agent struct {
	Head    `yaml:",inline"`
	Node    string `yaml:"node"`
	Cluster string `yaml:"cluster"`
	Listen  string `yaml:"listen"`
	// WebConfig is a web configuration file of the Prometheus exporter-toolkit.
	WebConfig string `yaml:"web_config_file,omitempty"`
	// Ledger is the file that makes orders happen at most once.
	Ledger string `yaml:"ledger"`
	// TrustedKeys are the public NKeys (U…) whose orders count.
	TrustedKeys []string `yaml:"trusted_keys"`
	// Allow lists the step kinds that may be carried out here.
	Allow  []string    `yaml:"allow"`
	Limits AgentLimits `yaml:"limits"`
	// Processes says whose may be preempted, if that is allowed.
	Processes Processes `yaml:"processes,omitempty"`
	// Notices is the folder where owners find what was done to their processes.
	Notices string     `yaml:"notices"`
	Clock   AgentClock `yaml:"clock"`
	// Library is libnvidia-ml.so.1 at another place than the loader's.
	Library string `yaml:"library,omitempty"`
	NATS    NATS   `yaml:"nats"`
	// AcceptEpoch takes the epoch of the next valid order whatever was seen
	// before; for use once, after the lease bucket was lost.
	AcceptEpoch bool `yaml:"accept_epoch,omitempty"`
}

// AgentLimits bind even a valid order.
type AgentLimits struct {
	// PowerMinPercent of the default limit and PowerMinWatts are the lowest cap
	// taken; the higher one binds.
	PowerMinPercent float64 `yaml:"power_min_percent"`
	PowerMinWatts   float64 `yaml:"power_min_watts,omitempty"`
	// UndoHeadroomCelsius is how far from slowing down a GPU must be for its cap
	// to be undone when the lease is over.
	UndoHeadroomCelsius float64  `yaml:"undo_headroom_celsius"`
	MaxLease            Duration `yaml:"max_lease"`
	// Grace is how long processes that are preempted have to end by themselves,
	// MaxGrace the most that an order may give them.
	Grace    Duration `yaml:"grace"`
	MaxGrace Duration `yaml:"max_grace"`
}

// Processes are those of a node that are Evenkeel's to act on: those of a user,
// and those in a cgroup. What Kubernetes and Slurm run never is.
type Processes struct {
	// Users are names or numbers. Root must be named to be meant, and is then
	// meant within Cgroups alone, if there are any.
	Users []string `yaml:"users,omitempty"`
	// Cgroups are paths such as /machine.slice/; what is below is meant too.
	Cgroups []string `yaml:"cgroups,omitempty"`
}

// AgentClock says how much the node's clock is trusted.
type AgentClock struct {
	RequireSync bool `yaml:"require_sync"`
}

// agentKinds are the steps that an agent can carry out.
var agentKinds = []string{"power_cap", "renew", "undo", preempt}

// preempt ends processes, so it is opted into by name.
const preempt = "preempt"

// publicKey is the form of a public NKey of a user.
var publicKey = regexp.MustCompile(`^U[A-Z2-7]{55}$`)

// DefaultAgent is what the agent's file starts from; it trusts nobody.
func DefaultAgent() *Agent {
	return &Agent{
		Node: hostname(), Cluster: "default", Listen: "127.0.0.1:9839", Ledger: "/var/lib/evenkeel/agent.db",
		Allow: []string{"power_cap", "renew", "undo"}, Notices: "/var/lib/evenkeel/notices",
		Limits: AgentLimits{PowerMinPercent: 50, UndoHeadroomCelsius: 10, MaxLease: Duration(30 * time.Minute), Grace: Duration(30 * time.Second), MaxGrace: Duration(10 * time.Minute)},
		Clock:  AgentClock{RequireSync: true},
	}
}

// Validate implements File.
func (c *Agent) Validate() error {
	errs := []error{named(c.Node, c.Cluster), listen(c.Listen), c.NATS.validate(true), c.Limits.validate(), c.Processes.validate(), c.preempts()}
	if len(c.TrustedKeys) == 0 {
		errs = append(errs, errors.New("trusted_keys is empty; put in the public key that the rebalancer prints at its start"))
	}
	for _, k := range c.TrustedKeys {
		if !publicKey.MatchString(k) {
			errs = append(errs, fmt.Errorf("trusted_keys: %q is no public key; want U and 55 characters, as the rebalancer prints at its start", k))
		}
	}
	for _, k := range c.Allow {
		if !slices.Contains(agentKinds, k) {
			errs = append(errs, fmt.Errorf("allow: %q is no step of an agent; there are %s", k, strings.Join(agentKinds, ", ")))
		}
	}
	if c.Ledger == "" {
		errs = append(errs, errors.New("ledger is empty; name a file on a disk that survives a restart"))
	}
	return errors.Join(errs...)
}

func (l AgentLimits) validate() error {
	errs := []error{
		between("limits.max_lease", l.MaxLease, time.Minute, 24*time.Hour),
		between("limits.max_grace", l.MaxGrace, time.Second, 24*time.Hour),
		between("limits.grace", l.Grace, time.Second, time.Duration(l.MaxGrace)),
	}
	if p := l.PowerMinPercent; !(p > 0 && p <= 100) {
		errs = append(errs, fmt.Errorf("limits.power_min_percent is %g, want more than 0 and at most 100", p))
	}
	if w := l.PowerMinWatts; !(w >= 0 && w <= 5000) {
		errs = append(errs, fmt.Errorf("limits.power_min_watts is %g, want 0 to 5000", w))
	}
	if h := l.UndoHeadroomCelsius; !(h >= 0 && h <= 60) {
		errs = append(errs, fmt.Errorf("limits.undo_headroom_celsius is %g, want 0 to 60", h))
	}
	return errors.Join(errs...)
}

// preempts refuses a permission that could mean nobody.
func (c *Agent) preempts() error {
	switch {
	case !slices.Contains(c.Allow, preempt):
		return nil
	case len(c.Processes.Users)+len(c.Processes.Cgroups) == 0:
		return errors.New("allow: preempt is allowed and nobody's processes are ours; say whose, such as processes: {users: [alice], cgroups: [/machine.slice/]}")
	case !filepath.IsAbs(c.Notices):
		return fmt.Errorf("notices is %q; name a folder with its whole path, such as /var/lib/evenkeel/notices, where owners find what was done to their processes", c.Notices)
	}
	return nil
}

// userName is what may stand for a user: a name as useradd takes it, or one of
// a directory service, or a number.
var userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@\\+-]*\$?$`)

func (p Processes) validate() error {
	var errs []error
	for _, u := range p.Users {
		if n, err := strconv.ParseUint(u, 10, 64); !userName.MatchString(u) || err == nil && (n > math.MaxUint32-1 || u != strconv.FormatUint(n, 10)) {
			errs = append(errs, fmt.Errorf("processes.users: %q is no user; want a name or a number, such as alice or 1000", u))
		}
	}
	for _, c := range p.Cgroups {
		bare := strings.TrimSuffix(c, "/")
		switch {
		case c != "" && strings.Trim(c, "/") == "":
			errs = append(errs, errors.New("processes.cgroups: / is every process of the node; name a part of it, such as /machine.slice/"))
		case !strings.HasPrefix(c, "/") || path.Clean(bare) != bare:
			errs = append(errs, fmt.Errorf("processes.cgroups: %q is no path of a cgroup; want one from the top, as /proc/PID/cgroup shows it, such as /machine.slice/", c))
		}
	}
	return errors.Join(errs...)
}

// AgentProcesses reads only what an agent's file says of processes, so that the
// exporter lists as ours what the agent may act on. Without a file nobody's are;
// one that cannot be read or is wrong is an error.
func AgentProcesses(file string) (Processes, error) {
	if file == "" {
		return Processes{}, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Processes{}, nil
	}
	if err != nil {
		return Processes{}, fmt.Errorf("the agent's file, for whose processes are ours: %w; let the exporter's user read it, or set agent_file to \"\"", err)
	}
	c := DefaultAgent()
	if err := checkHead(file, "Agent", data); err != nil {
		return Processes{}, err
	}
	if err := Decode(file, data, c); err != nil {
		return Processes{}, err
	}
	if err := c.Processes.validate(); err != nil {
		return Processes{}, fmt.Errorf("%s: %w", file, err)
	}
	return c.Processes, nil
}
