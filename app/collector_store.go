package app

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/alecthomas/units"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/alerts"
	"github.com/evenkeel-gpu/evenkeel/collector"
	"github.com/evenkeel-gpu/evenkeel/collector/store"
	"github.com/evenkeel-gpu/evenkeel/config"
)

// CheckCollector reports what a collector with this configuration would refuse
// at its start, beyond what the file itself shows: what Prometheus's packages
// think of their parts of it, and rule files. file is where it came from.
func CheckCollector(cfg *config.Collector, file string) error {
	o, err := storeOptions(cfg, filepath.Dir(file), "http://"+cfg.Listen)
	if err != nil || o == nil {
		return err
	}
	return store.Check(*o)
}

// storeOptions turns the file into what the store needs; nil without a store.
// from is the folder of the file, which relative names start at.
func storeOptions(cfg *config.Collector, from, url string) (*store.Options, error) {
	if !cfg.Store.Enabled {
		return nil, nil
	}
	size, err := retentionSize(cfg.Store.RetentionSize)
	if err != nil {
		return nil, err
	}
	document, err := prometheusDocument(cfg)
	if err != nil {
		return nil, err
	}
	o := &store.Options{
		Dir: cfg.Store.Dir, Interval: time.Duration(cfg.Store.Interval), Retention: time.Duration(cfg.Store.Retention), RetentionBytes: size,
		Series: store.Series(cfg.Store.Series), Prometheus: document, Folder: from, ExternalURL: url,
		Query: store.QueryLimits{Timeout: time.Duration(cfg.Store.Query.Timeout), MaxSamples: cfg.Store.Query.MaxSamples, Concurrency: cfg.Store.Query.Concurrency},
	}
	if cfg.DefaultRules {
		o.Rules = alerts.Files()
	}
	return o, nil
}

// retentionSize reads a size as Prometheus's flag does: units of 1024, 0 or
// empty for none.
func retentionSize(text string) (int64, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	size, err := units.ParseBase2Bytes(text)
	if err != nil || size < 0 {
		return 0, fmt.Errorf("store.retention_size is %q, want a size such as 10GB or 500MB, or 0 for none", text)
	}
	if size < 64<<20 {
		return 0, fmt.Errorf("store.retention_size is %s, want at least 64MB, or 0 for none", text)
	}
	return int64(size), nil
}

// prometheusDocument writes what of the file is Prometheus's, as it reads it.
func prometheusDocument(cfg *config.Collector) ([]byte, error) {
	type document struct {
		Global struct {
			ExternalLabels map[string]string `yaml:"external_labels,omitempty"`
		} `yaml:"global"`
		RuleFiles   []string  `yaml:"rule_files,omitempty"`
		Alerting    yaml.Node `yaml:"alerting,omitempty"`
		RemoteWrite yaml.Node `yaml:"remote_write,omitempty"`
	}
	d := document{RuleFiles: cfg.RuleFiles, Alerting: cfg.Alerting, RemoteWrite: cfg.RemoteWrite}
	d.Global.ExternalLabels = cfg.ExternalLabels
	return yaml.Marshal(d)
}

// openStore opens the store over what the collector serves.
func openStore(o store.Options, col *collector.Collector, reg *prometheus.Registry, log *slog.Logger) (*store.Store, error) {
	o.Source, o.Ready, o.GPUs, o.Active, o.After = col.Gatherer(), col.Ready, col.GPUs, col.Active, col.After
	o.Registry, o.Log = reg, log
	return store.Open(o)
}

// pageURL is where people find a collector that listens at an address; this
// host's name where it listens everywhere.
func pageURL(scheme string, addr net.Addr, host func() (string, error)) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return scheme + "://" + addr.String()
	}
	name, err := host()
	if err != nil {
		return scheme + "://" + addr.String()
	}
	return fmt.Sprintf("%s://%s", scheme, net.JoinHostPort(name, fmt.Sprint(tcp.Port)))
}
