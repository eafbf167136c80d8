package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
	"github.com/evenkeel-gpu/evenkeel/ui"
)

// text is written and read at once.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s: %s", what)
		}
	}
}

// TestWatch: what there is, then what changes, through a restart of the
// collector, until the end that a person makes.
func TestWatch(t *testing.T) {
	f := newFleet()
	handler := atomic.Pointer[http.Handler]{}
	start := func() {
		h := ui.Handler(ui.Options{Fleet: f, Decisions: f, Alerts: f, Now: func() time.Time { return testTime }})
		handler.Store(&h)
	}
	start()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := handler.Load()
		if h == nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		(*h).ServeHTTP(w, r)
	}))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	var decisions, alerts, lines, notes text
	for _, q := range []struct {
		Query
		out *text
	}{{Query{Kind: "decisions", Watch: true}, &decisions}, {Query{Kind: "alerts", Watch: true}, &alerts}, {Query{Kind: "gpus", Output: "json", Watch: true, Selector: "state=ok"}, &lines}} {
		c := clientOf(web.URL)
		c.Notes = &notes
		go func() { ended <- c.Print(ctx, q.out, q.Query) }()
	}
	eventually(t, "not everything is listed", func() bool {
		return strings.Count(decisions.String(), "\n") == 3 && strings.Count(alerts.String(), "\n") == 3 && strings.Count(lines.String(), "\n") == 2
	})

	next := *f.decisions[0]
	next.Outcome = telemetry.OutcomeVerified
	f.change(func() {
		f.decisions = []*telemetry.Decision{&next, f.decisions[1]}
		f.alerts = f.alerts[:1]
	})
	eventually(t, "the change of a decision is not told", func() bool { return strings.Contains(decisions.String(), "verified") })
	eventually(t, "an alert that ended is not told", func() bool { return strings.Contains(notes.String(), "alerts no longer lists GPUDriverCallHung") })
	if got := strings.Count(decisions.String(), "\n"); got != 4 || strings.Count(decisions.String(), "POLICY") != 1 {
		t.Errorf("one decision changed and there are %d lines:\n%s", got, decisions.String())
	}
	if strings.Count(lines.String(), "\n") != 2 {
		t.Errorf("no GPU changed and there are lines:\n%s", lines.String())
	}

	// The collector goes, and comes back as another process with another fleet.
	handler.Store(nil)
	web.CloseClientConnections()
	eventually(t, "the break is not told", func() bool { return strings.Count(notes.String(), "the stream broke") == 3 })
	hot := device(uuidB, "a-1", 1, 2, 650, 500, 0.9, nil)
	f.change(func() {
		var nodes []*cluster.Node
		for n := range f.view.Nodes() {
			one := *n
			if n.Name == "a-1" {
				one.GPUs = []*cluster.GPU{n.GPUs[0], hot}
			}
			nodes = append(nodes, &one)
		}
		f.view = cluster.NewView(testTime, nodes, nil)
	})
	start()
	eventually(t, "what changed meanwhile is not told", func() bool { return strings.Count(lines.String(), "\n") >= 3 })
	eventually(t, "that it goes on is not told", func() bool { return strings.Count(notes.String(), "the stream goes on") == 3 })
	all := strings.Split(strings.TrimSpace(lines.String()), "\n")
	var g ui.GPU
	if err := json.Unmarshal([]byte(all[len(all)-1]), &g); err != nil || g.UUID == "" {
		t.Errorf("a line is no GPU: %v in %s", err, all[len(all)-1])
	}
	cancel()
	for range 3 {
		if err := <-ended; err != nil {
			t.Errorf("a person's end is an error: %v", err)
		}
	}
}

// broken is an output that takes nothing.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestWatchEndsWithItsOutput(t *testing.T) {
	c := serve(t, newFleet(), true)
	if err := c.Print(t.Context(), broken{}, Query{Kind: "gpus", Watch: true}); err == nil || !strings.Contains(err.Error(), "broken pipe") {
		t.Errorf("%v", err)
	}
}
