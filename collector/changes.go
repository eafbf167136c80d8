package collector

import (
	"context"
	"sync"
	"sync/atomic"
)

// changes tells subscribers that something changed. A token that was not taken
// yet stands for all changes since, so nobody is waited for.
type changes struct {
	mu    sync.Mutex
	to    map[chan struct{}]struct{}
	count atomic.Int32
}

func (c *changes) subscribe(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	if c.to == nil {
		c.to = map[chan struct{}]struct{}{}
	}
	c.to[ch] = struct{}{}
	c.count.Add(1)
	c.mu.Unlock()
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.to, ch)
		c.count.Add(-1)
	})
	return ch
}

func (c *changes) notify() {
	if c.count.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ch := range c.to {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
