package store

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// newEngine makes an engine as Prometheus does. Queries of people and of rules
// have one each: a flood of the ones must not keep the others waiting.
func newEngine(l QueryLimits, p parser.Parser, reg prometheus.Registerer, log *slog.Logger) *promql.Engine {
	o := promql.EngineOpts{
		Logger: log, Reg: reg, MaxSamples: l.MaxSamples, Timeout: l.Timeout, LookbackDelta: lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return subqueryStep.Milliseconds() },
		EnableAtModifier:         true, EnableNegativeOffset: true, Parser: p,
	}
	if l.Concurrency > 0 {
		o.ActiveQueryTracker = make(slots, l.Concurrency)
	}
	return promql.NewEngine(o)
}

// slots bounds how many queries run at once. Prometheus's own tracker also
// writes them to a file mapped into memory, which a full disk would turn into
// the end of the process.
type slots chan struct{}

// GetMaxConcurrent implements promql.QueryTracker.
func (s slots) GetMaxConcurrent() int { return cap(s) }

// Insert implements promql.QueryTracker.
func (s slots) Insert(ctx context.Context, _ string) (int, error) {
	select {
	case s <- struct{}{}:
		return 0, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("as many queries run as may (%d): %w", cap(s), context.Cause(ctx))
	}
}

// Delete implements promql.QueryTracker.
func (s slots) Delete(int) { <-s }

// Close implements promql.QueryTracker.
func (s slots) Close() error { return nil }
