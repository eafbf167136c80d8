package app

import (
	"errors"

	"github.com/evenkeel-gpu/evenkeel/config"
)

// refuseStore refuses what this version cannot do, rather than leave it out.
func refuseStore(cfg *config.Collector) error {
	if len(cfg.RuleFiles) > 0 || !cfg.Alerting.IsZero() || !cfg.RemoteWrite.IsZero() {
		return errors.New("rule_files, alerting and remote_write: this version has no store of its own; let a Prometheus scrape /metrics, with the rules there")
	}
	return nil
}
