package store

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/prometheus/config"
)

// readDocument reads Options.Prometheus as Prometheus reads prometheus.yml.
func readDocument(data []byte, log *slog.Logger) (*config.Config, error) {
	conf, err := config.Load(string(data), log)
	if err != nil {
		return nil, fmt.Errorf("external_labels, rule_files, alerting or remote_write: %w", err)
	}
	return conf, nil
}
