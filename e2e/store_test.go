package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/evenkeel-gpu/evenkeel/telemetry/bus"
)

// storeDeaths is how often the collector with the store is killed.
const storeDeaths = 4

// TestStoreIsKilled kills the only collector, whose own store is asked as a
// Prometheus is: every sample that it told of before is there after, once and
// with its value, counters do not fall, and an alert that waits for its time
// has not begun anew.
func TestStoreIsKilled(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	const node, gpus = "gpu-1", 8
	s.startNATS(node)
	cfg := s.configs(node)
	dir := filepath.Join(s.dir, "collector-store")
	s.file("mine.rules.yaml", `groups: [{name: mine, interval: 1s, rules: [
  {record: fleet:power_watts:sum, expr: sum(gpu_power_watts)},
  {alert: Waits, expr: 'count(gpu_power_watts) > 0', for: 90s}]}]`)
	conf := s.file("kept.yaml", fmt.Sprintf(`apiVersion: evenkeel/v1
kind: Collector
listen: %s
name: kept
store: {dir: %s, interval: 1s}
rule_files: [mine.rules.yaml]
nats: {url: %q, user: %s, password: {env: EK_PASSWORD}}
`, s.addr["collector"], strconv.Quote(dir), "nats://"+s.addr["nats"], bus.UserCollector))
	collector := s.start("collector", "evenkeel", "collector", "-c", conf)
	s.start("sim", "evenkeel", "sim", "serve", "--scenario", "testdata/quick-world.yaml", "--node", node, "--shm", s.shm)
	s.start("exporter", "evenkeel-node", "export", "-c", cfg["exporter"])
	own := &prometheus{t, s.addr["collector"]}
	s.eventually(60*time.Second, "the store has every GPU", func() error { return own.is("count(gpu_power_watts)", gpus) })
	s.eventually(60*time.Second, "the alert has waited for 10 s", func() error { _, err := own.waited(10); return err })

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	known, told := map[string]float64{}, 0
	for range storeDeaths {
		for range 2 + chance.IntN(3) { // what it tells is committed
			told += own.remember(known)
			time.Sleep(time.Duration(300+chance.IntN(900)) * time.Millisecond)
		}
		collector.kill()
		if chance.IntN(2) == 0 { // once more, before anything is taken up again
			s.start("collector", "evenkeel", "collector", "-c", conf)
			time.Sleep(time.Duration(chance.IntN(3000)) * time.Millisecond)
			s.running("collector").kill()
		}
		collector = s.start("collector", "evenkeel", "collector", "-c", conf)
		s.eventually(60*time.Second, "the store answers again", func() error { _, err := own.now("vector(1)"); return err })
		own.has(known)
	}
	t.Logf("%d samples were told of, %d series and times", told, len(known))
	if len(known) < 100 {
		t.Errorf("only %d samples were compared", len(known))
	}
	s.eventually(60*time.Second, "the store samples every GPU again", func() error { return own.is("count(gpu_power_watts)", gpus) })
	own.has(known)
	s.eventually(60*time.Second, "the alert goes on where it was", func() error {
		begun, err := own.waited(20)
		if begun > 0 {
			t.Fatalf("its time began anew %d times", begun)
		}
		return err
	})
	if got, err := own.now(`max_over_time((count(gpu_energy_joules_total) by (uuid) )[10m:1s])`); err != nil || len(got) != gpus {
		t.Errorf("devices counted: %v, %v", got, err)
	}
	fell, err := own.now("resets(gpu_energy_joules_total[10m]) > 0")
	if err != nil || len(fell) > 0 {
		t.Errorf("counters fell: %v, %v", fell, err)
	}
}

// waited wants the alert of mine.rules.yaml to have been active for so many
// seconds, and says how often that time fell. While the collector is away it
// stands still; it is kept in whole seconds.
func (p *prometheus) waited(seconds float64) (begun int, err error) {
	series, err := p.now(`ALERTS_FOR_STATE{alertname="Waits"}[10m]`)
	if err != nil {
		return 0, err
	}
	if len(series) != 1 {
		return 0, fmt.Errorf("%d series of the alert's state", len(series))
	}
	var last float64
	for _, s := range series[0].Values {
		age := float64(s.at.Unix()) - s.v
		if age < last-2 {
			begun++
		}
		last = age
	}
	if last < seconds {
		err = fmt.Errorf("it has waited for %g s, want %g", last, seconds)
	}
	return begun, err
}

// kept are the series that are compared.
const kept = `{__name__=~"gpu_energy_joules_total|gpu_power_watts|fleet:power_watts:sum"}[10m]`

// remember takes down every sample that the store tells.
func (p *prometheus) remember(known map[string]float64) (n int) {
	p.Helper()
	series, err := p.now(kept)
	if err != nil {
		p.Fatal(err)
	}
	for _, s := range series {
		for _, v := range s.Values {
			known[fmt.Sprint(s.Metric, v.at.UnixMilli())] = v.v
			n++
		}
	}
	return n
}

// has wants every sample that is known.
func (p *prometheus) has(known map[string]float64) {
	p.Helper()
	now := map[string]float64{}
	p.remember(now)
	missing := 0
	for key, v := range known {
		if got, ok := now[key]; !ok || got != v {
			missing++
			if missing < 5 {
				p.Errorf("%s was %g and is %g (there: %v)", key, v, got, ok)
			}
		}
	}
	if missing > 0 {
		p.Fatalf("%d of %d samples are missing or changed after kill -9", missing, len(known))
	}
}
