package exporter

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var update = flag.Bool("update", false, "write the golden files anew")

func get(t testing.TB, h http.Handler, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	body, err := io.ReadAll(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Code, string(body)
}

// series returns one series of the exposition.
func series(t testing.TB, e *Exporter, name string) (v float64, ok bool) {
	t.Helper()
	_, text := get(t, e.Handler(), "/metrics")
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name+" "); found {
			_, err := fmt.Sscan(rest, &v)
			return v, err == nil
		}
	}
	return math.NaN(), false
}

// exposed is the text after ten ticks with two GPUs, one of them lost and one
// with a value out of range.
func exposed(t *testing.T) (text string) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(3)
		w.gpus[0].id.Links, w.gpus[0].links.state[1] = 3, 0
		e, _ := startBeside(t, w, attributed(w.gpus[0].id.UUID))
		ticks(5)
		release := make(chan struct{})
		defer func() {
			close(release)
			synctest.Wait()
		}()
		w.gpus[1].set(func(d *device) { d.err["*"], d.findErr = gone(Lost), gone(Lost) })
		w.gpus[2].set(func(d *device) { d.hang["Memory"] = release })
		w.gpus[0].set(func(d *device) { d.util = 2 })
		w.notices <- xidNotice(w.gpus[0], 31)
		ticks(1)
		w.gpus[0].set(func(d *device) { d.util = 0.25 })
		ticks(4)
		var code int
		code, text = get(t, e.Handler(), "/metrics")
		if code != http.StatusOK {
			t.Fatalf("status %d: %s", code, text)
		}
	})
	return text
}

func TestGoldenExposition(t *testing.T) {
	const golden = "testdata/metrics.prom"
	got := exposed(t)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("exposition differs from %s (go test -update writes it):\n%s", golden, got)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(got, -1) {
		names = append(names, m[1])
	}
	if !slices.IsSorted(names) {
		t.Errorf("families are not sorted: %v", names)
	}
}

// Every exposed name is a row of the catalogue with its type and labels, and
// every row that the node reads is exposed.
func TestExpositionIsTheCatalogue(t *testing.T) {
	text := exposed(t)
	rows := map[string]*telemetry.Row{}
	for i := range telemetry.Catalog {
		rows[telemetry.Catalog[i].Name] = &telemetry.Catalog[i]
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		row := rows[name]
		if row == nil {
			t.Fatalf("%s is not in the catalogue", name)
		}
		seen[name] = true
		want := slices.Clone(row.Labels)
		if row.Per == telemetry.PerGPU || row.Per == telemetry.PerProcess || row.Per == telemetry.PerLink {
			want = append(want, "uuid")
		}
		if row.Per != telemetry.PerSelf {
			want = append(want, "node")
		}
		var got []string
		if body, _, ok := strings.Cut(rest, "}"); ok {
			for _, m := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(body, -1) {
				got = append(got, m[1])
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has labels %v, want %v", name, got, want)
		}
	}
	for _, row := range telemetry.Catalog {
		read := row.Origin == telemetry.FromNode && (row.Per == telemetry.PerGPU || row.Per == telemetry.PerLink || strings.HasPrefix(row.Name, "evenkeel_"))
		if read && !seen[row.Name] && !slices.Contains(notReadYet, row.Name) {
			t.Errorf("%s is not exposed", row.Name)
		}
		if seen[row.Name] && slices.Contains(notReadYet, row.Name) {
			t.Errorf("%s is exposed, take it off the list", row.Name)
		}
	}
}

// notReadYet are rows of the node that have no reader.
var notReadYet = []string{
	"gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio", "gpu_mig_free_slices",
}

func TestPromlint(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(exposed(t))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !slices.Contains(lintAllowed, p.Metric) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// lintAllowed are names that offend the lint and stay.
var lintAllowed = []string{}

func TestEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.openErr = gone(NotLoaded)
		e, _ := start(t, w)
		h := e.Handler()
		ticks(2)
		if code, _ := get(t, h, "/-/healthy"); code != http.StatusOK {
			t.Errorf("healthy: %d without a driver", code)
		}
		if code, body := get(t, h, "/-/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not_loaded") {
			t.Errorf("ready: %d %q without a driver", code, body)
		}
		if v, ok := series(t, e, `evenkeel_driver_up{node="node-1",reason="not_loaded"}`); !ok || v != 0 {
			t.Errorf("driver_up %g, %v", v, ok)
		}
		w.fail(nil)
		ticks(31)
		if code, _ := get(t, h, "/-/ready"); code != http.StatusOK {
			t.Errorf("ready: %d with a driver", code)
		}
		if code, _ := get(t, h, "/other"); code != http.StatusNotFound {
			t.Errorf("other: %d", code)
		}
	})
}

// An exporter whose ticks have stopped is not healthy.
func TestNotHealthyWithoutTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Options{Node: "n", Source: newWorld(1)})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if code, _ := get(t, e.Handler(), "/-/healthy"); code != http.StatusServiceUnavailable {
			t.Errorf("%d", code)
		}
	})
}

// Scrapes call no driver and run beside the ticks and each other.
func TestScrapes(t *testing.T) {
	w := newWorld(4)
	e, err := New(Options{Node: "n", Source: w, Period: MinPeriod})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	h := e.Handler()
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, ok := series(t, e, `gpu_power_watts{node="n",uuid="`+w.gpus[3].id.UUID+`"}`); ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no GPU in 10 s")
		}
		time.Sleep(10 * time.Millisecond)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 20 {
				if code, text := get(t, h, "/metrics"); code != http.StatusOK || !strings.Contains(text, "gpu_power_watts{") {
					t.Errorf("status %d, %d bytes", code, len(text))
				}
			}
		})
	}
	wg.Wait()
	cancel()
	<-done
	before := w.calls.Load()
	for range 10 {
		get(t, h, "/metrics")
	}
	if w.calls.Load() != before {
		t.Errorf("%d driver calls by 10 scrapes", w.calls.Load()-before)
	}
}
