package store

import (
	"fmt"
	"log/slog"

	"github.com/grafana/regexp"
	"github.com/prometheus/prometheus/config"
)

// readDocument reads Options.Prometheus as Prometheus reads prometheus.yml.
func readDocument(data []byte, log *slog.Logger) (*config.Config, error) {
	conf, err := config.Load(string(data), log)
	if err != nil {
		return nil, fmt.Errorf("external_labels, rule_files, alerting or remote_write: %s", lineRE.ReplaceAllString(err.Error(), " "))
	}
	return conf, nil
}

// lineRE finds where in the document something is wrong: its lines are of no
// file that people have.
var lineRE = regexp.MustCompile(`\s*\bline \d+: `)
