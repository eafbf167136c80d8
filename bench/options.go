package bench

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// Options of a run.
type Options struct {
	// Bus is the server, and who listens there for observations. Its first URL is
	// where the nodes connect.
	Bus bus.Options
	// What proves a node's user to the server: a password, or a folder with
	// USER.creds, USER.nk or USER.password of each, and of who listens. None is for
	// a server without users.
	Password, Credentials string

	Nodes, GPUs int
	Model       string // key of a product that the simulator knows
	Prefix      string // of node names; a number of five digits follows
	Cluster     string
	Period      time.Duration
	Duration    time.Duration // that is measured
	Warmup      time.Duration // before it: frames are sent, and no fault is made
	// Connections to the bus; as many as nodes if zero, as a fleet has.
	Connections int
	Faults      Faults
	// Events is the share of frames that come with an event.
	Events float64
	Seed   uint64
	// Collector is the address of its HTTP server, to be compared with; none if
	// empty.
	Collector string
	// Scrapes of the fleet's series at the end.
	Scrapes int
	// Watch are processes of this machine whose use of it is reported.
	Watch  []Watched
	Expect []Expectation
	// Devices has something to say of the devices of some nodes; nil of the others.
	Devices func(node int) Devices
	// Steady leaves out what makes the load of the devices change by itself.
	Steady bool
}

// Devices speak in the place of the simulated ones of a node.
type Devices interface {
	// Say changes the whole frame of a tick before it is sent. Ticks are counted
	// from the first that is sent.
	Say(tick int, f *telemetry.Frame)
	// Sent is told when that frame was handed to the socket.
	Sent(tick int, sequence uint64, at time.Time)
}

// Bounds of a run.
const (
	MaxDuration = 24 * time.Hour
	maxGPUs     = 64
)

var plainName = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)

// Defaults is a run of a hundred nodes for half a minute.
func Defaults() Options {
	return Options{
		Nodes: 100, GPUs: 8, Model: "H100-SXM5-80GB", Prefix: "bench-", Cluster: "bench", Period: exporter.DefaultPeriod,
		Duration: 30 * time.Second, Warmup: 5 * time.Second, Seed: 1, Events: 1e-4,
	}
}

// Check refuses a shape that cannot be sent.
func (o *Options) Check() error {
	_, known := sim.ModelByKey(o.Model)
	switch {
	case o.Nodes < 1 || o.Nodes > maxNodes:
		return fmt.Errorf("%d nodes: want 1 to %d", o.Nodes, maxNodes)
	case o.GPUs < 1 || o.GPUs > maxGPUs:
		return fmt.Errorf("%d GPUs a node: want 1 to %d", o.GPUs, maxGPUs)
	case !known:
		return fmt.Errorf("model %q is not known; there are %s", o.Model, models())
	case !plainName.MatchString(o.Prefix) || telemetry.EncodeNode(o.Prefix) != o.Prefix:
		return fmt.Errorf("node prefix %q: want at most 40 of a-z, 0-9, - and _", o.Prefix)
	case o.Period < exporter.MinPeriod || o.Period > 10*time.Second:
		return fmt.Errorf("rate %s: a node's tick is 100ms to 10s", o.Period)
	case o.Duration < o.Period || o.Duration > MaxDuration:
		return fmt.Errorf("duration %s: want at least one tick and at most %s", o.Duration, MaxDuration)
	case o.Warmup < 0 || o.Warmup > time.Hour:
		return fmt.Errorf("warmup %s: want at most an hour", o.Warmup)
	case !(o.Events >= 0 && o.Events <= 1):
		return fmt.Errorf("events %g: want a share from 0 to 1", o.Events)
	case o.Scrapes < 0 || o.Scrapes > 100:
		return fmt.Errorf("%d scrapes: want at most 100", o.Scrapes)
	case o.Connections < 0 || o.Connections > o.Nodes:
		return fmt.Errorf("%d connections for %d nodes: want 1 to one a node", o.Connections, o.Nodes)
	}
	return nil
}

// checkPlaces refuses what does not go with where the bus and the collector are.
func (o *Options) checkPlaces() error {
	switch {
	case len(o.Bus.URLs) == 0:
		return errors.New("no bus is named")
	case o.Connections != 0 && o.Connections < o.Nodes && (o.Password != "" || o.Credentials != ""):
		return errors.New("shared connections cannot prove to be several nodes; use one a node, or a server without users")
	case o.Scrapes > 0 && o.Collector == "":
		return errors.New("scrapes need the collector's address; name it with --collector")
	case slices.ContainsFunc(o.Expect, func(e Expectation) bool { return e.needsCollector() }) && o.Collector == "":
		return errors.New("an expectation needs the collector's own figures; name its address with --collector")
	}
	return nil
}

func (o *Options) connections() int {
	if o.Connections == 0 {
		return o.Nodes
	}
	return o.Connections
}

// ticks is how many each node has.
func (o *Options) ticks() (clean, total int) {
	of := func(d time.Duration) int { return int((d + o.Period - 1) / o.Period) }
	return max(1, of(o.Warmup)), max(1, of(o.Warmup)) + of(o.Duration)
}
