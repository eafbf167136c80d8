//go:build cgo && linux

package nvml

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/evenkeel-gpu/evenkeel/exporter"
	"github.com/evenkeel-gpu/evenkeel/sim"
)

var update = flag.Bool("update", false, "write the golden files anew")

// helpOnce prints one exposition.
func helpOnce(out *json.Encoder) error {
	e, err := exporter.New(exporter.Options{Node: "n", Source: New(), Compat: os.Getenv("EVENKEEL_TEST_COMPAT")})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := e.Once(ctx); err != nil {
		return err
	}
	families, err := e.Gatherer().Gather()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	enc := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
	return out.Encode(text.String())
}

const still = `
name: still
seed: 5
physics: {time_constant: 700ms, resistance_spread: 0}
rows: [{name: a, inlet_celsius: 25}]
nodes: [{name: n, row: a, model: %s, gpus: 2}]
jobs: [{name: j, kind: proc, owner: o, shape: tensor-parallel, gpus: [n/0], memory_gib: 8}]
`

// stand shows a world that stands still a minute after it began: its driver
// answers, and nothing moves.
func stand(t *testing.T, model string) (path string) {
	t.Helper()
	scenario, err := sim.ParseScenario(fmt.Appendf(nil, still, model))
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "world")
	serveWorld(t, sim.ServeConfig{Scenario: scenario, Path: path, Tick: 24 * time.Hour, After: time.Minute})
	openStage(t, path).beat(true)
	return path
}

// timed are values of the run and not of the devices.
var timed = regexp.MustCompile(`(?m)^(evenkeel_reader_duration_seconds\S*) .*$`)

// compare compares an exposition with its golden file, and has promtool read it.
func compare(t *testing.T, name, text string) {
	t.Helper()
	golden := filepath.Join("testdata", name+".prom")
	text = timed.ReplaceAllString(text, "$1 0")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	got, old := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(old)) {
		if i >= len(got) || i >= len(old) || got[i] != old[i] {
			t.Errorf("line %d differs from %s (go test -update writes it):\ngot  %s\nwant %s", i+1, golden, at(got, i), at(old, i))
			break
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "nothing"
}

// promtool is Prometheus' own, of the version in go.mod.
func promtool(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache")
	}
	for _, path := range []string{"promtool", filepath.Join(cache, "evenkeel/tools/prometheus@v0.316.0/promtool"), filepath.Join(cache, "evenkeel/tools/debian/usr/bin/promtool")} {
		if path, err := exec.LookPath(path); err == nil {
			return path
		}
	}
	t.Skip("no promtool: run scripts/install test and scripts/test")
	return ""
}

// products are the models of the goldens; none is a node whose driver is not
// loaded.
var products = []struct{ name, model string }{
	{"a100", "A100-SXM4-80GB"}, {"h100", h100}, {"h200", "H200-SXM5-141GB"}, {"b200", "B200-SXM6-180GB"},
	{"l40s", "L40S-48GB"}, {"t4", "T4-16GB"}, {"none", ""},
}

func exposition(t *testing.T, model string, env ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "world")
	if model != "" {
		path = stand(t, model)
	}
	return help[string](t, "once", standin(t), path, env...)[0]
}

// What a scrape shows of each product, through the real library interface.
func TestGoldenExposition(t *testing.T) {
	t.Parallel()
	for _, p := range products {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			compare(t, p.name, exposition(t, p.model))
		})
	}
}

// Prometheus' own check has nothing to say of what is exposed.
func TestPromtoolCheckMetrics(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	for _, p := range products {
		text, err := os.ReadFile(filepath.Join("testdata", p.name+".prom"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tool, "check", "metrics")
		cmd.Stdin = bytes.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", p.name, err, out)
		}
	}
}
