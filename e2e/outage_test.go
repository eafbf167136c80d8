package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// TestOutages takes away one part after the other while caps are held: each
// comes back by itself, nothing is done twice, nothing is left behind. It
// begins without a bus.
func TestOutages(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	const node = "gpu-1"
	cfg := s.configs(node)
	s.env = append(s.env, "EK_PASSWORD=pw")
	run := map[string][]string{
		"collector":  {"evenkeel", "collector", "-c", cfg["collector"]},
		"rebalancer": {"evenkeel", "rebalancer", "-c", cfg["rebalancer"]},
		"sim":        {"evenkeel", "sim", "serve", "--scenario", s.lastingFault(), "--node", node, "--shm", s.shm},
		"agent":      {"evenkeel-node", "agent", "-c", cfg["agent"]},
		"exporter":   {"evenkeel-node", "export", "-c", cfg["exporter"]},
	}
	procs := map[string]*proc{}
	for _, role := range []string{"collector", "rebalancer", "agent", "exporter"} {
		procs[role] = s.start(role, run[role]...)
	}
	time.Sleep(2 * time.Second)
	nats := s.startNATS(node)
	procs["sim"] = s.start("sim", run["sim"]...)
	seen := func() error { return s.fresh(node, 8) }
	led := func() error { _, err := s.evenkeel("plan"); return err }
	s.eventually(60*time.Second, "all started without a bus and found it", seen)
	s.eventually(60*time.Second, "somebody leads", led)
	s.eventually(60*time.Second, "a cap is held", func() error { return s.held(1) })

	nats.kill()
	if _, err := s.evenkeel("plan"); err == nil || !strings.Contains(err.Error(), "the leader did not answer") {
		t.Errorf("plan without a bus: %v", err)
	}
	// A collector that is alone goes on with what it has, though its lease is over:
	// the node is there until it counts as gone.
	time.Sleep(5 * time.Second)
	if m, err := s.metrics("collector"); err != nil || !strings.Contains(m, fmt.Sprintf("evenkeel_node_up{node=%q} 1\n", node)) {
		t.Errorf("without a bus the collector serves no node: %v", err)
	}
	s.eventually(20*time.Second, "the node is told as gone", func() error {
		m, err := s.metrics("collector")
		if err == nil && (!strings.Contains(m, fmt.Sprintf("evenkeel_node_up{node=%q} 0\n", node)) || strings.Contains(m, "gpu_power_watts{")) {
			err = errors.New("it is not")
		}
		return err
	})
	nats = s.start("nats", "nats-server", "-c", filepath.Join(s.dir, "nats.conf"))
	s.eventually(60*time.Second, "fresh after the bus came back", seen)
	s.eventually(60*time.Second, "led after the bus came back", led)
	for _, role := range []string{"rebalancer", "agent", "exporter", "collector"} {
		procs[role].kill()
		procs[role] = s.start(role, run[role]...)
		s.eventually(60*time.Second, "fresh after the end of "+role, seen)
		s.eventually(60*time.Second, "led after the end of "+role, led)
	}
	s.eventually(60*time.Second, "caps are held after all that", func() error { return s.held(1) })
	if err := s.once(); err != nil {
		t.Error(err)
	}

	// The bus loses its store: streams are made anew, the old decisions are gone
	// from the page, and the agents refuse until a person has said that a new
	// lease bucket is right. Their caps end with their leases.
	nats.kill()
	if err := os.RemoveAll(filepath.Join(s.dir, "js")); err != nil {
		t.Fatal(err)
	}
	s.start("nats", "nats-server", "-c", filepath.Join(s.dir, "nats.conf"))
	s.eventually(60*time.Second, "led with a new journal", led)
	s.eventually(60*time.Second, "fresh with a new journal", seen)
	s.eventually(60*time.Second, "refused for the epoch", func() error {
		ds, err := list[telemetry.Decision](s, "decisions")
		for _, d := range ds {
			if d.Outcome == telemetry.OutcomeRefused && strings.Contains(d.Ending, "--accept-epoch") {
				return nil
			}
		}
		return errors.Join(fmt.Errorf("none of %d decisions", len(ds)), err)
	})
}

// lastingFault is the scenario whose fault does not end.
func (s *stack) lastingFault() string {
	data, err := os.ReadFile("testdata/inlet-fault.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.Replace(string(data), "for: 90s", "for: 1h", 1)
	if text == string(data) {
		s.t.Fatal("the scenario has no fault of 90 s any more")
	}
	return s.file("lasting-fault.yaml", text)
}

// kill ends a process as a crash would.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// held wants at least n caps that the agent holds and the journal knows.
func (s *stack) held(n int) error {
	active, err := s.metric("agent", "evenkeel_caps_active")
	if err != nil {
		return err
	}
	caps := int(active)
	ds, err := list[telemetry.Decision](s, "decisions")
	if err != nil {
		return err
	}
	open := 0
	for _, d := range ds {
		if d.Outcome.Open() && d.Outcome != telemetry.OutcomeIntended {
			open++
		}
	}
	if caps < n || open != caps {
		return fmt.Errorf("the agent holds %d caps, %d decisions do, want %d or more", caps, open, n)
	}
	return nil
}

// once wants no GPU under two decisions, and no step done twice.
func (s *stack) once() error {
	ds, err := list[telemetry.Decision](s, "decisions")
	if err != nil {
		return err
	}
	by := map[string]string{}
	for _, d := range ds {
		if !d.Outcome.Open() {
			continue
		}
		if first, twice := by[d.Target.UUID]; twice {
			return fmt.Errorf("%s is held by %s and %s", d.Target.UUID, first, d.ID)
		}
		by[d.Target.UUID] = d.ID
	}
	return nil
}
