package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/process"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Config is the agent's own file. It binds even a valid order: whoever may
// sign orders may still do no more here than this says.
type Config struct {
	// Node is the node's name, as on its subjects.
	Node string
	// TrustedKeys are the public NKeys (U…) whose orders count.
	TrustedKeys []string
	// Allow lists the step kinds that are carried out. What holds can always be
	// undone; it can be renewed while its kind is listed.
	Allow []telemetry.StepKind
	// MinPowerWatts and MinPowerRatio are the lowest power limit that may be set,
	// in watts and as a share of the device's default. The higher one binds; the
	// device's own minimum always does. Zero sets none.
	MinPowerWatts float64
	MinPowerRatio float64
	// UndoHeadroomC is the distance to slowdown, in celsius, from which on a
	// device whose lease is over may lose its cap.
	UndoHeadroomC float64
	// MaxLease bounds how long an effect lasts without a renewal.
	MaxLease time.Duration
	// RequireSync refuses disruptive orders while the kernel reports its clock
	// as not synchronised.
	RequireSync bool
	// Processes says whose processes may be ended.
	Processes process.Rules
	// Grace is how long they have to end by themselves, MaxGrace the most that an
	// order may give them.
	Grace    time.Duration
	MaxGrace time.Duration
	// Notices is the folder where owners find what was done to their processes.
	Notices string
	// Ledger is the file of what was ordered and done.
	Ledger string
	// AcceptEpoch forgets the highest epoch seen, once, at start. It is for the
	// day when the lease bucket was lost and its epochs begin anew.
	AcceptEpoch bool
}

// DefaultConfig allows nothing: acting is opted into, kind by kind.
func DefaultConfig(node string) Config {
	return Config{
		Node: node, MinPowerRatio: 0.5, UndoHeadroomC: 10, MaxLease: 30 * time.Minute, RequireSync: true,
		Grace: 30 * time.Second, MaxGrace: 10 * time.Minute,
		Ledger: "/var/lib/evenkeel/agent.db", Notices: "/var/lib/evenkeel/notices",
	}
}

// Kinds are the step kinds that this agent can carry out.
var Kinds = []telemetry.StepKind{telemetry.StepPowerCap, telemetry.StepRenew, telemetry.StepUndo, telemetry.StepPreempt}

// Caps are those of them that end nothing.
var Caps = []telemetry.StepKind{telemetry.StepPowerCap, telemetry.StepRenew, telemetry.StepUndo}

// Check refuses what cannot work.
func (c Config) Check() error {
	switch {
	case c.Node == "":
		return errors.New("agent: no node name")
	case c.Ledger == "":
		return errors.New("agent: no ledger file; without it an order could be carried out twice")
	case len(c.TrustedKeys) == 0:
		return errors.New("agent: no trusted key; name the public NKey (U…) of the rebalancer")
	case !(c.MinPowerRatio >= 0 && c.MinPowerRatio <= 1):
		return fmt.Errorf("agent: lowest power limit of %g of the default; want 0 to 1", c.MinPowerRatio)
	case !(c.MinPowerWatts >= 0):
		return fmt.Errorf("agent: lowest power limit of %g W", c.MinPowerWatts)
	case !(c.UndoHeadroomC >= 0 && c.UndoHeadroomC <= 60):
		return fmt.Errorf("agent: headroom of %g °C for undoing; want 0 to 60", c.UndoHeadroomC)
	case c.MaxLease <= 0 || c.MaxLease > 24*time.Hour:
		return fmt.Errorf("agent: longest lease of %s; want up to 24h", c.MaxLease)
	}
	if slices.Contains(c.Allow, telemetry.StepPreempt) {
		switch {
		case len(c.Processes.Users)+len(c.Processes.Cgroups) == 0:
			return errors.New("agent: preempt is allowed and nobody's processes are ours; name users or cgroups")
		case c.Grace <= 0 || c.MaxGrace < c.Grace:
			return fmt.Errorf("agent: a grace of %s, at most %s; want more than none, at most the most", c.Grace, c.MaxGrace)
		case c.Notices == "":
			return errors.New("agent: no folder for notices; without it owners would not be told")
		}
	}
	for _, k := range c.Allow {
		if !slices.Contains(Kinds, k) {
			return fmt.Errorf("agent: cannot carry out %q; it knows %v", k, Kinds)
		}
	}
	return nil
}

// allows says whether a kind is carried out here.
func (c Config) allows(k telemetry.StepKind) bool {
	switch k {
	case telemetry.StepUndo, telemetry.StepRenew:
		return true // what they are about decides
	}
	return slices.Contains(c.Allow, k)
}

// gentle kinds do not disturb a workload, so a wrong clock does not stop them.
func gentle(k telemetry.StepKind) bool {
	switch k {
	case telemetry.StepPowerCap, telemetry.StepClockLock, telemetry.StepSteer, telemetry.StepRenew, telemetry.StepUndo, telemetry.StepNotify:
		return true
	}
	return false
}
