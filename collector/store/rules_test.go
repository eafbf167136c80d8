package store

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/evenkeel-gpu/evenkeel/collector/store/storetest"
)

// bench is a database that is given one sample of each series every 200 ms, and
// a ruler on it that evaluates every second.
type bench struct {
	t      testing.TB
	db     *tsdb.DB
	engine *promql.Engine
	ruler  *ruler
	value  atomic.Uint64 // of gpu_up
	active atomic.Bool
	reg    *prometheus.Registry
	end    func()
}

type benchOptions struct {
	dir, rules, document string
	standby              bool
	log                  *slog.Logger
}

func newBench(t testing.TB, o benchOptions) *bench {
	t.Helper()
	if o.log == nil {
		o.log = promslog.NewNopLogger()
	}
	b := &bench{t: t, reg: prometheus.NewRegistry()}
	b.active.Store(!o.standby)
	db, err := tsdb.Open(o.dir, o.log, b.reg, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.db = db
	b.engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	conf, err := readDocument([]byte(o.document), o.log)
	if err != nil {
		t.Fatal(err)
	}
	set, err := loadRules(fstest.MapFS{"r.yaml": {Data: []byte(o.rules)}}, conf.RuleFiles, o.log)
	if err != nil {
		t.Fatal(err)
	}
	b.ruler, err = newRuler(rulerOptions{
		set: set, conf: conf, db: db, engine: b.engine, interval: time.Second, resend: 2 * time.Second,
		active: b.active.Load, url: "http://collector:9837", registry: b.reg, log: o.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	fleet := make(chan struct{})
	var parts sync.WaitGroup
	parts.Go(func() { _ = b.ruler.run(ctx, fleet) })
	parts.Go(func() { b.sample(ctx) })
	close(fleet)
	b.end = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.end)
	return b
}

func (b *bench) set(v float64) { b.value.Store(math.Float64bits(v)) }

func (b *bench) sample(ctx context.Context) {
	for ctx.Err() == nil {
		app := b.db.AppenderV2(ctx)
		v := math.Float64frombits(b.value.Load())
		if _, err := app.Append(0, labels.FromStrings("__name__", "gpu_up", "node", "a", "uuid", "GPU-1"), 0, time.Now().UnixMilli(), v, nil, nil, storage.AOptions{}); err != nil {
			b.t.Error(err)
		}
		if err := app.Commit(); err != nil {
			b.t.Error(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// alert is the one active alert of a name, or none.
func (b *bench) alert(name string) *rules.Alert {
	for _, r := range b.ruler.AlertingRules() {
		if r.Name() == name {
			for _, a := range r.ActiveAlerts() {
				return a
			}
		}
	}
	return nil
}

const missing = `groups: [{name: g, rules: [{alert: Missing, expr: gpu_up == 0, labels: {severity: critical}, annotations: {summary: '{{ $labels.uuid }}'}}]}]`

func document(addr, more string) string {
	return fmt.Sprintf("%s\nalerting:\n  alertmanagers: [{static_configs: [{targets: ['%s']}]}]\n", more, addr)
}

// TestAlertmanager: an alert of two collectors is one, it ends once, and people
// are told twice in all. The pair differs by a label that relabelling drops.
func TestAlertmanager(t *testing.T) {
	t.Parallel()
	am := storetest.StartAlertmanager(t)
	pair := make([]*bench, 2)
	for i := range pair {
		pair[i] = newBench(t, benchOptions{dir: t.TempDir(), rules: missing, document: fmt.Sprintf(`
global: {external_labels: {cluster: c1, replica: "%d"}}
alerting:
  alert_relabel_configs: [{action: labeldrop, regex: replica}]
  alertmanagers: [{static_configs: [{targets: ['%s']}]}]
`, i, am.Addr)})
	}
	for _, b := range pair {
		storetest.Until(t, "both fire", func() bool {
			a := b.alert("Missing")
			return a != nil && a.State == rules.StateFiring && !a.LastSentAt.IsZero()
		})
	}
	storetest.Until(t, "Alertmanager has it", func() bool { return len(am.Active(t, "Missing")) > 0 })
	time.Sleep(3 * time.Second) // both send again
	held := am.Active(t, "Missing")
	if len(held) != 1 || held[0].Labels["cluster"] != "c1" || held[0].Labels["replica"] != "" || held[0].Annotations["summary"] != "GPU-1" {
		t.Errorf("held: %+v", held)
	}
	for _, b := range pair {
		b.set(1)
	}
	storetest.Until(t, "it ends", func() bool { return am.Statuses("Missing") == "firing resolved" })
	time.Sleep(3 * time.Second)
	if got := am.Statuses("Missing"); got != "firing resolved" {
		t.Errorf("people were told %q", got)
	}
}

// TestTakeOver: a standby evaluates and says nothing. When it takes over it
// sends at once, though its next time to send is an hour away; the one who gave
// up sends no "resolved", not even what was queued.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	am := storetest.StartAlertmanager(t)
	first := newBench(t, benchOptions{dir: t.TempDir(), rules: missing, document: document(am.Addr, "")})
	second := newBench(t, benchOptions{dir: t.TempDir(), rules: missing, document: document(am.Addr, ""), standby: true})
	storetest.Until(t, "the first fires", func() bool { return len(am.Active(t, "Missing")) == 1 })
	storetest.Until(t, "the standby fires", func() bool {
		a := second.alert("Missing")
		return a != nil && a.State == rules.StateFiring
	})
	time.Sleep(2 * time.Second)
	if n := sent(t, second); n != 0 {
		t.Errorf("the standby sent %v alerts", n)
	}
	// What waited in the queue when the lease was lost.
	if n := second.ruler.sendFiring(t.Context(), time.Now()); n != 1 {
		t.Fatalf("%d alerts", n)
	}
	storetest.Until(t, "it is refused", func() bool { return metric(t, second.reg, "prometheus_notifications_errors_total") == 1 })
	if n := sent(t, second); n != 0 {
		t.Errorf("the standby sent %v alerts of its queue", n)
	}
	first.active.Store(false)
	first.set(1) // it believes that all is well
	before := sent(t, first)
	storetest.Until(t, "the first has it as ended", func() bool { return first.alert("Missing") == nil })
	second.active.Store(true)
	storetest.Until(t, "the second sends", func() bool { return sent(t, second) > 0 })
	time.Sleep(3 * time.Second)
	if n := sent(t, first); n != before {
		t.Errorf("the one that gave up sent %v more", n-before)
	}
	if got := am.Statuses("Missing"); got != "firing" {
		t.Errorf("people were told %q", got)
	}
}

// TestTakeOverIsAtOnce: not when the rule manager would send again.
func TestTakeOverIsAtOnce(t *testing.T) {
	t.Parallel()
	am := storetest.StartAlertmanager(t)
	b := newBench(t, benchOptions{dir: t.TempDir(), rules: strings.Replace(missing, "rules:", "interval: 1000h, rules:", 1), document: document(am.Addr, ""), standby: true})
	// The group's own time is days away; evaluate by hand.
	g := b.ruler.RuleGroups()[0]
	storetest.Until(t, "it fires", func() bool {
		rules.DefaultEvalIterationFunc(t.Context(), g, time.Now())
		a := b.alert("Missing")
		return a != nil && a.State == rules.StateFiring
	})
	time.Sleep(1500 * time.Millisecond) // takeOver has seen it as a standby
	b.active.Store(true)
	storetest.Until(t, "it is sent", func() bool { return am.Statuses("Missing") == "firing" })
}

// TestAlertmanagerAway: what cannot be sent is bounded and counted, and what
// still holds is sent when it is back.
func TestAlertmanagerAway(t *testing.T) {
	t.Parallel()
	am := storetest.StartAlertmanager(t)
	am.Kill()
	b := newBench(t, benchOptions{dir: t.TempDir(), rules: missing, document: document(am.Addr, "")})
	storetest.Until(t, "sending fails", func() bool { return metric(t, b.reg, "prometheus_notifications_errors_total") >= 2 })
	if n, most := metric(t, b.reg, "prometheus_notifications_queue_length"), metric(t, b.reg, "prometheus_notifications_queue_capacity"); n > 2 || most != alertQueue {
		t.Errorf("%v of %v alerts wait; one alert was sent a few times", n, most)
	}
	am.Again()
	am.Ready("http://" + am.Addr + "/-/ready")
	storetest.Until(t, "it is told", func() bool { return am.Statuses("Missing") == "firing" })
}

// TestAlertmanagersOfAFile come and go with the file.
func TestAlertmanagersOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "am.json")
	write := func(targets string) {
		if err := os.WriteFile(path+".new", []byte(`[{"targets": [`+targets+`]}]`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(`"127.0.0.1:1"`)
	b := newBench(t, benchOptions{dir: t.TempDir(), rules: missing, document: fmt.Sprintf("alerting: {alertmanagers: [{file_sd_configs: [{files: ['%s']}]}]}", path)})
	storetest.Until(t, "one", func() bool { return len(b.ruler.Alertmanagers()) == 1 })
	write(`"127.0.0.1:1", "127.0.0.1:2"`)
	storetest.Until(t, "two", func() bool { return len(b.ruler.Alertmanagers()) == 2 })
	if got := b.ruler.Alertmanagers()[0].Path; got != "/api/v2/alerts" {
		t.Errorf("path %q", got)
	}
}

func sent(t *testing.T, b *bench) float64 {
	t.Helper()
	return metric(t, b.reg, "prometheus_notifications_sent_total")
}

// metric is the sum over a family of a registry.
func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.Metric {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// child is a collector's part in a process of its own, to be killed.
const child = "EVENKEEL_STORE_CHILD"

// TestRulesInAChild is what TestKill starts: it prints the state of its alerts
// four times a second.
func TestRulesInAChild(t *testing.T) {
	dir := os.Getenv(child)
	if dir == "" {
		return // by itself it shows nothing
	}
	b := newBench(t, benchOptions{
		dir: filepath.Join(dir, "data"), document: document(os.Getenv(child+"_AM"), ""),
		rules: `groups: [{name: g, rules: [
  {alert: Slow, expr: gpu_up == 0, for: 14s},
  {alert: Fast, expr: gpu_up == 0, for: 2s}]}]`,
	})
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "fine")); err == nil {
			b.set(1)
		}
		state := map[string]string{}
		for _, name := range []string{"Slow", "Fast"} {
			if a := b.alert(name); a != nil {
				state[name] = fmt.Sprintf("%s %d", a.State, a.ActiveAt.UnixMilli())
			}
		}
		data, _ := json.Marshal(state)
		if err := os.WriteFile(filepath.Join(dir, "state.new"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "state.new"), filepath.Join(dir, "state")); err != nil {
			t.Fatal(err)
		}
	}
}

type childState struct {
	state string
	since time.Time
}

func readState(dir, name string) childState {
	data, _ := os.ReadFile(filepath.Join(dir, "state"))
	var all map[string]string
	_ = json.Unmarshal(data, &all)
	state, since, _ := strings.Cut(all[name], " ")
	ms, _ := strconv.ParseInt(since, 10, 64)
	return childState{state, time.UnixMilli(ms)}
}

// TestKill: kill -9 while one alert waits for its time and another fires. After
// the restart the time that had passed counts, people are told nothing twice,
// and the end is told once.
func TestKill(t *testing.T) {
	am := storetest.StartAlertmanager(t)
	dir := t.TempDir()
	t.Setenv(child, dir)
	t.Setenv(child+"_AM", am.Addr)
	p := storetest.Start(t, os.Args[0], "-test.run=^TestRulesInAChild$")
	storetest.Until(t, "Fast is told and Slow has waited for 8 s", func() bool {
		slow := readState(dir, "Slow")
		return am.Statuses("Fast") == "firing" && slow.state == "pending" && time.Since(slow.since) > 8*time.Second
	})
	p.Kill()
	killed := time.Now()
	if err := os.Remove(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	p.Again()
	var slow childState
	storetest.Until(t, "Slow has its past again", func() bool {
		slow = readState(dir, "Slow")
		return slow.state != "" && slow.since.Before(killed)
	})
	storetest.Until(t, "Slow fires", func() bool {
		slow = readState(dir, "Slow")
		return slow.state == "firing"
	})
	if !slow.since.Before(killed) {
		t.Errorf("Slow waits since %s, the process was killed at %s: its time began anew", slow.since, killed)
	}
	storetest.Until(t, "Slow is told", func() bool { return am.Statuses("Slow") == "firing" })
	// A second time, while both fire.
	p.Kill()
	p.Again()
	time.Sleep(8 * time.Second)
	if got := am.Statuses("Fast") + ", " + am.Statuses("Slow"); got != "firing, firing" {
		t.Errorf("people were told %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "fine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	storetest.Until(t, "both end", func() bool {
		return am.Statuses("Fast") == "firing resolved" && am.Statuses("Slow") == "firing resolved"
	})
}

// TestBadRules: every bad file is named with group and rule, and nothing starts.
func TestBadRules(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.yaml", missing)
	bad := file("bad.yaml", `groups: [{name: mine, rules: [{alert: A, expr: 'gpu_up =='}]}]`)
	two := file("two.yaml", missing+"\n---\n"+missing)
	log := promslog.NewNopLogger()
	for _, c := range []struct {
		patterns []string
		want     []string
	}{
		{[]string{good, filepath.Join(dir, "g*.yaml"), filepath.Join(dir, "none*")}, nil},
		{[]string{bad, two}, []string{"rule file " + bad, `group "mine", rule 1, "A"`, "rule file " + two, "more than one document"}},
		{[]string{filepath.Join(dir, "nosuch.yaml")}, []string{"nosuch.yaml: no such file"}},
		{[]string{"[x"}, []string{"syntax error in pattern"}},
		{[]string{dir}, []string{"is a directory"}},
	} {
		set, err := loadRules(fstest.MapFS{"own.yaml": {Data: []byte(missing)}}, c.patterns, log)
		if len(c.want) == 0 {
			if err != nil || !slices.Equal(set.names, []string{"evenkeel:own.yaml", good}) || !slices.Equal(set.reads(), []string{"gpu_up"}) {
				t.Errorf("%v: %v, %v, %v", c.patterns, err, set.names, set.reads())
			}
			continue
		}
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v: want %q, have %v", c.patterns, w, err)
			}
		}
	}
	if _, err := loadRules(fstest.MapFS{"own.yaml": {Data: []byte("groups: 3")}}, nil, log); err == nil || !strings.Contains(err.Error(), "rule file evenkeel:own.yaml") {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"alerting: {alertmanagers: [{consul_sd_configs: []}]}": "consul_sd_configs",
		"rule_fils: [x]": "rule_fils",
	} {
		if _, err := readDocument([]byte(text), log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestRulerEnds before the fleet is there, and while it evaluates.
func TestRulerEnds(t *testing.T) {
	b := newBench(t, benchOptions{dir: t.TempDir(), rules: missing})
	b.end() // at once: the fleet's series were just seen
	b = newBench(t, benchOptions{dir: t.TempDir(), rules: missing})
	storetest.Until(t, "it evaluates", func() bool { return b.alert("Missing") != nil })
	b.end()
}
