package store

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/evenkeel-gpu/evenkeel/alerts"
	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// BenchmarkRules is one evaluation of all embedded rules over 125 nodes of 8
// GPUs with an hour of samples of every series that the rules read; one GPU in a
// hundred is hot.
func BenchmarkRules(b *testing.B) {
	log := promslog.NewNopLogger()
	db, err := tsdb.Open(b.TempDir(), log, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	set, err := loadRules(alerts.Files(), nil, log)
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	n := fleetOf(b, db, set.reads(), begin, 240)
	conf, err := readDocument(nil, log)
	if err != nil {
		b.Fatal(err)
	}
	r, err := newRuler(rulerOptions{
		set: set, conf: conf, db: db, interval: 15 * time.Second, registry: prometheus.NewRegistry(), log: log,
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 5e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute}),
	})
	if err != nil {
		b.Fatal(err)
	}
	at := begin.Add(59 * time.Minute)
	for b.Loop() {
		for _, g := range r.RuleGroups() {
			rules.DefaultEvalIterationFunc(context.Background(), g, at)
		}
		at = at.Add(time.Second)
	}
	b.ReportMetric(float64(n), "series")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapInuse)/1e6, "MB")
	rulesSaid(b, r)
}

func rulesSaid(b *testing.B, r *ruler) {
	for _, g := range r.RuleGroups() {
		for _, rule := range g.Rules() {
			if err := rule.LastError(); err != nil {
				b.Errorf("%s: %v", rule.Name(), err)
			}
			if d := rule.GetEvaluationDuration(); d > 10*time.Millisecond {
				b.Logf("%s: %s", rule.Name(), d.Round(time.Millisecond))
			}
		}
	}
	if rs := firingOf(r); !containsAll(rs, "Watchdog") {
		b.Errorf("firing: %v", rs)
	}
}

func fleetOf(b *testing.B, db *tsdb.DB, names []string, begin time.Time, samples int) int {
	b.Helper()
	var list []labels.Labels
	add := func(name string, pairs ...string) {
		list = append(list, labels.FromStrings(append([]string{"__name__", name}, pairs...)...))
	}
	for _, name := range names {
		row := rowNamed(name)
		if row == nil || name == "gpu_xid_errors_total" || name == "gpu_nvlink_up" || name == "gpu_nvlink_errors_total" || name == "evenkeel_driver_call_hung_seconds" {
			continue // recorded, rare, or not served by a collector
		}
		for node := range 125 {
			n := fmt.Sprintf("gpu-%03d", node)
			switch row.Per {
			case telemetry.PerGPU:
				for gpu := range 8 {
					for _, s := range row.Series {
						pairs := []string{"node", n, "uuid", fmt.Sprintf("GPU-%s-%d", n, gpu)}
						for i, l := range row.Labels {
							if len(s.Values) > i {
								pairs = append(pairs, l, s.Values[i])
							}
						}
						add(name, pairs...)
					}
				}
			case telemetry.PerNode:
				pairs := []string{"node", n}
				for _, l := range row.Labels {
					pairs = append(pairs, l, fmt.Sprintf("%s-%d", l, node/16))
				}
				add(name, pairs...)
			default:
				if node == 0 {
					add(name)
				}
			}
		}
	}
	refs := make([]storage.SeriesRef, len(list))
	for k := range samples {
		app := db.AppenderV2(context.Background())
		for i, l := range list {
			v := 0.0
			switch l.Get("__name__") {
			case "gpu_up", "evenkeel_node_up", "evenkeel_driver_up", "evenkeel_reader_success", "evenkeel_node_info", "evenkeel_bus_connected", "evenkeel_leader", "evenkeel_store_free_ratio":
				v = 1
			case "gpu_thermal_headroom_celsius":
				if v = 30; i%100 == 0 {
					v = 2
				}
			case "gpu_fabric_state":
				v = 3
			case "gpu_nvlink_links_expected", "gpu_nvlink_links_up":
				v = 18
			case "evenkeel_node_gpus_expected":
				v = 8
			}
			ref, err := app.Append(refs[i], l, 0, begin.Add(time.Duration(k)*15*time.Second).UnixMilli(), v, nil, nil, storage.AOptions{})
			if err != nil {
				b.Fatal(err)
			}
			refs[i] = ref
		}
		if err := app.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	return len(list)
}

func rowNamed(name string) *telemetry.Row {
	for i := range telemetry.Catalog {
		if telemetry.Catalog[i].Name == name {
			return &telemetry.Catalog[i]
		}
	}
	return nil
}
