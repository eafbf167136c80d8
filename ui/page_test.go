package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/cluster"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// leader answers the two verbs as a leader with nothing to do would.
type leader struct{}

func (leader) Control(_ context.Context, verb string, body []byte) ([]byte, error) {
	switch verb {
	case "explain":
		return json.Marshal(map[string]any{"text": fmt.Sprintf("Nothing is done now: nothing is beyond its mark; d-000001 holds.\nasked: %s\n", body), "refused": nil})
	case "plan":
		return []byte(`{"acts":[]}`), nil
	}
	return nil, fmt.Errorf("verb %s is not known", verb)
}

// TestPage drives the page in a browser against a moving fleet. Screenshots
// go to EVENKEEL_SCREENSHOTS if that is set.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a browser and about a minute")
	}
	if _, err := os.Stat("web/node_modules"); err != nil {
		t.Skip("the page's tools are not installed; run `npm ci --prefix ui/web`")
	}
	chromium := os.Getenv("CHROMIUM")
	if chromium == "" {
		chromium = "/usr/bin/chromium"
	}
	if _, err := os.Stat(chromium); err != nil {
		t.Skip("no browser at " + chromium + "; install chromium or set CHROMIUM")
	}
	fleets := []int{0, 1, 32, 8000}
	if os.Getenv("EVENKEEL_SCREENSHOTS") != "" {
		fleets = append(fleets, 2000)
	}
	for _, gpus := range fleets {
		t.Run(strconv.Itoa(gpus), func(t *testing.T) { drivePage(t, gpus) })
	}
}

func drivePage(t *testing.T, gpus int) {
	now := time.Now().Truncate(time.Second)
	fleet := newSample(gpus, now, 10*time.Minute)
	fleet.run(t)
	o := Options{Fleet: fleet, Decisions: fleet, Control: leader{}, Version: "test"}
	if gpus == 32 {
		o.Past, o.Alerts = newPastTo(t, fleet, gpus, now), ruledAt(fleet, now)
	}
	p := &process{options: o}
	p.start()
	web := httptest.NewServer(p)
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	control := httptest.NewServer(pageControl(fleet, web, p))
	t.Cleanup(control.Close)

	args := []string{filepath.Join("web", "test", "page.mjs"), web.URL, control.URL, strconv.Itoa(gpus)}
	if dir := os.Getenv("EVENKEEL_SCREENSHOTS"); dir != "" {
		args = append(args, dir)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Log("\n" + out.String())
	if err != nil || !strings.Contains(out.String(), " passed, 0 failed") {
		t.Fatalf("the browser's checks failed: %v", err)
	}
}

// process is a collector as a browser sees it: it answers, does not, or is
// another one.
type process struct {
	options Options
	handler atomic.Pointer[http.Handler]
}

func (p *process) start() {
	h := Handler(p.options)
	p.handler.Store(&h)
}

func (p *process) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := p.handler.Load()
	if h == nil {
		panic(http.ErrAbortHandler)
	}
	(*h).ServeHTTP(w, r)
}

// pageControl lets the browser's script move the fleet and break the stream.
func pageControl(fleet *sample, web *httptest.Server, p *process) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /overheat", func(w http.ResponseWriter, _ *http.Request) {
		before := fleet.Decisions()
		uuid := fleet.overheat(0)
		for range 100 {
			if now := fleet.Decisions(); len(now) > len(before) {
				for _, d := range now[:len(now)-len(before)] {
					if d.Target.UUID == uuid {
						_, _ = w.Write([]byte(d.ID))
						return
					}
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		http.Error(w, "no decision came", http.StatusInternalServerError)
	})
	freeze := func(on bool) http.HandlerFunc {
		return func(http.ResponseWriter, *http.Request) {
			fleet.mu.Lock()
			defer fleet.mu.Unlock()
			fleet.frozen = on
		}
	}
	mux.HandleFunc("POST /freeze", freeze(true))
	mux.HandleFunc("POST /thaw", freeze(false))
	var kept *http.Handler
	mux.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) {
		kept = p.handler.Swap(nil)
		web.CloseClientConnections()
	})
	mux.HandleFunc("POST /start", func(http.ResponseWriter, *http.Request) { p.handler.Store(kept) })
	mux.HandleFunc("POST /restart", func(http.ResponseWriter, *http.Request) {
		p.handler.Store(nil)
		web.CloseClientConnections()
		fleet.mu.Lock()
		fleet.devices[len(fleet.devices)-1].state = cluster.GPULost
		fleet.decisions = slices.DeleteFunc(slices.Clone(fleet.decisions), func(d *telemetry.Decision) bool { return d.Target.UUID != fleet.devices[0].uuid })
		fleet.mu.Unlock()
		time.Sleep(2500 * time.Millisecond) // as long as a process takes to start
		p.start()
	})
	return mux
}
