package store

import (
	"io/fs"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Series is which series are kept.
type Series string

// Which series are kept. Auto keeps all up to AllGPUs, the judged ones beyond,
// and says so.
const (
	Auto   Series = "auto"
	All    Series = "all"
	Judged Series = "judged"
)

// The sizes that the store is made for on one machine. Beyond JudgedGPUs a
// remote belongs behind it.
const (
	AllGPUs    = 1000
	JudgedGPUs = 8000
)

// Options is what a store needs. Dir and Source are required.
type Options struct {
	Dir string
	// Source is sampled each Interval. A metric that it gives again, the same
	// pointer, has the labels it had.
	Source prometheus.TransactionalGatherer
	// Ready says whether the source knows the fleet yet: before, a sample would
	// look as if all had gone. Nil: always.
	Ready    func() bool
	Interval time.Duration
	// Retention and RetentionBytes bound what is kept; zero bytes: by time alone.
	Retention      time.Duration
	RetentionBytes int64
	Series         Series
	// GPUs is the size of the fleet, for Auto.
	GPUs func() int
	// Rules are rule files that are always evaluated; nil for none.
	Rules fs.FS
	// Prometheus is a document of external_labels (under global), rule_files,
	// alerting and remote_write, as in prometheus.yml.
	Prometheus []byte
	// Folder is what relative names in that document start at; empty: where the
	// process runs.
	Folder string
	// Active says whether this process speaks for the fleet. A standby samples
	// and evaluates, so that it is warm, but neither alerts nor writes to
	// remotes. Nil: always.
	Active func() bool
	// After is until when another process spoke for the fleet before this one, and
	// wrote to remotes. Nil, or a zero time: none did.
	After func() time.Time
	// ExternalURL is where people find this collector; alerts point there.
	ExternalURL string
	Query       QueryLimits
	Registry    *prometheus.Registry
	Log         *slog.Logger

	reserve uint64 // for tests; zero: reserve
}

// QueryLimits bound what one query may cost; Prometheus's defaults where zero.
type QueryLimits struct {
	Timeout     time.Duration
	MaxSamples  int
	Concurrency int
}
