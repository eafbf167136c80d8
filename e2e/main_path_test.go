package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

var update = flag.Bool("update", false, "rewrite golden files")

type gpuItem struct {
	UUID     string   `json:"uuid"`
	Index    int      `json:"index"`
	State    string   `json:"state"`
	Headroom *float64 `json:"headroom_celsius"`
	Core     *float64 `json:"temperature_core_celsius"`
	Limit    *float64 `json:"power_limit_watts"`
	Default  *float64 `json:"power_limit_default_watts"`
}

// TestMainPath runs the whole line as real processes: an inlet fault warms the
// GPUs of the stand-in's world, a cap arrives there, the temperature falls,
// after the fault the cap is undone, and the explanation says all of it.
func TestMainPath(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	const node = "gpu-1"
	s.startNATS(node)
	cfg := s.configs(node)
	s.start("collector", "evenkeel", "collector", "-c", cfg["collector"])
	s.start("rebalancer", "evenkeel", "rebalancer", "-c", cfg["rebalancer"])
	s.start("sim", "evenkeel", "sim", "serve", "--scenario", "testdata/inlet-fault.yaml", "--node", node, "--shm", s.shm)
	s.start("agent", "evenkeel-node", "agent", "-c", cfg["agent"])
	s.start("exporter", "evenkeel-node", "export", "-c", cfg["exporter"])

	s.eventually(30*time.Second, "eight GPUs are seen", func() error {
		gpus, err := list[gpuItem](s, "gpus")
		if err == nil && len(gpus) != 8 {
			err = fmt.Errorf("%d GPUs", len(gpus))
		}
		return err
	})

	// The fault comes; a cap is decided, ordered and set.
	var first telemetry.Decision
	s.eventually(90*time.Second, "a cap is acted", func() error {
		ds, err := list[telemetry.Decision](s, "decisions")
		if err != nil {
			return err
		}
		for _, d := range ds {
			if d.Kind == telemetry.ActCap && len(d.Steps) > 0 && d.Steps[0].Receipt != nil && d.Steps[0].Receipt.Result == telemetry.Done {
				first = d
				return nil
			}
		}
		return fmt.Errorf("%d decisions, no cap with a receipt", len(ds))
	})
	capped := *first.Steps[0].Step.Params.PowerLimitWatts
	s.eventually(30*time.Second, "the cap is in the stand-in's world", func() error {
		return s.worldLimit(first.Target.UUID, func(w float64) bool { return w <= capped+0.5 })
	})

	// It helps.
	s.eventually(90*time.Second, "the decision is verified and the temperature fell", func() error {
		d, err := s.decision(first.ID)
		switch {
		case err != nil:
			return err
		case d.Observed == nil:
			return fmt.Errorf("outcome %s", d.Outcome)
		case d.Observed.Change() <= 0:
			t.Fatalf("headroom moved by %.1f °C", d.Observed.Change())
		}
		return nil
	})

	// The fault ends; what was capped is given back.
	s.eventually(4*time.Minute, "all caps are undone after the fault", func() error {
		ds, err := list[telemetry.Decision](s, "decisions")
		if err != nil {
			return err
		}
		for _, d := range ds {
			if d.Outcome.Open() {
				return fmt.Errorf("%s is %s", d.ID, d.Outcome)
			}
		}
		gpus, err := list[gpuItem](s, "gpus")
		if err != nil {
			return err
		}
		for _, g := range gpus {
			if g.Limit == nil || g.Default == nil || *g.Limit != *g.Default {
				return fmt.Errorf("GPU %d is not back at its default limit", g.Index)
			}
		}
		return nil
	})
	s.eventually(30*time.Second, "the stand-in's world has the limit back", func() error {
		return s.worldLimit(first.Target.UUID, func(w float64) bool { return w > capped+1 })
	})

	text, err := s.evenkeel("explain", first.ID)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/explain.txt", shape(text))
	s.checkSilentRest(t)
}

// TestNodeBinaryIsSmall: the file pages of the binary are most of what the
// exporter holds in memory. Templates and reflection by name are what blow it
// up, since the linker then keeps every method: of 20 MiB, 4 are what TLS and
// users over HTTP bring (exporter-toolkit), 2 the kubelet's gRPC.
func TestNodeBinaryIsSmall(t *testing.T) {
	s := newStack(t)
	info, err := os.Stat(filepath.Join(s.bin, "evenkeel-node"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MiB", float64(info.Size())/(1<<20))
	if info.Size() > 21<<20 {
		t.Errorf("evenkeel-node has %d bytes, at most 21 MiB", info.Size())
	}
}

// worldLimit reads the limit the driver enforces now, past everything cached.
func (s *stack) worldLimit(uuid string, ok func(watts float64) bool) error {
	m, err := s.metrics("exporter")
	if err != nil {
		return err
	}
	re := regexp.MustCompile(`gpu_power_limit_watts\{[^}]*uuid="` + regexp.QuoteMeta(uuid) + `"[^}]*\} (\S+)`)
	hit := re.FindStringSubmatch(m)
	if hit == nil {
		return errors.New("no limit exposed")
	}
	var w float64
	if _, err := fmt.Sscan(hit[1], &w); err != nil {
		return err
	}
	if !ok(w) {
		return fmt.Errorf("limit is %g W", w)
	}
	return nil
}

func (s *stack) decision(id string) (telemetry.Decision, error) {
	ds, err := list[telemetry.Decision](s, "decisions")
	if err != nil {
		return telemetry.Decision{}, err
	}
	for _, d := range ds {
		if d.ID == id {
			return d, nil
		}
	}
	return telemetry.Decision{}, fmt.Errorf("no decision %s", id)
}

// checkSilentRest: nothing was dropped, refused by the agent, or acted twice.
func (s *stack) checkSilentRest(t *testing.T) {
	t.Helper()
	m, err := s.metrics("collector")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(m) {
		if strings.HasPrefix(line, "evenkeel_frames_dropped_total{") && !strings.HasSuffix(line, "} 0\n") {
			t.Errorf("frames were dropped: %s", line)
		}
	}
	for _, role := range []string{"exporter", "agent", "collector", "rebalancer"} {
		m, err := s.metrics(role)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(m, "\nevenkeel_bus_connected 1\n") || !strings.Contains(m, "\nevenkeel_bus_errors_total{kind=\"permission\"} 0\n") {
			t.Errorf("%s: its connection to the bus is not on /metrics, or not sound", role)
		}
	}
	if m, err = s.metrics("agent"); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(m) {
		if strings.HasPrefix(line, "evenkeel_orders_total{") && strings.Contains(line, `result="failed"`) && !strings.HasSuffix(line, "} 0\n") {
			t.Errorf("the agent failed: %s", line)
		}
		if strings.HasPrefix(line, "evenkeel_caps_active ") && line != "evenkeel_caps_active 0\n" {
			t.Errorf("caps are left: %s", line)
		}
	}
}

var (
	times   = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z|\d\d:\d\d:\d\d`)
	spans   = regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?s\b`)
	uuids   = regexp.MustCompile(`GPU-[0-9a-f-]{8,}`)
	numbers = regexp.MustCompile(`[-+]?\d+(\.\d+)?`)
	ids     = regexp.MustCompile(`d-\d+(\.\d+-[a-z0-9]+)?`)
)

// shape keeps the words of an explanation and replaces what depends on the
// moment: times, uuids and numbers.
func shape(s string) string {
	s = times.ReplaceAllString(s, "TIME")
	s = uuids.ReplaceAllString(s, "UUID")
	s = ids.ReplaceAllString(s, "ID")
	s = spans.ReplaceAllString(s, "SPAN")
	return numbers.ReplaceAllString(s, "N")
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s differs; run with -update if the change is meant\n%s", path, got)
	}
}
