package bus

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// An error that comes with each frame is counted each time and logged once a
// minute; another one is logged at once.
func TestRepeatedErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		c := &Conn{log: slog.New(slog.NewTextHandler(&text, nil)), lastAsync: map[string]time.Time{}}
		refused := fmt.Errorf("%w: publish", nats.ErrPermissionViolation)
		for range 150 {
			c.onAsyncError(nil, nil, refused)
			time.Sleep(time.Second)
		}
		c.onAsyncError(nil, &nats.Subscription{Subject: "a"}, nats.ErrSlowConsumer)
		c.onAsyncError(nil, &nats.Subscription{Subject: "b"}, nats.ErrSlowConsumer)
		c.onAsyncError(nil, nil, errors.New("something else"))
		if n := strings.Count(text.String(), "kind=permission"); n != 3 {
			t.Errorf("a refusal each second is logged %d times in 150 s, want 3", n)
		}
		if n := strings.Count(text.String(), "\n"); n != 6 {
			t.Errorf("%d lines, want 6:\n%s", n, text.String())
		}
		if n := c.async[0].Load(); n != 150 {
			t.Errorf("%d refusals counted, want 150", n)
		}
		for i := range 10 * maxAsync {
			c.onAsyncError(nil, &nats.Subscription{Subject: fmt.Sprint(i)}, nats.ErrSlowConsumer)
		}
		if len(c.lastAsync) > maxAsync {
			t.Errorf("%d errors are remembered", len(c.lastAsync))
		}
	})
}
