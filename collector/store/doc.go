// Package store keeps the fleet's series on this machine, with Prometheus's own
// storage, query language, rules, notifier and remote write, and answers
// Prometheus's HTTP API about them.
//
// In: the families of the collector, sampled each interval; rule files;
// Alertmanagers and remotes as prometheus.yml names them.
// Out: /api/v1/, alerts to Alertmanagers, samples to remotes, its own metrics.
// Never: judges, decides, is needed for a decision: the rebalancer works
// without it.
//
// To add an endpoint of Prometheus: api.go, the one place that calls its NewAPI.
package store
