package collector

import (
	"context"
	"maps"
	"slices"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// View is the newest View, never nil. Nodes that did not change since the last
// call are the same objects.
func (c *Collector) View() *cluster.View { return c.state.View(c.opts.Now()) }

// History lists what is kept of a GPU's last ten minutes, oldest first; nothing
// for a GPU that is not known.
func (c *Collector) History(uuid string) []Point { return c.history.list(c.opts.Now(), uuid) }

// Changes returns a channel that holds a token after the View or a decision has
// changed, until ctx ends. Tokens coalesce: nobody is waited for. One comes at
// least each second, since silence is a change too.
func (c *Collector) Changes(ctx context.Context) <-chan struct{} { return c.changes.subscribe(ctx) }

// Decisions lists the decisions as they stand, newest first. Neither the list
// nor a decision in it changes once it was returned.
func (c *Collector) Decisions() []*telemetry.Decision { return c.decisions.newestFirst() }

// Decision returns a decision by id.
func (c *Collector) Decision(id string) (*telemetry.Decision, bool) { return c.decisions.get(id) }

// Receipts lists the latest receipts, newest first.
func (c *Collector) Receipts() []telemetry.Receipt { return c.receipts.newestFirst() }

// Breakers lists the last word on each breaker, by domain; the fleet's has none.
func (c *Collector) Breakers() []telemetry.BreakerTrip {
	d := c.decisions
	d.mu.RLock()
	defer d.mu.RUnlock()
	var out []telemetry.BreakerTrip
	for _, domain := range slices.Sorted(maps.Keys(d.breakers)) {
		out = append(out, d.breakers[domain])
	}
	return out
}

// Modes lists what people changed of how far the rebalancer may go, oldest
// first.
func (c *Collector) Modes() []telemetry.ModeChange {
	d := c.decisions
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.modes)
}

// Refused is the last record of a pass that saw something and changed nothing.
func (c *Collector) Refused() (telemetry.Record, bool) {
	d := c.decisions
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.refused == nil {
		return telemetry.Record{}, false
	}
	return *d.refused, true
}

// Control asks the leader of the rebalancer and returns its answer.
func (c *Collector) Control(ctx context.Context, verb string, body []byte) ([]byte, error) {
	return c.opts.Bus.Control(ctx, verb, body)
}
