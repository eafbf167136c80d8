package bus

import (
	"testing"
	"time"
)

// What a fleet's survival rests on: it never gives up, comes back spread over
// ten seconds and more, keeps nothing for later, and notices a dead server.
func TestConnectionNeverGivesUp(t *testing.T) {
	c, err := Connect(Options{URLs: []string{"nats://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o := c.nc.Opts
	if o.MaxReconnect != -1 || !o.RetryOnFailedConnect || !o.IgnoreAuthErrorAbort || !o.AllowReconnect {
		t.Errorf("it gives up: %d attempts, first %t, after a refused key %t", o.MaxReconnect, o.RetryOnFailedConnect, o.IgnoreAuthErrorAbort)
	}
	if o.ReconnectJitter < 10*time.Second || o.ReconnectJitterTLS < 10*time.Second {
		t.Errorf("jitter %s and %s, want 10 s at least", o.ReconnectJitter, o.ReconnectJitterTLS)
	}
	if o.ReconnectBufSize >= 0 {
		t.Errorf("%d bytes are kept in an outage", o.ReconnectBufSize)
	}
	if o.PingInterval*time.Duration(o.MaxPingsOut) > time.Minute || o.FlusherTimeout > 10*time.Second {
		t.Errorf("a dead server is noticed after %d pings of %s", o.MaxPingsOut, o.PingInterval)
	}
	if o.AsyncErrorCB == nil {
		t.Error("errors out of band go unheard")
	}
}
