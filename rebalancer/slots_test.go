package rebalancer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/rebalancer"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// cutOff is a world in which the agents of some nodes cannot be reached: every
// call about their steps lasts as long as it may.
type cutOff struct {
	*world
	mu   sync.Mutex
	lost map[string]bool // by node
}

func (c *cutOff) Do(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	c.mu.Lock()
	lost := c.lost[s.Target.Node]
	c.mu.Unlock()
	if lost {
		<-ctx.Done()
		return telemetry.Receipt{}, ctx.Err()
	}
	return c.world.Do(ctx, s)
}

func (c *cutOff) Observe(ctx context.Context, s telemetry.Step) (telemetry.Receipt, error) {
	c.mu.Lock()
	lost := c.lost[s.Target.Node]
	c.mu.Unlock()
	if lost {
		<-ctx.Done()
		return telemetry.Receipt{}, ctx.Err()
	}
	return c.world.Observe(ctx, s)
}

func (c *cutOff) Can(*cluster.View, telemetry.Step) []telemetry.Refusal { return nil }

// A hundred agents are cut off with their GPUs hot. Those that can be reached
// are served at once all the same.
func TestTheLostKeepNobodyWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(30, 4)
		c := &cutOff{world: w, lost: map[string]bool{}}
		l := newLive(t, w, func(cfg *rebalancer.Config) { cfg.Actuators = []rebalancer.Actuator{c} })
		l.run(2 * time.Second)
		for _, d := range w.devices {
			if d.node != "n29" {
				c.lost[d.node] = true
				d.r = 0.1
			}
		}
		l.run(30 * time.Second)
		d := w.device("GPU-29-0")
		d.r = 0.1
		before := len(l.journal.all())
		l.until(time.Minute, "intended", func() bool {
			for _, r := range l.journal.all()[before:] {
				if r.Topic == telemetry.TopicIntent && r.Decision.Target.UUID == d.uuid {
					return true
				}
			}
			return false
		})
		l.run(time.Second)
		if d.sets != 1 {
			t.Errorf("the limit was set %d times a second after the intent", d.sets)
		}
	})
}
