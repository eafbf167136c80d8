package config

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/evenkeel-gpu/evenkeel/telemetry"
)

// Collector is the file of `evenkeel collector`.
type Collector struct {
	Head    `yaml:",inline"`
	Cluster string `yaml:"cluster"`
	// Name tells this instance from its standby.
	Name   string `yaml:"name"`
	Listen string `yaml:"listen"`
	// WebConfig is a web configuration file of the Prometheus exporter-toolkit:
	// TLS and users of everything served over HTTP.
	WebConfig string `yaml:"web_config_file,omitempty"`
	NATS      NATS   `yaml:"nats"`
	// MaxNodes bounds how many nodes are taken in.
	MaxNodes int `yaml:"max_nodes"`
	// Partitions is the share of the fleet that this collector and its standby
	// serve, such as 0-31 or 0-15,32-47; there are 64.
	Partitions string             `yaml:"partitions"`
	Metrics    CollectorMetrics   `yaml:"metrics"`
	Inventory  CollectorInventory `yaml:"inventory,omitempty"`
	Store      CollectorStore     `yaml:"store"`
	// DefaultRules says whether the rules that come with Evenkeel are evaluated.
	DefaultRules bool `yaml:"default_rules"`
	// The rest is as in prometheus.yml, and handed to Prometheus's own packages.
	ExternalLabels map[string]string `yaml:"external_labels,omitempty"`
	RuleFiles      []string          `yaml:"rule_files,omitempty"`
	Alerting       yaml.Node         `yaml:"alerting,omitempty"`
	RemoteWrite    yaml.Node         `yaml:"remote_write,omitempty"`
}

// CollectorMetrics shapes /metrics.
type CollectorMetrics struct {
	// PerLink also exposes every NVLink: up to 18 × 6 series per GPU.
	PerLink bool `yaml:"per_link"`
}

// CollectorInventory is what people know of the fleet.
type CollectorInventory struct {
	// File lists racks, rows, feeds, domains, tenants, budgets and the GPUs that
	// nodes should have; it is read again when it changes.
	File string `yaml:"file,omitempty"`
}

// CollectorStore is the embedded store of series.
type CollectorStore struct {
	Enabled bool   `yaml:"enabled"`
	Dir     string `yaml:"dir"`
	// Interval is how often the fleet's series are sampled.
	Interval Duration `yaml:"interval"`
	// Retention and RetentionSize bound what is kept; whichever is reached first.
	Retention     Duration `yaml:"retention"`
	RetentionSize string   `yaml:"retention_size"`
	// Series is which series are kept: all, judged (about ten a GPU), or auto,
	// which goes by the size of the fleet.
	Series string         `yaml:"series"`
	Query  CollectorQuery `yaml:"query"`
}

// CollectorQuery bounds what one query may cost.
type CollectorQuery struct {
	Timeout     Duration `yaml:"timeout"`
	MaxSamples  int      `yaml:"max_samples"`
	Concurrency int      `yaml:"concurrency"`
}

// DefaultCollector is what the collector's file starts from.
func DefaultCollector() *Collector {
	return &Collector{
		Cluster: "default", Name: hostname(), Listen: "127.0.0.1:9837", MaxNodes: 20000, Partitions: "0-63", DefaultRules: true,
		Store: CollectorStore{
			Enabled: true, Dir: "/var/lib/evenkeel/store", Interval: Duration(15 * time.Second),
			Retention: Duration(15 * 24 * time.Hour), RetentionSize: "10GB", Series: "auto",
			Query: CollectorQuery{Timeout: Duration(2 * time.Minute), MaxSamples: 50_000_000, Concurrency: 20},
		},
	}
}

// Validate implements File.
func (c *Collector) Validate() error {
	errs := []error{named(c.Name, c.Cluster), listen(c.Listen), c.NATS.validate(true), c.Store.validate()}
	if _, err := telemetry.ParsePartitions(c.Partitions); err != nil {
		errs = append(errs, err)
	}
	if c.MaxNodes < 1 {
		errs = append(errs, fmt.Errorf("max_nodes is %d, want at least 1", c.MaxNodes))
	}
	if !c.Store.Enabled && (len(c.RuleFiles) > 0 || !c.Alerting.IsZero() || !c.RemoteWrite.IsZero()) {
		errs = append(errs, errors.New("rule_files, alerting and remote_write read from the store; set store.enabled, or leave them out"))
	}
	return errors.Join(errs...)
}

func (s *CollectorStore) validate() error {
	if !s.Enabled {
		return nil
	}
	errs := []error{
		between("store.interval", s.Interval, time.Second, 5*time.Minute),
		between("store.retention", s.Retention, 3*time.Hour, 10*365*24*time.Hour),
		between("store.query.timeout", s.Query.Timeout, time.Second, time.Hour),
	}
	if s.Dir == "" {
		errs = append(errs, errors.New("store.dir is empty; name a folder, or set store.enabled to false"))
	}
	if !slices.Contains([]string{"auto", "all", "judged"}, s.Series) {
		errs = append(errs, fmt.Errorf("store.series is %q, want auto, all or judged", s.Series))
	}
	if s.Query.MaxSamples < 1 || s.Query.Concurrency < 1 {
		errs = append(errs, errors.New("store.query: max_samples and concurrency want at least 1"))
	}
	return errors.Join(errs...)
}
